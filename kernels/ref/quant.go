package ref

import (
	"math"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// QRows are quantised activations, dense: see device.QRows.
type QRows struct {
	Q     []int8    // [T, Cols]
	Scale []float32 // [T, Cols/Group]
	Bias  []int32   // [T, Cols/Group]
	Cols  int       // a multiple of 32
	Group int
}

// QMat is a matrix packed for a CPU.
type QMat struct {
	tensor.Layout
	Values, Scales []byte
}

// matrix is w unpacked.
func (w QMat) matrix() *tensor.Matrix { return w.Unpack(w.Values, w.Scales) }

// QExpert is a SwiGLU network in integers: see device.QExpert.
type QExpert struct {
	W13, W2 QMat
	Extra
}

// QuantizeRows quantises x [T, cols] by groups of group columns; cols is filled up to a multiple of
// 32.
func QuantizeRows(x []float32, cols, group int) QRows {
	padded := (cols + 31) / 32 * 32
	rows, groups := len(x)/cols, padded/group
	q := QRows{
		Q: make([]int8, rows*padded), Scale: make([]float32, rows*groups), Bias: make([]int32, rows*groups),
		Cols: padded, Group: group,
	}
	for r := range rows {
		for g := range groups {
			in := x[r*cols+g*group : r*cols+min(cols, (g+1)*group)]
			scale, sum := quantize(q.Q[r*padded+g*group:], in)
			q.Scale[r*groups+g], q.Bias[r*groups+g] = scale, -8*sum
		}
	}
	return q
}

// quantize is one group.
func quantize(q []int8, x []float32) (scale float32, sum int32) {
	var top float32
	for _, v := range x {
		abs := float32(math.Abs(float64(v)))
		if !(abs <= math.MaxFloat32) {
			return float32(math.NaN()), 0
		}
		top = max(top, abs)
	}
	if top < 0x1p-100 {
		return 0, 0
	}
	inverse := 127 / top
	for i, v := range x {
		q[i] = int8(math.RoundToEven(float64(float32(v * inverse))))
		sum += int32(q[i])
	}
	return top / 127, sum
}

// MatMulQ is out [T, w.Rows] = x * transposed w.
func MatMulQ(out []float32, x QRows, w QMat) {
	m := w.matrix()
	for n := range w.Rows {
		row := m.Integers(n)
		for t := range len(x.Q) / x.Cols {
			out[t*w.Rows+n] = x.dot(t, row)
		}
	}
}

// dot is the product of row t with a row of weights.
func (x *QRows) dot(t int, w *tensor.IntegerRow) (sum float32) {
	groups := x.Cols / x.Group
	for g := range groups {
		scale := x.Scale[t*groups+g]
		for from := g * x.Group; from < min(len(w.Values), (g+1)*x.Group); from += w.Sub {
			var d int32
			for c := from; c < min(len(w.Values), from+w.Sub); c++ {
				d += int32(x.Q[t*x.Cols+c]) * w.Values[c]
			}
			sum = tensor.FMA(float32(d), w.Scales[from/w.Sub]*scale, sum)
		}
		if w.Mins != nil {
			sum = tensor.FMA(w.Mins[g], float32(x.Bias[t*groups+g]/8)*scale, sum)
		}
	}
	return sum
}

// FFNQ is down(silu(gate x) * up x), or with the activation and biases of e.Extra; the middle row is quantised by W2's group.
func FFNQ(out []float32, x QRows, e QExpert) {
	rows, f := len(x.Q)/x.Cols, e.W2.Cols
	both, mid := make([]float32, rows*2*f), make([]float32, rows*f)
	MatMulQ(both, x, e.W13)
	for i := range mid {
		r, c := i/f, i%f
		mid[i] = float32(e.activate(float64(both[r*2*f+c]), float64(both[r*2*f+f+c]), c, f))
	}
	MatMulQ(out, QuantizeRows(mid, f, e.W2.Group), e.W2)
	e.add(out)
}

// ExpertsQ runs every assignment a = token*topK + rank through its expert; the result is row a of y
// [T*topK, h].
func ExpertsQ(y []float32, x QRows, bank []QExpert, work []device.ExpertRows, topK int) {
	for _, item := range work {
		e := bank[item.Expert]
		h := e.W2.Rows
		for _, a := range item.Assign {
			FFNQ(y[int(a)*h:(int(a)+1)*h], x.row(int(a)/topK), e)
		}
	}
}

// row returns one row as a batch.
func (q QRows) row(r int) QRows {
	groups := q.Cols / q.Group
	q.Q = q.Q[r*q.Cols : (r+1)*q.Cols]
	q.Scale, q.Bias = q.Scale[r*groups:(r+1)*groups], q.Bias[r*groups:(r+1)*groups]
	return q
}
