// Package cuda implements a GPU as a device: memory, streams, and the operators of the stages as
// lists of launches (package ops chooses the kernels). The stages run on it unchanged, and Run
// fuses several of their operators where it can. Experts of a bank may be at any place in it or
// absent (device.Bank); the GPU requests absent ones from the host in the middle of a step.
//
// Without the build tag cuda there is no GPU, and Open returns ErrNotBuilt.
package cuda

import (
	"encoding/binary"
	"errors"

	"krater/kernels/cuda/compressed"
	"krater/kernels/cuda/delta"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/gqa"
	"krater/kernels/cuda/mla"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/same"
	"krater/kernels/cuda/sample"
	"krater/kernels/cuda/spans"
	"krater/kernels/cuda/streams"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// scratchStep is the least amount by which a stream's scratch memory grows.
const scratchStep = 16 << 20

// ErrNotBuilt is returned by Open in a program that was built without the tag cuda.
var ErrNotBuilt = errors.New("this program was built without CUDA (build tag cuda)")

// Options say how to open a GPU.
type Options struct {
	Index  int
	Budget int64 // the most bytes of its memory that may be used; 0: the free memory
	Graphs int   // the number of instantiated graphs per stream; 0: 64, below 0: none
	F32    bool  // see Layout
	// Portable selects the kernels for any GPU from compute capability 8.0 on instead of those for
	// Hopper (rt.Options).
	Portable bool
	// Invariant makes the bits of a row independent of the number of rows in its batch
	// (ops.Builder). A batch may have MostGenerated generated rows, which come first.
	Invariant bool
	// Same gives experts a processor's arithmetic (package same), so that tokens do not depend on where
	// an expert is computed.
	Same bool
}

// CheckSame says why experts of a format have no processor's arithmetic on a GPU (Options.Same); nil if they
// have it.
func CheckSame(f tensor.Format) error { return same.Check(f) }

// MostGenerated is the most generated rows of a batch with Options.Invariant.
const MostGenerated = gemv.MaxRows

// Layout describes how a GPU expects the parts of a batch (device.Layout).
type Layout struct {
	// F32 keeps activations in float32, for comparisons; only the plain kernels support this.
	F32 bool
	// Same is Options.Same.
	Same bool
}

// RowType is BF16, or F32 with Layout.F32.
func (l Layout) RowType() tensor.DType {
	if l.F32 {
		return tensor.F32
	}
	return tensor.BF16
}

// HostRows is Layout.Same.
func (l Layout) HostRows() bool { return l.Same }

// SpanWords returns the size of a table of spans.
func (Layout) SpanWords(n, blocks int) int { return spans.Words(n, blocks) }

// StepKey returns a number for everything on which attention's grid depends.
func (Layout) StepKey(decode []device.Span) uint64 {
	return uint64(ops.DecodeItems(decode))<<32 | uint64(ops.Pitch(decode))
}

// Check names the sizes that no kernel takes.
func (Layout) Check(s *device.StepSizes) error {
	return errors.Join(delta.Check(s.Delta), mla.CheckIndex(s.Index), compressed.Check(s.Compressed), gqa.CheckBlocks(s.Blocks), streams.CheckReach(s.Taps))
}

// ScratchBytes returns a bound of a stream's scratch memory.
func (l Layout) ScratchBytes(s *device.StepSizes) int {
	n := max(ops.ScratchBytes(s), scratchStep)
	if l.Same {
		n = max(n, ops.SameBytes(s))
	}
	return n
}

// DrawWords is the size of a draw.
func (Layout) DrawWords() int { return sample.RowBytes / 4 }

// PutDraw writes a draw.
func (Layout) PutDraw(dst []int32, d device.Draw) {
	row := sample.Row{Temperature: d.Temperature, TopP: d.TopP, MinP: d.MinP, TopK: d.TopK, Seed: d.Seed, N: d.N}
	var b [sample.RowBytes]byte
	row.Put(b[:])
	for i := range dst[:sample.RowBytes/4] {
		dst[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// PutSpans writes a table of spans.
func (Layout) PutSpans(dst []int32, prefill, decode []device.Span) int {
	return spans.Put(dst, prefill, decode)
}
