package suspect

import (
	"fmt"
	"math"

	"krater/stages/model"
	"krater/stages/oracle"
)

// rotation describes how rows are rotated.
type rotation struct {
	rope  model.RopeConfig
	shift float64 // added to every position
	still bool    // not rotated
	back  bool    // by the negative angle
	last  bool    // the last values of a head, not the first
}

// turned is q_pe or k_pe under a rotation.
func (l *layer) turned(op string, r rotation) []float64 {
	x, dim := l.Unrotated(op)
	return l.turnedHeads(x, dim, r)
}

// turnedHeads is heads of dim values under a rotation.
func (l *layer) turnedHeads(x []float64, dim int, r rotation) []float64 {
	if r.still {
		return x
	}
	if n := 2 * len(r.rope.InvFreq); r.last && n < dim && len(x)%dim == 0 {
		from := make([]int, dim) // the last values first
		for i := range from {
			from[i] = (i + dim - n) % dim
		}
		heads := len(x) / dim
		y := oracle.Rotate(columns(x, heads, from), l.T, dim, &r.rope, r.position)
		return columns(y, heads, inverse(from))
	}
	return oracle.Rotate(x, l.T, dim, &r.rope, r.position)
}

// position is that of a row.
func (r rotation) position(row int) float64 {
	if r.back {
		return -float64(row)
	}
	return float64(row) + r.shift
}

// pairs returns the source of value i of a head when adjacent pairs are gathered into halves: 0, 2,
// 4, ..., 1, 3, 5, ...
func pairs(dim int) []int {
	p := make([]int, dim)
	for i := range dim / 2 {
		p[i], p[i+dim/2] = 2*i, 2*i+1
	}
	return p
}

// turn is a rotation that is wrong.
type turn struct {
	what string
	r    rotation
}

// turns returns the usual wrong rotations.
func (l *layer) turns() []turn {
	rope := l.Rope
	if len(rope.InvFreq) == 0 {
		return nil
	}
	other := "halves of a head"
	if !rope.Interleaved {
		other = "neighbouring values"
	}
	swapped, plain := rope, rope
	swapped.Interleaved, plain.CosSinScale = !rope.Interleaved, 1
	list := []turn{
		{"rope over " + other + " (halves and interleaved pairs swapped)", rotation{rope: swapped}},
		{"positions one too high", rotation{rope: rope, shift: 1}},
		{"positions one too low", rotation{rope: rope, shift: -1}},
		{"no rotation", rotation{rope: rope, still: true}},
		{"the rotation backwards", rotation{rope: rope, back: true}},
	}
	if rope.CosSinScale != 1 {
		list = append(list, turn{"a factor on cos and sin of 1", rotation{rope: plain}})
	}
	if rope.Dim < l.HeadDim {
		whole := plain
		whole.Dim, whole.InvFreq = l.HeadDim, inverseFrequencies(l.HeadDim, rope.Theta)
		part := plain
		part.InvFreq = whole.InvFreq[:rope.Dim/2]
		list = append(list,
			turn{"rope over whole heads, not over a part of each", rotation{rope: whole}},
			turn{"rope over the last values of a head, not over the first", rotation{rope: rope, last: true}},
			turn{"frequencies of whole heads for a part of each", rotation{rope: part}})
	}
	if n := turning(rope.InvFreq); n < len(rope.InvFreq) { // pairs over the whole head, some of which are not turned
		near := plain
		near.InvFreq = rope.InvFreq[:n]
		list = append(list, turn{"pairs within the values that are rotated, not over whole heads", rotation{rope: near}})
	}
	for _, f := range l.otherFrequencies() {
		r := rotation{rope: plain}
		r.rope.InvFreq = f.inv
		list = append(list, turn{f.what, r})
	}
	return list
}

// rotationMistakes returns the mistakes in rotating queries or keys alone.
func (l *layer) rotationMistakes(op string) []mistake {
	var list []mistake
	for _, t := range l.turns() {
		list = append(list, mistake{t.what, func() []float64 { return l.turned(op, t.r) }})
	}
	// Pairs turned rightly, then left in the other order.
	_, dim := l.Unrotated(op)
	gathered := pairs(min(dim, l.Rope.Dim))
	for i := len(gathered); i < dim; i++ {
		gathered = append(gathered, i)
	}
	for _, order := range []struct {
		what string
		perm []int
	}{{"pairs of rope gathered into halves afterwards", gathered}, {"halves of rope dealt into pairs afterwards", inverse(gathered)}} {
		list = append(list, mistake{order.what, func() []float64 {
			if dim == 0 {
				return nil
			}
			v := l.Define(op)
			return columns(v, len(v)/dim, order.perm)
		}})
	}
	for _, s := range l.splits() {
		list = append(list, mistake{s.what, func() []float64 { return l.put(s.change, nil).Define(op) }})
	}
	return list
}

// frequencies are the table of another rope.
type frequencies struct {
	what string
	inv  []float64
}

// otherFrequencies returns the tables that a wrong base, or missing scaling, would give.
func (l *layer) otherFrequencies() []frequencies {
	r := l.Rope
	list := []frequencies{{fmt.Sprintf("frequencies without scaling (rope_theta %g alone)", r.Theta), inverseFrequencies(r.Dim, r.Theta)}}
	if n := turning(r.InvFreq); n < len(r.InvFreq) {
		list = append(list, frequencies{"frequencies over the values that are rotated, not over whole heads",
			append(inverseFrequencies(2*n, r.Theta), make([]float64, len(r.InvFreq)-n)...)})
	}
	for _, theta := range []float64{1e4, 1e6, 5e5, 5e6} {
		if theta != r.Theta {
			list = append(list, frequencies{fmt.Sprintf("rope_theta %g", theta), inverseFrequencies(r.Dim, theta)})
		}
	}
	return list
}

// turning returns the number of frequencies that are not 0.
func turning(inv []float64) (n int) {
	for _, f := range inv {
		if f != 0 {
			n++
		}
	}
	return n
}

func inverseFrequencies(dim int, theta float64) []float64 {
	inv := make([]float64, dim/2)
	for i := range inv {
		inv[i] = math.Pow(theta, -2*float64(i)/float64(dim))
	}
	return inv
}

// frequencies looks for what explains a reference's table of frequencies.
func (l *layer) frequencies(f *Finding) {
	want := oracle.Widen(l.c.Want)
	list := l.otherFrequencies()
	for _, s := range l.splits() {
		list = append(list, frequencies{s.what, l.put(s.change, nil).Rope.InvFreq})
	}
	for _, x := range list {
		f.consider("inv_freq", reference, x.what, distance(l.Rope.InvFreq, want), distance(x.inv, want))
	}
}
