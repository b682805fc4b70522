package oracle

import (
	"math"

	"krater/stages/model"
)

// mixer is a kind of attention: what of a layer's operators depends on it.
type mixer interface {
	// operators lists those between input_norm and mixer_out.
	operators() []string
	// product describes the operators that are a product of their input with a weight.
	product(l *Layer, op string) (Product, bool)
	// unrotated returns the values that become q_pe or k_pe, and how many values of a head are in
	// them.
	unrotated(l *Layer, op string) (x []float64, dim int)
	// rotatedPart returns the part of whole query heads that is rotated.
	rotatedPart(s *Spec, q []float32) []float32
	// attention sets Key, Score and Value; false where values are missing.
	attention(l *Layer, x *Attention) bool
}

// definer is a mixer with operators that are defined by it alone.
type definer interface {
	define(l *Layer, op string) (v []float64, ok bool)
}

// Attention is the inputs of softmax attention.
type Attention struct {
	Scale float64         // of the scores
	Sees  func(i int) int // how many tokens, from the first on, token i sees
	First func(i int) int // the first of them that its window has
	// Chosen reports whether query head h of token i attends to token j, one of these; nil: it attends to all.
	Chosen func(h, i, j int) bool
	Sink   func(h int) float64          // of query head h: one more score, not scaled, of a value of zeros; nil: none
	Key    func(h int) int              // the key head that query head h reads
	Score  func(h, k, i, j int) float64 // of query head h of token i and key head k of token j, unscaled
	Value  func(k, j int) []float64     // of key head k of token j
}

// Attention returns the causal attention of the config; false if values are missing.
func (l *Layer) Attention() (Attention, bool) {
	x := Attention{Scale: l.Scale, Sees: func(i int) int { return i + 1 }, First: func(int) int { return 0 }}
	ok := l.mixer.attention(l, &x)
	return x, ok
}

// Attend returns the output [T, heads*width] and the probabilities [heads, T, T].
func (l *Layer) Attend(x Attention) (out, probs []float64) {
	width := l.OutDim
	out, probs = make([]float64, l.T*l.Heads*width), make([]float64, l.Heads*l.T*l.T)
	for h := range l.Heads {
		key := x.Key(h)
		for i := range l.T {
			first := x.First(i)
			p := probs[(h*l.T+i)*l.T:][first:x.Sees(i)]
			for j := range p {
				if x.Chosen != nil && !x.Chosen(h, i, first+j) {
					p[j] = math.Inf(-1)
					continue
				}
				p[j] = x.Scale * x.Score(h, key, i, first+j)
			}
			if x.Sink != nil {
				softmax(p, x.Sink(h))
			} else {
				softmax(p)
			}
			to := out[(i*l.Heads+h)*width:][:width]
			for j, w := range p {
				for c, v := range x.Value(key, first+j) {
					to[c] += w * v
				}
			}
		}
	}
	return out, probs
}

// Unrotated returns the values that become q_pe or k_pe, and how many values of a head are in them.
func (l *Layer) Unrotated(op string) (x []float64, dim int) { return l.mixer.unrotated(l, op) }

// RotatedPart returns the part of whole query heads that is rotated.
func RotatedPart(cfg *model.Config, layer int, q []float32) []float32 {
	s := specOf(cfg, layer)
	if s.mixer == nil {
		return q
	}
	return s.mixer.rotatedPart(&s, q)
}

// UnrotatedPart returns what RotatedPart leaves of whole query heads of latent attention.
func UnrotatedPart(cfg *model.Config, layer int, q []float32) []float32 {
	s := specOf(cfg, layer)
	return part(q, s.QKDim, 0, s.Nope)
}

// Product is an operator that is its input times a weight, plus a bias where there is one.
type Product struct {
	In   func() []float64 // [T, in]
	Role string           // of the weight; that of the bias ends in "_bias"
	Out  int
	// The rows of the weight are heads of parts, such as without and with rope; Rope is the part
	// that is rotated, -1: none.
	Heads int
	Parts []int
	Rope  int
	// The columns are heads of ColumnDim values; 0: they are not divided into heads.
	ColumnDim int
	Alike     string // the role of a weight of the same shape, "" if there is none
}
