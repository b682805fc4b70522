package suspect

import (
	"fmt"
	"math"

	"krater/stages/model"
)

// rotation is how rows are rotated; shift is added to every position.
type rotation struct {
	rope  model.RopeConfig
	shift int
	still bool // not rotated
	back  bool // by the negative angle
}

// rotate turns every head of dim values in x [t, heads*dim] by its row's position.
func (r rotation) rotate(x []float32, t, dim int) []float32 {
	half := len(r.rope.InvFreq)
	if dim == 0 || t == 0 || len(x)%(t*dim) != 0 || 2*half > dim {
		return nil
	}
	out := append([]float32(nil), x...)
	if r.still {
		return out
	}
	per := len(x) / t
	for at := 0; at < len(x); at += dim {
		position := float64(at/per + r.shift)
		for i, f := range r.rope.InvFreq {
			a, b := at+2*i, at+2*i+1
			if !r.rope.Interleaved {
				a, b = at+i, at+i+half
			}
			sin, cos := math.Sincos(position * f)
			if r.back {
				sin = -sin
			}
			p, q := float64(x[a]), float64(x[b])
			out[a] = float32(r.rope.CosSinScale * (p*cos - q*sin))
			out[b] = float32(r.rope.CosSinScale * (p*sin + q*cos))
		}
	}
	return out
}

// rotated is q_pe or k_pe under a rotation: whole heads, or in latent attention the part of
// them that is rotated.
func (l *layer) rotated(op string, r rotation) []float32 {
	x, dim := l.unrotated(op)
	return r.rotate(x, l.t, dim)
}

// unrotated is what is rotated and the values of a head in it.
func (l *layer) unrotated(op string) (x []float32, dim int) {
	a := l.a
	switch {
	case a.grouped:
		return l.get(op[:1]), a.HeadDim
	case op == "q_pe":
		return l.part(l.get("q"), a.QKDim(), a.Nope, a.RopeDim), a.RopeDim
	}
	return l.part(l.get("kv_a"), a.KVRank+a.RopeDim, a.KVRank, a.RopeDim), a.RopeDim
}

// pairs is where value i of a head comes from when pairs side by side are gathered into
// halves: 0, 2, 4, ..., 1, 3, 5, ...
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

// turns are the usual wrong rotations.
func (l *layer) turns() []turn {
	rope := *l.a.Rope
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
	for _, f := range l.c.otherFrequencies() {
		r := rotation{rope: plain}
		r.rope.InvFreq = f.inv
		list = append(list, turn{f.what, r})
	}
	return list
}

// rotationMistakes are those of queries or keys alone.
func (l *layer) rotationMistakes(op string) []mistake {
	var list []mistake
	for _, t := range l.turns() {
		list = append(list, mistake{t.what, func() []float32 { return l.rotated(op, t.r) }})
	}
	// Pairs turned rightly, then left in the other order.
	_, dim := l.unrotated(op)
	for _, order := range []struct {
		what string
		perm []int
	}{{"pairs of rope gathered into halves afterwards", pairs(dim)}, {"halves of rope dealt into pairs afterwards", inverse(pairs(dim))}} {
		list = append(list, mistake{order.what, func() []float32 {
			if dim == 0 {
				return nil
			}
			v := l.define(op)
			return columns(v, len(v)/dim, order.perm)
		}})
	}
	for _, s := range l.splits() {
		list = append(list, mistake{s.what, func() []float32 { return l.clone(s.change).define(op) }})
	}
	return list
}

// frequencies are the table of another rope.
type frequencies struct {
	what string
	inv  []float64
}

// otherFrequencies are tables that a wrong base, or scaling left out, would give.
func (c *Case) otherFrequencies() []frequencies {
	r := c.Config.Layers[max(0, c.Layer)].Mixer.Rotary()
	list := []frequencies{{fmt.Sprintf("frequencies without scaling (rope_theta %g alone)", r.Theta), inverseFrequencies(r.Dim, r.Theta)}}
	for _, theta := range []float64{1e4, 1e6, 5e5, 5e6} {
		if theta != r.Theta {
			list = append(list, frequencies{fmt.Sprintf("rope_theta %g", theta), inverseFrequencies(r.Dim, theta)})
		}
	}
	return list
}

func inverseFrequencies(dim int, theta float64) []float64 {
	inv := make([]float64, dim/2)
	for i := range inv {
		inv[i] = math.Pow(theta, -2*float64(i)/float64(dim))
	}
	return inv
}

// frequencies looks for what explains a reference's table of frequencies.
func (c *Case) frequencies(tried *int) []Suspect {
	own := make([]float32, len(c.Config.Layers[max(0, c.Layer)].Mixer.Rotary().InvFreq))
	for i, f := range c.Config.Layers[max(0, c.Layer)].Mixer.Rotary().InvFreq {
		own[i] = float32(f)
	}
	before := distance(own, c.Want)
	list := c.otherFrequencies()
	l := &layer{shared: &shared{c: c, cfg: c.Config, a: sizesOf(c.Config, max(0, c.Layer))}}
	for _, s := range l.splits() {
		a := l.a
		s.change(&a)
		list = append(list, frequencies{s.what, a.Rope.InvFreq})
	}
	var found []Suspect
	for _, f := range list {
		*tried++
		v := make([]float32, len(f.inv))
		for i, x := range f.inv {
			v[i] = float32(x)
		}
		if after := distance(v, c.Want); explains(before, after) {
			found = append(found, Suspect{Op: "inv_freq", Who: reference, What: f.what, Before: finite(before), After: after})
		}
	}
	return found
}
