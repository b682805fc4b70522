// Package sample chooses tokens on the GPU as stages/sample does on the host. Logits are [n, V]
// F32, one row per sequence. The order of operations, the random numbers and the weights are the
// same. Sums of weights are whole numbers here: multiples of 2^-54 of the largest weight for a
// draw, and of 2^-46 (in a vocabulary of 100,000) for top_p. Smaller weights count as zero. So
// the GPU may choose the neighbouring token if a draw falls within about 1e-12 of the border
// between two tokens, or a share within 1e-9 of the end of top_p. Otherwise the tokens are the
// same.
//
// A choice depends on its row and parameters only and is the same in every run. Functions panic
// with *device.ShapeError if shapes do not fit.
package sample

import (
	"encoding/binary"
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels: src/sample.cu, change.cu.
var (
	kFindBest = launch.Named("kr_find_best")
	kArgmax   = launch.Named("kr_argmax")
	kTally    = launch.Named("kr_tally")
	kDraw     = launch.Named("kr_draw")
	kLogprob  = launch.Named("kr_logprob")
	kChange   = launch.Named("kr_change_logits")
)

// Values in place of a token that could not be chosen: a logit is NaN, or +Inf, or all are -Inf
// or masked.
const (
	IsNaN      = -1
	IsInfinite = -2
	AllMasked  = -3
)

// Row has the parameters of one row's choice: the fields of stages/sample.Params with these
// names, in their ranges.
type Row struct {
	Temperature float64 // below 1e-5: greedy
	TopP, MinP  float64
	TopK        int    // 0: all
	Seed, N     uint64 // the request's seed, and the number of tokens it has chosen so far
	Logprob     bool
}

// RowBytes is the size of a Row on the GPU.
const RowBytes = 48

// Put writes r as the kernel reads it.
func (r *Row) Put(dst []byte) {
	temperature := r.Temperature
	if temperature < 1e-5 {
		temperature = 0
	}
	le := binary.LittleEndian
	le.PutUint64(dst, math.Float64bits(temperature))
	le.PutUint64(dst[8:], math.Float64bits(r.TopP))
	le.PutUint64(dst[16:], math.Float64bits(r.MinP))
	le.PutUint64(dst[24:], r.Seed)
	le.PutUint64(dst[32:], r.N)
	le.PutUint32(dst[40:], uint32(int32(min(r.TopK, math.MaxInt32))))
	logprob := uint32(0)
	if r.Logprob {
		logprob = 1
	}
	le.PutUint32(dst[44:], logprob)
}

// Of src/sample.cuh: tokens in a part, which is a warp's unit of work; threads and warps of a
// block; the most blocks that share a row; bytes of Notes; bytes of a Tally and a Desk
// (src/sample.cu).
const (
	part       = 128
	threads    = 256
	warps      = threads / 32
	mostBlocks = 128
	notes      = 16*mostBlocks + 16 + 12*2048 + 8*2048
	tally      = 8*64 + 12*2048
	desk       = 8*64 + 12*1024 + 8*2048
)

// maxVocab bounds the sums that a block keeps in shared memory.
const maxVocab = 1 << 20

// parts returns the number of parts of a row.
func parts(vocab int) int { return (vocab + part - 1) / part }

// sharers returns the number of blocks that share each of n rows. All of them run at once on a
// GPU of 132 multiprocessors, 4 on each, and all warps have the same number of parts.
func sharers(n, vocab int) int {
	const places = 4 * 132
	turns := func(blocks int) int { return (parts(vocab) + warps*blocks - 1) / (warps * blocks) }
	each := turns(max(1, min(places/n, mostBlocks))) // parts of a warp
	return (parts(vocab) + warps*each - 1) / (warps * each)
}

// room returns the scratch memory of a row.
func room(vocab int) int { return notes + (8*parts(vocab)+15)&^15 }

// Scratch returns the scratch memory of Argmax and Sample in bytes for n rows.
func Scratch(n, vocab int) int { return n * room(vocab) }

// Argmax writes to out [n, 1] I32 the smallest token with the largest logit of each row, or the
// reason for none (IsNaN, IsInfinite, AllMasked). scratch is Scratch(n, V) bytes, aligned to 16.
func Argmax(l *launch.List, out, logits launch.Mat, scratch launch.Ptr) {
	const op = "Argmax"
	check(op, out, logits, scratch)
	n := logits.Rows
	if n == 0 {
		return
	}
	find(l, logits, scratch, 0)
	c := launch.Config{Grid: launch.Dim{X: uint32(n)}, Block: launch.Dim{X: 32}, PDL: true}
	l.Add(kArgmax, c, launch.P(out.At), launch.P(scratch), launch.I64(int64(room(logits.Cols))), launch.I32(sharers(n, logits.Cols)))
}

// find searches for the largest logits; begin 1 prepares the scratch memory for a draw.
func find(l *launch.List, logits launch.Mat, scratch launch.Ptr, begin int) {
	l.Add(kFindBest, shared(logits, 0), launch.P(scratch), launch.I64(int64(room(logits.Cols))),
		launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.I32(vectors(logits)), launch.I32(begin))
}

// Sample writes to out [n, 1] I32 the token of each row, by the n Rows at rows, or the reason for
// none. logprobs [n, 1] F32 or absent: for rows that request it, the natural logarithm of the
// token's probability under raw [n, V], the model's unchanged logits (logits itself if nothing
// changed them); IsNaN or IsInfinite if raw has no distribution. scratch is Scratch(n, V) bytes,
// aligned to 16.
func Sample(l *launch.List, out, logits launch.Mat, rows launch.Ptr, logprobs, raw launch.Mat, scratch launch.Ptr) {
	const op = "Sample"
	check(op, out, logits, scratch)
	if rows%8 != 0 || rows == 0 {
		refuse(op, "parameters at %#x", uint64(rows))
	}
	if !logprobs.Zero() {
		if raw.Zero() || raw.DType != tensor.F32 || raw.Rows != logits.Rows || raw.Cols != logits.Cols {
			refuse(op, "raw logits are %v, logits %v", raw, logits)
		}
		if logprobs.DType != tensor.F32 || logprobs.Rows != logits.Rows || logprobs.Cols != 1 || !logprobs.Dense() {
			refuse(op, "logprobs are %v for %d rows", logprobs, logits.Rows)
		}
	}
	n := logits.Rows
	if n == 0 {
		return
	}
	find(l, logits, scratch, 1)
	each := func(k launch.Kernel, memory int) {
		l.Add(k, shared(logits, memory), launch.P(out.At), launch.P(scratch), launch.I64(int64(room(logits.Cols))),
			launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.I32(vectors(logits)), launch.P(rows))
	}
	each(kTally, tally)
	each(kDraw, desk+8*parts(logits.Cols))
	if !logprobs.Zero() {
		c := launch.Config{Grid: launch.Dim{X: uint32(n)}, Block: launch.Dim{X: threads}, PDL: true}
		l.Add(kLogprob, c, launch.P(out.At), launch.P(logprobs.At), launch.P(raw.At), launch.I32(raw.Stride), launch.I32(raw.Cols),
			launch.I32(vectors(raw)), launch.P(rows))
	}
}

// shared returns a launch of the blocks that share rows, with that many bytes of shared memory.
func shared(logits launch.Mat, memory int) launch.Config {
	return launch.Config{
		Grid:   launch.Dim{X: uint32(sharers(logits.Rows, logits.Cols)), Y: uint32(logits.Rows)},
		Block:  launch.Dim{X: threads},
		Shared: uint32(memory),
		PDL:    true,
	}
}

func check(op string, out, logits launch.Mat, scratch launch.Ptr) {
	checkLogits(op, logits)
	if out.Zero() || out.DType != tensor.I32 || out.Rows != logits.Rows || out.Cols != 1 || !out.Dense() {
		refuse(op, "out is %v for %d rows", out, logits.Rows)
	}
	if scratch%16 != 0 || scratch == 0 {
		refuse(op, "scratch memory at %#x", uint64(scratch))
	}
}

func checkLogits(op string, m launch.Mat) {
	if m.Zero() || m.DType != tensor.F32 || m.Cols < 1 || m.Cols > maxVocab || m.Stride < m.Cols {
		refuse(op, "logits are %v", m)
	}
}

// vectors returns 1 if rows can be read 16 bytes at a time.
func vectors(m launch.Mat) int {
	if m.At%16 == 0 && m.Stride%4 == 0 {
		return 1
	}
	return 0
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
