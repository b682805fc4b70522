package oracle

import (
	"cmp"
	"math"
	"slices"

	"krater/stages/model"
)

// compressed is attention over the newest tokens and over entries that stand for several tokens each (DeepSeek-V4).
type compressed struct {
	model.Compressed
	as EntryReading
}

var _ = define(func(s *Spec, a model.Compressed) mixer {
	s.Scale = 1 / math.Sqrt(float64(a.HeadDim))
	s.Heads, s.KVHeads, s.HeadDim, s.QKDim, s.OutDim, s.QRank, s.RopeDim = a.Heads, 1, a.HeadDim, a.HeadDim, a.OutRank, a.QRank, a.RopeDim
	s.Window, s.Sinks, s.Indexer = a.Window, true, a.Index
	return compressed{Compressed: a}
})

// EntryReading says how attention over entries is done where it is otherwise than defined.
type EntryReading struct {
	Rope    *model.RopeConfig // the rotation; nil: the layer's
	First   bool              // the first values of heads are rotated, not the last
	Swapped bool              // an entry takes the first part of its own window and the second of the one before
	Alone   bool              // an entry takes its own window alone
	Forward bool              // the output is not rotated back
	NoSink  bool
	Late    bool // an entry is visible one token late
	Apart   bool // entries of tokens that the window has are not visible
	Longer  int  // the window has so much more tokens
	Linear  bool // index scores without the ReLU
}

// Compresses reports whether the layer is of a kind that may have entries.
func (l *Layer) Compresses() bool {
	_, ok := l.mixer.(compressed)
	return ok
}

// ReadEntries computes an operator of such a layer by another reading.
func (l *Layer) ReadEntries(op string, r EntryReading) []float64 {
	m, ok := l.mixer.(compressed)
	if !ok {
		return nil
	}
	if m.as = r; r.Rope != nil {
		m.Rope = r.Rope
	}
	v, _ := m.define(l, op)
	return v
}

// Entries returns how many tokens an entry of a layer stands for (0: there are none), and whether layers of its kind may have entries.
func Entries(cfg *model.Config, layer int) (ratio int, ok bool) {
	m, ok := specOf(cfg, layer).mixer.(compressed)
	return m.Ratio, ok
}

func (m compressed) operators() []string {
	list := []string{"q_a", "q_resid", "q", "q_unit", "q_pe", "kv", "kv_unit", "kv_rope"}
	if m.Ratio > 0 {
		list = append(list, "compress_c", "compress_z", "compressed_kv")
	}
	if m.Index.Own() {
		list = append(list, "index_q", "indexer_query", "index_weights", "indexer_weights", "index_c", "index_z", "index_entries", "indexer_scores", "selected")
	}
	return append(list, "attn", "o_a")
}

func (m compressed) product(l *Layer, op string) (Product, bool) {
	p := Product{In: l.of("input_norm"), Role: op, Heads: 1, Rope: -1}
	parts := m.Compressor(1, 1).Parts()
	switch op {
	case "q_a":
		p.Out = m.QRank
	case "q":
		p.In, p.Role, p.Out, p.Heads, p.Parts, p.Rope = l.of("q_resid"), "q_b", m.QDim(), m.Heads, []int{m.HeadDim - m.RopeDim, m.RopeDim}, 1
	case "kv":
		p.Out, p.Parts, p.Rope = m.HeadDim, []int{m.HeadDim - m.RopeDim, m.RopeDim}, 1
	case "compress_c", "compress_z":
		p.Out = parts * m.HeadDim
	case "index_c", "index_z":
		p.Out = parts * m.Index.Dim
	case "index_q", "index_weights":
		return l.indexProduct(op)
	default:
		return p, false
	}
	return p, true
}

func (m compressed) unrotated(l *Layer, _ string) (x []float64, dim int) {
	return l.Get("q_unit"), m.HeadDim
}

func (compressed) rotatedPart(_ *Spec, q []float32) []float32 { return q }

// attention implements mixer: what is attended to are not tokens alone, so define has it.
func (compressed) attention(*Layer, *Attention) bool { return false }

func (m compressed) define(l *Layer, op string) ([]float64, bool) {
	eps := float64(m.NormEps)
	switch op {
	case "q_resid":
		return RMSNorm(l.Get("q_a"), l.Weight(l.Tensor("q_a_norm"), m.QRank), eps), true
	case "q_unit":
		ones := make([]float32, m.HeadDim)
		for i := range ones {
			ones[i] = 1
		}
		return RMSNorm(l.Get("q"), ones, eps), true
	case "kv_unit":
		return RMSNorm(l.Get("kv"), l.Weight(l.Tensor("kv_norm"), m.HeadDim), eps), true
	case "q_pe":
		return m.turned(l, l.Get("q_unit"), m.HeadDim, 1), true
	case "kv_rope":
		return m.turned(l, l.Get("kv_unit"), m.HeadDim, 1), true
	case "indexer_query":
		return m.turned(l, l.Get("index_q"), m.Index.Dim, 1), true
	case "compressed_kv":
		return m.entries(l, "compress_", m.HeadDim), true
	case "index_entries":
		return m.entries(l, "index_", m.Index.Dim), true
	case "indexer_weights":
		return scaledBy(l.Get("index_weights"), 1/math.Sqrt(float64(m.Index.Heads))), true
	case "indexer_scores":
		return m.scores(l), true
	case "selected":
		return m.selected(l), true
	case "attn", "attn_probs":
		out, probs := m.attend(l)
		if op == "attn_probs" {
			return probs, true
		}
		if m.as.Forward {
			return out, true
		}
		return m.turned(l, out, m.HeadDim, -1), true
	case "o_a":
		return m.groups(l), true
	}
	return nil, false
}

// turned rotates the last values of heads of dim values, by the position of their row times sign.
func (m compressed) turned(l *Layer, x []float64, dim int, sign float64) []float64 {
	if l.T == 0 || len(x)%(l.T*dim) != 0 {
		return nil
	}
	per := len(x) / l.T
	return m.turnedTo(x, dim, func(at int) float64 { return sign * float64(at/per) })
}

// turnedTo rotates each head that begins at a value by position.
func (m compressed) turnedTo(x []float64, dim int, position func(at int) float64) []float64 {
	out, first := slices.Clone(x), dim-m.RopeDim
	if m.as.First {
		first = 0
	}
	for at := 0; at < len(x); at += dim {
		copy(out[at+first:], Rotate(x[at+first:][:m.RopeDim], 1, m.RopeDim, m.Rope, func(int) float64 { return position(at) }))
	}
	return out
}

// sees returns the number of entries that a token sees.
func (m compressed) sees(i int) int {
	if m.Ratio == 0 {
		return 0
	}
	if m.as.Late {
		return i / m.Ratio
	}
	return (i + 1) / m.Ratio
}

// entries returns the entries [n, dim] of all complete windows.
func (m compressed) entries(l *Layer, prefix string, dim int) []float64 {
	c, z := l.Get(prefix+"c"), l.Get(prefix+"z")
	parts := m.Compressor(dim, 1).Parts()
	ape, norm := l.Weight(l.Tensor(prefix+"ape"), m.Ratio*parts*dim), l.Weight(l.Tensor(prefix+"norm"), dim)
	if len(c) != l.T*parts*dim || len(z) != len(c) || ape == nil || norm == nil {
		return nil
	}
	var out []float64
	for b := range l.T / m.Ratio {
		entry := make([]float64, dim)
		for channel := range dim {
			var gates, values []float64
			for part := range parts { // the first part is of the window before, where there are two
				window := b + part - (parts - 1)
				for j := range m.Ratio {
					if window < 0 || m.as.Alone && window < b {
						continue
					}
					of := part
					if m.as.Swapped {
						of = parts - 1 - part
					}
					at := (window*m.Ratio+j)*parts*dim + of*dim + channel
					gates, values = append(gates, z[at]+float64(ape[j*parts*dim+of*dim+channel])), append(values, c[at])
				}
			}
			softmax(gates)
			entry[channel] = Dot(gates, values)
		}
		out = append(out, RMSNorm(entry, norm, float64(m.NormEps))...)
	}
	return m.turnedTo(out, dim, func(at int) float64 { return float64(at / dim * m.Ratio) })
}

// scores returns the index scores [T, entries], 0 of those that a token does not see.
func (m compressed) scores(l *Layer) []float64 {
	q, keys, weights := l.Get("indexer_query"), l.Get("index_entries"), l.Get("indexer_weights")
	heads, d := m.Index.Heads, m.Index.Dim
	if len(q) != l.T*heads*d || len(weights) != l.T*heads || len(keys) != l.T/m.Ratio*d {
		return nil
	}
	n := len(keys) / d
	out := make([]float64, l.T*n)
	for i := range l.T {
		for b := range m.sees(i) {
			for h := range heads {
				v := Dot(q[(i*heads+h)*d:][:d], keys[b*d:])
				if !m.as.Linear {
					v = max(0, v)
				}
				out[i*n+b] += weights[i*heads+h] * v / math.Sqrt(float64(d))
			}
		}
	}
	return out
}

// selected returns the best entries of each token, rising, with -1 behind them.
func (m compressed) selected(l *Layer) []float64 {
	scores, n := l.Get("indexer_scores"), l.T/m.Ratio
	if len(scores) != l.T*n {
		return nil
	}
	var out []float64
	for i := range l.T {
		order := make([]int, m.sees(i))
		for b := range order {
			order[b] = b
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[i*n+b], scores[i*n+a]) })
		order = order[:min(m.Index.TopK, len(order))]
		slices.Sort(order)
		for k := range m.Index.TopK {
			if k < len(order) {
				out = append(out, float64(order[k]))
			} else {
				out = append(out, -1)
			}
		}
	}
	return out
}

// attend returns the output [T, heads*dim], not yet rotated back, and the probabilities [heads, T, T + entries].
func (m compressed) attend(l *Layer) (out, probs []float64) {
	q, rows, d := l.Get("q_pe"), l.Get("kv_rope"), m.HeadDim
	sinks := l.Weight(l.Tensor("sinks"), m.Heads)
	var entries, selected []float64
	if m.Ratio > 0 {
		entries = l.Get("compressed_kv")
	}
	if m.Index.Own() {
		if selected = l.Get("selected"); len(selected) != l.T*m.Index.TopK {
			return nil, nil
		}
	}
	if len(q) != l.T*m.QDim() || len(rows) != l.T*d || sinks == nil {
		return nil, nil
	}
	rows = slices.Concat(rows, entries)
	n := len(rows) / d
	out, probs = make([]float64, l.T*m.QDim()), make([]float64, m.Heads*l.T*n)
	for h := range m.Heads {
		for i := range l.T {
			p := probs[(h*l.T+i)*n:][:n]
			for j := range p {
				visible := j <= i && i-j < m.Window+m.as.Longer
				if j >= l.T {
					b := j - l.T
					visible = b < m.sees(i) && (selected == nil || slices.Contains(selected[i*m.Index.TopK:][:m.Index.TopK], float64(b)))
					visible = visible && !(m.as.Apart && (b+1)*m.Ratio-1 > i-m.Window)
				}
				if p[j] = math.Inf(-1); visible {
					p[j] = l.Scale * Dot(q[(i*m.Heads+h)*d:][:d], rows[j*d:])
				}
			}
			if m.as.NoSink {
				softmax(p)
			} else {
				softmax(p, float64(sinks[h]))
			}
			to := out[(i*m.Heads+h)*d:][:d]
			for j, w := range p {
				for c, v := range rows[j*d:][:d] {
					to[c] += w * v
				}
			}
		}
	}
	return out, probs
}

// groups returns the output of attention times the matrix of each group of heads, side by side.
func (m compressed) groups(l *Layer) []float64 {
	x, in := l.Get("attn"), m.QDim()/m.Groups
	w := l.Weight(l.Tensor("o_a"), m.Groups*m.OutRank*in)
	if len(x) != l.T*m.QDim() || w == nil {
		return nil
	}
	out := make([]float64, l.T*m.Groups*m.OutRank)
	for g := range m.Groups {
		y := Mul(part(x, m.QDim(), g*in, in), w[g*m.OutRank*in:][:m.OutRank*in], l.T)
		for i := range l.T {
			copy(out[(i*m.Groups+g)*m.OutRank:], y[i*m.OutRank:][:m.OutRank])
		}
	}
	return out
}
