package stages

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
)

// State is a batch in flight: its host-side description and its matrices on one
// device. It is owned by exactly one batch at a time, made once and reused; its
// methods are not safe for concurrent use, but stages may write disjoint rows
// of ExpertOut and Shared from several streams at once.
//
// The matrices are views of T rows (Logits, Final: a row for each of Wanted),
// set by Fill. A link between groups on different devices carries Hidden.
type State struct {
	T       int    // rows
	Spans   []Span // the batch's, block tables copied
	Prefill []device.Span
	Decode  []device.Span
	Wanted  []int32 // rows with logits, rising
	Owner   []int32 // Owner[i]: index in Spans of Wanted[i]'s sequence
	All     bool    // Wanted is every row
	Moves   []Move  // the batch's
	Lane    int     // Batch.Lane
	// Laps are of the copies that the step waits for, and of the waits; nil: nobody takes
	// their time.
	Laps *device.Laps

	// Where no type is given it is device.RowType: F32, on an accelerator BF16.
	IDs       device.Mat // [T, 1] I32 token ids
	Positions device.Mat // [T, 1] I32 positions in the sequence
	Slots     device.Mat // [T, 1] I32 rows of the KV cache
	Marks     device.Mat // [T, 1] I32 layer + 1 whose keys or values of the row are the first that are not finite; 0: none
	Rows      device.Mat // [n, 1] I32 Wanted

	Hidden    device.Mat // [T, H] F32 residual stream
	Normed    device.Mat // [T, H] output of the last norm: input of attention, router, experts
	Input     Input      // Normed, as linear layers take it: whoever writes Normed tells it
	Delta     device.Mat // [T, H] output of the last block, not yet added to Hidden while Pending
	Shared    device.Mat // [T, H] shared experts; absent in a model without them
	ExpertOut device.Mat // [T*K, H] row t*K+r: token t's expert of rank r; absent in a dense model

	RouterLogits  device.Mat // [T, E] F32
	RouterIDs     device.Mat // [T, K] I32, of the layer in hand: Routing
	RouterWeights device.Mat // [T, K] F32

	Picked device.Mat // [n, H] F32 Hidden's rows that are wanted, before the final norm
	Final  device.Mat // [n, H] after the final norm
	Output Input      // Final, as the head takes it
	Logits device.Mat // [n, V] F32

	// Where [1, E] I32, where it is set, is below 0 for experts whose rows of ExpertOut are not
	// there: somebody else adds them to Hidden. It is that of the layer in hand.
	Where device.Mat

	// Histories is the memory that draws with a Change need; nil: there must be none.
	Histories *Histories

	// Pending says that Delta is still to be added to Hidden. It is false
	// between groups.
	Pending bool

	// Work space of the host side of a MoE layer, see expert.Split.
	Assign []int32             // [T*K]
	Work   []device.ExpertRows // capacity E
	Counts []int32             // [E]

	id       uint64 // another state's step knows this one by it
	cfg      *model.Config
	lim      Limits
	layout   device.Layout // of the device, nil on host memory
	inputs   inputs
	full     views   // the matrices at their largest
	blocks   []int32 // arena of the block tables
	ids      []int32 // RouterIDs on the host, where the device's memory is not
	logits   []float32
	moe      []int         // [layers] place among those with experts; nil where they share RouterIDs
	routes   []int32       // what routers chose, on the host [layers with experts, T, K]
	first    int           // row of the batch that is the first of the matrices: Look
	repeated bool          // see Repeated
	chosen   []int32       // on the host
	marks    []int32       // Marks on the host, where the device's memory is not
	draws    []device.Draw // of the batch at hand; empty: the host chooses
	changed  bool          // some of them change logits before
	bufs     []device.Buffer
	normed   device.QRows // room for Input and Output as integers
	final    device.QRows
}

// views are a State's matrices as allocated.
type views struct {
	hidden, normed, delta, shared, expertOut device.Mat
	routerLogits, routerIDs, routerWeights   device.Mat
	picked, final, logits, chosen, masks     device.Mat
}

// shape is one of the matrices with its size; absent ones have no rows or columns.
type shape struct {
	m          *device.Mat
	dt         tensor.DType
	rows, cols int
}

// shapes lists the matrices of v for batches within lim, but for those of the inputs.
func (v *views) shapes(cfg *model.Config, lim Limits, l device.Layout) []shape {
	t, h, e, k, n := lim.LayerRows(), cfg.Hidden, cfg.MoE.Experts, cfg.MoE.Router.TopK, lim.LogitRows
	ids := t // of routers
	if l != nil {
		layers, _ := moeLayers(len(cfg.Layers), cfg.MoELayer)
		ids = lim.Tokens * layers
	}
	rows, picked := device.RowType(l), n
	if rows == tensor.F32 {
		picked = 0 // Final has room for them
	}
	return []shape{
		{&v.hidden, tensor.F32, lim.Tokens, h},
		{&v.normed, rows, t, h},
		{&v.delta, rows, t, h},
		{&v.picked, tensor.F32, picked, h},
		{&v.final, rows, n, h},
		{&v.logits, tensor.F32, n, cfg.Vocab},
		{&v.chosen, tensor.I32, n * min(1, drawWords(l)), 1},
		{&v.masks, tensor.I32, n * min(1, drawWords(l)), (cfg.Vocab + 31) / 32},
		{&v.shared, rows, t * min(1, cfg.MoE.Shared), h},
		{&v.expertOut, rows, t * k * min(1, e), h},
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

// StateBytes is the size of the matrices a State allocates on its device for
// batches within lim (checked by Limits.For).
func StateBytes(cfg *model.Config, lim Limits, l device.Layout) int64 {
	n := 4 * int64(inputWords(lim, l))
	for _, x := range new(views).shapes(cfg, lim, l) {
		n += int64(x.rows) * int64(x.cols) * int64(x.dt.Size())
	}
	if lim.QuantGroup > 0 {
		n += int64(device.QRowsBytes(lim.LayerRows()+lim.LogitRows, cfg.Hidden, lim.QuantGroup))
	}
	return n
}

// lastState numbers states.
var lastState atomic.Uint64

// NewState allocates a state on dev for batches within lim (checked by
// Limits.For).
func NewState(dev device.Device, cfg *model.Config, lim Limits) (*State, error) {
	lim, err := lim.For(cfg)
	if err != nil {
		return nil, err
	}
	st := &State{id: lastState.Add(1), cfg: cfg, lim: lim, layout: device.LayoutOf(dev)}
	if err := st.allocInputs(dev); err != nil {
		return nil, fmt.Errorf("state of %d tokens: %w", lim.Tokens, err)
	}
	for _, x := range st.full.shapes(cfg, lim, st.layout) {
		if x.rows*x.cols == 0 {
			continue
		}
		m, err := device.AllocMat(dev, x.dt, x.rows, x.cols)
		if err != nil {
			st.Close()
			return nil, fmt.Errorf("state of %d tokens: %w", lim.Tokens, err)
		}
		st.bufs = append(st.bufs, m.Buf)
		*x.m = m
	}
	if lim.QuantGroup > 0 {
		if st.normed, err = device.AllocQRows(dev, lim.LayerRows(), cfg.Hidden, lim.QuantGroup); err == nil {
			st.final, err = device.AllocQRows(dev, lim.LogitRows, cfg.Hidden, lim.QuantGroup)
		}
		if err != nil {
			st.Close()
			return nil, fmt.Errorf("state of %d tokens: %w", lim.Tokens, err)
		}
	}
	st.hostSide(lim.LayerRows(), cfg.MoE.Experts, cfg.MoE.Router.TopK)
	return st, nil
}

// hostSide allocates what the host keeps.
func (st *State) hostSide(t, e, k int) {
	st.Wanted = make([]int32, 0, st.lim.LogitRows)
	st.Owner = make([]int32, 0, st.lim.LogitRows)
	if st.inputs.dev.Buf.Host() == nil {
		st.marks = make([]int32, st.lim.Tokens)
	}
	st.Spans = make([]Span, 0, st.lim.Seqs)
	st.Prefill = make([]device.Span, 0, st.lim.Seqs)
	st.Decode = make([]device.Span, 0, st.lim.Seqs)
	if e > 0 {
		st.Assign = make([]int32, t*k)
		st.Work = make([]device.ExpertRows, 0, e)
		st.Counts = make([]int32, e)
		if st.full.routerIDs.Buf.Host() == nil {
			st.ids = make([]int32, t*k)
		}
		if st.layout != nil {
			_, st.moe = moeLayers(len(st.cfg.Layers), st.cfg.MoELayer)
			st.routes = make([]int32, st.full.routerIDs.Rows*k)
		}
	}
	if st.full.logits.Buf.Host() == nil {
		st.logits = make([]float32, st.lim.LogitRows*st.cfg.Vocab)
		st.chosen = make([]int32, st.lim.LogitRows)
		st.draws = make([]device.Draw, 0, st.lim.LogitRows)
	}
}

// Close frees the device memory.
func (st *State) Close() {
	for _, b := range st.bufs {
		b.Free()
	}
	st.bufs = nil
	st.normed.Free()
	st.final.Free()
}

// Generated is how many of the rows that layers see are generated ones, as far as they come
// first.
func (st *State) Generated() (rows int) {
	for i := range st.Decode {
		if st.Decode[i].Row != rows {
			break
		}
		rows += st.Decode[i].Len
	}
	return rows
}

// WantedGenerated is Generated of the rows with logits.
func (st *State) WantedGenerated() (rows int) {
	for rows < len(st.Owner) && st.Spans[st.Owner[rows]].Decode {
		rows++
	}
	return rows
}

// Limits are the bounds the state was made for.
func (st *State) Limits() Limits { return st.lim }

// FetchRouterIDs enqueues the copy of the chosen experts to the host on devices
// whose memory the host cannot address; elsewhere it does nothing.
func (st *State) FetchRouterIDs(s device.Stream) {
	if st.ids != nil {
		s.CopyOut(int32Bytes(st.ids[:st.T*st.RouterIDs.Cols]), st.RouterIDs)
	}
}

// HostRouterIDs are the chosen experts [T*K], row by row. The stream given to
// FetchRouterIDs must be synchronised.
func (st *State) HostRouterIDs() []int32 {
	if st.ids != nil {
		return st.ids[:st.T*st.RouterIDs.Cols]
	}
	return st.RouterIDs.I32s()
}

// FetchLogits is FetchRouterIDs for the logits.
func (st *State) FetchLogits(s device.Stream) {
	if st.logits != nil && st.Logits.Rows > 0 {
		s.CopyOut(float32Bytes(st.logits[:st.Logits.Rows*st.Logits.Cols]), st.Logits)
	}
}

// FetchMarks is FetchRouterIDs for the marks of all rows of the batch.
func (st *State) FetchMarks(s device.Stream) {
	if st.marks != nil {
		s.CopyOut(int32Bytes(st.marks[:st.Total()]), st.inputs.column(3*st.Total(), st.Total()))
	}
}

// Fault says where the keys or values of a span's rows are first not finite; nil: nowhere. The
// stream given to FetchMarks must be synchronised.
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

// Stored is a layer's cache as StoreRows takes it: with the marks of the batch's rows.
func (st *State) Stored(cache device.KV, layer int) device.KV {
	cache.Marks, cache.Mark = st.Marks, int32(layer)+1
	return cache
}

// Choose reports whether the device can choose tokens itself: Batch.Draws.
func (st *State) Choose() bool { return !st.full.chosen.Zero() }

// Draws is what an operator that chooses takes: where the tokens go [n, 1] I32 and how
// they are chosen; ok is false where the host chooses.
func (st *State) Draws() (ids, draws device.Mat, ok bool) {
	if len(st.draws) == 0 {
		return device.Mat{}, device.Mat{}, false
	}
	n := len(st.draws)
	return st.full.chosen.RowRange(0, n), st.inputs.draw, true
}

// FetchChosen is FetchLogits for the tokens the device chose.
func (st *State) FetchChosen(s device.Stream) {
	if n := len(st.draws); n > 0 {
		s.CopyOut(int32Bytes(st.chosen[:n]), st.full.chosen.RowRange(0, n))
	}
}

// ChosenID is the token of row Wanted[i], or why there is none (device.DrawNaN and so
// on); ok is false where the host is to choose. The stream given to FetchChosen must be
// synchronised.
func (st *State) ChosenID(i int) (id int32, ok bool) {
	if i >= len(st.draws) {
		return 0, false
	}
	return st.chosen[i], true
}

// LogitRow is the i-th row of logits [V], that of row Wanted[i]: read only,
// valid until the state's next Fill. The stream given to FetchLogits must be
// synchronised.
func (st *State) LogitRow(i int) []float32 {
	if st.logits != nil {
		v := st.Logits.Cols
		return st.logits[i*v : (i+1)*v]
	}
	return st.Logits.RowRange(i, i+1).F32s()
}

// int32Bytes is v's memory: hosts here are little-endian, as devices are.
func int32Bytes(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func float32Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
