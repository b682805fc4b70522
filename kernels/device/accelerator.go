package device

import (
	"time"

	"krater/kernels/tensor"
)

// Accelerator is a device that computes in memory that the host cannot address. The host enqueues work
// and does not wait for it.
type Accelerator interface {
	Layout
	// NewQueueStream makes a stream in a queue, given by a small number. The streams of a queue run one
	// after another, at the same time as the streams of other queues. Device.NewStream makes streams
	// in queue 0.
	NewQueueStream(queue int) (AcceleratorStream, error)
	// NewCopyStream makes a stream for copies, which runs at the same time as all others.
	NewCopyStream() (Stream, error)
	// Pin makes copies from and to b faster until release is called. CopyIn then reads b in place, so b
	// must not change until the stream has passed. b must not be memory of the Go heap.
	Pin(b []byte) (release func() error, err error)
	// View returns a buffer through which operators read pinned host memory over the link, and false if
	// they cannot. The buffer must not be used after b is unpinned, and must not be freed.
	View(b []byte) (Buffer, bool)
	// AllocHost returns n zeroed bytes of host memory that operators read and write in place, over the
	// link. In all other respects it is memory of the device.
	AllocHost(n int) (Buffer, error)
	// AllocShared is AllocHost for memory that the host reads and writes, too, while operators do. Its bytes are aligned to 64.
	AllocShared(n int) (b Buffer, bytes []byte, err error)
	// MoveBlocks enqueues copies of blocks of the KV cache to pinned host memory, or back, on s.
	// It reports false, and enqueues nothing, if some of the host's memory is not pinned.
	MoveBlocks(s Stream, m *BlockMoves) bool
	// NewHostCalls makes the host calls of one stream.
	NewHostCalls(o HostCallSize) (HostCalls, error)
	// NewBridge makes the bridge from another device to this one, with the given number of bytes of host
	// memory after the SumBytes for sums. If from is not an accelerator, the bridge has only memory and
	// sums.
	NewBridge(from Device, bytes int) (Bridge, error)
}

// AcceleratorStream is a stream for the steps of one batch. It has a Clock.
type AcceleratorStream interface {
	Stream
	// Reserve allocates scratch memory for operators before the first step. A step during which the
	// memory must grow is cut in two.
	Reserve(bytes int) error
	// Time sets whether the device times the step that begins. The time starts with the next work that
	// is sent.
	Time(on bool)
	// Mark ends a part of a timed step and reports true. If that would cut work that the device could
	// replay as one piece, Mark does nothing and reports false. Submit ends the last part.
	Mark() bool
	// Flush sends the remaining enqueued work if a part of the step was sent already. It does not divide
	// a step that is sent as one piece. Batches of one queue share memory within a layer, so work of
	// another batch must not come in between.
	Flush()
	// Took returns the times of the parts of the last step that the host waited for, nil if the step was
	// not timed.
	Took() []time.Duration
	// End returns the end of the last part of that step, nil if it was not timed. It holds until
	// the next Time.
	End() Timestamp
}

// BlockMoves describes copies of blocks: in every part, block From[i] of one side is copied to block
// To[i] of the other. No block is both read and written.
type BlockMoves struct {
	Save     bool // to the host, else from it
	From, To []int32
	Parts    []BlockPart
}

// BlockPart is a matrix of blocks on the device, [blocks * tokens, width] without gaps, and host memory
// for blocks, one after the other. Bytes is the size of a block.
type BlockPart struct {
	Cache Mat
	Host  []byte
	Bytes int
}

// Layout describes the form in which an accelerator takes the parts of a batch. It needs no device, so
// memory can be planned without one.
type Layout interface {
	// RowType returns the type of rows that linear layers read and write: BF16. The residual stream,
	// the router and the logits are F32.
	RowType() tensor.DType
	// HostRows reports whether the host returns the rows of the experts that it computes instead of their
	// weighted sum. Then the device's experts have the same bits as the host's, and the device adds all
	// terms itself.
	HostRows() bool
	// StepKey returns a key of a step of generated rows. Steps with equal numbers of rows and equal keys
	// have equal launches of operators.
	StepKey(decode []Span) uint64
	// DrawWords returns the size of a Draw in a device's memory, in 32-bit words, an even
	// number; PutDraw writes one. 0: the device cannot choose tokens.
	DrawWords() int
	PutDraw(dst []int32, d Draw)
	// Check returns an error if steps of these sizes need an operator that no kernel computes.
	Check(s *StepSizes) error
	// ScratchBytes returns an upper bound of the scratch memory of a stream for steps of these sizes, in bytes.
	ScratchBytes(s *StepSizes) int
	// SpanWords returns the size of a table of spans, in 32-bit words, for the given numbers of
	// spans and of blocks in all spans together.
	SpanWords(spans, blocks int) int
	// PutSpans writes the table of a batch and returns its length. Operators take spans from a copy
	// of it in the device's memory, so that a step can be replayed.
	PutSpans(dst []int32, prefill, decode []Span) int
}

// Draw holds the parameters with which the token of a row is chosen from its logits. It has the fields
// of stages/sample.Params. N is the number of tokens that were chosen for the sequence before.
type Draw struct {
	Temperature float64 // 0: the largest logit
	TopK        int
	TopP, MinP  float64
	Seed, N     uint64

	// Change, unless nil, is applied to the logits first. A device keeps it in row Slot of its
	// memory of histories, with the sequence's tokens.
	Change Encoded
	Slot   int
	// Stored is the number of the sequence's tokens that the row of histories has; below 0 the row does
	// not have Change either. Tokens are all tokens of the sequence except the step's own. Tokens and
	// Change that the row lacks are copied.
	Stored int
	Tokens []int32
	// Mask, unless nil, has bit i%32 of word i/32 set if token i is allowed. It is copied for every
	// choice.
	Mask []uint32
	// Later says that the mask is not known when the step is sent. The device waits for it before it
	// chooses.
	Later bool
}

// Values that a device writes instead of a token if it cannot choose one.
const (
	DrawNaN      int32 = -1 - iota // a logit is NaN
	DrawInfinite                   // one is +Inf
	DrawMasked                     // all are -Inf
)

// StepSizes holds the limits of a step and the widths of the model.
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

// LayoutOf returns the layout of an accelerator, nil for another device.
func LayoutOf(d Device) Layout {
	if a := d.Accelerator(); a != nil {
		return a
	}
	return nil
}

// RowType returns the type of rows of activations in a layout, F32 if l is nil.
func RowType(l Layout) tensor.DType {
	if l == nil {
		return tensor.F32
	}
	return l.RowType()
}

// Spans holds the spans of a batch that an attention operator computes: the spans of all prompts, or of
// all generated rows.
type Spans struct {
	List   []Span
	Decode bool // generated rows
	// Table [1, n] I32 is the batch's table on an Accelerator; absent elsewhere.
	Table Mat
}

// Bank holds all routed experts of a layer in one piece of a device's memory. The device finds an expert
// by its number: expert e is e * Step bytes after the first. W13 is [2F, H], gate then up (joined if
// they are packed), W2 is [H, F]. The zero Bank means "absent".
type Bank struct {
	Experts int
	W13, W2 Weight // of the first expert
	Extra          // the biases are of the first expert, Step bytes apart as the matrices
	Step    int
	// Map [1, Experts] I32, unless absent, has the slot of each expert, below 0 if it has none. Slot s is
	// s * Step bytes after W13 and W2. There may be more slots than experts.
	Map Mat
	// Coming [1, slots] I32, unless absent, marks the slots into which OpBringExperts may still be
	// copying experts; it is argument C of that operator, which comes right before.
	Coming Mat
}

// Zero reports whether b is absent.
func (b *Bank) Zero() bool { return b.Experts == 0 }

// ExpertBytes returns the number of bytes that a pass over one expert reads.
func (b *Bank) ExpertBytes() int { return b.W13.Bytes() + b.W2.Bytes() + b.Extra.Bytes() }
