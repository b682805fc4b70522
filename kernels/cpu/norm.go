package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/norm"
	"krater/kernels/device"
)

// normTask normalises the heads of rows of x, cols values each, with delta added first where there
// is one (and one head).
type normTask struct {
	dev                    *Device
	x, out, add            *float32
	xStride, oStride, aRow int // elements
	w                      unsafe.Pointer
	bf16                   bool
	cols                   int
	eps                    float32
	rows                   headChunks
}

func (t *normTask) do(_ *lane, i int) {
	f := t.dev.norm
	from, to, first, end := t.rows.of(i)
	for r := from; r < to; r++ {
		for h := first; h < end; h++ {
			t.head(f, r, h)
		}
	}
}

// head normalises head h of row r.
func (t *normTask) head(f *norm.Funcs, r, h int) {
	row, dst := rowAt(t.x, t.xStride, r), rowAt(t.out, t.oStride, r)
	if h > 0 {
		row, dst = rowAt(row, t.cols, h), rowAt(dst, t.cols, h)
	}
	var sum float32
	if t.add != nil {
		sum = f.AddSumSquares(row, rowAt(t.add, t.aRow, r), t.cols)
	} else {
		sum = f.SumSquares(row, t.cols)
	}
	scale := rmsScale(sum, t.cols, t.eps)
	if t.bf16 {
		f.MulBF16(dst, row, (*uint16)(t.w), t.cols, scale)
	} else {
		f.MulF32(dst, row, (*float32)(t.w), t.cols, scale)
	}
}

// normNs is the time of a normalised value on one core, in 1/16 ns.
const normNs = 4

// RMSNorm is out = x / sqrt(mean(x^2) + eps) * w, row by row; out and x [T, H] F32 (may be the
// same), w [1, H] BF16 or F32.
func (d *Device) RMSNorm(stream device.Stream, out, x, w device.Mat, eps float32) {
	d.normalise("RMSNorm", stream, &out, &x, nil, &w, 1, eps)
}

// AddRMSNorm is x += delta, then out = RMSNorm(x); out may be delta.
func (d *Device) AddRMSNorm(stream device.Stream, out, x, delta, w device.Mat, eps float32) {
	d.normalise("AddRMSNorm", stream, &out, &x, &delta, &w, 1, eps)
}

// HeadNorm is RMSNorm over each of the heads of x [T, heads*d] in place; w [1, d].
func (d *Device) HeadNorm(stream device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	d.normalise("HeadNorm", stream, &x, &x, nil, &w, heads, eps)
}

func (d *Device) normalise(op string, stream device.Stream, out, x, delta, w *device.Mat, heads int, eps float32) {
	s := d.stream(op, stream)
	if heads < 1 || x.Cols%heads != 0 {
		fail(op, "x has %d columns, want %d heads", x.Cols, heads)
	}
	t := &s.norm
	*t = normTask{
		dev: d, out: f32(op, "out", out, x.Rows, x.Cols), x: f32(op, "x", x, x.Rows, x.Cols),
		xStride: x.Stride, oStride: out.Stride, cols: x.Cols / heads, eps: eps,
	}
	if delta != nil {
		t.add, t.aRow = f32(op, "delta", delta, x.Rows, x.Cols), delta.Stride
	}
	t.w, t.bf16 = weight(op, "w", w, 1, t.cols)
	if x.Cols > 0 {
		ns := x.Rows * x.Cols * normNs / 16
		t.rows = s.cutHeads(x.Rows, heads, ns)
		s.each(t, t.rows.count(), ns, 0)
	}
}

func rmsScale(sum float32, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(sum)/float64(n)+float64(eps)))
}
