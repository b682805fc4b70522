package quant

import (
	"math"
	"sync"

	"krater/kernels/tensor"
)

// searcher finds the scale of one group at a time. All sums are float64, so that
// a comparison of two scales does not depend on rounding in the sums.
type searcher struct {
	w       []float64 // the group's weights
	h       []float64 // how much an error in each counts; nil: all alike
	buf     []float64
	extreme float64 // the first of the weights of largest magnitude
	levelRange
	values [2 * tabled]float64 // the level nearest to each step, below and above the range too
}

// tabled is the end of the steps in the table, of either sign: above all of the grids.
const tabled = 256

// index of the step nearest to t in the table; t lies between -tabled and
// tabled-1. The clamp costs no branch that way.
func index(t float64) uint { return uint(math.Float64bits(t+magic)) % (2 * tabled) }

func newSearcher(e *tensor.Encoding, group int) *searcher {
	return &searcher{levelRange: rangeOf(e), buf: make([]float64, 2*group), values: *tableOf(e)}
}

// tables has what tableOf returned, by encoding.
var tables sync.Map

// tableOf returns searcher.values of an encoding. For a small matrix it takes longer to make than the search.
func tableOf(e *tensor.Encoding) *[2 * tabled]float64 {
	if made, ok := tables.Load(e); ok {
		return made.(*[2 * tabled]float64)
	}
	r, values := rangeOf(e), new([2 * tabled]float64)
	for i := -tabled; i < tabled; i++ {
		t, best := (float64(i)+r.shift)/r.steps, math.Inf(1)
		for _, v := range e.Levels() {
			if d := math.Abs(t - float64(v)); d < best {
				best, values[index(float64(i))] = d, float64(v)
			}
		}
	}
	tables.Store(e, values)
	return values
}

// load takes a group's weights; weight nil counts all errors alike.
//
//go:norace
func (s *searcher) load(w, weight []float32) {
	n := len(w)
	s.w, s.h, s.extreme = s.buf[:n], nil, 0
	var top float32
	for i, v := range w {
		s.w[i] = float64(v)
		if a := math.Float32frombits(math.Float32bits(v) &^ (1 << 31)); a > top {
			top, s.extreme = a, float64(v)
		}
	}
	if weight == nil {
		return
	}
	s.h = s.buf[n : 2*n]
	for i, v := range weight[:n] {
		s.h[i] = float64(v)
	}
}

// bf16 rounds to the nearest bfloat16 number.
func bf16(x float64) float64 {
	return float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(x))))
}

// absmax returns the plain scale: the largest magnitude becomes the largest value. A
// group of zeros, or of numbers too small for any bfloat16 scale, gets 0.
func (s *searcher) absmax() float64 {
	if s.steps > 1 {
		return bf16(s.extreme / s.min)
	}
	return bf16(math.Abs(s.extreme) / s.max)
}

// Every bfloat16 number up to this many steps from a solution is tried.
const neighbours = 2

// best returns the scale of least squared error among those tried; start, the plain
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
	top := s.extreme
	if s.min == -s.max {
		top = math.Abs(top) // both signs have the same values
	}
	if exact, ok := s.exact(top); ok {
		return exact
	}
	found := start
	try := func(scale, e float64) {
		if e < least && scale != 0 && !math.IsInf(scale, 0) {
			least, found = e, scale
		}
	}
	var near [2 * (2*neighbours + 1)]float64
	for i, center := range s.solve(top) {
		first := tensor.F32ToBF16(float32(center)) - neighbours
		for step := range len(near) / 2 {
			near[i*len(near)/2+step] = float64(tensor.BF16ToF32(first + uint16(step)))
		}
	}
	for i := 0; i < len(near); i += 2 {
		eA, eB := s.errs(near[i], near[i+1])
		try(near[i], eA)
		try(near[i+1], eB)
	}
	return found
}

// exact looks for a scale without error: the largest weight is one of the values
// times it.
func (s *searcher) exact(top float64) (float64, bool) {
	for _, k := range s.exacts {
		if scale := top / k; bf16(scale) == scale && s.isExact(scale) {
			return scale, true
		}
	}
	return 0, false
}

//go:norace
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
//
//go:norace
func (s *searcher) solve(top float64) [2]float64 {
	var out, gain [2]float64
	add := func(wq, qq float64) {
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
	for _, g := range s.grids {
		for i := 0; i < g.points; i += 2 {
			d := g.from + float64(i)*g.step
			wqA, qqA, wqB, qqB := s.sums(top/d, top/(d+g.step))
			add(wqA, qqA)
			add(wqB, qqB)
		}
	}
	return out
}

// magic added and taken away rounds a small float64 to the nearest integer, ties
// to even.
const magic = 3 << 51

// value returns the level nearest to w * inverse.
//
//go:norace
func (s *searcher) value(w, inverse float64) float64 {
	t := w * inverse
	if t > s.max {
		t = s.max
	}
	if t < s.min {
		t = s.min
	}
	return s.values[index(t*s.steps-s.shift)]
}

// sums are sum(h w q) and sum(h q^2) for the integers of two scales. The two are
// independent: one's additions run while the other's are waited for.
//
//go:norace
func (s *searcher) sums(a, b float64) (wqA, qqA, wqB, qqB float64) {
	inverseA, inverseB, shift, values := s.steps/a, s.steps/b, s.shift, &s.values
	if s.h == nil {
		for _, w := range s.w {
			qA, qB := values[index(w*inverseA-shift)], values[index(w*inverseB-shift)]
			wqA += qA * w
			qqA += qA * qA
			wqB += qB * w
			qqB += qB * qB
		}
		return wqA, qqA, wqB, qqB
	}
	h := s.h[:len(s.w)]
	for i, w := range s.w {
		qA, qB := values[index(w*inverseA-shift)], values[index(w*inverseB-shift)]
		hqA, hqB := h[i]*qA, h[i]*qB
		wqA += hqA * w
		qqA += hqA * qA
		wqB += hqB * w
		qqB += hqB * qB
	}
	return wqA, qqA, wqB, qqB
}

// err returns the weighted squared error of a scale.
//
//go:norace
func (s *searcher) err(scale float64) float64 {
	var sum float64
	inverse := 1 / scale
	for i, w := range s.w {
		d := w - scale*s.value(w, inverse)
		if s.h == nil {
			sum += d * d
		} else {
			sum += s.h[i] * d * d
		}
	}
	return sum
}

// errs are the weighted squared errors of two scales.
//
//go:norace
func (s *searcher) errs(a, b float64) (sumA, sumB float64) {
	inverseA, inverseB, shift, values := s.steps/a, s.steps/b, s.shift, &s.values
	if top := math.Abs(s.extreme); !(top*math.Abs(inverseA) < tabled-1 && top*math.Abs(inverseB) < tabled-1) {
		return s.err(a), s.err(b)
	}
	if s.h == nil {
		for _, w := range s.w {
			dA := w - a*values[index(w*inverseA-shift)]
			dB := w - b*values[index(w*inverseB-shift)]
			sumA += dA * dA
			sumB += dB * dB
		}
		return sumA, sumB
	}
	h := s.h[:len(s.w)]
	for i, w := range s.w {
		dA := w - a*values[index(w*inverseA-shift)]
		dB := w - b*values[index(w*inverseB-shift)]
		sumA += h[i] * dA * dA
		sumB += h[i] * dB * dB
	}
	return sumA, sumB
}

// round writes the integers of a scale.
//
//go:norace
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
