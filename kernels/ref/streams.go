package ref

import (
	"cmp"
	"math"
	"slices"

	"krater/kernels/device"
)

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// Sigmoid is x = p.Out * f(p.In * x).
func Sigmoid(x []float32, p device.Sigmoid) {
	for i, v := range x {
		in := float64(p.In) * float64(v)
		f := sigmoid(in)
		if p.Silu {
			f *= in
		}
		x[i] = float32(float64(p.Out) * f)
	}
}

// Collapse is the sum over n streams of x times weights, both [T, n*h]; out is [T, h].
func Collapse(out, x, weights []float32, n, h int) {
	for i := range out {
		sum := 0.0
		for s := range n {
			at := i/h*n*h + s*h + i%h
			sum += float64(x[at]) * float64(weights[at])
		}
		out[i] = float32(sum)
	}
}

// Spread is x [T, h] for each of n streams, times weights [T, n], plus base [T, n*h], which may be nil.
func Spread(out, x, weights, base []float32, n, h int) {
	for i := range out {
		v := float64(weights[i/h]) * float64(x[i/(n*h)*h+i%h])
		if base != nil {
			v += float64(base[i])
		}
		out[i] = float32(v)
	}
}

// StreamGates is the signed root of the product of each stream of x and y [T, n*h] over sqrt(h); out is [T, n].
func StreamGates(out, x, y []float32, h int) {
	for i := range out {
		d := dot(x[i*h:][:h], y[i*h:][:h]) / math.Sqrt(float64(h))
		if out[i] = 0; d != 0 {
			out[i] = float32(math.Copysign(math.Sqrt(max(math.Abs(d), 1e-6)), d))
		}
	}
}

// NGrams copies the rows of table [rows, p.Dim] that the rows of spans read: device.NGrams says which. out is [T,
// p.Width], rows [T, p.Heads]; tail [slots*p.Order] has the newest ids of each sequence.
func NGrams(out []float32, rows, ids []int32, table, tail []float32, spans []device.Span, p device.NGrams) {
	for _, s := range spans {
		for r := range s.Len {
			pos, x := s.Pos+r, make([]int32, p.Order)
			kept := tail[s.Slot*p.Order:][:p.Order]
			kept[pos%p.Order] = float32(ids[s.Row+r])
			for back := range min(p.Order, pos+1) {
				x[back] = int32(kept[(pos-back)%p.Order])
			}
			p.Fill(x, pos)
			for h := range p.Heads() {
				row := p.Row(h, x)
				rows[(s.Row+r)*p.Heads()+h] = int32(row)
				copy(out[((s.Row+r)*p.Heads()+h)*p.Dim:][:p.Dim], table[row*p.Dim:])
			}
		}
	}
}

// TapConv is silu of the causal convolution w [taps, n] of the rows x [T, n] of spans. tail [slots*p.Reach, n] has the
// newest rows of each sequence.
func TapConv(out, x, w, tail []float32, spans []device.Span, p device.TapConv, n int) {
	reach := p.Reach()
	for _, s := range spans {
		for r := range s.Len {
			pos, row := s.Pos+r, (s.Row+r)*n
			copy(tail[(s.Slot*reach+pos%reach)*n:][:n], x[row:])
			for c := range n {
				sum := 0.0
				for k := 0; k < p.Taps && k*p.Step <= pos; k++ {
					sum += float64(w[(p.Taps-1-k)*n+c]) * float64(tail[(s.Slot*reach+(pos-k*p.Step)%reach)*n+c])
				}
				out[row+c] = float32(Silu(sum))
			}
		}
	}
}

// BlockKeys are the keys of the blocks that spans complete, and the slots where they belong: device.BlockIndex says how.
// keys is [slots, p.Dim], norm [p.Dim], table [positions, p.Rope.Dim].
func BlockKeys(keys, norm, table []float32, spans []device.Span, p device.BlockIndex) (rows []float32, slots []int32) {
	for _, s := range spans {
		slot := func(pos int) int { return int(s.Blocks[pos/p.BlockTokens])*p.BlockTokens + pos%p.BlockTokens }
		for b := s.Pos / p.Block; b < (s.Pos+s.Len)/p.Block; b++ {
			key := make([]float32, p.Dim)
			for c := range key {
				sum := 0.0
				for pos := b * p.Block; pos < (b+1)*p.Block; pos++ {
					sum += float64(keys[slot(pos)*p.Dim+c])
				}
				key[c] = float32(sum / float64(p.Block))
			}
			RMSNorm(key, key, norm, p.Eps)
			Rope(key, p.Dim, []int32{int32(b * p.Block)}, table, p.Rope)
			rows, slots = append(rows, key...), append(slots, int32(slot((b+1)*p.Block-1)))
		}
	}
	return rows, slots
}

// SelectBlocks writes the positions that the rows of spans choose to chosen [T, p.Width]: device.BlockIndex says
// how. q is [T, heads*dim], keys [slots, dim] with the keys of all complete blocks, or with p.Local of tokens.
func SelectBlocks(chosen []int32, q, keys []float32, spans []device.Span, p device.BlockIndex) {
	if p.Local > 0 {
		selectLocal(chosen, q, keys, spans, p)
		return
	}
	for _, s := range spans {
		blocks := make([][]float32, (s.Pos+s.Len)/p.Block)
		for b := range blocks {
			pos := (b+1)*p.Block - 1
			blocks[b] = keys[(int(s.Blocks[pos/p.BlockTokens])*p.BlockTokens+pos%p.BlockTokens)*p.Dim:][:p.Dim]
		}
		for r := range s.Len {
			sees := (s.Pos + r + 1) / p.Block
			scores, order := make([]float64, sees), make([]int, sees)
			for b := range scores {
				order[b] = b
				for h := range p.Heads {
					scores[b] += max(0, dot(q[((s.Row+r)*p.Heads+h)*p.Dim:][:p.Dim], blocks[b]))
				}
				if scores[b] != scores[b] {
					scores[b] = -1
				}
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
			order = order[:min(sees, p.Chosen)]
			slices.Sort(order)
			putBlocks(chosen[(s.Row+r)*p.Positions():][:p.Positions()], append(order, sees), p.Block, s.Pos+r)
		}
	}
}
