package refdevice

import (
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// part is n bytes of a buffer.
func part(b device.Buffer, at, n int) []byte { return b.(*buffer).data[at : at+n] }

func integers(q device.QMat) ref.QMat {
	return ref.QMat{Layout: q.Layout, Values: part(q.Values, q.ValueAt, q.ValueBytes()), Scales: part(q.Scales, q.ScaleAt, q.ScaleBytes())}
}

func expertOf(e device.QExpert) ref.QExpert {
	return ref.QExpert{W13: integers(e.W13), W2: integers(e.W2), Extra: extra(e.Extra)}
}

// rows are quantised rows, dense.
func rows(x device.QRows) ref.QRows {
	return ref.QRows{Q: bytesOf(x.Q), Scale: floats(x.Scale), Bias: ints(x.Bias), Cols: x.Q.Cols, Group: x.Group}
}

func bytesOf(m device.Mat) []int8 {
	if m.DType != tensor.I8 {
		panic("refdevice: " + m.String())
	}
	out := make([]int8, 0, m.Rows*m.Cols)
	eachRow(m, func(_ int, row []byte) {
		for _, b := range row {
			out = append(out, int8(b))
		}
	})
	return out
}

// QuantizeRows: see kernels/device, as all operators below.
func (Device) QuantizeRows(s device.Stream, out device.QRows, x device.Mat) {
	later(s, func() {
		q := ref.QuantizeRows(floats(x), x.Cols, out.Group)
		change(out.Q, func(r int, row []byte) {
			for c := range row {
				row[c] = byte(q.Q[r*q.Cols+c])
			}
		})
		store(out.Scale, q.Scale)
		storeInts(out.Bias, q.Bias)
	})
}

func (Device) MatMulQ(s device.Stream, out device.Mat, x device.QRows, w device.QMat) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.MatMulQ(v, rows(x), integers(w))
		store(out, v)
	})
}

func (Device) FFNQ(s device.Stream, out device.Mat, x device.QRows, e device.QExpert) {
	later(s, func() {
		v := make([]float32, out.Rows*out.Cols)
		ref.FFNQ(v, rows(x), expertOf(e))
		store(out, v)
	})
}

func (Device) ExpertsQ(s device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, work []device.ExpertRows, topK int) {
	later(s, func() {
		experts := make([]ref.QExpert, len(bank))
		for _, w := range work {
			experts[w.Expert] = expertOf(bank[w.Expert])
		}
		v := floats(y)
		ref.ExpertsQ(v, rows(x), experts, work, topK)
		store(y, v)
	})
}
