package gemm

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	h100 = launch.GPU{Name: "H100", SMs: 132, Hopper: true, SharedMax: 227 << 10}
	a100 = launch.GPU{Name: "A100", SMs: 108, SharedMax: 163 << 10}
	ada  = launch.GPU{Name: "RTX 4090", SMs: 128, SharedMax: 99 << 10}
	old  = launch.GPU{SMs: 40, SharedMax: 48 << 10}
)

// The shapes of DeepSeek-V2-Lite, and the plans that the cost model chooses for them.
func TestChoose(t *testing.T) {
	for _, c := range []struct {
		gpu  launch.GPU
		z    Sizes
		want string
	}{
		{h100, Sizes{M: 65, N: 2048, K: 2048}, "64x128_h in 4 parts"},
		{h100, Sizes{M: 512, N: 2048, K: 2048}, "128x128_h in 2 parts"},
		{h100, Sizes{M: 512, N: 2048, K: 2048, Whole: true}, "64x128_h"},
		{h100, Sizes{M: 2048, N: 2048, K: 2048}, "128x256_h"},
		{h100, Sizes{M: 2048, N: 3648, K: 2048}, "128x256_h"},
		{h100, Sizes{M: 8192, N: 3648, K: 2048}, "128x256_h"},
		{h100, Sizes{M: 256, N: 4096, K: 512}, "64x128_h"},
		{h100, Sizes{M: 65, N: 102400, K: 2048}, "128x128_h"},
		{h100, Sizes{M: 2048, N: 102400, K: 2048}, "128x256_h"},
		{h100, Sizes{M: 128, N: 2048, K: 10944}, "128x128_h in 6 parts"},
		{h100, Sizes{M: 2048, N: 10944, K: 2048, SwiGLU: true}, "128x256_h"},
		{h100, Sizes{M: 64, N: 512, K: 128, Batch: 16}, "64x128_h"},
		{a100, Sizes{M: 2048, N: 2048, K: 2048}, "128x128"},
		{a100, Sizes{M: 65, N: 4096, K: 512}, "64x64"},
		{old, Sizes{M: 2048, N: 2048, K: 2048}, "64x64"},
	} {
		if got := Choose(c.gpu, c.z).String(); got != c.want {
			t.Errorf("%s %+v: %s, want %s", c.gpu.Name, c.z, got, c.want)
		}
	}
}

// Every plan is within the GPU's limits, and costs no more than the other candidates.
func TestEveryPlanFits(t *testing.T) {
	for _, gpu := range []launch.GPU{h100, a100, ada, {SMs: 1}, {Hopper: true}} {
		for m := 1; m < 9000; m += 1 + m/3 {
			for _, n := range []int{8, 576, 2048, 102400} {
				for _, k := range []int{8, 512, 2048, 10944} {
					z := Sizes{M: m, N: n, K: k}
					p := Choose(gpu, z)
					if !p.Variant.runs(gpu) || shapes[p.Variant].hopper != gpu.Hopper {
						t.Fatalf("%v %+v: %v", gpu, z, p)
					}
					length, count := part(k, p.Parts)
					if length%64 != 0 || count != p.Parts || (count-1)*length >= k || count*length < k {
						t.Fatalf("%+v: %d parts of %d", z, count, length)
					}
					want := 0
					if p.Parts > 1 {
						want = 4 * m * n * p.Parts
					}
					if got := Scratch(gpu, m, n, k); got != want || got > scratchMax {
						t.Fatalf("%+v, %v: %d bytes of scratch, want %d", z, p, got, want)
					}
					for v := Auto + 1; v < variants; v++ {
						if s := &shapes[v]; v.runs(gpu) && s.hopper == gpu.Hopper && cost(gpu, z, Plan{v, 1}) < cost(gpu, z, p) {
							t.Fatalf("%+v: %v is cheaper than %v", z, v, p)
						}
					}
				}
			}
		}
	}
}

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 1 << 20, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// kernelArgs is the number of parameters of the kernels, sumArgs that of the second kernel of a
// product in parts.
const (
	kernelArgs = 18
	sumArgs    = 7
)

func TestLaunches(t *testing.T) {
	type op struct {
		kernel string
		grid   uint32
		args   int
	}
	scratch := Options{Scratch: 1 << 20}
	for _, c := range []struct {
		what string
		add  func(l *launch.List)
		want []op
	}{
		{"blocks that stay", func(l *launch.List) {
			BF16(l, h100, mat(tensor.BF16, 8192, 2048), mat(tensor.BF16, 8192, 2048), mat(tensor.BF16, 2048, 2048), Options{})
		}, []op{{"kr_gemm_128x256_h", 132, kernelArgs}}},
		{"fewer tiles than blocks", func(l *launch.List) {
			BF16(l, h100, mat(tensor.F32, 100, 136), mat(tensor.BF16, 100, 64), mat(tensor.BF16, 136, 64), Options{Plan: Plan{Variant: H64}})
		}, []op{{"kr_gemm_64x128_h", 4, kernelArgs}}},
		{"a block a tile", func(l *launch.List) {
			BF16(l, a100, mat(tensor.BF16, 2048, 2040), mat(tensor.BF16, 2048, 2048), mat(tensor.BF16, 2040, 2048), Options{})
		}, []op{{"kr_gemm_128x128", 256, kernelArgs}}},
		{"in parts", func(l *launch.List) {
			BF16(l, h100, mat(tensor.BF16, 512, 2048), mat(tensor.BF16, 512, 2048), mat(tensor.BF16, 2048, 2048), scratch)
		}, []op{{"kr_gemm_128x128_h", 128, kernelArgs}, {"kr_gemm_sum", 1024, sumArgs}}},
		{"a batch", func(l *launch.List) {
			BF16(l, a100, mat(tensor.BF16, 64, 512), mat(tensor.BF16, 64, 128), mat(tensor.BF16, 512, 128),
				Options{Batch: 16, OutStep: 512, XStep: 128, WStep: 512 * 128, Plan: Plan{Variant: A64}})
		}, []op{{"kr_gemm_64x64", 128, kernelArgs}}},
		{"gate and up", func(l *launch.List) {
			SwiGLU(l, h100, mat(tensor.BF16, 256, 1408), mat(tensor.BF16, 256, 2048), mat(tensor.BF16, 1408, 2048), mat(tensor.BF16, 1408, 2048), Options{Plan: Plan{Variant: H256}})
		}, []op{{"kr_gemm_swiglu_128x256_h", 22, kernelArgs}}},
		{"no rows", func(l *launch.List) {
			BF16(l, h100, mat(tensor.BF16, 0, 2048), mat(tensor.BF16, 0, 2048), mat(tensor.BF16, 2048, 2048), Options{})
		}, nil},
	} {
		var l launch.List
		c.add(&l)
		if len(l.Ops) != len(c.want) {
			t.Errorf("%s: %d launches, want %d", c.what, len(l.Ops), len(c.want))
			continue
		}
		for i := range l.Ops {
			o := &l.Ops[i]
			if got := (op{o.Kernel.String(), o.Config.Grid.X, o.Count}); got != c.want[i] || !o.Config.PDL {
				t.Errorf("%s: %+v (PDL %v), want %+v", c.what, got, o.Config.PDL, c.want[i])
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	x, w, out := mat(tensor.BF16, 64, 128), mat(tensor.BF16, 256, 128), mat(tensor.BF16, 64, 256)
	with := func(m launch.Mat, change func(*launch.Mat)) launch.Mat { change(&m); return m }
	bf16 := func(out, x, w launch.Mat, o Options) func(l *launch.List) {
		return func(l *launch.List) { BF16(l, h100, out, x, w, o) }
	}
	for what, add := range map[string]func(l *launch.List){
		"K of x":              bf16(out, with(x, func(m *launch.Mat) { m.Cols = 120 }), w, Options{}),
		"K of no multiple":    bf16(out, mat(tensor.BF16, 64, 124), mat(tensor.BF16, 256, 124), Options{}),
		"N of no multiple":    bf16(mat(tensor.BF16, 64, 252), x, mat(tensor.BF16, 252, 128), Options{}),
		"rows of out":         bf16(mat(tensor.BF16, 63, 256), x, w, Options{}),
		"an unaligned x":      bf16(out, with(x, func(m *launch.Mat) { m.At += 2 }), w, Options{}),
		"an unaligned stride": bf16(out, x, with(w, func(m *launch.Mat) { m.Stride = 132 }), Options{}),
		"F32 x":               bf16(out, mat(tensor.F32, 64, 128), w, Options{}),
		"F32 w":               bf16(out, x, mat(tensor.F32, 256, 128), Options{}),
		"adding to BF16":      bf16(out, x, w, Options{Accumulate: true}),
		"an odd step":         bf16(out, x, w, Options{Batch: 2, OutStep: 64 * 256, XStep: 4, WStep: 256 * 128}),
		"parts of a batch":    bf16(out, x, w, Options{Batch: 2, Scratch: 1 << 20, Plan: Plan{H64, 2}}),
		"parts nowhere":       bf16(out, x, w, Options{Plan: Plan{H64, 2}}),
		"wgmma on an A100":    func(l *launch.List) { BF16(l, a100, out, x, w, Options{Plan: Plan{Variant: H64}}) },
		"too much memory":     func(l *launch.List) { BF16(l, old, out, x, w, Options{Plan: Plan{Variant: A128}}) },
		"another up":          func(l *launch.List) { SwiGLU(l, h100, out, x, w, w.RowRange(0, 248), Options{}) },
		"SwiGLU in parts":     func(l *launch.List) { SwiGLU(l, h100, out, x, w, w, Options{Plan: Plan{H64, 2}}) },
		"a SwiGLU added":      func(l *launch.List) { SwiGLU(l, h100, mat(tensor.F32, 64, 256), x, w, w, Options{Accumulate: true}) },
	} {
		t.Run(what, func(t *testing.T) {
			var l launch.List
			defer func() {
				var e *device.ShapeError
				if err, ok := recover().(error); !ok || !errors.As(err, &e) || len(l.Ops) > 0 {
					t.Fatalf("no refusal: %v, %d launches", err, len(l.Ops))
				}
			}()
			add(&l)
		})
	}
	if !Can(out, x, w) || !CanSwiGLU(out, x, w, w) {
		t.Fatal("refuses what the faulty cases are made of")
	}
}
