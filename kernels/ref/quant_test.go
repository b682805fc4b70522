package ref

import (
	"math"
	"testing"

	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// By hand: two groups, a tie in each direction, an unfinished last block.
func TestQuantizeRowsByHand(t *testing.T) {
	x := make([]float32, 40)
	copy(x, []float32{127, -2.5, 3.5, 0.5, 0.25, -127})
	x[32], x[39] = -12.7, 6.35
	q := QuantizeRows(x, 40, 32)
	if q.Cols != 64 || len(q.Q) != 64 || len(q.Scale) != 2 {
		t.Fatalf("%d columns, %d scales", q.Cols, len(q.Scale))
	}
	for at, want := range map[int]int8{0: 127, 1: -2, 2: 4, 3: 0, 4: 0, 5: -127, 6: 0, 32: -127, 40: 0} {
		if q.Q[at] != want {
			t.Errorf("value %d is %d, want %d", at, q.Q[at], want)
		}
	}
	if q.Scale[0] != 1 || math.Abs(float64(q.Scale[1])-0.1) > 1e-8 {
		t.Errorf("scales %v", q.Scale)
	}
	if q.Bias[0] != -8*(127-2+4-127) {
		t.Errorf("bias %d", q.Bias[0])
	}
}

func TestQuantizeRowsOfSpecialValues(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x := make([]float32, 64)
		x[3], x[7], x[40] = 1, float32(bad), 2
		q := QuantizeRows(x, 64, 32)
		if q.Scale[0] == q.Scale[0] || q.Q[3] != 0 || q.Bias[0] != 0 {
			t.Errorf("%g: scale %g, value %d", bad, q.Scale[0], q.Q[3])
		}
		if q.Q[40] != 127 {
			t.Errorf("%g: the next group has value %d", bad, q.Q[40])
		}
	}
	tiny := make([]float32, 32)
	tiny[0] = 0x1p-101
	if q := QuantizeRows(tiny, 32, 32); q.Scale[0] != 0 || q.Q[0] != 0 {
		t.Errorf("a group of nothing: scale %g, value %d", q.Scale[0], q.Q[0])
	}
}

// Values are within half a step, and the product is that of the widened values.
func TestMatMulQAgainstFloats(t *testing.T) {
	r := kerneltest.Rand(1)
	const rows, n, k = 3, 21, 72
	for _, bits := range []int{4, 8} {
		for _, group := range []int{32, 96} {
			f := tensor.Layout{Format: tensor.Integers(bits).By(group), Rows: n, Cols: k}
			w := QMat{Layout: f, Values: make([]byte, f.ValueBytes()), Scales: make([]byte, f.ScaleBytes())}
			values, scales := make([]int8, n*k), make([]float32, n*f.Groups())
			for i := range values {
				values[i] = int8(r.IntN(1<<bits-1) - (1<<(bits-1) - 1))
			}
			for i := range scales {
				scales[i] = r.Float32()
			}
			f.Pack(w.Values, w.Scales, f.Matrix(values, scales))
			x := kerneltest.Normal(r, rows*k, 2)
			q := QuantizeRows(x, k, group)
			xs, ws := make([]float32, rows*k), make([]float32, n*k)
			for i := range xs {
				row, c := i/k, i%k
				step := q.Scale[row*f.Groups()+c/group]
				xs[i] = float32(q.Q[row*q.Cols+c]) * step
				if diff := math.Abs(float64(xs[i] - x[i])); diff > float64(step)*0.5001 {
					t.Fatalf("value %d: %g became %g", i, x[i], xs[i])
				}
			}
			for j := range n {
				f.Row(ws[j*k:(j+1)*k], w.Values, w.Scales, j)
			}
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			MatMulQ(got, q, w)
			MatMul(want, xs, ws, rows, n, k)
			if err := kerneltest.Compare(got, want, n, kerneltest.DotTolerance(xs, ws, k)); err != nil {
				t.Errorf("%d bits, group %d: %v", bits, group, err)
			}
		}
	}
}
