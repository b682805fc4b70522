package suspect

import (
	"math"
	"slices"
	"strings"

	"krater/kernels/device"
	"krater/stages/model"
	"krater/stages/oracle"
)

// changed changes every value of tensors whose names end so.
func changed(suffix string, change func(v float32) float32) func(string, func(string) []float32) []float32 {
	return func(name string, read func(string) []float32) []float32 {
		if !strings.HasSuffix(name, suffix) {
			return nil
		}
		w := slices.Clone(read(name))
		for i, v := range w {
			w[i] = change(v)
		}
		return w
	}
}

// turnOver exchanges pairs of neighbours and of halves in all rotations.
func turnOver(c *model.Config) {
	for _, r := range c.Ropes() {
		r.Interleaved = !r.Interleaved
	}
}

// grouped changes all grouped-query attention.
func grouped(c *model.Config, change func(a *model.GQA)) {
	for i := range c.Layers {
		if a, ok := c.Layers[i].Mixer.(model.GQA); ok {
			change(&a)
			c.Layers[i].Mixer = a
		}
	}
}

// root is RMSNorm of rows as long as w.
func root(x []float64, w []float32, eps float64) (out []float64) {
	for row := range slices.Chunk(x, len(w)) {
		sum := 0.0
		for _, v := range row {
			sum += v * v
		}
		for i, v := range row {
			out = append(out, v/math.Sqrt(sum/float64(len(w))+eps)*float64(w[i]))
		}
	}
	return out
}

// turned rotates values of heads from first on, to the positions of the tokens.
func turned(l *oracle.Layer, x []float64, dim, first int, pairs bool) []float64 {
	out, half := slices.Clone(x), len(l.Rope.InvFreq)
	per := len(x) / l.T
	for at := 0; at < len(x); at += dim {
		for i, f := range l.Rope.InvFreq {
			a, b := at+first+i, at+first+half+i
			if pairs {
				a, b = at+first+2*i, at+first+2*i+1
			}
			sin, cos := math.Sincos(float64(at/per) * f)
			out[a], out[b] = (x[a]*cos-x[b]*sin)*l.Rope.CosSinScale, (x[a]*sin+x[b]*cos)*l.Rope.CosSinScale
		}
	}
	return out
}

func turnLast(l *oracle.Layer, x []float64, dim int, pairs bool) []float64 {
	return turned(l, x, dim, dim-2*len(l.Rope.InvFreq), pairs)
}

// corrected is the weights of experts with the correction added to their scores.
func corrected(l *oracle.Layer) (out []float64) {
	r, bias := l.Config.MoE.Router, l.Weight(l.Tensor("correction"), 0)
	logits, ids := l.Get("router_logits"), l.Get("router_ids")
	for t := range l.T {
		sum, row := 0.0, make([]float64, r.TopK)
		for i, e := range ids[t*r.TopK:][:r.TopK] {
			row[i] = 1/(1+math.Exp(-logits[t*r.Experts+int(e)])) + float64(bias[int(e)])
			sum += row[i]
		}
		for _, v := range row {
			out = append(out, v/sum*float64(r.Scale))
		}
	}
	return out
}

// recurrence is gated DeltaNet with a mistake.
type recurrence struct{ tiled, raw, late bool }

func (r recurrence) values(l *oracle.Layer) []float64 {
	p, conv, g, beta := l.Delta, l.Get("delta_conv"), l.Get("delta_g"), l.Get("delta_beta")
	n, out := p.ValueHeads, make([]float64, l.T*p.ValueHeads*p.ValueDim)
	vector := func(t, at int) []float64 {
		x := slices.Clone(conv[t*(2*p.KeyHeads*p.KeyDim+n*p.ValueDim)+at:][:p.KeyDim])
		length := 1e-6
		for _, v := range x {
			length += v * v
		}
		for i := range x {
			if !r.raw {
				x[i] /= math.Sqrt(length)
			}
		}
		return x
	}
	for h := range n {
		head := h / (n / p.KeyHeads)
		if r.tiled {
			head = h % p.KeyHeads
		}
		state := make([]float64, p.KeyDim*p.ValueDim)
		for t := range l.T {
			q, k, decay := vector(t, head*p.KeyDim), vector(t, (p.KeyHeads+head)*p.KeyDim), math.Exp(g[t*n+h])
			value := conv[t*(2*p.KeyHeads*p.KeyDim+n*p.ValueDim)+2*p.KeyHeads*p.KeyDim+h*p.ValueDim:]
			for c := range p.ValueDim {
				has := 0.0
				for i := range k {
					if !r.late {
						state[i*p.ValueDim+c] *= decay
					}
					has += k[i] * state[i*p.ValueDim+c]
				}
				for i := range k {
					s := &state[i*p.ValueDim+c]
					if *s += k[i] * (value[c] - has) * beta[t*n+h]; r.late {
						*s *= decay
					}
					out[(t*n+h)*p.ValueDim+c] += q[i] / math.Sqrt(float64(p.KeyDim)) * *s
				}
			}
		}
	}
	return out
}

// ngrams is the rows of a table with a mistake.
type ngrams struct{ across, zero, alike bool }

func (r ngrams) values(l *oracle.Layer) (out []float64) {
	p := l.NGrams.Sizes
	fill := uint64(p.EOS)
	if r.zero {
		fill = 0
	}
	for t := range l.T {
		for h := range p.Heads() {
			hash, ended := uint64(l.IDs[t])*p.Multipliers[0], false
			for back := 1; back < 2+h/p.PerOrder; back++ {
				if t < back || l.IDs[t-back] == p.EOS && !r.across {
					ended = true
				}
				token := fill
				if !ended {
					token = uint64(l.IDs[t-back])
				}
				hash ^= token * p.Multipliers[back]
			}
			size, offset := p.Sizes[h], p.Offsets[h]
			if r.alike {
				size, offset = p.Sizes[0], uint64(h)*p.Sizes[0]
			}
			out = append(out, float64(hash%size+offset))
		}
	}
	return out
}

// undilated gives the streams' rows of the table if the taps of its convolution follow one another.
func undilated(l *oracle.Layer) []float64 {
	n, h, taps := l.Streams.Count, l.Config.Hidden, l.NGrams.Taps
	w, x, gate, value := l.Weight(l.Tensor("ngram_conv"), 0), l.Get("ple_conv_in"), l.Get("ple_gate"), l.Get("ple_value")
	out := make([]float64, l.T*n*h)
	for i := range out {
		t, c, sum := i/(n*h), i%(n*h), 0.0
		for k := range taps {
			if past := t - (taps - 1 - k); past >= 0 {
				sum += float64(w[c*taps+k]) * x[past*n*h+c]
			}
		}
		out[i] = sum/(1+math.Exp(-sum)) + value[t*h+c%h]/(1+math.Exp(-gate[t*n+c/h]))
	}
	return out
}

// mixture is the input of the first block with a mistake in mixing the streams.
type mixture struct{ whole, sum, raw bool }

func (m mixture) values(l *oracle.Layer) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	norm, down, up := l.Weight(l.Tensor("attn_hc_norm"), 0), l.Weight(l.Tensor("attn_hc_down"), 0), l.Weight(l.Tensor("attn_hc_up"), 0)
	out := make([]float64, l.T*h)
	for t := range l.T {
		streams := l.Entered()[t*n*h:][:n*h]
		x := make([]float64, n*h)
		width := h
		if m.whole {
			width = n * h
		}
		for i := range x {
			first, mean := i/width*width, 0.0
			for _, v := range streams[first : first+width] {
				mean += v * v / float64(width)
			}
			x[i] = streams[i] / math.Sqrt(mean+float64(l.Config.NormEps)) * float64(1+norm[i])
		}
		low := make([]float64, len(down)/(n*h))
		for r := range low {
			for i, v := range x {
				low[r] += v / float64(n) * float64(down[r*n*h+i])
			}
			low[r] /= 1 + math.Exp(-low[r])
		}
		for i, v := range x {
			weight := 0.0
			for r, y := range low {
				weight += y * float64(up[i*len(low)+r])
			}
			weight = 1 / (1 + math.Exp(-weight))
			if m.raw {
				v = streams[i]
			}
			if !m.sum {
				v /= float64(n)
			}
			out[t*h+i%h] += weight * v
		}
	}
	return out
}

// blockKeys is the keys of blocks with a mistake.
type blockKeys struct{ early, last bool }

func (b blockKeys) values(l *oracle.Layer) (out []float64) {
	x, raw := l.Blocks, l.Get("indexer_key_raw")
	w := slices.Clone(l.Weight(l.Tensor("index_k_norm"), 0))
	for i := range w {
		w[i]++
	}
	for block := range l.T / x.Block {
		mean := make([]float64, x.Dim)
		for t := block * x.Block; t < (block+1)*x.Block; t++ {
			key := raw[t*x.Dim:][:x.Dim]
			if b.early {
				key = root(key, w, float64(x.NormEps))
			}
			for c, v := range key {
				mean[c] += v / float64(x.Block)
			}
		}
		if !b.early {
			mean = root(mean, w, float64(x.NormEps))
		}
		pos := float64(block * x.Block)
		if b.last {
			pos += float64(x.Block - 1)
		}
		half := len(l.Rope.InvFreq)
		for i, f := range l.Rope.InvFreq {
			sin, cos := math.Sincos(pos * f)
			mean[i], mean[half+i] = mean[i]*cos-mean[half+i]*sin, mean[i]*sin+mean[half+i]*cos
		}
		out = append(out, mean...)
	}
	return out
}

// listed reports whether token i has chosen the block of token j, or that is not whole.
func listed(l *oracle.Layer, _, i, j int) bool {
	n, block := l.Blocks.Chosen, j/l.Blocks.Block
	return block >= (i+1)/l.Blocks.Block || slices.Contains(l.Get("indexer_selected")[i*n:][:n], float64(block))
}

// seen is grouped-query attention of tokens to those up to them that sees allows a query head.
func seen(l *oracle.Layer, sees func(h, i, j int) bool) []float64 {
	q, k, v, d := l.Get("q_pe"), l.Get("k_pe"), l.Get("v"), l.HeadDim
	out := make([]float64, l.T*l.Heads*d)
	for i := range l.T {
		for h := range l.Heads {
			own, sum := h/(l.Heads/l.KVHeads), 0.0
			to := out[(i*l.Heads+h)*d:][:d]
			for j := range i + 1 {
				if !sees(h, i, j) {
					continue
				}
				product := 0.0
				for c := range d {
					product += q[(i*l.Heads+h)*d+c] * k[(j*l.KVHeads+own)*d+c]
				}
				weight := math.Exp(product * l.Scale)
				sum += weight
				for c := range to {
					to[c] += weight * v[(j*l.KVHeads+own)*d+c]
				}
			}
			for c := range to {
				if sum > 0 {
					to[c] /= sum
				}
			}
		}
	}
	return out
}

// best is the n blocks that each head of each token attends to, of which the local newest are chosen whatever their scores.
func best(l *oracle.Layer, local, n int) (list [][][]int) {
	q, k, d, heads := l.Get("indexer_query"), l.Get("indexer_keys"), l.Blocks.Dim, l.Blocks.Heads
	for i := range l.T {
		rows := make([][]int, heads)
		for h := range heads {
			scores := make([]float64, i/l.Blocks.Block+1)
			for b := range scores {
				scores[b] = math.Inf(-1)
				for j := b * l.Blocks.Block; j <= i && j < (b+1)*l.Blocks.Block; j++ {
					product := 0.0
					for c := range d {
						product += q[(i*heads+h)*d+c] * k[j*d+c]
					}
					scores[b] = max(scores[b], product)
				}
				if len(scores)-b <= local {
					scores[b] = math.Inf(1)
				}
			}
			for len(rows[h]) < min(n, len(scores)) {
				top := 0
				for b, v := range scores {
					if v > scores[top] {
						top = b
					}
				}
				rows[h], scores[top] = append(rows[h], top), math.Inf(-1)
			}
			slices.Sort(rows[h])
		}
		list = append(list, rows)
	}
	return list
}

// flat is blocks as the operator has them.
func flat(l *oracle.Layer, list [][][]int) (out []float64) {
	for _, token := range list {
		for _, head := range token {
			for i := range l.Blocks.Chosen {
				if i < len(head) {
					out = append(out, float64(head[i]))
				} else {
					out = append(out, -1)
				}
			}
		}
	}
	return out
}

// erf is a network with the exact GELU.
func erf(l *oracle.Layer, names model.FFNNames) []float64 {
	act := func(g, u float64) float64 { return g / 2 * math.Erfc(-g/math.Sqrt2) * u }
	return l.Network(names, device.Activation{}, l.Get("post_norm"), l.T, oracle.Gated(act))
}
