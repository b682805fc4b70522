package device

import "krater/kernels/tensor"

// QMat is a packed weight matrix [Rows, Cols] in memory of the kind of device that it is laid
// out for. The zero QMat means "absent". Values and scales may lie anywhere in their buffers,
// values aligned to 64 bytes on a CPU, to 128 on a GPU.
type QMat struct {
	tensor.Layout
	Values  Buffer
	ValueAt int // bytes from the start of Values
	Scales  Buffer
	ScaleAt int
}

// Zero reports whether q is absent.
func (q QMat) Zero() bool { return q.Values == nil }

// QRows are activations [T, K] quantised once and used for every matrix of one
// group size: x[t, k] is about Q[t, k] * Scale[t, k/Group]. K is filled up with
// zeros to a multiple of 32 (tensor.Padded), groups divide that.
//
// Rows may lie at any stride. Products read eight rows side by side, so a stride
// of Q that is a multiple of 4096 bytes makes them meet in the first-level cache.
type QRows struct {
	Q     Mat // [T, padded K] I8, values -127..127
	Scale Mat // [T, padded K/Group] F32
	Bias  Mat // [T, padded K/Group] I32: -8 times the sum of a group's values, which undoes the +8 of stored INT4 weights
	Group int
}

// QExpert is one SwiGLU network of packed weights, gate and up in one matrix: rows 0..F-1 of
// W13 are gate, rows F..2F-1 up. F is a multiple of 16.
type QExpert struct {
	W13 QMat // [2F, H]
	W2  QMat // [H, F]
	Extra
}

// The operators of a CPU that multiply quantised rows. Batch invariance holds as for the others, and more: the
// arithmetic is fixed, so QuantizeRows and MatMulQ have the same bits on every
// level of every processor.
//
//	QuantizeRows(s, out QRows, x [T,K] F32)
//	MatMulQ(s, out [T,N] F32, x QRows, w QMat)                          out = x * w^T
//	FFNQ(s, out [T,H] F32, x QRows, e QExpert)                          down(quantised silu(gate x) * up x), by W2's group, or with the activation and biases of Extra
//	ExpertsQ(s, y [T*K,H] F32, x QRows, bank []QExpert, work []ExpertRows, topK)
//
// QuantizeRows, for each row and group, in float32: top = max|x|, scale = top /
// 127, value = x * (127 / top) rounded to the nearest integer, ties to even. A
// group whose top is below 2^-100 is all zero. A group with an infinity or NaN
// gets scale NaN and values 0, so that every result of that row is NaN.
//
// MatMulQ: d[g] is the exact integer dot product of group g, then sum = FMA(d[g]
// as float32, wscale[g] * xscale[g] rounded to float32, sum) for g = 0, 1, ...
// from 0 on. A group of more than 65536 columns could overflow and is refused.
