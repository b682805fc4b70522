package device

import "krater/kernels/tensor"

// QMat is an integer weight matrix [Rows, Cols] in the CPU's format B. The zero
// QMat means "absent". Values and scales may lie anywhere in their buffers, values
// aligned to 64 bytes.
type QMat struct {
	tensor.FormatB
	Values  Buffer
	ValueAt int // bytes from the start of Values
	Scales  Buffer
	ScaleAt int
}

// Zero reports whether q is absent.
func (q QMat) Zero() bool { return q.Values == nil }

// Bytes is what a pass over the matrix reads.
func (q QMat) Bytes() int { return q.ValueBytes() + q.ScaleBytes() }

// QRows are activations [T, K] quantised once and used for several matrices of
// one group size: x[t, k] is about Q[t, k] * Scale[t, k/Group]. K is padded with
// zeros to a multiple of 32.
type QRows struct {
	Q     Mat // [T, K] I8, values -127..127
	Scale Mat // [T, K/Group] F32
	Sum   Mat // [T, K/Group] I32: the sum of a group's values
	Group int
}

// QExpert is one SwiGLU network in integers, gate and up joined: rows 0..F-1 of
// W13 are gate, rows F..2F-1 up. F is a multiple of 16.
type QExpert struct {
	W13 QMat // [2F, H]
	W2  QMat // [H, F]
}

// The integer operators. Batch invariance holds as for the others; sums within a
// group are exact, groups are added in float32 in rising order.
//
//	QuantizeRows(s, out QRows, x [T,K])                                 per row and group: scale = max|x|/127, round to nearest even
//	MatMulQ(s, out [T,N], x QRows, w QMat)                              out = x * w^T
//	FFNQ(s, out [T,H], x QRows, e QExpert)                              quantises the middle row by W2's group
//	ExpertsQ(s, y [T*K,H], x QRows, bank []QExpert, work []ExpertRows, topK)
