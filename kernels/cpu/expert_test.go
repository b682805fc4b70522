package cpu_test

import (
	"fmt"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// newExpert makes a network; gate, up and down get their types in turn.
func newExpert(d *cpu.Device, seed uint64, h, f int, inner, down tensor.DType) (e device.Expert, w ref.Expert) {
	r := kerneltest.Rand(seed)
	e.Gate, w.Gate = floats(d, inner, kerneltest.Normal(r, h*f, 0.1), f, h)
	e.Up, w.Up = floats(d, inner, kerneltest.Normal(r, h*f, 0.1), f, h)
	e.Down, w.Down = floats(d, down, kerneltest.Normal(r, h*f, 0.1), h, f)
	return e, w
}

// adorn gives a network biases, another activation, or both, by the seed.
func adorn(d *cpu.Device, seed uint64, h, f int, e *device.Extra, w *ref.Extra) {
	r := kerneltest.Rand(seed + 77)
	if seed%2 == 1 {
		w.B13, w.B2 = kerneltest.Normal(r, 2*f, 1), kerneltest.Normal(r, h, 1)
		e.B13, e.B2 = f32s(d, w.B13, 1, 2*f), f32s(d, w.B2, 1, h)
	}
	e.Act = []device.Activation{{}, {}, {Alpha: 1.702, Limit: 0.5, Shift: 1}, {Alpha: 1.702, Limit: 7, Shift: 1}, {Limit: 1}, device.GELUTanh}[seed%6]
	w.Act = e.Act
}

// ffnTolerance: two dot products in a row, the inner one of norm |x||w|; errors of both are far
// below 16 roundings of the largest result.
func ffnTolerance(want []float32) kerneltest.Tolerance {
	return kerneltest.Relative(want, 16, 16*kerneltest.Eps32*kerneltest.MaxAbs(want))
}

func TestFFN(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, size := range [][3]int{{1, 256, 64}, {5, 33, 70}, {270, 40, 65}, {2, 64, 1}, {1, 40, 1100}, {6, 2100, 70}} {
			for _, inner := range dtypes {
				for _, down := range dtypes {
					rows, h, f := size[0], size[1], size[2]
					e, w := newExpert(d, uint64(i), h, f, inner, down)
					adorn(d, uint64(i), h, f, &e.Extra, &w.Extra)
					x := kerneltest.Normal(kerneltest.Rand(5), rows*h, 1)
					want, got := make([]float32, rows*h), kerneltest.Guard[float32](rows*h, 4)
					ref.FFN(want, x, w, h)
					d.FFN(s, f32s(d, got.Data, rows, h), f32s(d, x, rows, h), e)
					if err := kerneltest.Compare(got.Data, want, h, ffnTolerance(want)); err != nil {
						t.Errorf("%v %s %s: %v", size, inner, down, err)
					}
					if err := got.Check(); err != nil {
						t.Errorf("%v %s %s: %v", size, inner, down, err)
					}
				}
			}
		}
	})
}

// assignments returns every token topK different experts; expert numbers and assignment lists rise.
func assignments(seed uint64, tokens, topK, experts int) []device.ExpertRows {
	r := kerneltest.Rand(seed)
	lists := make([][]int32, experts)
	for t := range tokens {
		for k, e := range r.Perm(experts)[:topK] {
			lists[e] = append(lists[e], int32(t*topK+k))
		}
	}
	var work []device.ExpertRows
	for e, list := range lists {
		if len(list) > 0 {
			work = append(work, device.ExpertRows{Expert: int32(e), Assign: list})
		}
	}
	return work
}

func TestExperts(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const experts, topK, h = 6, 3, 48
		var bank []device.Expert
		var banks []ref.Expert
		for i := range experts {
			// Widths and types differ, as in a model of mixed precision.
			e, w := newExpert(d, uint64(i), h, 32+9*i, dtypes[i%2], dtypes[i/2%2])
			adorn(d, uint64(i), h, 32+9*i, &e.Extra, &w.Extra)
			bank, banks = append(bank, e), append(banks, w)
		}
		for _, tokens := range []int{1, 2, 9, 200} {
			work := assignments(uint64(tokens), tokens, topK, experts)
			if len(work) > 1 {
				work = work[1:] // the rows of a missing expert stay as they are
			}
			x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
			got, want := kerneltest.Guard[float32](tokens*topK*h, 4), make([]float32, tokens*topK*h)
			copy(want, got.Data)
			ref.Experts(want, x, banks, work, topK, h)
			d.Experts(s, f32s(d, got.Data, tokens*topK, h), f32s(d, x, tokens, h), bank, work, topK)
			if err := kerneltest.Compare(got.Data, want, h, ffnTolerance(want)); err != nil {
				t.Errorf("%d tokens: %v", tokens, err)
			}
			if err := got.Check(); err != nil {
				t.Errorf("%d tokens: %v", tokens, err)
			}
		}
	})
}

// A token has the same bits alone and among others, in Experts and in FFN.
func TestExpertsAreBatchInvariant(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const tokens, h = 300, 70
		e, _ := newExpert(d, 1, h, 100, tensor.BF16, tensor.BF16)
		x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
		whole := make([]float32, tokens*h)
		d.FFN(s, f32s(d, whole, tokens, h), f32s(d, x, tokens, h), e)
		r := kerneltest.Rand(6)
		for range 20 {
			rows := r.Perm(tokens)[:1+r.IntN(7)]
			in, got := rowsOf(x, h, rows), make([]float32, len(rows)*h)
			d.FFN(s, f32s(d, got, len(rows), h), f32s(d, in, len(rows), h), e)
			if err := kerneltest.SameBits(got, rowsOf(whole, h, rows)); err != nil {
				t.Fatalf("rows %v: %v", rows, err)
			}
			// The same expert, among others, for the last of these rows only.
			last := len(rows) - 1
			work := []device.ExpertRows{{Expert: 1, Assign: []int32{int32(last)}}}
			if last > 0 {
				work = append([]device.ExpertRows{{Expert: 0, Assign: []int32{0}}}, work...)
			}
			d.Experts(s, f32s(d, got, len(rows), h), f32s(d, in, len(rows), h), []device.Expert{e, e}, work, 1)
			if err := kerneltest.SameBits(got[last*h:], whole[rows[last]*h:(rows[last]+1)*h]); err != nil {
				t.Fatalf("row %d as an expert: %v", rows[last], err)
			}
		}
	})
}

func TestExpertsRefuseWrongArguments(t *testing.T) {
	d, s := open(t, cpu.Options{})
	const h, f = 8, 16
	e, _ := newExpert(d, 1, h, f, tensor.F32, tensor.F32)
	other, _ := newExpert(d, 1, h+1, f, tensor.F32, tensor.F32)
	biased, down, act := e, e, e
	biased.B13, down.B2, act.Act.Limit = f32s(d, make([]float32, f), 1, f), f32s(d, make([]float32, h+1), 1, h+1), -1
	x, y := f32s(d, make([]float32, 2*h), 2, h), f32s(d, make([]float32, 2*h), 2, h)
	bank, one := []device.Expert{e, other, biased, down, act}, func(e, a int32) []device.ExpertRows {
		return []device.ExpertRows{{Expert: 0, Assign: []int32{0}}, {Expert: e, Assign: []int32{a}}}
	}
	for name, f := range map[string]func(){
		"expert":     func() { d.Experts(s, y, x, bank, one(5, 0), 1) },
		"bias":       func() { d.Experts(s, y, x, bank, one(2, 0), 1) },
		"down bias":  func() { d.Experts(s, y, x, bank, one(3, 0), 1) },
		"limit":      func() { d.Experts(s, y, x, bank, one(4, 0), 1) },
		"negative":   func() { d.Experts(s, y, x, bank, one(-1, 0), 1) },
		"assignment": func() { d.Experts(s, y, x, bank, one(0, 2), 1) },
		"shape":      func() { d.Experts(s, y, x, bank, one(1, 0), 1) },
		"topK":       func() { d.Experts(s, y, x, bank, one(0, 0), 0) },
		"y":          func() { d.Experts(s, y, x, bank, one(0, 0), 2) },
	} {
		t.Run(name, func(t *testing.T) {
			panicsWith(t, "Experts", f)
			if kerneltest.MaxAbs(y.F32s()) != 0 {
				t.Error("something was written before the arguments were refused")
			}
		})
	}
	panicsWith(t, "FFN", func() { d.FFN(s, y, x, other) })
}

func BenchmarkExperts(b *testing.B) {
	sizes := []struct {
		name                     string
		tokens, topK, experts, h int
		f                        int
	}{
		{"tiny/t1", 1, 4, 32, 256, 64}, {"tiny/t8", 8, 4, 32, 256, 64}, {"tiny/t200", 200, 4, 32, 256, 64},
		{"v2lite/t1", 1, 6, 64, 2048, 1408}, {"v2lite/t64", 64, 6, 64, 2048, 1408},
	}
	for _, size := range sizes {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads%d", size.name, threads), func(b *testing.B) {
				d, s := open(b, cpu.Options{Threads: threads})
				var bank []device.Expert
				for i := range size.experts {
					e, _ := newExpert(d, uint64(i), size.h, size.f, tensor.BF16, tensor.BF16)
					bank = append(bank, e)
				}
				work := assignments(1, size.tokens, size.topK, size.experts)
				x := f32s(d, kerneltest.Normal(kerneltest.Rand(5), size.tokens*size.h, 1), size.tokens, size.h)
				y := f32s(d, make([]float32, size.tokens*size.topK*size.h), size.tokens*size.topK, size.h)
				ns := kerneltest.Quartile(b, 1, func() { d.Experts(s, y, x, bank, work, size.topK) })
				kerneltest.Report(b, ns, len(work)*3*size.h*size.f*2, 6*size.tokens*size.topK*size.h*size.f)
			})
		}
	}
}
