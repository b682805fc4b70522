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

func TestMatMul(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, size := range [][3]int{{1, 64, 256}, {1, 1, 1}, {3, 17, 33}, {7, 80, 256}, {300, 40, 130}, {2, 300, 999}} {
			for _, dt := range dtypes {
				m, n, k := size[0], size[1], size[2]
				r := kerneltest.Rand(3)
				w, wRef := floats(d, dt, kerneltest.Normal(r, n*k, 0.1), n, k)
				x := kerneltest.Normal(r, m*k, 1)
				want, got := make([]float32, m*n), kerneltest.Guard[float32](m*n, 4)
				ref.MatMul(want, x, wRef, m, n, k)
				d.MatMul(s, f32s(d, got.Data, m, n), f32s(d, x, m, k), w)
				if err := kerneltest.Compare(got.Data, want, n, kerneltest.DotTolerance(x, wRef, k)); err != nil {
					t.Errorf("%v %s: %v", size, dt, err)
				}
				if err := got.Check(); err != nil {
					t.Errorf("%v %s: %v", size, dt, err)
				}
			}
		}
	})
}

// Views with gaps on all three sides, and weights at odd addresses.
func TestMatMulOfViews(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const m, n, k, gap = 5, 21, 45, 3
		r := kerneltest.Rand(1)
		stored, wRef := kerneltest.BF16(kerneltest.Normal(r, n*(k+gap), 1))
		x := kerneltest.Normal(r, m*(k+gap), 1)
		out := kerneltest.Guard[float32](m*(n+gap), 0)
		before := append([]float32(nil), out.Data...)
		buffer, _ := d.Wrap(append(make([]byte, 2), kerneltest.Bytes(stored)...))
		w := device.Mat{Buf: buffer, Off: 2, DType: tensor.BF16, Rows: n, Cols: k, Stride: k + gap}
		d.MatMul(s, f32s(d, out.Data, m, n+gap).ColRange(1, n+1), f32s(d, x, m, k+gap).ColRange(2, k+2), w)
		var xs, ws []float32
		for i := range m {
			xs = append(xs, x[i*(k+gap)+2:][:k]...)
		}
		for i := range n {
			ws = append(ws, wRef[i*(k+gap):][:k]...)
		}
		want := make([]float32, m*n)
		ref.MatMul(want, xs, ws, m, n, k)
		var got []float32
		for i := range m {
			row := out.Data[i*(n+gap):][:n+gap]
			got = append(got, row[1:n+1]...)
			for _, j := range []int{0, n + 1, n + 2} {
				if err := kerneltest.SameBits(row[j:j+1], before[i*(n+gap)+j:][:1]); err != nil {
					t.Fatalf("row %d, column %d is not part of the view: %v", i, j, err)
				}
			}
		}
		if err := kerneltest.Compare(got, want, n, kerneltest.DotTolerance(xs, ws, k)); err != nil {
			t.Error(err)
		}
	})
}

// A row has the same bits alone, among others, and on any number of threads.
func TestMatMulIsBatchInvariant(t *testing.T) {
	for _, dt := range dtypes {
		var first []float32
		var previous string
		forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
			const m, n, k = 150, 37, 203
			r := kerneltest.Rand(11)
			w, _ := floats(d, dt, kerneltest.Normal(r, n*k, 1), n, k)
			x := kerneltest.Normal(r, m*k, 1)
			run := func(rows []int) []float32 {
				got := make([]float32, len(rows)*n)
				d.MatMul(s, f32s(d, got, len(rows), n), f32s(d, rowsOf(x, k, rows), len(rows), k), w)
				return got
			}
			var all []int
			for i := range m {
				all = append(all, i)
			}
			whole := run(all)
			for range 30 {
				rows := r.Perm(m)[:1+r.IntN(9)]
				if err := kerneltest.SameBits(run(rows), rowsOf(whole, n, rows)); err != nil {
					t.Fatalf("%s, rows %v: %v", dt, rows, err)
				}
			}
			// forLevels runs a level alone, then shared.
			if l := d.Level().String(); l == previous {
				if err := kerneltest.SameBits(whole, first); err != nil {
					t.Errorf("%s: shared and alone differ: %v", dt, err)
				}
			} else {
				first, previous = whole, l
			}
		})
	}
}

func TestMatMulRefusesWrongShapes(t *testing.T) {
	d, s := open(t, cpu.Options{})
	other, _ := open(t, cpu.Options{})
	otherStream, _ := other.NewStream()
	x, w, out := f32s(d, make([]float32, 6), 2, 3), f32s(d, make([]float32, 12), 4, 3), f32s(d, make([]float32, 8), 2, 4)
	d.MatMul(s, out, x, w)
	for name, f := range map[string]func(){
		"k":            func() { d.MatMul(s, out, x.ColRange(0, 2), w) },
		"n":            func() { d.MatMul(s, out, x, w.RowRange(0, 3)) },
		"m":            func() { d.MatMul(s, out.RowRange(0, 1), x, w) },
		"type":         func() { d.MatMul(s, wrap(d, tensor.I32, make([]int32, 8), 2, 4), x, w) },
		"weight type":  func() { d.MatMul(s, out, x, wrap(d, tensor.F16, make([]uint16, 12), 4, 3)) },
		"absent":       func() { d.MatMul(s, out, x, device.Mat{DType: tensor.F32, Rows: 4, Cols: 3, Stride: 3}) },
		"outside":      func() { w := w; w.Off = 4; d.MatMul(s, out, x, w) },
		"negative":     func() { w := w; w.Off = -4; d.MatMul(s, out, x, w) },
		"stride":       func() { w := w; w.Stride = 2; d.MatMul(s, out, x, w) },
		"other stream": func() { d.MatMul(otherStream, out, x, w) },
	} {
		t.Run(name, func(t *testing.T) { panicsWith(t, "MatMul", f) })
	}
}

func BenchmarkMatMul(b *testing.B) {
	sizes := []struct {
		name    string
		m, n, k int
	}{
		{"tiny-q/m1", 1, 384, 256}, {"tiny-q/m8", 8, 384, 256}, {"tiny-q/m200", 200, 384, 256},
		{"tiny-head/m1", 1, 8192, 256}, {"tiny-head/m8", 8, 8192, 256},
		{"h2048/m1", 1, 2048, 2048}, {"h2048/m8", 8, 2048, 2048}, {"h2048/m512", 512, 2048, 2048},
		{"h7168/m1", 1, 2048, 7168}, {"h7168/m128", 128, 2048, 7168},
	}
	for _, size := range sizes {
		for _, dt := range dtypes {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%s/t%d", size.name, dt, threads), func(b *testing.B) {
					d, s := open(b, cpu.Options{Threads: threads})
					r := kerneltest.Rand(1)
					w, _ := floats(d, dt, kerneltest.Normal(r, size.n*size.k, 1), size.n, size.k)
					x, out := f32s(d, kerneltest.Normal(r, size.m*size.k, 1), size.m, size.k), f32s(d, make([]float32, size.m*size.n), size.m, size.n)
					ns := kerneltest.Quartile(b, 1, func() { d.MatMul(s, out, x, w) })
					kerneltest.Report(b, ns, size.n*size.k*dt.Size(), 2*size.m*size.n*size.k)
				})
			}
		}
	}
}
