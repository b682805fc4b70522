package stages

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
)

// State is a step on one rank: the Step, which all ranks share, and the rank's Rows. It is reused, and
// belongs to one batch at a time. Its methods are not safe for concurrent use, but several streams
// may write disjoint rows of ExpertOut and Shared at once.
type State struct {
	*Step
	*Rows
}

// Rows are the matrices of a step on one device, and the part of the step that layers see. The
// matrices are views of T rows (Logits, Final: one row for each of Step.Wanted), set when the step is
// loaded. A link between ranks carries Hidden and Marks, and Selected if the next layer uses it.
type Rows struct {
	T       int           // rows that layers see: all of the step, or a piece of it (State.Look)
	Prefill []device.Span // the prompts' spans in these rows
	Decode  []device.Span // the generated ones
	// Timing times the copies that the step waits for, and the waits; nil: they are not timed.
	Timing *device.Timing

	// Matrices without a type have device.RowType: F32, on an accelerator BF16.
	IDs       device.Mat // [T, 1] I32 token ids
	Positions device.Mat // [T, 1] I32 positions in the sequence
	Slots     device.Mat // [T, 1] I32 rows of the KV cache
	// WindowSlots [T, 1] I32 are the rows of the KV caches of layers with a window (Paging). It is absent if
	// these layers use Slots.
	WindowSlots device.Mat
	Marks       device.Mat // [T, 1] I32 layer + 1 whose keys or values of the row are the first that are not finite; 0: none
	WantedRows  device.Mat // [n, 1] I32 Step.Wanted

	Hidden    device.Mat // [T, H] F32 residual stream; of n streams [T, n*H], side by side
	Mix       Mixing     // scratch memory between several streams and blocks; absent with one
	Normed    device.Mat // [T, H] output of the last norm: input of attention, router, experts
	Input     Input      // Normed, in the form that linear layers take
	Delta     device.Mat // [T, H] output of the last block, to be added to Hidden
	PerLayer  device.Mat // [T, layers*model.Config.PerLayer] rows for single layers; absent in a model without them
	Context   device.Mat // like PerLayer: work space of the embedding
	Gated     device.Mat // [T, model.Config.PerLayer] work space of layers
	Shared    device.Mat // [T, H] shared experts; absent in a model without them
	ExpertOut device.Mat // [T*K, H] row t*K+r: token t's expert of rank r; absent in a dense model

	// Selected [T, TopK] I32 are the positions that each row attends to in the layer in hand, see
	// device.Index. They stay for layers that use the choice of the layer before. Absent without an indexer.
	Selected device.Mat

	RouterLogits  device.Mat // [T, E] F32
	RouterIDs     device.Mat // [T, K] I32, of the layer in hand: Routing
	RouterWeights device.Mat // [T, K] F32

	// Absent on a rank without the head.
	Picked device.Mat // [n, H or the width of Hidden] F32 Hidden's rows that are wanted, before the final norm
	Final  device.Mat // [n, H] after the final norm
	Output Input      // Final, in the form that the head takes
	Logits device.Mat // [n, V] F32

	// ExpertSlot [1, E] I32, if set, is below 0 for experts of the current layer that are not on
	// this device: they have no rows in ExpertOut, and the host adds their output to Hidden.
	ExpertSlot device.Mat
	// HostSum [T, H] F32, if set, is that output in a step that a Probe sees, and where there are several residual streams. It
	// is not in Hidden then: the probe sees the sum of all experts, and each stream takes it with a weight of its own.
	HostSum device.Mat

	// Histories is memory for draws with a Change; nil: draws must not have any.
	Histories *Histories

	program Program

	// Work space of the host side of a MoE layer, see expert.Split.
	Assign []int32             // [T*K]
	Work   []device.ExpertRows // capacity E
	Counts []int32             // [E]

	windowed windowed // spans and tables of layers with a window
	id       uint64   // identifies these rows in the steps of other states
	dev      device.Device
	cfg      *model.Config
	lim      Limits
	head     bool          // the rank has the head
	layout   device.Layout // of the device, nil on host memory
	inputs   inputs
	full     views   // the matrices at their largest
	ids      []int32 // RouterIDs on the host; nil if the host addresses the device's memory
	logits   []float32
	moe      []int   // [layers] index among those with experts; nil if they share RouterIDs
	routes   []int32 // choices of routers, on the host [layers with experts, T, K]
	first    int     // the step's row that is row 0 of the matrices: see Look
	repeated bool    // see Repeated
	chosen   []int32 // on the host
	marks    []int32 // Marks on the host, as ids
	changed  bool    // some draws change logits
	masks    masks
	bufs     []device.Buffer
	normed   device.QRows // memory for Input as integers
	final    device.QRows // memory for Output as integers
}

// Mixing is the matrices by which several residual streams become the input of a block and take its output.
// n is the number of streams.
type Mixing struct {
	Normed  device.Mat // [T, n*H] the streams, normed
	Low     device.Mat // [T, rank]; of mixed streams the weights [T, (2+n)*n] of device.StreamMix, and nothing else is there
	Weights device.Mat // [T, n*H] of Normed
	Inject  device.Mat // [T, n] of the block's output
	Joined  device.Mat // [T, *] Low and Inject side by side on an accelerator (model.StreamScratch); absent elsewhere
}

// Of returns the first n rows.
func (m Mixing) Of(n int) Mixing {
	for _, x := range [...]*device.Mat{&m.Normed, &m.Low, &m.Weights, &m.Inject, &m.Joined} {
		if !x.Zero() {
			*x = x.RowRange(0, n)
		}
	}
	return m
}

// MixWanted returns Mix for the wanted rows.
func (st *State) MixWanted() Mixing { return st.full.mix.Of(len(st.Wanted)) }

// views are the matrices as allocated.
type views struct {
	hidden, normed, delta, shared, expertOut device.Mat
	perLayer, context, gated                 device.Mat
	routerLogits, routerIDs, routerWeights   device.Mat
	selected                                 device.Mat
	picked, final, logits, chosen            device.Mat
	mix                                      Mixing
}

// shape is a matrix with its size; absent ones have no rows or no columns.
type shape struct {
	m          *device.Mat
	dt         tensor.DType
	rows, cols int
}

// shapes lists the matrices of v for batches within lim, without those of the inputs.
func (v *views) shapes(cfg *model.Config, lim Limits, l device.Layout, head bool) []shape {
	t, h, e, k, n := lim.LayerRows(), cfg.Hidden, cfg.MoE.Experts, cfg.MoE.Router.TopK, lim.LogitRows
	if !head {
		n = 0
	}
	ids := t // of routers
	if l != nil {
		layers, _ := moeLayers(len(cfg.Layers), cfg.MoELayer)
		ids = lim.Tokens * layers
	}
	topK, shared := cfg.Selection()
	selecting := t * min(1, topK)
	if shared { // by a layer that may run when others have seen another piece
		selecting = lim.Tokens
	}
	rows, picked := device.RowType(l), n
	width, mixed, low := cfg.StreamWidth(), 0, rows
	if cfg.Streams.Mixed() { // what is rounded here changes the streams of all layers behind it
		low = tensor.F32
	}
	mix, joined := cfg.Streams.Scratch(h), 0
	if l != nil {
		joined = mix.Joined()
	}
	if joined > 0 { // they are parts of it
		mix.Low, mix.Inject = 0, 0
	}
	if cfg.Streams.Several() {
		mixed = max(t, n)
	} else if rows == tensor.F32 {
		picked = 0 // Final has memory for them
	}
	return []shape{
		{&v.hidden, tensor.F32, lim.Tokens, width},
		{&v.normed, rows, t, h},
		{&v.delta, rows, t, h},
		{&v.perLayer, rows, lim.Tokens, len(cfg.Layers) * cfg.PerLayer},
		{&v.context, rows, lim.Tokens, len(cfg.Layers) * cfg.PerLayer},
		{&v.gated, rows, t, cfg.PerLayer},
		{&v.picked, tensor.F32, picked, width},
		{&v.mix.Normed, rows, mixed, mix.Normed},
		{&v.mix.Low, low, mixed, mix.Low},
		{&v.mix.Weights, rows, mixed, mix.Normed},
		{&v.mix.Inject, rows, mixed, mix.Inject},
		{&v.mix.Joined, rows, mixed, joined},
		{&v.final, rows, n, h},
		{&v.logits, tensor.F32, n, cfg.Vocab},
		{&v.chosen, tensor.I32, n * min(1, drawWords(l)), 1},
		{&v.shared, rows, t * min(1, cfg.MoE.SharedFF), h},
		{&v.expertOut, rows, t * k * min(1, e), h},
		{&v.selected, tensor.I32, selecting, topK},
		{&v.routerLogits, tensor.F32, t, e},
		{&v.routerIDs, tensor.I32, ids * min(1, e), k},
		{&v.routerWeights, tensor.F32, t * min(1, e), k},
	}
}

// drawWords is l's DrawWords, 0 without a layout.
func drawWords(l device.Layout) int {
	if l == nil {
		return 0
	}
	return l.DrawWords()
}

// StateBytes returns the size of the matrices a State allocates on its device for
// batches within lim (checked by Limits.For).
func StateBytes(cfg *model.Config, lim Limits, l device.Layout) int64 {
	return RowsBytes(cfg, lim, l, true)
}

// RowsBytes is like StateBytes, for a rank with or without the head.
func RowsBytes(cfg *model.Config, lim Limits, l device.Layout, head bool) int64 {
	n := 4 * int64(inputWords(lim, l))
	for _, x := range new(views).shapes(cfg, lim, l, head) {
		n += int64(x.rows) * int64(x.cols) * int64(x.dt.Size())
	}
	if lim.QuantGroup > 0 {
		n += int64(device.QRowsBytes(lim.LayerRows(), cfg.Hidden, lim.QuantGroup))
		if head {
			n += int64(device.QRowsBytes(lim.LogitRows, cfg.Hidden, lim.QuantGroup))
		}
	}
	return n
}

// lastRows numbers Rows.
var lastRows atomic.Uint64

// NewState makes a step and its rows on dev, the only rank.
func NewState(dev device.Device, cfg *model.Config, lim Limits) (*State, error) {
	rows, err := NewRows(dev, cfg, lim, true)
	if err != nil {
		return nil, err
	}
	return &State{NewStep(cfg, rows.lim, rows), rows}, nil
}

// NewRows allocates rows on dev for batches within lim (checked by Limits.For); head says whether the
// rank has the head.
func NewRows(dev device.Device, cfg *model.Config, lim Limits, head bool) (*Rows, error) {
	lim, err := lim.For(cfg)
	if err != nil {
		return nil, err
	}
	r := &Rows{id: lastRows.Add(1), dev: dev, cfg: cfg, lim: lim, head: head, layout: device.LayoutOf(dev)}
	if err := r.alloc(); err != nil {
		r.Close()
		return nil, fmt.Errorf("state of %d tokens: %w", lim.Tokens, err)
	}
	r.hostSide(lim.LayerRows(), cfg.MoE.Experts, cfg.MoE.Router.TopK)
	return r, nil
}

// alloc makes the matrices.
func (r *Rows) alloc() error {
	dev := r.dev
	if err := r.allocInputs(); err != nil {
		return err
	}
	for _, x := range r.full.shapes(r.cfg, r.lim, r.layout, r.head) {
		if x.rows*x.cols == 0 {
			continue
		}
		m, err := device.AllocMat(dev, x.dt, x.rows, x.cols)
		if err != nil {
			return err
		}
		r.bufs = append(r.bufs, m.Buf)
		*x.m = m
	}
	if mix := &r.full.mix; !mix.Joined.Zero() {
		x := r.cfg.Streams.Scratch(r.cfg.Hidden)
		mix.Low, mix.Inject = mix.Joined.ColRange(0, x.Low), mix.Joined.ColRange(x.Low, x.Low+x.Inject)
	}
	var err error
	if r.head && drawWords(r.layout) > 0 {
		if r.masks, err = newMasks(dev.Accelerator(), r.lim.LogitRows, r.cfg.Vocab); err != nil {
			return err
		}
	}
	if r.lim.QuantGroup == 0 {
		return nil
	}
	if r.normed, err = device.AllocQRows(dev, r.lim.LayerRows(), r.cfg.Hidden, r.lim.QuantGroup); err == nil && r.head {
		r.final, err = device.AllocQRows(dev, r.lim.LogitRows, r.cfg.Hidden, r.lim.QuantGroup)
	}
	return err
}

// hostSide allocates host memory.
func (r *Rows) hostSide(t, e, k int) {
	if r.inputs.dev.Buf.Host() == nil {
		r.marks = make([]int32, r.lim.Tokens)
	}
	r.Prefill = make([]device.Span, 0, r.lim.Seqs)
	r.Decode = make([]device.Span, 0, r.lim.Seqs)
	if r.lim.WindowBlocks > 0 {
		r.windowed.prefill, r.windowed.decode = make([]device.Span, 0, r.lim.Seqs), make([]device.Span, 0, r.lim.Seqs)
	}
	if e > 0 {
		r.Assign = make([]int32, t*k)
		r.Work = make([]device.ExpertRows, 0, e)
		r.Counts = make([]int32, e)
		if r.full.routerIDs.Buf.Host() == nil {
			r.ids = make([]int32, t*k)
		}
		if r.layout != nil {
			_, r.moe = moeLayers(len(r.cfg.Layers), r.cfg.MoELayer)
			r.routes = make([]int32, r.full.routerIDs.Rows*k)
		}
	}
	if r.head && r.full.logits.Buf.Host() == nil {
		r.logits = make([]float32, r.lim.LogitRows*r.cfg.Vocab)
		r.chosen = make([]int32, r.lim.LogitRows)
	}
}

// Close frees the device memory.
func (r *Rows) Close() {
	for _, b := range r.bufs {
		b.Free()
	}
	r.bufs = nil
	r.masks.free()
	r.normed.Free()
	r.final.Free()
}

// Generated returns the number of generated rows before the first row of a prompt, of the rows that layers
// see.
func (r *Rows) Generated() (rows int) {
	for i := range r.Decode {
		if r.Decode[i].Row != rows {
			break
		}
		rows += r.Decode[i].Len
	}
	return rows
}

// Limits returns the limits for which the rows were made.
func (r *Rows) Limits() Limits { return r.lim }

// FetchRouterIDs enqueues the copy of the chosen experts to the host, unless the host addresses the
// device's memory.
func (r *Rows) FetchRouterIDs(s device.Stream) {
	if r.ids != nil {
		s.CopyOut(int32Bytes(r.ids[:r.T*r.RouterIDs.Cols]), r.RouterIDs)
	}
}

// HostRouterIDs returns the chosen experts [T*K], row by row. The stream of FetchRouterIDs must be
// synchronised.
func (r *Rows) HostRouterIDs() []int32 {
	if r.ids != nil {
		return r.ids[:r.T*r.RouterIDs.Cols]
	}
	return r.RouterIDs.I32s()
}

// FetchLogits is like FetchRouterIDs, for the logits.
func (r *Rows) FetchLogits(s device.Stream) {
	if r.logits != nil && r.Logits.Rows > 0 {
		s.CopyOut(float32Bytes(r.logits[:r.Logits.Rows*r.Logits.Cols]), r.Logits)
	}
}

// FetchMarks is like FetchRouterIDs, for the marks of all rows of the batch.
func (st *State) FetchMarks(s device.Stream) {
	if st.marks != nil {
		s.CopyOut(int32Bytes(st.marks[:st.Total()]), st.inputs.column(3*st.Total(), st.Total()))
	}
}

// Fault returns an error that names the first place where keys or values of a span's rows are not
// finite, nil if all are. The stream of FetchMarks must be synchronised.
func (st *State) Fault(sp *Span) error {
	marks := st.marks
	if marks == nil {
		marks = st.inputs.column(3*st.Total(), st.Total()).I32s()
	}
	first := int32(0)
	at := 0
	for i, m := range marks[sp.Row : sp.Row+sp.Len] {
		if m != 0 && (first == 0 || m < first) {
			first, at = m, sp.Pos+i
		}
	}
	switch layer := first - 1; {
	case first == 0:
		return nil
	case layer == 0:
		return fmt.Errorf("layer 0, StoreRows, position %d: %w; they come from the token's embedding or from this layer's norm or projections", at, ErrNotFinite)
	default:
		return fmt.Errorf("layer %d, StoreRows, position %d: %w; they come from layer %d behind its keys and values, or from this layer's norm or projections", layer, at, ErrNotFinite, layer-1)
	}
}

// Stored returns a layer's cache for StoreRows, with the marks of the batch's rows.
func (r *Rows) Stored(cache device.KV, layer int) device.KV {
	cache.Marks, cache.Mark = r.Marks, int32(layer)+1
	return cache
}

// Room returns the whole memory of Hidden [Limits.Tokens, H], for the test of a link.
func (r *Rows) Room() device.Mat { return r.full.hidden }

// More returns the number of bytes that a link carries besides Hidden: marks and selected positions.
func (r *Rows) More() int { return 4*r.lim.Tokens + r.full.selected.Bytes() }

// Choose reports whether the device can choose tokens itself: Step.Draws.
func (r *Rows) Choose() bool { return !r.full.chosen.Zero() }

// draws are the step's draws on the rank that chooses its tokens; empty if the host chooses.
func (st *State) draws() []device.Draw {
	if !st.Choose() {
		return nil
	}
	return st.Step.Draws
}

// Draws returns the arguments of OpChoose: the tokens [n, 1] I32 and the parameters of their choice. ok is
// false if the host chooses.
func (st *State) Draws() (ids, draws device.Mat, ok bool) {
	n := len(st.draws())
	if n == 0 {
		return device.Mat{}, device.Mat{}, false
	}
	return st.full.chosen.RowRange(0, n), st.inputs.draw, true
}

// FetchChosen is like FetchLogits, for the tokens that the device chose.
func (st *State) FetchChosen(s device.Stream) {
	if n := len(st.draws()); n > 0 {
		s.CopyOut(int32Bytes(st.chosen[:n]), st.full.chosen.RowRange(0, n))
	}
}

// ChosenID returns the token of row Wanted[i], or a value that says why there is none (device.DrawNaN and
// so on). ok is false if the host chooses. The stream of FetchChosen must be synchronised.
func (st *State) ChosenID(i int) (id int32, ok bool) {
	if i >= len(st.draws()) {
		return 0, false
	}
	return st.chosen[i], true
}

// LogitRow returns the row of logits [V] of row Wanted[i]. It is read-only and valid until the state's next
// Fill. The stream of FetchLogits must be synchronised.
func (r *Rows) LogitRow(i int) []float32 {
	if r.logits != nil {
		v := r.Logits.Cols
		return r.logits[i*v : (i+1)*v]
	}
	return r.Logits.RowRange(i, i+1).F32s()
}

// int32Bytes is v's memory: hosts here are little-endian, as devices are.
func int32Bytes(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func float32Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
