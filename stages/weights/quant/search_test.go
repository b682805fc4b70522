package quant

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/tensor"
)

// plain is the search as it is defined, a scale after the other.
type plain struct {
	w, h []float64
	e    *tensor.Encoding
}

// value is the nearest level. Of INT3, t is rounded down to a half first, halves of halves to even: no
// border lies within.
func (p *plain) value(w, scale float64) float64 {
	levels := p.e.Levels()
	t := max(float64(levels[0]), min(float64(levels[len(levels)-1]), w*(1/scale)))
	if p.e != tensor.INT3 {
		return math.RoundToEven(t)
	}
	t, best := (math.RoundToEven(2*t-0.5)+0.5)/2, 0.0
	for i, v := range levels {
		if i == 0 || math.Abs(float64(v)-t) < math.Abs(best-t) {
			best = float64(v)
		}
	}
	return best
}

func (p *plain) err(scale float64) (sum float64) {
	for i, w := range p.w {
		d := w - scale*p.value(w, scale)
		sum += p.h[i] * d * d
	}
	return sum
}

func (p *plain) exact(scale float64) bool {
	return !slices.ContainsFunc(p.w, func(w float64) bool { return p.value(w, scale)*scale != w })
}

// tried are the scales of the grids, and the values of the extreme weight top for which an exact
// scale is looked for.
func (p *plain) tried(top float64) (list, exacts []float64) {
	points := func(from, to, step float64) {
		for d := from; math.Abs(d) <= math.Abs(to); d += step {
			list = append(list, top/d)
		}
	}
	switch p.e {
	case tensor.INT3:
		points(9, 20, 1)
		points(-12, -25, -1)
		exacts = []float64{-16, -10, -6, -3, 3, 7, 12}
	case tensor.INT4:
		points(5.5, 9, 0.5)
		points(-6.5, -10, -0.5)
		exacts = []float64{8, -8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1}
	case tensor.INT8:
		top = math.Abs(top)
		points(100, 134, 2)
		for k := 127.0; k >= 96; k-- {
			exacts = append(exacts, k)
		}
	}
	return list, exacts
}

// best goes over the grids, then over the neighbours of the two best solutions;
// earlier scales win.
func (p *plain) best() float64 {
	var top float64
	for _, w := range p.w {
		if math.Abs(w) > math.Abs(top) {
			top = w
		}
	}
	found := bf16(math.Abs(top) / map[*tensor.Encoding]float64{tensor.INT4: 7, tensor.INT8: 127}[p.e])
	if p.e == tensor.INT3 {
		found = bf16(top / -16)
	}
	least := p.err(found)
	if found == 0 || least == 0 {
		return found
	}
	list, exacts := p.tried(top)
	if p.e == tensor.INT8 {
		top = math.Abs(top)
	}
	for _, k := range exacts {
		if s := top / k; bf16(s) == s && p.exact(s) {
			return s
		}
	}
	type solution struct{ scale, gain float64 }
	var all []solution
	for _, s := range list {
		var wq, qq float64
		for i, w := range p.w {
			q := p.value(w, s)
			wq += p.h[i] * q * w
			qq += p.h[i] * q * q
		}
		if qq > 0 && wq != 0 {
			all = append(all, solution{wq / qq, wq * wq / qq})
		}
	}
	slices.SortStableFunc(all, func(a, b solution) int {
		switch {
		case a.gain > b.gain:
			return -1
		case a.gain < b.gain:
			return 1
		}
		return 0
	})
	for i := range min(2, len(all)) {
		mid := tensor.F32ToBF16(float32(all[i].scale))
		for step := -2; step <= 2; step++ {
			s := float64(tensor.BF16ToF32(mid + uint16(step)))
			if e := p.err(s); s != 0 && !math.IsInf(s, 0) && e < least {
				least, found = e, s
			}
		}
	}
	return found
}

// TestSearchByDefinition: two scales at a time, values from a table and clamps
// without branches find the very scale that the plain search finds.
func TestSearchByDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	encodings := []*tensor.Encoding{tensor.INT4, tensor.INT8, tensor.INT3}
	var searchers []*searcher
	for _, e := range encodings {
		searchers = append(searchers, newSearcher(e, 128))
	}
	for i := range 9000 {
		e, s := encodings[i%3], searchers[i%3]
		w := normal(r, []int{32, 64, 128, 1, 7}[i%5], i/3)
		if i%11 == 0 {
			for j := range w { // ties and exact scales
				w[j] = float32(r.IntN(9)-4) / 4
			}
		}
		p := &plain{e: e}
		var weight []float32
		for _, v := range w {
			p.w, p.h = append(p.w, float64(v)), append(p.h, 1)
		}
		if i%7 < 2 {
			weight = make([]float32, len(w))
			for j := range weight {
				weight[j] = r.Float32() * float32(j%4)
				p.h[j] = float64(weight[j])
			}
		}
		s.load(w, weight)
		if got, want := s.best(s.absmax()), p.best(); got != want {
			t.Fatalf("case %d, %d weights as %s: scale %g, want %g", i, len(w), e.Name(), got, want)
		}
	}
}
