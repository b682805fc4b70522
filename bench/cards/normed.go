package cards

import (
	"fmt"
	"math"

	"krater/kernels/cuda/ops"
	"krater/kernels/tensor"
)

// normed builds a product of rows that are normed first, as at the start of a layer: x [t, k] in
// F32.
func normed(what string, f format, t, n, k int) *Case {
	c := &Case{
		Op:    "norm+matmul",
		Shape: fmt.Sprintf("%s T=%d N=%d K=%d", what, t, n, k),
		DType: f.String(),
		Bytes: float64(f.bytes(n, k) + t*k*4 + 2*k + t*n*2),
		Flops: 2 * float64(t) * float64(n) * float64(k),
	}
	c.Rotate = f.bytes(n, k) + t*k*6 + t*n*2
	c.Rel, c.Abs = tolerance(f, tensor.BF16)
	c.build = func(d *desk) *job {
		x, norm, w := d.numbers(tensor.F32, t, k, unit), d.numbers(tensor.BF16, 1, k, unit), d.weights(f, 1, n, k, false)
		in, y := d.room(tensor.BF16, t, k), d.room(tensor.BF16, t, n)
		return &job{
			run:  func(b *ops.Builder, i int) { b.NormMatMul(y.of(i), in.of(i), x.of(i), norm.of(i), eps, w.of(i)) },
			outs: []data{y},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					sum, rows, scales := 0.0, x.row(row), norm.row(0)
					for _, v := range rows {
						sum += v * v
					}
					factor := 1 / math.Sqrt(sum/float64(k)+eps)
					for i := range rows {
						rows[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(rows[i] * factor * scales[i]))))
					}
					got := read(y.RowRange(row, row+1))
					for _, col := range d.spread(n, 40) {
						want, scale := dot(rows, w.row(0, col))
						s = append(s, Sample{got[col], want, scale})
					}
				}
				return s
			},
		}
	}
	return c
}
