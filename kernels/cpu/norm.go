package cpu

import (
	"math"

	"krater/kernels/device"
)

// RMSNorm is out = x / sqrt(mean(x^2) + eps) * w, row by row; out and x [T, H]
// F32 (may be the same), w [1, H] BF16 or F32.
func (d *Device) RMSNorm(stream device.Stream, out, x, w device.Mat, eps float32) {
	const op = "RMSNorm"
	d.stream(op, stream)
	o, in := f32(op, "out", &out, x.Rows, x.Cols), f32(op, "x", &x, x.Rows, x.Cols)
	weights, bf16 := weight(op, "w", &w, 1, x.Cols)
	if x.Cols == 0 {
		return
	}
	for r := range x.Rows {
		row, dst := rowAt(in, x.Stride, r), rowAt(o, out.Stride, r)
		scale := rmsScale(d.norm.SumSquares(row, x.Cols), x.Cols, eps)
		if bf16 {
			d.norm.MulBF16(dst, row, (*uint16)(weights), x.Cols, scale)
		} else {
			d.norm.MulF32(dst, row, (*float32)(weights), x.Cols, scale)
		}
	}
}

// AddRMSNorm is x += delta, then out = RMSNorm(x); out may be delta.
func (d *Device) AddRMSNorm(stream device.Stream, out, x, delta, w device.Mat, eps float32) {
	const op = "AddRMSNorm"
	d.stream(op, stream)
	o, in := f32(op, "out", &out, x.Rows, x.Cols), f32(op, "x", &x, x.Rows, x.Cols)
	add := f32(op, "delta", &delta, x.Rows, x.Cols)
	weights, bf16 := weight(op, "w", &w, 1, x.Cols)
	if x.Cols == 0 {
		return
	}
	for r := range x.Rows {
		row, dst := rowAt(in, x.Stride, r), rowAt(o, out.Stride, r)
		sum := d.norm.AddSumSquares(row, rowAt(add, delta.Stride, r), x.Cols)
		scale := rmsScale(sum, x.Cols, eps)
		if bf16 {
			d.norm.MulBF16(dst, row, (*uint16)(weights), x.Cols, scale)
		} else {
			d.norm.MulF32(dst, row, (*float32)(weights), x.Cols, scale)
		}
	}
}

func rmsScale(sum float32, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(sum)/float64(n)+float64(eps)))
}
