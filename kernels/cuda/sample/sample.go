// Package sample chooses tokens on the card, a row of logits [n, V] F32 a sequence, as
// stages/sample does on the host: the same order of operations, the same random
// numbers, weights and sums in float64. Sums are joined in another order, so a draw that
// falls within about 1e-13 of the border between two tokens may give the neighbour;
// otherwise the tokens are the same.
//
// A choice depends on its row and parameters only and is the same in every run.
// Functions given shapes that do not fit panic with *device.ShapeError.
package sample

import (
	"encoding/binary"
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels: src/sample.cu.
var (
	kFindBest  = launch.Named("kr_find_best")
	kArgmax    = launch.Named("kr_argmax")
	kSample    = launch.Named("kr_sample")
	kBias      = launch.Named("kr_apply_bias")
	kMask      = launch.Named("kr_apply_mask")
	kPenalties = launch.Named("kr_apply_penalties")
)

// What stands in the place of a token that could not be chosen: a logit is NaN, or +Inf,
// or all are -Inf or masked.
const (
	IsNaN      = -1
	IsInfinite = -2
	AllMasked  = -3
)

// Row is how one row's token is chosen: stages/sample.Params' fields of these names, in
// their ranges.
type Row struct {
	Temperature float64 // below 1e-5: greedy
	TopP, MinP  float64
	TopK        int    // 0: all
	Seed, N     uint64 // the request's seed, and how many tokens it has chosen so far
	Logprob     bool
}

// RowBytes is the size of a Row on the card.
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

// part is the number of tokens that share a sum, as in src/sample.cuh.
const part = 256

// maxVocab bounds the sums that a block keeps in shared memory.
const maxVocab = 1 << 20

// split is the number of parts, and the number of warps that take them in turn: it is a
// function of the vocabulary, and so is the order of sums.
func split(vocab int) (parts, warps int) {
	parts = (vocab + part - 1) / part
	return parts, min(32, parts)
}

// room is the number of tokens of scratch memory a row has: whole parts, equally many for
// each warp.
func room(vocab int) int {
	parts, warps := split(vocab)
	return (parts + warps - 1) / warps * warps * part
}

// searchers is the number of blocks that search each of n rows for its largest logit before
// the block that chooses; 0 where that one does it alone. A row is 400 KB to read.
func searchers(n, vocab int) int {
	if n > 64 || vocab < 1<<14 {
		return 0
	}
	return 16
}

// Scratch is the scratch memory of Sample in bytes for n rows.
func Scratch(n, vocab int) int { return 16*n*searchers(n, vocab) + 12*n*room(vocab) }

// Argmax writes to out [n, 1] I32 the smallest token with the largest logit of each row,
// or why there is none (IsNaN, IsInfinite, AllMasked).
func Argmax(l *launch.List, out, logits launch.Mat) {
	const op = "Argmax"
	vec := check(op, out, logits)
	if logits.Rows == 0 {
		return
	}
	l.Add(kArgmax, blocks(logits, 0), launch.P(out.At), launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.I32(vec))
}

// Sample writes to out [n, 1] I32 the token of each row, by the n Rows at rows, or why
// there is none. logprobs [n, 1] F32 or absent: of rows that ask for it, the natural
// logarithm of the token's probability under raw [n, V], the logits as they came from the
// model (logits itself where nothing changed them); IsNaN or IsInfinite if raw has no
// distribution. scratch is Scratch(n, V) bytes, aligned to 16.
func Sample(l *launch.List, out, logits launch.Mat, rows launch.Ptr, logprobs, raw launch.Mat, scratch launch.Ptr) {
	const op = "Sample"
	vec := check(op, out, logits)
	if rows%8 != 0 || rows == 0 || scratch%16 != 0 || scratch == 0 {
		refuse(op, "parameters at %#x, scratch memory at %#x", uint64(rows), uint64(scratch))
	}
	if !logprobs.Zero() {
		if raw.Zero() || raw.DType != tensor.F32 || raw.Rows != logits.Rows || raw.Cols != logits.Cols {
			refuse(op, "raw logits are %v, logits %v", raw, logits)
		}
		if logprobs.DType != tensor.F32 || logprobs.Rows != logits.Rows || logprobs.Cols != 1 || !logprobs.Dense() {
			refuse(op, "logprobs are %v for %d rows", logprobs, logits.Rows)
		}
		vec &= vectors(raw)
	}
	n := logits.Rows
	if n == 0 {
		return
	}
	tokens, search := room(logits.Cols), searchers(n, logits.Cols)
	found := scratch
	scratch += launch.Ptr(16 * n * search)
	if search > 0 {
		c := launch.Config{Grid: launch.Dim{X: uint32(search), Y: uint32(n)}, Block: launch.Dim{X: 256}, PDL: true}
		l.Add(kFindBest, c, launch.P(found), launch.P(logits.At), launch.I32(logits.Stride), launch.I32(logits.Cols), launch.I32(vectors(logits)))
	}
	parts, _ := split(logits.Cols)
	l.Add(kSample, blocks(logits, 8*parts),
		launch.P(out.At), launch.P(logprobs.At), launch.P(logits.At), launch.I32(logits.Stride), launch.P(raw.At), launch.I32(raw.Stride),
		launch.I32(logits.Cols), launch.I32(vec), launch.P(rows), launch.P(scratch), launch.P(scratch+launch.Ptr(8*n*tokens)), launch.I32(tokens),
		launch.P(found), launch.I32(search))
}

func blocks(logits launch.Mat, shared int) launch.Config {
	_, warps := split(logits.Cols)
	return launch.Config{Grid: launch.Dim{X: uint32(logits.Rows)}, Block: launch.Dim{X: uint32(32 * warps)}, Shared: uint32(shared), PDL: true}
}

// check gives whether rows can be read 16 bytes at a time.
func check(op string, out, logits launch.Mat) (vec int) {
	checkLogits(op, logits)
	if out.Zero() || out.DType != tensor.I32 || out.Rows != logits.Rows || out.Cols != 1 || !out.Dense() {
		refuse(op, "out is %v for %d rows", out, logits.Rows)
	}
	return vectors(logits)
}

func checkLogits(op string, m launch.Mat) {
	if m.Zero() || m.DType != tensor.F32 || m.Cols < 1 || m.Cols > maxVocab || m.Stride < m.Cols {
		refuse(op, "logits are %v", m)
	}
}

func vectors(m launch.Mat) int {
	if m.At%16 == 0 && m.Stride%4 == 0 {
		return 1
	}
	return 0
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
