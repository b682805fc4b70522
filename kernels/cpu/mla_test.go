package cpu_test

import (
	"fmt"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// each level as a device with the given threads
func forLevels(t *testing.T, threads int, f func(t *testing.T, d *cpu.Device, s device.Stream)) {
	for _, l := range level.Available() {
		t.Run(l.String(), func(t *testing.T) {
			d, err := cpu.New(cpu.Options{Threads: threads, Level: l})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			s, err := d.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			f(t, d, s)
		})
	}
}

func wrap[E any](d *cpu.Device, dt tensor.DType, data []E, rows, cols int) device.Mat {
	b, _ := d.Wrap(kerneltest.Bytes(data))
	return device.NewMat(b, dt, rows, cols)
}

// floats wraps values as F32 or, rounded, as BF16; it gives what is stored.
func floats(d *cpu.Device, dt tensor.DType, values []float32, rows, cols int) (device.Mat, []float32) {
	if dt == tensor.F32 {
		return wrap(d, dt, values, rows, cols), values
	}
	stored, widened := kerneltest.BF16(values)
	return wrap(d, dt, stored, rows, cols), widened
}

var dtypes = []tensor.DType{tensor.F32, tensor.BF16}

func TestMLA(t *testing.T) {
	sizes := []device.MLA{
		{Heads: 8, Nope: 32, Rope: 16, V: 32, Rank: 64, Scale: 0.144, BlockTokens: 16},
		{Heads: 3, Nope: 5, Rope: 6, V: 7, Rank: 13, Scale: 0.3, BlockTokens: 5},
	}
	forLevels(t, 2, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range sizes {
			for _, cacheType := range dtypes {
				for _, weightType := range dtypes {
					t.Run(fmt.Sprintf("%d/%s/%s", p.Heads, cacheType, weightType), func(t *testing.T) {
						r := kerneltest.Rand(7)
						const blocks = 64
						width := p.Rank + p.Rope
						cache, cacheRef := floats(d, cacheType, kerneltest.Normal(r, blocks*p.BlockTokens*width, 1), blocks*p.BlockTokens, width)
						kvB, kvRef := floats(d, weightType, kerneltest.Normal(r, p.Heads*(p.Nope+p.V)*p.Rank, 0.2), p.Heads*(p.Nope+p.V), p.Rank)
						table := make([]int32, blocks)
						for i, v := range r.Perm(blocks) {
							table[i] = int32(v)
						}
						spans := []device.Span{{Row: 0, Len: 1, Pos: 0, Blocks: table[:1]}, {Row: 1, Len: 7, Pos: 3, Blocks: table[1:4]}, {Row: 8, Len: 150, Pos: 100, Blocks: table[4:]}, {Row: 158, Len: 1, Pos: 127, Blocks: table[8:]}}
						const rows = 159
						q := kerneltest.Normal(r, rows*p.Heads*(p.Nope+p.Rope), 1)
						want := make([]float32, rows*p.Heads*p.V)
						ref.MLA(want, q, cacheRef, kvRef, spans, p)
						for _, form := range []string{"prefill", "decode"} {
							got := make([]float32, len(want))
							run := d.MLAPrefill
							if form == "decode" {
								run = d.MLADecode
							}
							run(s, wrap(d, tensor.F32, got, rows, p.Heads*p.V), wrap(d, tensor.F32, q, rows, p.Heads*(p.Nope+p.Rope)), cache, kvB, spans, p)
							if err := kerneltest.Compare(got, want, p.Heads*p.V, kerneltest.Relative(want, 64, 3e-6*kerneltest.MaxAbs(want))); err != nil {
								t.Errorf("%s: %v", form, err)
							}
						}
					})
				}
			}
		}
	})
}

func TestFFN(t *testing.T) {
	forLevels(t, 2, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, size := range [][3]int{{1, 256, 64}, {5, 33, 70}, {300, 40, 130}} {
			for _, dt := range dtypes {
				rows, h, f := size[0], size[1], size[2]
				r := kerneltest.Rand(3)
				var e device.Expert
				var w ref.Expert
				e.Gate, w.Gate = floats(d, dt, kerneltest.Normal(r, h*f, 0.1), f, h)
				e.Up, w.Up = floats(d, dt, kerneltest.Normal(r, h*f, 0.1), f, h)
				e.Down, w.Down = floats(d, dt, kerneltest.Normal(r, h*f, 0.1), h, f)
				x := kerneltest.Normal(r, rows*h, 1)
				want, got := make([]float32, rows*h), make([]float32, rows*h)
				ref.FFN(want, x, w, h)
				d.FFN(s, wrap(d, tensor.F32, got, rows, h), wrap(d, tensor.F32, x, rows, h), e)
				if err := kerneltest.Compare(got, want, h, kerneltest.Relative(want, 16, 2e-6*kerneltest.MaxAbs(want))); err != nil {
					t.Errorf("%v %s: %v", size, dt, err)
				}
				work := []device.ExpertRows{{Expert: 0}}
				for i := range rows {
					work[0].Assign = append(work[0].Assign, int32(i))
				}
				clear(got)
				d.Experts(s, wrap(d, tensor.F32, got, rows, h), wrap(d, tensor.F32, x, rows, h), []device.Expert{e}, work, 1)
				if err := kerneltest.Compare(got, want, h, kerneltest.Relative(want, 16, 2e-6*kerneltest.MaxAbs(want))); err != nil {
					t.Errorf("experts %v %s: %v", size, dt, err)
				}
			}
		}
	})
}

func TestMatMul(t *testing.T) {
	forLevels(t, 2, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, size := range [][3]int{{1, 64, 256}, {3, 17, 33}, {300, 40, 130}, {1, 8192, 256}} {
			for _, dt := range dtypes {
				m, n, k := size[0], size[1], size[2]
				r := kerneltest.Rand(3)
				w, wRef := floats(d, dt, kerneltest.Normal(r, n*k, 0.1), n, k)
				x := kerneltest.Normal(r, m*k, 1)
				want, got := make([]float32, m*n), make([]float32, m*n)
				ref.MatMul(want, x, wRef, m, n, k)
				d.MatMul(s, wrap(d, tensor.F32, got, m, n), wrap(d, tensor.F32, x, m, k), w)
				if err := kerneltest.Compare(got, want, n, kerneltest.DotTolerance(x, wRef, k)); err != nil {
					t.Errorf("%v %s: %v", size, dt, err)
				}
			}
		}
	})
}

func TestRouterGroups(t *testing.T) {
	forLevels(t, 1, func(t *testing.T, d *cpu.Device, s device.Stream) {
		p := device.Router{Experts: 32, TopK: 4, Groups: 4, TopGroups: 2, Scale: 2}
		r := kerneltest.Rand(1)
		logits := kerneltest.Normal(r, 10*32, 2)
		ids, want := make([]int32, 40), make([]int32, 40)
		ws, wantW := make([]float32, 40), make([]float32, 40)
		d.RouteTopK(s, wrap(d, tensor.I32, ids, 10, 4), wrap(d, tensor.F32, ws, 10, 4), wrap(d, tensor.F32, logits, 10, 32), device.Mat{}, p)
		ref.RouteTopK(want, wantW, logits, nil, p)
		for i := range ids {
			if ids[i] != want[i] {
				t.Fatalf("ids %v want %v", ids, want)
			}
		}
		if err := kerneltest.Compare(ws, wantW, 4, kerneltest.Relative(wantW, 8, 0)); err != nil {
			t.Error(err)
		}
	})
}
