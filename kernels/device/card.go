package device

import (
	"time"

	"krater/kernels/tensor"
)

// What devices have that compute apart from the host, with memory it cannot address
// and in an order it does not wait for.

// Accelerator is such a device.
type Accelerator interface {
	Device
	Layout
}

// Layout is how an accelerator wants what a batch is made of. It needs no device, so
// that memory can be planned without one.
type Layout interface {
	// RowType is the type of rows that linear layers read and write there: BF16. The
	// residual stream, router and logits stay F32.
	RowType() tensor.DType
	// StepKey tells steps of generated rows apart that take different work: with equal
	// numbers of rows and equal keys the operators are launched alike.
	StepKey(decode []Span) uint64
	// DrawWords is the size of a Draw in a device's memory, in 32-bit words, an even
	// number; PutDraw writes one. 0: the device cannot choose tokens.
	DrawWords() int
	PutDraw(dst []int32, d Draw)
	// ScratchBytes bounds the memory that a stream keeps for operators of such steps.
	ScratchBytes(s *StepSizes) int
	// SpanWords is the size of a table of spans, in 32-bit words, for so many spans with
	// so many blocks in all.
	SpanWords(spans, blocks int) int
	// PutSpans writes the table of a batch and gives its length. Operators take spans
	// from a copy of it in the device's memory, so that a step can be repeated as it is.
	PutSpans(dst []int32, prefill, decode []Span) int
}

// Draw is how the token of a row is chosen from its logits: the fields are those of
// stages/sample.Params. N is how many tokens the sequence has chosen before.
type Draw struct {
	Temperature float64 // 0: the largest logit
	TopK        int
	TopP, MinP  float64
	Seed, N     uint64

	// Change, where there is one, is done to the logits before. A device keeps it
	// in row Slot of its memory of histories, with the sequence's tokens.
	Change Encoded
	Slot   int
	// Stored is how many of the sequence's tokens the row has; below 0 it does not even have
	// Change. What is missing of Change and Tokens, all tokens but the step's own, is copied.
	Stored int
	Tokens []int32
	// Mask, where there is one, has bit i%32 of word i/32 set for token i that may come. It is
	// copied for every choice.
	Mask []uint32
}

// What stands in the place of a token that a device could not choose.
const (
	DrawNaN      int32 = -1 - iota // a logit is NaN
	DrawInfinite                   // one is +Inf
	DrawMasked                     // all are -Inf
)

// StepSizes bound what a step may hold, and say how wide the model is.
type StepSizes struct {
	Rows, Seqs, LogitRows, Context int
	Hidden, Vocab                  int
	Experts, TopK                  int
	ExpertFF, SharedFF, DenseFF    int // widths of a routed expert, of all shared ones, of a dense layer
	MLA                            MLA // of the widest layer with latent attention; zero: none
	GQA                            GQA // of the widest layer with grouped-query attention; zero: none
}

// LayoutOf is d's layout, nil for a device that computes on host memory.
func LayoutOf(d Device) Layout {
	if a, ok := d.(Accelerator); ok {
		return a
	}
	return nil
}

// RowType is the type of rows of activations in a layout, F32 where there is none.
func RowType(l Layout) tensor.DType {
	if l == nil {
		return tensor.F32
	}
	return l.RowType()
}

// Submitter is a stream of an accelerator. What it has from one Submit (or Synchronize, or
// Record) to the next runs in one piece: nothing of other streams comes in between, so
// streams may share the scratch memory of stages. Steps run in the order in which they are
// submitted.
type Submitter interface {
	// Submit sends what was enqueued to the device; a Synchronize that follows only waits.
	Submit()
	// Reserve gives operators that much scratch memory before the first step: a step in
	// which it has to grow is cut.
	Reserve(bytes int) error
}

// Recoverer is a stream of a device whose driver may refuse a call while the device itself is
// well: from then on the stream does nothing and answers why.
type Recoverer interface {
	// Recover has the stream serve again: it drops what was not given to the device and waits
	// for what was. What the lost work was to write is unknown. It is of use after a batch was
	// given up for any reason. An error says that the device is lost. Nobody else may use the
	// stream meanwhile.
	Recover() error
}

// Failure is an event of a Recoverer. Its Wait answers why the stream has failed once nothing
// that was given to the device before is under way.
type Failure interface {
	// Err is why the stream had failed when the event was recorded, nil if it had not.
	Err() error
}

// Failed is why the stream of an event had failed by then, nil if it had not or is none that
// tells.
func Failed(e Event) error {
	if f, ok := e.(Failure); ok {
		return f.Err()
	}
	return nil
}

// Recover has a stream serve again whose work is given up, and waits for what the device was
// given of it. An error says that the device is lost; one that is no Recoverer says so to
// whoever asks next.
func Recover(s Stream) error {
	if r, ok := s.(Recoverer); ok {
		return r.Recover()
	}
	if r, ok := s.(Repeater); ok {
		r.Repeat(0) // what is left is not the step that it is a part of
	}
	_ = s.Synchronize()
	return nil
}

// Repeater is a stream that makes steps cheap which come again as they are but for what
// lies in the device's memory: those that only generate.
type Repeater interface {
	// Repeat begins a step, after the copies of its inputs. All that is enqueued until the
	// next Synchronize depends on key alone, 0 for a step that will not come again. If it
	// reports true the stream has done the whole step by itself, copies to the host
	// excepted, and nothing is to be enqueued.
	Repeat(key uint64) bool
}

// StepTimer is a stream of an accelerator that can have the device itself take the time of a
// step.
type StepTimer interface {
	// Time says whether the step that begins is timed, from the next of its work that is sent.
	Time(on bool)
	// Mark ends a part of such a step, where that cuts nothing that the device could repeat as
	// one piece, and reports whether it did. The last part ends with Submit.
	Mark() bool
	// Took is how long the device took for the parts of the step that was waited for last; nil
	// if that was not timed.
	Took() []time.Duration
	// End is the end of the last part of that step, nil if it was not timed. It holds until
	// the next Time.
	End() Moment
}

// Spans are the spans of a batch that an attention operator works on: all of its
// prompts, or all of its generated rows.
type Spans struct {
	List   []Span
	Decode bool // generated rows
	// Table [1, n] I32 is the batch's table on an Accelerator; absent elsewhere.
	Table Mat
}

// Tiles is an integer weight matrix [Rows, Cols] in format A. The zero Tiles means
// "absent". Values are aligned to 128 bytes.
type Tiles struct {
	tensor.FormatA
	Values  Buffer
	ValueAt int // bytes from the start of Values
	Scales  Buffer
	ScaleAt int
}

// Zero reports whether t is absent.
func (t *Tiles) Zero() bool { return t.Values == nil }

// Bytes is what a pass over the matrix reads.
func (t *Tiles) Bytes() int { return t.ValueBytes() + t.ScaleBytes() }

// TExpert is one SwiGLU network in tiles.
type TExpert struct {
	W13 Tiles // [2F, H], joined
	W2  Tiles // [H, F]
}

// Bytes is what a pass over the network reads.
func (e *TExpert) Bytes() int { return e.W13.Bytes() + e.W2.Bytes() }

// Bank is all routed experts of a layer in one piece of a device's memory, so that the
// device finds an expert by its number: everything of expert e lies e times Step bytes
// from that of the first. W13 is [2F, H], gate then up (joined in tiles), W2 [H, F];
// either F or T. The zero Bank means "absent".
type Bank struct {
	Experts int
	W13, W2 Weight // of the first expert
	Step    int
	// Map [1, Experts] I32, where there is one, is the slot that expert e lies in, below 0
	// where it lies nowhere: slot s is Step*s bytes from W13 and W2, and there may be more
	// slots than experts.
	Map Mat
}

// Zero reports whether b is absent.
func (b *Bank) Zero() bool { return b.Experts == 0 }

// ExpertBytes is what a pass over one expert reads.
func (b *Bank) ExpertBytes() int { return b.W13.Bytes() + b.W2.Bytes() }
