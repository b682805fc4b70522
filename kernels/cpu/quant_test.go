package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// encodings are all that the processor multiplies with.
var encodings = []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8, tensor.Q8_0}

// newQMat makes a matrix of random integers that lies somewhere in its buffers.
func newQMat(d *cpu.Device, seed uint64, rows, cols int, e *tensor.Encoding, group int) (device.QMat, ref.QMat) {
	r := kerneltest.Rand(seed)
	f := tensor.Layout{Format: e.By(group), Rows: rows, Cols: cols}
	values, scales := make([]int8, rows*cols), kerneltest.Normal(r, rows*f.Groups(), 0.01)
	levels := e.Levels()
	for i := range values {
		values[i] = levels[r.IntN(len(levels))]
	}
	w := ref.QMat{Layout: f, Values: make([]byte, 64+f.ValueBytes()), Scales: make([]byte, 6+f.ScaleBytes())}
	vb, _ := d.Wrap(w.Values)
	sb, _ := d.Wrap(w.Scales)
	w.Values, w.Scales = w.Values[64:], w.Scales[6:]
	f.Pack(w.Values, w.Scales, f.Matrix(values, scales))
	return device.QMat{Layout: f, Values: vb, ValueAt: 64, Scales: sb, ScaleAt: 6}, w
}

// perChannel returns the group of a matrix with one scale per row.
func perChannel(cols int) int { return tensor.Layout{Cols: cols}.PaddedCols() }

// guardedRows are quantised rows in guarded memory, at strides of their own.
type guardedRows struct {
	device.QRows
	q     *kerneltest.Guarded[int8]
	scale *kerneltest.Guarded[float32]
	bias  *kerneltest.Guarded[int32]
}

func newGuardedRows(d *cpu.Device, rows, cols, group, gap int) *guardedRows {
	k := perChannel(cols)
	groups := k / group
	length := func(cols int) int { return max(0, (rows-1)*(cols+gap)+cols) }
	g := &guardedRows{
		q: kerneltest.Guard[int8](length(k), gap), scale: kerneltest.Guard[float32](length(groups), 4*gap),
		bias: kerneltest.Guard[int32](length(groups), 4*gap+4),
	}
	view := func(dt tensor.DType, b []byte, cols int) device.Mat {
		buf, _ := d.Wrap(b)
		return device.Mat{Buf: buf, DType: dt, Rows: rows, Cols: cols, Stride: cols + gap}
	}
	g.Q = view(tensor.I8, kerneltest.Bytes(g.q.Data), k)
	g.Scale = view(tensor.F32, kerneltest.Bytes(g.scale.Data), groups)
	g.Bias = view(tensor.I32, kerneltest.Bytes(g.bias.Data), groups)
	g.Group = group
	return g
}

// check compares with the reference, gaps and guards included.
func (g *guardedRows) check(want ref.QRows) error {
	for _, err := range []error{g.q.Check(), g.scale.Check(), g.bias.Check()} {
		if err != nil {
			return err
		}
	}
	k, groups := g.Q.Cols, g.Scale.Cols
	for r := range g.Q.Rows {
		if !slices.Equal(g.q.Data[r*g.Q.Stride:][:k], want.Q[r*k:][:k]) {
			return fmt.Errorf("values of row %d are %v, want %v", r, g.q.Data[r*g.Q.Stride:][:k], want.Q[r*k:][:k])
		}
		if !slices.Equal(g.bias.Data[r*g.Bias.Stride:][:groups], want.Bias[r*groups:][:groups]) {
			return fmt.Errorf("biases of row %d differ", r)
		}
		for i, v := range g.scale.Data[r*g.Scale.Stride:][:groups] {
			if w := want.Scale[r*groups+i]; math.Float32bits(v) != math.Float32bits(w) && (v == v || w == w) {
				return fmt.Errorf("scale %d of row %d is %g, want %g", i, r, v, w)
			}
		}
		if r < g.Q.Rows-1 && g.Q.Stride > k && g.q.Data[r*g.Q.Stride+k] != -0x5b {
			return fmt.Errorf("the gap after row %d was written", r)
		}
	}
	return nil
}

// quantized are rows of x on the device; they are checked elsewhere.
func quantized(d *cpu.Device, s device.Stream, x []float32, rows, cols, group int) device.QRows {
	g := newGuardedRows(d, rows, cols, group, 3)
	d.QuantizeRows(s, g.QRows, f32s(d, x, rows, cols))
	return g.QRows
}

func TestQuantizeRows(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, size := range [][3]int{{0, 32, 32}, {1, 32, 32}, {3, 64, 64}, {33, 96, 32}, {2, 1, 32}, {5, 40, 64}, {4, 100, 128}, {7, 333, 352}, {300, 128, 128}} {
			rows, cols, group := size[0], size[1], size[2]
			x := kerneltest.Normal(kerneltest.Rand(uint64(i)), rows*cols, 3)
			for j := 0; j < len(x); j += 11 {
				x[j] = []float32{0, 1e-38, 1e37, float32(math.NaN()), float32(math.Inf(-1)), 5}[j/11%6]
			}
			got := newGuardedRows(d, rows, cols, group, i)
			d.QuantizeRows(s, got.QRows, f32s(d, x, rows, cols))
			if rows == 0 {
				continue
			}
			if err := got.check(ref.QuantizeRows(x, cols, group)); err != nil {
				t.Errorf("%v: %v", size, err)
			}
		}
	})
}

// Every level, thread count and number of rows gives the bits of ref.
func TestMatMulQ(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		sizes := [][3]int{{16, 32, 32}, {1, 40, 64}, {33, 96, 96}, {50, 128, 128}, {130, 256, 64}, {17, 352, 352}, {95, 100, 32}}
		for i, size := range sizes {
			for _, enc := range encodings {
				n, k, group := size[0], size[1], size[2]
				w, rw := newQMat(d, uint64(i), n, k, enc, group)
				const most = 33
				x := kerneltest.Normal(kerneltest.Rand(uint64(i)+7), most*k, 1)
				want := make([]float32, most*n)
				ref.MatMulQ(want, ref.QuantizeRows(x, k, group), rw)
				for m := 1; m <= most; m++ {
					got := kerneltest.Guard[float32](m*n, 4*(m%16))
					d.MatMulQ(s, f32s(d, got.Data, m, n), quantized(d, s, x[:m*k], m, k, group), w)
					if err := kerneltest.SameBits(got.Data, want[:m*n]); err != nil {
						t.Fatalf("%v, %s, %d rows: %v", size, enc.Name(), m, err)
					}
					if err := got.Check(); err != nil {
						t.Fatalf("%v, %s, %d rows: %v", size, enc.Name(), m, err)
					}
				}
			}
		}
	})
}

// TestMatMulQManyRows goes over several packs of the tile unit, where there is one.
func TestMatMulQManyRows(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, size := range [][4]int{{64, 130, 256, 128}, {129, 48, 128, 64}, {300, 17, 256, 256}, {257, 96, 128, 32}} {
			for _, enc := range encodings {
				m, n, k, group := size[0], size[1], size[2], size[3]
				w, rw := newQMat(d, uint64(i), n, k, enc, group)
				x, want := kerneltest.Normal(kerneltest.Rand(uint64(i)), m*k, 1), make([]float32, m*n)
				ref.MatMulQ(want, ref.QuantizeRows(x, k, group), rw)
				got := kerneltest.Guard[float32](m*n, 4)
				d.MatMulQ(s, f32s(d, got.Data, m, n), quantized(d, s, x, m, k, group), w)
				if err := kerneltest.SameBits(got.Data, want); err != nil {
					t.Fatalf("%v, %s: %v", size, enc.Name(), err)
				}
				if err := got.Check(); err != nil {
					t.Fatalf("%v, %s: %v", size, enc.Name(), err)
				}
			}
		}
	})
}

// Blocks of tiles: matrices larger than what stays in cache, and outputs with gaps between their
// rows.
func TestMatMulQInBlocks(t *testing.T) {
	const most, n, k, group, stride = 10, 715, 2048, 128, 720
	x, want := kerneltest.Normal(kerneltest.Rand(2), most*k, 1), make([]float32, most*n)
	any, _ := open(t, cpu.Options{})
	_, rw := newQMat(any, 3, n, k, tensor.INT4, group)
	ref.MatMulQ(want, ref.QuantizeRows(x, k, group), rw)
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		w, _ := newQMat(d, 3, n, k, tensor.INT4, group)
		for _, m := range []int{1, most} {
			x, got := x[:m*k], kerneltest.Guard[float32](m*stride, 0)
			out := f32s(d, got.Data, m, stride).ColRange(0, n)
			d.MatMulQ(s, out, quantized(d, s, x, m, k, group), w)
			poison := got.Data[n]
			for r := range m {
				if err := kerneltest.SameBits(got.Data[r*stride:][:n], want[r*n:][:n]); err != nil {
					t.Fatalf("%d rows, row %d: %v", m, r, err)
				}
				for c := n; c < stride; c++ {
					if math.Float32bits(got.Data[r*stride+c]) != math.Float32bits(poison) {
						t.Fatalf("%d rows: [%d, %d] was written", m, r, c)
					}
				}
			}
			if math.Float32bits(poison) != 0xa5a5a5a5 {
				t.Fatal("the gap was written")
			}
		}
	})
}

func TestQuantOperatorsRefuseWrongArguments(t *testing.T) {
	d, s := open(t, cpu.Options{})
	const n, k, group = 20, 64, 32
	w, _ := newQMat(d, 1, n, k, tensor.INT4, group)
	xs := make([]float32, 2*k)
	x, out := quantized(d, s, xs, 2, k, group), f32s(d, make([]float32, 2*n), 2, n)
	change := func(f func(x *device.QRows, w *device.QMat)) func() {
		x, w := x, w
		f(&x, &w)
		return func() { d.MatMulQ(s, out, x, w) }
	}
	for name, f := range map[string]func(){
		"group":        change(func(x *device.QRows, w *device.QMat) { w.Group = 64 }),
		"no group":     change(func(x *device.QRows, w *device.QMat) { x.Group, w.Group = 0, 0 }),
		"columns":      change(func(x *device.QRows, w *device.QMat) { w.Cols = 96 }),
		"no encoding":  change(func(x *device.QRows, w *device.QMat) { w.Encoding = nil }),
		"rows":         change(func(x *device.QRows, w *device.QMat) { w.Rows = 400 }),
		"values at":    change(func(x *device.QRows, w *device.QMat) { w.ValueAt = 128 }),
		"negative":     change(func(x *device.QRows, w *device.QMat) { w.ValueAt = -64 }),
		"scales at":    change(func(x *device.QRows, w *device.QMat) { w.ScaleAt++ }),
		"absent":       change(func(x *device.QRows, w *device.QMat) { *w = device.QMat{Layout: w.Layout} }),
		"no scales":    change(func(x *device.QRows, w *device.QMat) { w.Scales = nil }),
		"type":         change(func(x *device.QRows, w *device.QMat) { x.Q.DType = tensor.U8 }),
		"scale shape":  change(func(x *device.QRows, w *device.QMat) { x.Scale.Cols = 1 }),
		"bias type":    change(func(x *device.QRows, w *device.QMat) { x.Bias.DType = tensor.F32 }),
		"bias rows":    change(func(x *device.QRows, w *device.QMat) { x.Bias.Rows = 1 }),
		"huge group":   change(func(x *device.QRows, w *device.QMat) { x.Group, x.Q.Cols = 1<<17, 1<<17 }),
		"out":          func() { d.MatMulQ(s, f32s(d, make([]float32, n), 1, n), x, w) },
		"out shape":    func() { d.MatMulQ(s, f32s(d, make([]float32, 2*k), 2, k), x, w) },
		"other device": func() { _, other := open(t, cpu.Options{}); d.MatMulQ(other, out, x, w) },
	} {
		t.Run(name, func(t *testing.T) { panicsWith(t, "MatMulQ", f) })
	}
	panicsWith(t, "QuantizeRows", func() { d.QuantizeRows(s, x, f32s(d, xs[:k], 1, k)) })
	panicsWith(t, "QuantizeRows", func() { d.QuantizeRows(s, x, f32s(d, xs[:2*40], 2, 32)) })
}
