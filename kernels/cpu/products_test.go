package cpu_test

import (
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// Products that follow each other are one loop where none reads what another writes, and have the bits of each alone.
func TestProducts(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, rows := range []int{1, 3} {
			r := kerneltest.Rand(uint64(rows))
			const k, other, group = 96, 37, 32
			x, y := kerneltest.Normal(r, rows*k, 1), kerneltest.Normal(r, rows*other, 1)
			q, qRef := quantized(d, s, x, rows, k, group), ref.QuantizeRows(x, k, group)
			var weights []*device.Weight
			var inputs []device.Mat
			var refs [][]float32
			for i, dt := range []tensor.DType{tensor.BF16, tensor.F32, tensor.BF16, tensor.BF16} {
				n, in, cols := 5+40*i, x, k
				if i%2 == 1 {
					in, cols = y, other
				}
				m, w := floats(d, dt, kerneltest.Normal(r, n*cols, 1), n, cols)
				weights, inputs = append(weights, &device.Weight{F: m}), append(inputs, f32s(d, in, rows, cols))
				want := make([]float32, rows*n)
				ref.MatMul(want, in, w, rows, n, cols)
				refs = append(refs, want)
			}
			for _, n := range []int{33, 17} {
				w, wRef := newQMat(d, uint64(n), n, k, encodings[0], group)
				want := make([]float32, rows*n)
				ref.MatMulQ(want, qRef, wRef)
				weights, inputs, refs = append(weights, &device.Weight{Q: w}), append(inputs, device.Mat{}), append(refs, want)
			}
			var all device.List
			var got, alone [][]float32
			for i, w := range weights {
				n := max(w.F.Rows, w.Q.Rows)
				got, alone = append(got, make([]float32, rows*n)), append(alone, make([]float32, rows*n))
				all.MatMul(f32s(d, got[i], rows, n), inputs[i], q, w)
				var one device.List
				one.MatMul(f32s(d, alone[i], rows, n), inputs[i], q, w)
				d.Run(s, one)
			}
			if n := d.Fused(all); n != len(weights) {
				t.Errorf("%d products of %d are one loop", n, len(weights))
			}
			d.Run(s, all)
			for i := range got {
				if err := kerneltest.SameBits(got[i], alone[i]); err != nil {
					t.Errorf("%d rows, product %d: %v", rows, i, err)
				}
				near(t, "product", got[i], refs[i], len(refs[i])/rows)
			}
		}
	})
}

// A product that reads what one before it writes, or writes there, is in a loop of its own, as are many rows.
func TestProductsThatDepend(t *testing.T) {
	d, _ := open(t, cpu.Options{})
	w := device.Weight{F: f32s(d, make([]float32, 16), 4, 4)}
	x, a, b := f32s(d, make([]float32, 8), 2, 4), f32s(d, make([]float32, 8), 2, 4), f32s(d, make([]float32, 8), 2, 4)
	many := f32s(d, make([]float32, 40), 10, 4)
	for name, c := range map[string]struct {
		pairs [][2]device.Mat // out, x
		want  int
	}{
		"apart": {[][2]device.Mat{{a, x}, {b, x}}, 2},
		"reads": {[][2]device.Mat{{a, x}, {b, a}}, 1},
		"again": {[][2]device.Mat{{a, x}, {a, x}}, 1},
		"later": {[][2]device.Mat{{a, x}, {b, x}, {x, b}}, 2},
		"many":  {[][2]device.Mat{{many, many}, {a, x}}, 1},
	} {
		var l device.List
		for _, p := range c.pairs {
			l.MatMul(p[0], p[1], device.QRows{}, &w)
		}
		if n := d.Fused(l); n != c.want {
			t.Errorf("%s: %d products are one loop, want %d", name, n, c.want)
		}
	}
}
