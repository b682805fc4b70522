package quant

import (
	"math"

	"krater/kernels/tensor"
)

// searcher finds the scale of one group at a time. All sums are float64, so that
// a comparison of two scales does not depend on rounding in the sums.
type searcher struct {
	w, h     []float64 // the group's weights and how much an error in each counts
	buf      []float64
	min, max float64 // range of the values
	bits     int
}

func newSearcher(bits, group int) *searcher {
	s := &searcher{bits: bits, min: -127, max: 127, buf: make([]float64, 2*group)}
	if bits == 4 {
		s.min, s.max = -8, 7
	}
	return s
}

// load takes a group's weights; weight nil counts all errors alike.
func (s *searcher) load(w, weight []float32) {
	n := len(w)
	s.w, s.h = s.buf[:n], s.buf[n:2*n]
	for i, v := range w {
		s.w[i], s.h[i] = float64(v), 1
		if weight != nil {
			s.h[i] = float64(weight[i])
		}
	}
}

// bf16 rounds to the nearest bfloat16 number.
func bf16(x float64) float64 {
	return float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(x))))
}

// extreme is the weight of the largest magnitude.
func (s *searcher) extreme() float64 {
	var top float64
	for _, v := range s.w {
		if math.Abs(v) > math.Abs(top) {
			top = v
		}
	}
	return top
}

// absmax is the plain scale: the largest magnitude becomes the largest value. A
// group of zeros, or of numbers too small for any bfloat16 scale, gets 0.
func (s *searcher) absmax() float64 { return bf16(math.Abs(s.extreme()) / s.max) }

// Grid of the search. A scale is the extreme weight divided by d: above the
// largest value it clips the extreme, below it leaves values unused. INT4 has one
// more value below zero than above, so both signs of the scale are tried: with one
// the extreme becomes 7 (fourUp), with the other -8 (fourDown). With these steps
// the squared error of normal and heavy-tailed groups of 32 is 1.0007 times the
// least possible; steps of 0.25 give 1.00002, steps of 1 give 1.011.
var (
	fourUp   = grid{5.5, 9, 0.5}
	fourDown = grid{6.5, 10, 0.5}
	eight    = grid{100, 134, 2}
)

// grid is from, from + step, ... to.
type grid struct{ from, to, step float64 }

// Every bfloat16 number up to this many steps from a solution is tried.
const neighbours = 2

// best is the scale of least squared error among those tried; start, the plain
// scale, is one of them, and where integers times some bfloat16 scale give the
// weights exactly it is such a scale (INT8: if the largest value is 96 or more).
func (s *searcher) best(start float64) float64 {
	if start == 0 {
		return 0
	}
	least := s.err(start)
	if least == 0 {
		return start
	}
	top := s.extreme()
	if s.bits == 8 {
		top = math.Abs(top) // both signs have the same values
	}
	if exact, ok := s.exact(top); ok {
		return exact
	}
	found := start
	try := func(scale float64) {
		if scale == 0 || math.IsInf(scale, 0) {
			return
		}
		if e := s.err(scale); e < least {
			least, found = e, scale
		}
	}
	for _, center := range s.solve(top) {
		mid := tensor.F32ToBF16(float32(center))
		for step := -neighbours; step <= neighbours; step++ {
			try(float64(tensor.BF16ToF32(mid + uint16(step))))
		}
	}
	return found
}

// exact looks for a scale without error: the largest weight is one of the values
// times it.
func (s *searcher) exact(top float64) (float64, bool) {
	from, to := 1, 8
	if s.bits == 8 {
		from, to = 96, 127
	}
	for k := to; k >= from; k-- {
		scale := top / float64(k)
		if bf16(scale) != scale {
			continue
		}
		if s.isExact(scale) {
			return scale, true
		}
		if s.bits == 4 && s.isExact(-scale) {
			return -scale, true
		}
	}
	return 0, false
}

func (s *searcher) isExact(scale float64) bool {
	for _, w := range s.w {
		if q := s.value(w, 1/scale); q*scale != w {
			return false
		}
	}
	return true
}

// solve goes over the grid. For the integers a grid point gives, the best scale
// is sum(h w q) / sum(h q^2), with error sum(h w^2) - sum(h w q)^2 / sum(h q^2).
// It returns the two best of these.
func (s *searcher) solve(top float64) [2]float64 {
	var out, gain [2]float64
	add := func(scale float64) {
		wq, qq := s.sums(scale)
		if qq == 0 {
			return
		}
		switch g := wq * wq / qq; {
		case g > gain[0]:
			out, gain = [2]float64{wq / qq, out[0]}, [2]float64{g, gain[0]}
		case g > gain[1]:
			out[1], gain[1] = wq/qq, g
		}
	}
	walk := func(g grid, top float64) {
		for d := g.from; d <= g.to; d += g.step {
			add(top / d)
		}
	}
	if s.bits == 8 {
		walk(eight, top)
		return out
	}
	walk(fourUp, top)
	walk(fourDown, -top)
	return out
}

// magic added and taken away rounds a small float64 to the nearest integer, ties
// to even.
const magic = 3 << 51

// value is the integer nearest to w * inverse within the range.
func (s *searcher) value(w, inverse float64) float64 {
	t := w * inverse
	if t > s.max {
		t = s.max
	}
	if t < s.min {
		t = s.min
	}
	return (t + magic) - magic
}

// sums are sum(h w q) and sum(h q^2) for the integers of a scale.
func (s *searcher) sums(scale float64) (wq, qq float64) {
	inverse, low, high := 1/scale, s.min, s.max
	h := s.h[:len(s.w)]
	for i, w := range s.w {
		t := w * inverse
		if t > high {
			t = high
		}
		if t < low {
			t = low
		}
		q := (t + magic) - magic
		hq := h[i] * q
		wq += hq * w
		qq += hq * q
	}
	return wq, qq
}

// err is the weighted squared error of a scale.
func (s *searcher) err(scale float64) float64 {
	var sum float64
	inverse := 1 / scale
	for i, w := range s.w {
		d := w - scale*s.value(w, inverse)
		sum += s.h[i] * d * d
	}
	return sum
}

// round writes the integers of a scale.
func (s *searcher) round(dst []int8, scale float64) {
	if scale == 0 {
		clear(dst)
		return
	}
	inverse := 1 / scale
	for i, w := range s.w {
		dst[i] = int8(s.value(w, inverse))
	}
}
