package suspect

import (
	"math"
	"slices"

	"krater/kernels/device"
	"krater/stages/model"
	"krater/stages/oracle"
)

// entryReadings lists the wrong readings of DeepSeek-V4.
var entryReadings = []reading{
	{models: v4, what: "queries not normed", op: "q_unit", named: "queries not normed", values: func(l *oracle.Layer) []float64 { return l.Get("q") }},
	{models: v4, what: "rope on the first values", op: "q_pe", named: "the first values of heads rotated", values: func(l *oracle.Layer) []float64 {
		return turned(l, l.Get("q_unit"), l.HeadDim, 0, true)
	}},
	{models: v4, what: "rope over halves", op: "kv_rope", named: "rope over halves", values: func(l *oracle.Layer) []float64 {
		return turnLast(l, l.Get("kv_unit"), l.HeadDim, false)
	}},
	{models: v4, what: "one base for all layers", layer: firstWithEntries, op: "q_pe", named: "that of other layers", config: func(c *model.Config) {
		eachCompressed(c, func(m *model.Compressed) { m.Rope = c.Layers[0].Mixer.Rotary() })
	}},
	{models: v4, what: "YaRN's factor", layer: firstWithEntries, op: "q_pe", named: "YaRN's attention factor", values: func(l *oracle.Layer) []float64 {
		q, r := slices.Clone(l.Get("q_pe")), l.Rope
		n := len(r.InvFreq)
		by := 1 + 0.1*math.Log(math.Pow(r.Theta, -2*float64(n-1)/float64(r.Dim))/r.InvFreq[n-1])
		for at := 0; at < len(q); at += l.HeadDim {
			for i := l.HeadDim - 2*n; i < l.HeadDim; i++ {
				q[at+i] *= by
			}
		}
		return q
	}},
	{models: v4, what: "no rotation back", op: "attn", named: "not rotated back", values: func(l *oracle.Layer) (out []float64) {
		x := slices.Clone(l.Get("attn")) // rotated forward again
		return turnLast(l, x, l.HeadDim, true)
	}},
	{models: v4, what: "no sinks", op: "attn", named: "the sinks missing", weights: changed("attn_sink", func(float32) float32 { return -1e30 })},
	{models: v4, what: "a window one longer", layer: firstWithEntries, op: "attn", named: "a sliding window one too long", config: func(c *model.Config) {
		eachCompressed(c, func(m *model.Compressed) { m.Window++ })
	}},
	{models: v4, what: "scores by the sigmoid", layer: 2, op: "router_weights", named: "the sigmoid in the place of", config: func(c *model.Config) { c.MoE.Router.Scoring = device.ScoreSigmoid }},
	{models: v4, what: "no ReLU", op: "indexer_scores", named: "the ReLU of index scores missing", values: func(l *oracle.Layer) (out []float64) {
		q, keys, w, heads, d := l.Get("indexer_query"), l.Get("index_entries"), l.Get("indexer_weights"), l.Indexer.Heads, l.Indexer.Dim
		for i := range l.T {
			for b := range len(keys) / d {
				sum := 0.0
				for h := range heads {
					for c := range d {
						if b < (i+1)/4 {
							sum += w[i*heads+h] * q[(i*heads+h)*d+c] * keys[b*d+c] / math.Sqrt(float64(d))
						}
					}
				}
				out = append(out, sum)
			}
		}
		return out
	}},
	{models: v4, what: "no overlap", op: "index_entries", named: "of their own window alone", values: func(l *oracle.Layer) []float64 { return entriesOf(l, "index_", l.Indexer.Dim, 1, 1) }},
	{models: v4, what: "halves swapped", op: "compressed_kv", named: "halves of overlapping entries swapped", values: func(l *oracle.Layer) []float64 {
		return entriesOf(l, "compress_", l.HeadDim, 0, 2)
	}},
}

// firstWithEntries is the first layer of both models that has entries, which overlap.
const firstWithEntries = 1

func eachCompressed(c *model.Config, change func(m *model.Compressed)) {
	for i := range c.Layers {
		m := c.Layers[i].Mixer.(model.Compressed)
		change(&m)
		c.Layers[i].Mixer = m
	}
}

// entriesOf is the entries of windows of 4 tokens. own is the part of a raw row that an entry takes of its own window; with windows 2 it takes
// the other part of the window before.
func entriesOf(l *oracle.Layer, prefix string, dim, own, windows int) (out []float64) {
	const ratio = 4
	c, z, ape := l.Get(prefix+"c"), l.Get(prefix+"z"), l.Weight(l.Tensor(prefix+"ape"), 0)
	for b := range l.T / ratio {
		entry := make([]float64, dim)
		for channel := range entry {
			sum, total := 0.0, 0.0
			for back := range min(windows, b+1) {
				part := own
				if back > 0 {
					part = 1 - own
				}
				for j := range ratio {
					at := ((b-back)*ratio+j)*2*dim + part*dim + channel
					e := math.Exp(z[at] + float64(ape[j*2*dim+part*dim+channel]))
					sum, total = sum+e*c[at], total+e
				}
			}
			entry[channel] = sum / total
		}
		out = append(out, entry...)
	}
	out = root(out, l.Weight(l.Tensor(prefix+"norm"), 0), float64(l.Config.NormEps))
	r := l.Rope
	for at := 0; at < len(out); at += dim {
		first := at + dim - 2*len(r.InvFreq)
		for i, f := range r.InvFreq {
			a, b := first+2*i, first+2*i+1
			sin, cos := math.Sincos(float64(at/dim*ratio) * f)
			out[a], out[b] = out[a]*cos-out[b]*sin, out[a]*sin+out[b]*cos
		}
	}
	return out
}
