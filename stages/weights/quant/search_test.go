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
	w, h      []float64
	low, high float64
}

func (p *plain) value(w, scale float64) float64 {
	return math.RoundToEven(max(p.low, min(p.high, w*(1/scale))))
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

// best goes over the grids, then over the neighbours of the two best solutions;
// earlier scales win.
func (p *plain) best(bits int) float64 {
	var top float64
	for _, w := range p.w {
		if math.Abs(w) > math.Abs(top) {
			top = w
		}
	}
	found := bf16(math.Abs(top) / p.high)
	least := p.err(found)
	if found == 0 || least == 0 {
		return found
	}
	list, ks := []float64{}, [2]int{1, 8}
	if bits == 8 {
		top, ks = math.Abs(top), [2]int{96, 127}
		for d := 100.0; d <= 134; d += 2 {
			list = append(list, top/d)
		}
	} else {
		for d := 5.5; d <= 9; d += 0.5 {
			list = append(list, top/d)
		}
		for d := 6.5; d <= 10; d += 0.5 {
			list = append(list, -top/d)
		}
	}
	for k := ks[1]; k >= ks[0]; k-- {
		if s := top / float64(k); bf16(s) == s {
			for _, s := range []float64{s, -s} {
				if p.exact(s) && (bits == 4 || s > 0) {
					return s
				}
			}
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
	s4, s8 := newSearcher(tensor.INT4, 128), newSearcher(tensor.INT8, 128)
	for i := range 6000 {
		s, bits := s4, 4
		if i%2 == 1 {
			s, bits = s8, 8
		}
		w := normal(r, []int{32, 64, 128, 1, 7}[i%5], i/2)
		if i%11 == 0 {
			for j := range w { // ties and exact scales
				w[j] = float32(r.IntN(9)-4) / 4
			}
		}
		p := &plain{low: s.min, high: s.max}
		var weight []float32
		for _, v := range w {
			p.w, p.h = append(p.w, float64(v)), append(p.h, 1)
		}
		if i%3 == 0 {
			weight = make([]float32, len(w))
			for j := range weight {
				weight[j] = r.Float32() * float32(j%4)
				p.h[j] = float64(weight[j])
			}
		}
		s.load(w, weight)
		if got, want := s.best(s.absmax()), p.best(bits); got != want {
			t.Fatalf("case %d, %d weights in %d bits: scale %g, want %g", i, len(w), bits, got, want)
		}
	}
}
