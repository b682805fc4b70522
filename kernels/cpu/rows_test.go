package cpu_test

import (
	"bytes"
	"math"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func TestGatherRows(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			const vocab, h = 11, 37
			table, tableRef := floats(d, dt, kerneltest.Normal(kerneltest.Rand(1), vocab*h, 1), vocab, h)
			ids := []int32{10, 0, 3, 3, 7}
			got, want := kerneltest.Guard[float32](len(ids)*h, 4), make([]float32, len(ids)*h)
			ref.GatherRows(want, tableRef, ids, h)
			d.GatherRows(s, f32s(d, got.Data, len(ids), h), table, wrap(d, tensor.I32, ids, len(ids), 1))
			if err := kerneltest.SameBits(got.Data, want); err != nil {
				t.Errorf("%s: %v", dt, err)
			}
			if err := got.Check(); err != nil {
				t.Errorf("%s: %v", dt, err)
			}
			for _, bad := range []int32{-1, vocab} {
				ids[2] = bad
				panicsWith(t, "GatherRows", func() {
					d.GatherRows(s, f32s(d, got.Data, len(ids), h), table, wrap(d, tensor.I32, ids, len(ids), 1))
				})
			}
		}
	})
}

func TestStoreRows(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			const rows, w = 9, 80
			cache, cacheRef := floats(d, dt, kerneltest.Normal(kerneltest.Rand(1), rows*w, 1), rows, w)
			want := append([]float32(nil), cacheRef...)
			src := kerneltest.Normal(kerneltest.Rand(2), 3*w, 1)
			slots := []int32{8, 0, 5}
			rounded := src
			if dt == tensor.BF16 {
				_, rounded = kerneltest.BF16(src)
			}
			ref.StoreRows(want, rounded, slots, w)
			d.StoreRows(s, device.KV{Mat: cache}, f32s(d, src, 3, w), wrap(d, tensor.I32, slots, 3, 1))
			got := make([]float32, rows*w)
			d.GatherRows(s, f32s(d, got, rows, w), cache, wrap(d, tensor.I32, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8}, rows, 1))
			if err := kerneltest.SameBits(got, want); err != nil {
				t.Errorf("%s: %v", dt, err)
			}
			slots[1] = rows
			panicsWith(t, "StoreRows", func() { d.StoreRows(s, device.KV{Mat: cache}, f32s(d, src, 3, w), wrap(d, tensor.I32, slots, 3, 1)) })
		}
	})
}

// TestCopyRows: rows of any type go over whole, and nothing beside them changes.
func TestCopyRows(t *testing.T) {
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	const rows, cols, wide = 5, 37, 41
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8} {
		from, to := make([]byte, 2*rows*wide*dt.Size()), make([]byte, 2*rows*wide*dt.Size())
		for i := range from {
			from[i], to[i] = byte(i*7), 0xa5
		}
		want := append([]byte(nil), to...)
		src, dst := wrap(d, dt, from, 2*rows, wide).ColRange(3, 3+cols).RowRange(1, 1+rows), wrap(d, dt, to, 2*rows, wide).ColRange(1, 1+cols).RowRange(4, 4+rows)
		for r := range rows {
			copy(want[((4+r)*wide+1)*dt.Size():][:cols*dt.Size()], from[((1+r)*wide+3)*dt.Size():])
		}
		if d.CopyRows(s, dst, src); !bytes.Equal(to, want) {
			t.Errorf("%s: other bytes", dt)
		}
		for _, bad := range []device.Mat{dst.RowRange(0, rows-1), dst.ColRange(0, cols-1), {}} {
			panicsWith(t, "CopyRows", func() { d.CopyRows(s, bad, src) })
		}
	}
}

func TestAdd(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		x, delta := kerneltest.Normal(kerneltest.Rand(1), 5*33, 1), kerneltest.Normal(kerneltest.Rand(2), 5*33, 1)
		want := append([]float32(nil), x...)
		ref.Add(want, delta)
		d.Add(s, f32s(d, x, 5, 33), f32s(d, delta, 5, 33))
		if err := kerneltest.SameBits(x, want); err != nil {
			t.Error(err)
		}
		panicsWith(t, "Add", func() { d.Add(s, f32s(d, x, 5, 33), f32s(d, delta, 4, 33)) })
	})
}

func TestAddBias(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			const rows, n, gap = 5, 37, 2
			x := kerneltest.Normal(kerneltest.Rand(1), rows*(n+gap), 1)
			b, bRef := floats(d, dt, kerneltest.Normal(kerneltest.Rand(2), n, 1), 1, n)
			want := append([]float32(nil), x...)
			for r := range rows {
				ref.AddBias(want[r*(n+gap):][:n], bRef)
			}
			got := kerneltest.Guard[float32](len(x), 4)
			copy(got.Data, x)
			d.AddBias(s, f32s(d, got.Data, rows, n+gap).ColRange(0, n), b)
			if err := kerneltest.SameBits(got.Data, want); err != nil {
				t.Errorf("%s: %v", dt, err)
			}
			if err := got.Check(); err != nil {
				t.Errorf("%s: %v", dt, err)
			}
			panicsWith(t, "AddBias", func() { d.AddBias(s, f32s(d, got.Data, rows, n+gap), b) })
		}
	})
}

// TestGateRows: near the reference, in place in wider rows, and a row has the bits it has alone.
func TestGateRows(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			for _, size := range []struct{ rows, n, h int }{{1, 1, 1}, {5, 37, 45}, {3, 64, 128}, {2, 16, 1031}} {
				x := kerneltest.Normal(kerneltest.Rand(1), size.rows*size.h, 1)
				w, wRef := floats(d, dt, kerneltest.Normal(kerneltest.Rand(2), size.h, 0.1), 1, size.h)
				const gap = 2
				width := size.n + gap
				before := kerneltest.Normal(kerneltest.Rand(3), size.rows*width, 1)
				want := append([]float32(nil), before...)
				for r := range size.rows {
					ref.GateRows(want[r*width:][:size.n], x[r*size.h:][:size.h], wRef, size.n)
				}
				got := kerneltest.Guard[float32](len(before), 4)
				copy(got.Data, before)
				out, in := f32s(d, got.Data, size.rows, width).ColRange(0, size.n), f32s(d, x, size.rows, size.h)
				d.GateRows(s, out, in, w)
				if err := kerneltest.Compare(got.Data, want, width, func(i int) float64 { return 1e-5 * math.Abs(float64(before[i])) }); err != nil {
					t.Errorf("%s, %+v: %v", dt, size, err)
				}
				if err := got.Check(); err != nil {
					t.Errorf("%s, %+v: %v", dt, size, err)
				}
				last := size.rows - 1
				alone := append([]float32(nil), before[last*width:][:size.n]...)
				d.GateRows(s, f32s(d, alone, 1, size.n), in.RowRange(last, last+1), w)
				if err := kerneltest.SameBits(alone, got.Data[last*width:][:size.n]); err != nil {
					t.Errorf("%s, %+v, the last row alone: %v", dt, size, err)
				}
				for _, bad := range []device.Mat{in.RowRange(0, last), w.ColRange(0, size.h-1), {}} {
					panicsWith(t, "GateRows", func() { d.GateRows(s, out, bad, w) })
				}
			}
		}
	})
}

func TestWeightedSum(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const tokens, topK, h = 4, 6, 45
		r := kerneltest.Rand(1)
		y, weights, base := kerneltest.Normal(r, tokens*topK*h, 1), kerneltest.Normal(r, tokens*topK, 1), kerneltest.Normal(r, tokens*h, 1)
		want, got := make([]float32, tokens*h), kerneltest.Guard[float32](tokens*h, 4)
		check := func(name string, got []float32) {
			t.Helper()
			limit := 8 * kerneltest.Eps32 * kerneltest.MaxAbs(y) * kerneltest.MaxAbs(weights)
			if err := kerneltest.Compare(got, want, h, kerneltest.Relative(want, 4, limit)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		ys, ws := f32s(d, y, tokens*topK, h), f32s(d, weights, tokens, topK)
		ref.WeightedSum(want, y, weights, nil, topK, h)
		d.WeightedSum(s, f32s(d, got.Data, tokens, h), ys, ws, device.Mat{})
		check("no base", got.Data)
		ref.WeightedSum(want, y, weights, base, topK, h)
		d.WeightedSum(s, f32s(d, got.Data, tokens, h), ys, ws, f32s(d, base, tokens, h))
		check("base", got.Data)
		d.WeightedSum(s, f32s(d, base, tokens, h), ys, ws, f32s(d, base, tokens, h))
		check("in place", base)
		if err := got.Check(); err != nil {
			t.Error(err)
		}
		panicsWith(t, "WeightedSum", func() { d.WeightedSum(s, f32s(d, base, tokens, h), ys.RowRange(0, 3), ws, device.Mat{}) })
	})
}

func TestRMSNorm(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			for _, h := range []int{1, 37, 256} {
				const rows, eps = 3, 1e-6
				r := kerneltest.Rand(uint64(h))
				x, delta := kerneltest.Normal(r, rows*h, 2), kerneltest.Normal(r, rows*h, 2)
				w, wRef := floats(d, dt, kerneltest.Normal(r, h, 1), 1, h)
				want, got := make([]float32, rows*h), kerneltest.Guard[float32](rows*h, 4)
				check := func(name string) {
					t.Helper()
					if err := kerneltest.Compare(got.Data, want, h, kerneltest.Relative(want, 16, 0)); err != nil {
						t.Errorf("%s, width %d, weights %s: %v", name, h, dt, err)
					}
				}
				ref.RMSNorm(want, x, wRef, eps)
				d.RMSNorm(s, f32s(d, got.Data, rows, h), f32s(d, x, rows, h), w, eps)
				check("RMSNorm")
				sum := append([]float32(nil), x...)
				ref.AddRMSNorm(want, sum, delta, wRef, eps)
				d.AddRMSNorm(s, f32s(d, got.Data, rows, h), f32s(d, x, rows, h), f32s(d, delta, rows, h), w, eps)
				check("AddRMSNorm")
				if err := kerneltest.SameBits(x, sum); err != nil {
					t.Errorf("sum: %v", err)
				}
				if err := got.Check(); err != nil {
					t.Error(err)
				}
				panicsWith(t, "RMSNorm", func() { d.RMSNorm(s, f32s(d, got.Data, rows, h), f32s(d, x, rows, h), device.Mat{}, eps) })
			}
		}
	})
}

// TestHeadNorm: every head of a part of wider rows has the bits of RMSNorm of it alone, and nothing
// else is touched.
func TestHeadNorm(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			for _, x := range []struct{ heads, dim int }{{1, 7}, {3, 6}, {4, 64}, {5, 128}} {
				const rows, before, after, eps = 3, 5, 9, 1e-6
				r := kerneltest.Rand(uint64(x.dim))
				n := x.heads * x.dim
				width := before + n + after
				got := kerneltest.Normal(r, rows*width, 2)
				w, wRef := floats(d, dt, kerneltest.Normal(r, x.dim, 1), 1, x.dim)
				want, plain := append([]float32(nil), got...), append([]float32(nil), got...)
				m := f32s(d, got, rows, width).ColRange(before, before+n)
				for i := range rows {
					own := want[i*width+before:][:n]
					d.RMSNorm(s, f32s(d, own, x.heads, x.dim), f32s(d, own, x.heads, x.dim), w, eps)
					ref.HeadNorm(plain[i*width+before:][:n], wRef, eps)
				}
				d.HeadNorm(s, m, x.heads, w, eps)
				if err := kerneltest.SameBits(got, want); err != nil {
					t.Errorf("%d heads of %d, weights %s: %v", x.heads, x.dim, dt, err)
				}
				if err := kerneltest.Compare(got, plain, width, kerneltest.Relative(plain, 16, 0)); err != nil {
					t.Errorf("%d heads of %d, weights %s: %v", x.heads, x.dim, dt, err)
				}
				panicsWith(t, "HeadNorm", func() { d.HeadNorm(s, m, n+1, w, eps) })
				panicsWith(t, "HeadNorm", func() { d.HeadNorm(s, m, 0, w, eps) })
			}
		}
	})
}

// A row of zeros is the worst case for the division.
func TestRMSNormOfZeros(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		x, w := make([]float32, 40), kerneltest.Normal(kerneltest.Rand(1), 40, 1)
		d.RMSNorm(s, f32s(d, x, 1, 40), f32s(d, x, 1, 40), f32s(d, w, 1, 40), 1e-6)
		if kerneltest.MaxAbs(x) != 0 {
			t.Errorf("%v", x)
		}
	})
}

func TestRope(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const rows, positions = 5, 9
		for _, interleaved := range []bool{true, false} {
			for _, p := range []device.Rope{
				{Heads: 8, HeadDim: 48, Offset: 32, Dim: 16},
				{Heads: 1, HeadDim: 80, Offset: 64, Dim: 16},
				{Heads: 3, HeadDim: 10, Offset: 2, Dim: 6},
				{Heads: 2, HeadDim: 64, Offset: 0, Dim: 64},
			} {
				p.Interleaved = interleaved
				cols := p.Heads*p.HeadDim + 3
				r := kerneltest.Rand(uint64(p.Dim))
				x, table := kerneltest.Normal(r, rows*cols, 1), kerneltest.Normal(r, positions*p.Dim, 1)
				at := []int32{0, 8, 3, 3, 1}
				got := kerneltest.GuardOf(x, 4)
				ref.Rope(x, cols, at, table, p)
				d.Rope(s, f32s(d, got.Data, rows, cols), wrap(d, tensor.I32, at, rows, 1), f32s(d, table, positions, p.Dim), p)
				limit := 16 * kerneltest.Eps32 * kerneltest.MaxAbs(table)
				if err := kerneltest.Compare(got.Data, x, cols, kerneltest.Relative(x, 1, limit)); err != nil {
					t.Errorf("%+v: %v", p, err)
				}
				if err := got.Check(); err != nil {
					t.Error(err)
				}
				at[4] = positions
				panicsWith(t, "Rope", func() {
					d.Rope(s, f32s(d, got.Data, rows, cols), wrap(d, tensor.I32, at, rows, 1), f32s(d, table, positions, p.Dim), p)
				})
			}
		}
	})
}

// TestActivateScaleSoftcap: rows that lie apart, of odd widths.
func TestActivateScaleSoftcap(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, n := range []int{1, 7, 16, 33, 64, 65, 257} {
			const rows = 5
			r := kerneltest.Rand(uint64(n))
			x, up := kerneltest.Normal(r, rows*n, 3), kerneltest.Normal(r, rows*(n+3), 2)
			var dense []float32
			for i := range rows {
				dense = append(dense, up[i*(n+3)+3:][:n]...)
			}
			for _, act := range []device.Activation{{}, device.GELUTanh, {Alpha: 1.702, Limit: 1, Shift: 1}, {Alpha: 2, Limit: 2, Shift: 1, Cubic: 0.1}} {
				got, want := append([]float32(nil), x...), append([]float32(nil), x...)
				ref.Activate(want, dense, act)
				d.Activate(s, f32s(d, got, rows, n), wrap(d, tensor.F32, up, rows, n+3).ColRange(3, n+3), act)
				for i, w := range want {
					g := float64(x[i])
					if act.Limit > 0 {
						g = min(g, float64(act.Limit))
					}
					// The argument of the exponential has a few roundings, each relative to its size.
					y := math.Abs(max(1, float64(act.Alpha)) * (g + float64(act.Cubic)*g*g*g))
					if off := math.Abs(float64(got[i] - w)); !(off <= kerneltest.Eps32*(8+4*y)*math.Abs(float64(w))+1e-36) {
						t.Fatalf("n %d, %+v: of %g came %g, want %g", n, act, x[i], got[i], w)
					}
				}
			}
			wide, scaled := append([]float32(nil), up...), append([]float32(nil), dense...)
			ref.Scale(scaled, 1.25)
			view := wrap(d, tensor.F32, wide, rows, n+3).ColRange(3, n+3)
			d.Scale(s, view, 1.25)
			d.Softcap(s, view, 1.5)
			ref.Softcap(scaled, 1.5)
			for i := range rows {
				if err := kerneltest.SameBits(wide[i*(n+3):][:3], up[i*(n+3):][:3]); err != nil {
					t.Errorf("n %d: columns beside: %v", n, err)
				}
				for j, w := range scaled[i*n:][:n] {
					if got := wide[i*(n+3)+3+j]; !(math.Abs(float64(got-w)) <= 1e-6) {
						t.Fatalf("n %d: capped to %v, want %v", n, got, w)
					}
				}
			}
			panicsWith(t, "Activate", func() { d.Activate(s, f32s(d, x, rows, n), f32s(d, dense, rows-1, n), device.GELUTanh) })
			panicsWith(t, "Softcap", func() { d.Softcap(s, f32s(d, x, rows, n), 0) })
		}
	})
}
