package device

import (
	"time"

	"krater/kernels/tensor"
)

// Accelerator is a device that computes apart from the host: in memory that the host cannot
// address, and in an order that the host does not wait for.
type Accelerator interface {
	Layout
	// NewQueueStream makes a stream of a queue, a small number. The streams of one queue run one
	// after another, and at the same time as those of other queues. Device.NewStream makes
	// streams of queue 0.
	NewQueueStream(queue int) (AcceleratorStream, error)
	// NewCopyStream makes a stream for copies, which runs at the same time as all others.
	NewCopyStream() (Stream, error)
	// Pin makes copies from and to b faster until release is called. CopyIn then reads b in
	// place: b stays as it is until the stream has passed. b must not be memory of the Go heap.
	Pin(b []byte) (release func() error, err error)
	// View returns pinned host memory as operators read it, over the link; false: they cannot. It must not be used
	// after b is unpinned, and is not freed.
	View(b []byte) (Buffer, bool)
	// AllocHost returns n zeroed bytes of host memory that operators read and write in place, over the link. To
	// everything else it is memory of the device.
	AllocHost(n int) (Buffer, error)
	// MoveBlocks enqueues copies of blocks of the KV cache to pinned host memory, or back, on s.
	// It reports false, and enqueues nothing, if some of the host's memory is not pinned.
	MoveBlocks(s Stream, m *BlockMoves) bool
	// NewHostCalls makes the host calls of one stream.
	NewHostCalls(o HostCallSize) (HostCalls, error)
	// NewBridge makes the bridge from another device to this one, with that many bytes of host
	// memory behind those for sums. If the other is no accelerator, it has memory and sums only.
	NewBridge(from Device, bytes int) (Bridge, error)
}

// AcceleratorStream is a stream for the steps of one batch. It has a Clock.
type AcceleratorStream interface {
	Stream
	// Reserve allocates that much scratch memory for operators before the first step: a step
	// during which it has to grow is cut in two.
	Reserve(bytes int) error
	// Time says whether the device takes the time of the step that begins, from the next work
	// that is sent.
	Time(on bool)
	// Mark ends a part of such a step and reports true, unless that would cut what the device
	// could replay as one piece. Submit ends the last part.
	Mark() bool
	// Send sends what was enqueued, one piece of a step that goes on with another Repeat. No part of a timed
	// step ends.
	Send()
	// Flush sends the rest of what was enqueued if the device has a part of the step already. A step that is sent as one piece
	// stays whole. Batches of one queue share memory within a layer, so the work of another must not come between.
	Flush()
	// Took is how long the device took for the parts of the step that was waited for last; nil
	// if that was not timed.
	Took() []time.Duration
	// End is the end of the last part of that step, nil if it was not timed. It holds until
	// the next Time.
	End() Timestamp
}

// BlockMoves are copies of blocks: in every part block From[i] of one side to block To[i] of
// the other. No block is both read and written.
type BlockMoves struct {
	Save     bool // to the host, else from it
	From, To []int32
	Parts    []BlockPart
}

// BlockPart is a matrix of blocks on the device, [blocks * tokens, width] without gaps, and the
// host's room for blocks, one behind the other. Bytes is the size of a block.
type BlockPart struct {
	Cache Mat
	Host  []byte
	Bytes int
}

// Layout is the form in which an accelerator takes the parts of a batch. It needs no device, so that
// memory can be planned without one.
type Layout interface {
	// RowType is the type of rows that linear layers read and write: BF16. The residual stream,
	// the router and the logits are F32.
	RowType() tensor.DType
	// HostRows reports whether the host returns the rows of the experts that it computes, and not their
	// weighted sum: the device's experts have the host's bits, and it adds all terms itself.
	HostRows() bool
	// StepKey tells steps of generated rows apart: with equal numbers of rows and equal keys the
	// launches of the operators are equal.
	StepKey(decode []Span) uint64
	// DrawWords is the size of a Draw in a device's memory, in 32-bit words, an even
	// number; PutDraw writes one. 0: the device cannot choose tokens.
	DrawWords() int
	PutDraw(dst []int32, d Draw)
	// Check names what such steps ask for that no kernel computes.
	Check(s *StepSizes) error
	// ScratchBytes bounds the memory that a stream keeps for operators of such steps.
	ScratchBytes(s *StepSizes) int
	// SpanWords returns the size of a table of spans, in 32-bit words, for the given numbers of
	// spans and of blocks in all spans together.
	SpanWords(spans, blocks int) int
	// PutSpans writes the table of a batch and returns its length. Operators take spans from a copy
	// of it in the device's memory, so that a step can be replayed.
	PutSpans(dst []int32, prefill, decode []Span) int
}

// Draw says how the token of a row is chosen from its logits. It has the fields of
// stages/sample.Params. N is the number of tokens that the sequence has chosen before.
type Draw struct {
	Temperature float64 // 0: the largest logit
	TopK        int
	TopP, MinP  float64
	Seed, N     uint64

	// Change, unless nil, is applied to the logits first. A device keeps it in row Slot of its
	// memory of histories, with the sequence's tokens.
	Change Encoded
	Slot   int
	// Stored is how many of the sequence's tokens the row has; below 0 it does not have Change
	// either. Tokens are all tokens of the sequence but the step's own. What the row lacks is
	// copied.
	Stored int
	Tokens []int32
	// Mask, unless nil, has bit i%32 of word i/32 set if token i is allowed. It is copied for every
	// choice.
	Mask []uint32
	// Later says that the mask is not known when the step is sent. The device computes up to the logits, and
	// chooses once it has the mask. Mask is set between the two.
	Later bool
}

// What a device writes instead of a token if it cannot choose one.
const (
	DrawNaN      int32 = -1 - iota // a logit is NaN
	DrawInfinite                   // one is +Inf
	DrawMasked                     // all are -Inf
)

// StepSizes bound the size of a step, and say how wide the model is.
type StepSizes struct {
	Rows, Seqs, LogitRows, Context int
	Hidden, Vocab                  int
	Experts, TopK                  int
	ExpertFF, SharedFF, DenseFF    int        // widths of a routed expert, of all shared ones, of a dense layer
	Cubic                          bool       // activations have a cubic part (Activation.Cubic)
	Clamped                        bool       // activations are others than SiLU without such a part
	PerLayer                       int        // width of the rows for single layers; 0: none
	MLA                            MLA        // of the widest layer with latent attention; zero: none
	Index                          Index      // of the layer with an indexer that chooses most; zero: none
	GQA                            GQA        // of the widest layer with grouped-query attention; zero: none
	Blocks                         BlockIndex // of the layer with an index over blocks that has the most heads; zero: none
	Compressed                     Compressed // of the layer with the widest queries over tokens and entries, of such layers that with most entries a row sees unchosen; zero: none
	Compress                       Compress   // of the layer whose entries are made of most values; zero: none
	Streams                        int        // residual streams; 0: one
	ChosenRow                      int        // bytes of the widest row of a cache in host memory; 0: there is none
	Mixed                          bool       // the streams are mixed with each other (StreamMix)
	Taps                           TapConv    // of the layer with a table of n-grams that reaches furthest back; zero: none
	Delta                          DeltaNet   // of the layer with gated DeltaNet that has the widest keys; zero: none
}

// LayoutOf is the layout of an accelerator, nil for another device.
func LayoutOf(d Device) Layout {
	if a := d.Accelerator(); a != nil {
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

// Spans are the spans of a batch that an attention operator works on: all of its
// prompts, or all of its generated rows.
type Spans struct {
	List   []Span
	Decode bool // generated rows
	// Table [1, n] I32 is the batch's table on an Accelerator; absent elsewhere.
	Table Mat
}

// Bank is all routed experts of a layer in one piece of a device's memory, so that the device finds
// an expert by its number: expert e lies e * Step bytes after the first. W13 is [2F, H], gate then
// up (joined where they are packed), W2 [H, F]. The zero Bank means "absent".
type Bank struct {
	Experts int
	W13, W2 Weight // of the first expert
	Extra          // the biases are of the first expert, Step bytes apart as the matrices
	Step    int
	// Map [1, Experts] I32, unless absent, has the slot of expert e, below 0 if it has none: slot s
	// lies s * Step bytes after W13 and W2. There may be more slots than experts.
	Map Mat
	// Coming [1, slots] I32, unless absent: experts of these slots may still be copied by OpBringExperts right before (its C).
	Coming Mat
}

// Zero reports whether b is absent.
func (b *Bank) Zero() bool { return b.Experts == 0 }

// ExpertBytes returns the number of bytes that a pass over one expert reads.
func (b *Bank) ExpertBytes() int { return b.W13.Bytes() + b.W2.Bytes() + b.Extra.Bytes() }
