package moe

import (
	"errors"
	"fmt"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	h100 = launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}
	a100 = launch.GPU{SMs: 108, SharedMax: 166912}
	v86  = launch.GPU{SMs: 84, SharedMax: 101376}
)

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func tiles(bits, group, rows, cols int, joined bool) launch.Tiles {
	if group == 0 {
		group = max(128, cols)
	}
	f := tensor.Layout{Format: tensor.EncodingOf(fmt.Sprintf("int%d", bits)).By(group), Rows: rows, Cols: cols, For: tensor.GPU, Joined: joined}
	return launch.Tiles{Layout: f, Values: 4096, Scales: 8192}
}

// The kernels and grids of the routed experts of DeepSeek-V2-Lite.
func TestExpertsChoices(t *testing.T) {
	for _, c := range []struct {
		gpu      launch.GPU
		tokens   int
		bits     int
		group    int
		kernel   string // without its variant
		variant  string
		x13, x2  uint32
		y        uint32
		threads  uint32
		shared   uint32
		variants Variant
	}{
		{h100, 128, 4, 128, "kr_moe_int4_g128", "_t32_h", 22, 16, 86, 256, 55424, H32},
		{h100, 176, 4, 64, "kr_moe_int4_g64", "_t64_h", 22, 16, 79, 256, 80128, H64},
		{h100, 512, 4, 128, "kr_moe_int4_g128", "_t64_h", 22, 16, 111, 256, 80128, H64},
		{h100, 2048, 4, 32, "kr_moe_int4_g32", "_t128x4_h", 11, 8, 159, 512, 82432, H128x4},
		{h100, 512, 3, 64, "kr_moe_int3_g64", "_t64_h", 22, 16, 111, 256, 80128, H64},
		{h100, 8192, 8, 0, "kr_moe_int8_ch", "_t128_h", 22, 16, 447, 256, 82432, H128},
		{a100, 128, 8, 64, "kr_moe_int8_g64", "_t32", 11, 8, 86, 256, 17024, A32},
		{v86, 8192, 4, 64, "kr_moe_int4_g64", "_t64", 11, 8, 831, 256, 34048, A64},
	} {
		b := launch.Bank{Experts: 64, W13: launch.Weight{A: tiles(c.bits, c.group, 2816, 2048, true)},
			W2:   launch.Weight{A: tiles(c.bits, c.group, 2048, 1408, false)},
			Step: 2816 * 256 * int64(c.bits), Step2: 2048 * 176 * int64(c.bits), ScaleStep: 2816 * 2, ScaleStep2: 2048 * 2}
		v := For(c.gpu, c.tokens*6, 64)
		if v != c.variants {
			t.Errorf("%d tokens: %v, want %v", c.tokens, v, c.variants)
			continue
		}
		a := route.NewAligned(4096, c.tokens, 6, 64, v.Tokens())
		var l launch.List
		run := func() {
			l.Reset()
			Experts(&l, c.gpu, mat(tensor.BF16, c.tokens*6, 2048), 4096, mat(tensor.BF16, c.tokens, 2048), b, a, Options{})
		}
		run()
		if len(l.Ops) != 2 {
			t.Fatalf("%d launches, want 2", len(l.Ops))
		}
		for i, x := range []uint32{c.x13, c.x2} {
			o := &l.Ops[i]
			if o.Kernel.String() != c.kernel+c.variant || o.Config.Grid.X != x || o.Config.Grid.Y != c.y ||
				o.Config.Block.X != c.threads || o.Config.Shared != c.shared || !o.Config.PDL || o.Count != 18 {
				t.Errorf("%d tokens, launch %d: %v %+v, %d arguments; want %+v", c.tokens, i, o.Kernel, o.Config, o.Count, c)
			}
		}
		if n := testing.AllocsPerRun(10, run); n != 0 {
			t.Errorf("%v allocations a call", n)
		}
	}
}

// Experts of gpt-oss-20b, with biases: the kernels that add them, and none for whole rows' scales.
func TestBiasedChoices(t *testing.T) {
	const width, hidden, tokens = 2880, 2880, 512
	for _, c := range []struct {
		gpu   launch.GPU
		group int
		want  string
	}{
		{h100, 32, "kr_moe_biased_int4_g32_t128x4_h"},
		{a100, 64, "kr_moe_biased_int4_g64_t32"},
		{h100, 0, ""},
	} {
		b := launch.Bank{Experts: 32, W13: launch.Weight{A: tiles(4, c.group, 2*width, hidden, true)},
			W2: launch.Weight{A: tiles(4, c.group, hidden, width, false)}, Extra: launch.Extra{B13: 4096, B2: 4096, BiasStep: 4}}
		x := mat(tensor.BF16, tokens, hidden)
		if can := CanExperts(x, &b); can != (c.want != "") {
			t.Errorf("%+v: %v", c, can)
		}
		if c.want == "" {
			continue
		}
		a := route.NewAligned(4096, tokens, 4, 32, ForBank(c.gpu, 4*tokens, &b).Tokens())
		var l launch.List
		Experts(&l, c.gpu, mat(tensor.BF16, 4*tokens, hidden), 4096, x, b, a, Options{})
		for i := range l.Ops {
			if o := &l.Ops[i]; o.Kernel.String() != c.want || o.Count != 23 {
				t.Errorf("%+v: %v, %d arguments", c, o.Kernel, o.Count)
			}
		}
	}
}

// Matrices of V2-Lite that remain integers: the kernel depends on both numbers of rows.
func TestDenseChoices(t *testing.T) {
	for _, c := range []struct {
		gpu     launch.GPU
		m, n, k int
		want    Variant
	}{
		{h100, 65, 2048, 2048, H32},
		{h100, 512, 3648, 2048, H64},
		{h100, 512, 21888, 2048, H128},
		{h100, 2048, 2048, 10944, H128},
		{h100, 2048, 21888, 2048, H128},
		{h100, 300, 21888, 2048, H128x4},
		{a100, 65, 2048, 2048, A32},
		{a100, 2048, 3648, 2048, A64},
	} {
		if v := denseFor(c.gpu, c.m, c.n); v != c.want {
			t.Errorf("%v: %v", c, v)
		}
		var l launch.List
		Dense(&l, c.gpu, mat(tensor.F32, c.m, c.n), mat(tensor.BF16, c.m, c.k), tiles(4, 128, c.n, c.k, false), Add)
		if len(l.Ops) != 1 || l.Ops[0].Kernel != kernels[c.want][2] {
			t.Errorf("%v: %v", c, l.Ops[0].Kernel)
		}
	}
	var l launch.List
	Dense(&l, h100, mat(tensor.F32, 0, 64), mat(tensor.BF16, 0, 64), tiles(4, 128, 64, 64, false), Store)
	if len(l.Ops) != 0 {
		t.Error("no rows give a launch")
	}
}

func TestRefusals(t *testing.T) {
	x, out := mat(tensor.BF16, 70, 128), mat(tensor.BF16, 70, 64)
	w := tiles(4, 128, 64, 128, false)
	if !CanDense(out, x, &w) {
		t.Fatal("a plain case is refused")
	}
	odd, wide, narrow := x, x, out
	odd.At += 2
	wide.DType = tensor.F32
	narrow.Stride = 66
	a := route.NewAligned(4096, 70, 2, 4, 64)
	bank := launch.Bank{Experts: 4, W13: launch.Weight{A: tiles(4, 64, 128, 128, true)}, W2: launch.Weight{A: tiles(4, 64, 128, 64, false)}}
	y := mat(tensor.BF16, 140, 128)
	for name, f := range map[string]func(l *launch.List){
		"an odd address":      func(l *launch.List) { Dense(l, h100, out, odd, w, Store) },
		"F32 activations":     func(l *launch.List) { Dense(l, h100, out, wide, w, Store) },
		"odd rows of results": func(l *launch.List) { Dense(l, h100, narrow, x, w, Store) },
		"adding to BF16":      func(l *launch.List) { Dense(l, h100, out, x, w, Add) },
		"columns of half": func(l *launch.List) {
			Dense(l, h100, out, mat(tensor.BF16, 70, 96), tiles(4, 32, 64, 96, false), Store)
		},
		"gate and up as rows":  func(l *launch.List) { Dense(l, h100, out, x, tiles(4, 128, 64, 128, true), Store) },
		"rows as gate and up":  func(l *launch.List) { Dense(l, h100, out, x, w, SwiGLU) },
		"fewer rows of output": func(l *launch.List) { Dense(l, h100, out.RowRange(0, 69), x, w, Store) },
		"a kernel of Hopper":   func(l *launch.List) { DenseBy(l, a100, H64, out, x, w, Store) },
		"other tiles":          func(l *launch.List) { Experts(l, h100, y, 4096, x, bank, a, Options{Variant: H128}) },
		"other experts": func(l *launch.List) {
			b := bank
			b.Experts = 5
			Experts(l, a100, y, 4096, x, b, a, Options{Variant: A64})
		},
		"other assignments": func(l *launch.List) {
			Experts(l, a100, y.RowRange(0, 138), 4096, x.RowRange(0, 69), bank, a, Options{Variant: A64})
		},
	} {
		func() {
			defer func() {
				var e *device.ShapeError
				if err, ok := recover().(error); !ok || !errors.As(err, &e) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			var l launch.List
			f(&l)
		}()
	}
	var l launch.List
	Experts(&l, a100, y, 4096, x, bank, a, Options{Variant: A64})
	if len(l.Ops) != 2 {
		t.Errorf("%d launches", len(l.Ops))
	}
}
