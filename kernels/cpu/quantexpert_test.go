package cpu_test

import (
	"cmp"
	"math"
	"sync"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/exp"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func newQExpert(d *cpu.Device, seed uint64, h, f int, enc *tensor.Encoding, group13, group2 int) (e device.QExpert, w ref.QExpert) {
	e.W13, w.W13 = newQMat(d, seed, 2*f, h, enc, group13)
	e.W2, w.W2 = newQMat(d, seed+1000, h, f, enc, group2)
	return e, w
}

// composed is FFNQ by its own parts: the products of ref (the bits of MatMulQ), the level's
// activation, ref's quantisation.
func composed(d *cpu.Device, x ref.QRows, rows int, e ref.QExpert) []float32 {
	f := e.W2.Cols
	both, mid := make([]float32, rows*2*f), make([]float32, rows*f)
	ref.MatMulQ(both, x, e.W13)
	for r := range rows {
		if e.B13 != nil {
			ref.Add(both[r*2*f:(r+1)*2*f], e.B13)
		}
		switch kernels, a := exp.At(d.Level()), e.Act; {
		case a == device.Activation{}:
			kernels.SiluMul(&mid[r*f], &both[r*2*f], &both[r*2*f+f], f)
		default:
			limit := a.Limit
			if limit == 0 {
				limit = float32(math.Inf(1))
			}
			if alpha := cmp.Or(a.Alpha, 1); a.Cubic != 0 {
				kernels.Cubic(&mid[r*f], &both[r*2*f], &both[r*2*f+f], f, alpha, a.Cubic, limit, a.Shift)
			} else {
				kernels.SwiGLU(&mid[r*f], &both[r*2*f], &both[r*2*f+f], f, alpha, limit, a.Shift)
			}
		}
	}
	out := make([]float32, rows*e.W2.Rows)
	ref.MatMulQ(out, ref.QuantizeRows(mid, f, e.W2.Group), e.W2)
	if e.B2 != nil {
		ref.AddBias(out, e.B2)
	}
	return out
}

func TestFFNQ(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		// rows, h, f, group of W13, of W2
		for i, size := range [][5]int{{1, 64, 32, 32, 32}, {2, 96, 48, 96, 64}, {5, 128, 128, 128, 128}, {33, 40, 16, 64, 32}, {270, 32, 48, 32, 64}, {1030, 32, 16, 32, 32}, {3, 128, 160, 64, 32}, {150, 256, 128, 128, 128}} {
			for _, enc := range encodings {
				rows, h, f := size[0], size[1], size[2]
				e, w := newQExpert(d, uint64(i), h, f, enc, size[3], size[4])
				adorn(d, uint64(i), h, f, &e.Extra, &w.Extra)
				x := kerneltest.Normal(kerneltest.Rand(5), rows*h, 1)
				q := ref.QuantizeRows(x, h, size[3])
				got := kerneltest.Guard[float32](rows*h, 4)
				d.FFNQ(s, f32s(d, got.Data, rows, h), quantized(d, s, x, rows, h, size[3]), e)
				if err := kerneltest.SameBits(got.Data, composed(d, q, rows, w)); err != nil {
					t.Fatalf("%v, %s: %v", size, enc.Name(), err)
				}
				if err := got.Check(); err != nil {
					t.Fatalf("%v, %s: %v", size, enc.Name(), err)
				}
				want := make([]float32, rows*h)
				ref.FFNQ(want, q, w)
				if err := kerneltest.Compare(got.Data, want, h, ffnQTolerance(w, want)); err != nil {
					t.Errorf("%v, %s: %v", size, enc.Name(), err)
				}
			}
		}
	})
}

// ffnQTolerance: silu differs by a few roundings, which seldom moves a middle value over a boundary
// of its integer; where it does, the result moves by one step of the value times one weight. Two
// such values are allowed in a result: with 10^-5 of a step of difference, one in 10^5 values moves
// at all. A step is at most a 127th of the largest middle value, which is not known here: results
// are sums of many weights times such values, so the largest result bounds a single product from
// above in all but contrived cases.
func ffnQTolerance(w ref.QExpert, want []float32) kerneltest.Tolerance {
	return kerneltest.Relative(want, 64, kerneltest.MaxAbs(want)*2/127)
}

// TestFFNQOfManyThreads crosses the largest groups, which devices of many threads take, and makes
// no garbage in doing so.
func TestFFNQOfManyThreads(t *testing.T) {
	const rows, h, f, group = 1100, 128, 64, 64
	var want []float32
	for _, threads := range []int{2, 8, 16} {
		d, s := open(t, cpu.Options{Threads: threads})
		e, w := newQExpert(d, 3, h, f, tensor.INT4, group, group)
		adorn(d, 3, h, f, &e.Extra, &w.Extra)
		x := kerneltest.Normal(kerneltest.Rand(5), rows*h, 1)
		q := ref.QuantizeRows(x, h, group)
		got := kerneltest.Guard[float32](rows*h, 4)
		out, in := f32s(d, got.Data, rows, h), quantized(d, s, x, rows, h, group)
		d.FFNQ(s, out, in, e)
		if want == nil {
			want = composed(d, q, rows, w)
		}
		if err := kerneltest.SameBits(got.Data, want); err != nil {
			t.Fatalf("%d threads: %v", threads, err)
		}
		if err := got.Check(); err != nil {
			t.Fatalf("%d threads: %v", threads, err)
		}
		if n := kerneltest.Allocations(func() { d.FFNQ(s, out, in, e) }); n != 0 {
			t.Errorf("%d threads: %v allocations", threads, n)
		}
	}
}

func TestExpertsQ(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const experts, topK, h, group = 6, 3, 32, 32
		var bank []device.QExpert
		var banks []ref.QExpert
		for i := range experts {
			// Widths, bits and inner groups differ, as in a model of mixed precision.
			f := 32 + 16*i
			e, w := newQExpert(d, uint64(i), h, f, tensor.Integers(4+4*(i%2)), group, []int{32, perChannel(f)}[i/2%2])
			adorn(d, uint64(i), h, f, &e.Extra, &w.Extra)
			bank, banks = append(bank, e), append(banks, w)
		}
		for _, tokens := range []int{1, 2, 9, 140} {
			work := assignments(uint64(tokens), tokens, topK, experts)
			if len(work) > 1 {
				work = work[1:] // the rows of a missing expert stay as they are
			}
			x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
			q := ref.QuantizeRows(x, h, group)
			got, want := kerneltest.Guard[float32](tokens*topK*h, 4), make([]float32, tokens*topK*h)
			copy(want, got.Data)
			for _, item := range work {
				for _, a := range item.Assign {
					row := ref.QuantizeRows(x[int(a)/topK*h:(int(a)/topK+1)*h], h, group)
					copy(want[int(a)*h:], composed(d, row, 1, banks[item.Expert]))
				}
			}
			d.ExpertsQ(s, f32s(d, got.Data, tokens*topK, h), quantized(d, s, x, tokens, h, group), bank, work, topK)
			if err := kerneltest.SameBits(got.Data, want); err != nil {
				t.Fatalf("%d tokens: %v", tokens, err)
			}
			if err := got.Check(); err != nil {
				t.Fatalf("%d tokens: %v", tokens, err)
			}
			ref.ExpertsQ(want, q, banks, work, topK)
			if err := kerneltest.Compare(got.Data, want, h, kerneltest.Relative(want, 64, kerneltest.MaxAbs(want)*2/127)); err != nil {
				t.Errorf("%d tokens: %v", tokens, err)
			}
		}
	})
}

// A token has the same bits alone and among others.
func TestExpertsQAreBatchInvariant(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const tokens, h, f, group = 300, 128, 64, 64
		e, _ := newQExpert(d, 1, h, f, tensor.INT4, group, 32)
		x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
		whole := make([]float32, tokens*h)
		d.FFNQ(s, f32s(d, whole, tokens, h), quantized(d, s, x, tokens, h, group), e)
		r := kerneltest.Rand(6)
		for range 20 {
			rows := r.Perm(tokens)[:1+r.IntN(20)]
			in, got := quantized(d, s, rowsOf(x, h, rows), len(rows), h, group), make([]float32, len(rows)*h)
			d.FFNQ(s, f32s(d, got, len(rows), h), in, e)
			if err := kerneltest.SameBits(got, rowsOf(whole, h, rows)); err != nil {
				t.Fatalf("rows %v: %v", rows, err)
			}
			// The same expert, among others, for the last of these rows only.
			last := len(rows) - 1
			work := []device.ExpertRows{{Expert: 1, Assign: []int32{int32(last)}}}
			if last > 0 {
				work = append([]device.ExpertRows{{Expert: 0, Assign: []int32{0}}}, work...)
			}
			d.ExpertsQ(s, f32s(d, got, len(rows), h), in, []device.QExpert{e, e}, work, 1)
			if err := kerneltest.SameBits(got[last*h:], whole[rows[last]*h:(rows[last]+1)*h]); err != nil {
				t.Fatalf("row %d as an expert: %v", rows[last], err)
			}
		}
	})
}

// A token that is not finite spoils its own rows only.
func TestExpertsQSpreadNaN(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const tokens, h, f, group = 9, 64, 32, 32
		e, _ := newQExpert(d, 1, h, f, tensor.INT8, group, 32)
		x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
		x[4*h+40] = float32(math.Inf(1))
		got := make([]float32, tokens*h)
		d.FFNQ(s, f32s(d, got, tokens, h), quantized(d, s, x, tokens, h, group), e)
		for i, v := range got {
			if (v != v) != (i/h == 4) {
				t.Fatalf("[%d, %d] is %g", i/h, i%h, v)
			}
		}
	})
}

// Several streams share the team, and the parts of one wait for one another while those of others
// run.
func TestExpertsQOfSeveralStreams(t *testing.T) {
	d, _ := open(t, cpu.Options{Threads: 3})
	d.ShareEverything()
	const tokens, topK, h, f, experts, group = 4, 2, 64, 48, 5, 32
	var bank []device.QExpert
	for i := range experts {
		e, _ := newQExpert(d, uint64(i), h, f, tensor.INT4, group, 32)
		bank = append(bank, e)
	}
	work := assignments(1, tokens, topK, experts)
	x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
	results := make([][]float32, 4)
	var all sync.WaitGroup
	for i := range results {
		results[i] = make([]float32, tokens*topK*h)
		all.Go(func() {
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			in := quantized(d, s, x, tokens, h, group)
			for range 50 {
				clear(results[i])
				d.ExpertsQ(s, f32s(d, results[i], tokens*topK, h), in, bank, work, topK)
			}
		})
	}
	all.Wait()
	for _, got := range results[1:] {
		if err := kerneltest.SameBits(got, results[0]); err != nil {
			t.Fatal(err)
		}
	}
	if kerneltest.MaxAbs(results[0]) == 0 {
		t.Error("no result")
	}
}

func TestQuantOperatorsAllocateNothing(t *testing.T) {
	d, s := open(t, cpu.Options{Threads: 2})
	d.ShareEverything()
	const tokens, topK, h, f, experts, group = 20, 2, 70, 48, 5, 32
	var bank []device.QExpert
	for i := range experts {
		e, _ := newQExpert(d, uint64(i), h, f, tensor.INT4, group, 32)
		bank = append(bank, e)
	}
	work := assignments(1, tokens, topK, experts)
	x := f32s(d, kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1), tokens, h)
	q := quantized(d, s, x.F32s(), tokens, h, group)
	y, out := f32s(d, make([]float32, tokens*topK*h), tokens*topK, h), f32s(d, make([]float32, tokens*h), tokens, h)
	wide := f32s(d, make([]float32, tokens*2*f), tokens, 2*f)
	step := func() {
		d.QuantizeRows(s, q, x)
		d.MatMulQ(s, wide, q, bank[0].W13)
		d.FFNQ(s, out, q, bank[0])
		d.ExpertsQ(s, y, q, bank, work, topK)
	}
	step()
	held := d.Scratch()
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%g allocations a step", n)
	}
	if d.Scratch() != held {
		t.Error("scratch went on growing")
	}
}

func TestExpertsQRefuseWrongArguments(t *testing.T) {
	d, s := open(t, cpu.Options{})
	const h, f, group = 32, 32, 32
	e, _ := newQExpert(d, 1, h, f, tensor.INT4, group, 32)
	other, _ := newQExpert(d, 1, h+32, f, tensor.INT4, group, 32)
	odd := e
	odd.W2.Cols = 24
	crossed := e
	crossed.W13.Rows = 2*f - 16
	x := quantized(d, s, make([]float32, 2*h), 2, h, group)
	y := f32s(d, make([]float32, 2*h), 2, h)
	bank, one := []device.QExpert{e, other, odd, crossed}, func(e, a int32) []device.ExpertRows {
		return []device.ExpertRows{{Expert: 0, Assign: []int32{0}}, {Expert: e, Assign: []int32{a}}}
	}
	for i := range y.F32s() {
		y.F32s()[i] = 7
	}
	for name, f := range map[string]func(){
		"expert":     func() { d.ExpertsQ(s, y, x, bank, one(4, 0), 1) },
		"negative":   func() { d.ExpertsQ(s, y, x, bank, one(-1, 0), 1) },
		"assignment": func() { d.ExpertsQ(s, y, x, bank, one(0, 2), 1) },
		"shape":      func() { d.ExpertsQ(s, y, x, bank, one(1, 0), 1) },
		"odd":        func() { d.ExpertsQ(s, y, x, bank, one(2, 0), 1) },
		"crossed":    func() { d.ExpertsQ(s, y, x, bank, one(3, 0), 1) },
		"topK":       func() { d.ExpertsQ(s, y, x, bank, one(0, 0), 0) },
		"y":          func() { d.ExpertsQ(s, y, x, bank, one(0, 0), 2) },
	} {
		t.Run(name, func(t *testing.T) {
			panicsWith(t, "ExpertsQ", f)
			for _, v := range y.F32s() {
				if v != 7 {
					t.Fatal("something was written before the arguments were refused")
				}
			}
		})
	}
	panicsWith(t, "FFNQ", func() { d.FFNQ(s, y, x, other) })
	panicsWith(t, "FFNQ", func() { d.FFNQ(s, y, x, odd) })
}
