package stages

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// inputs is the input of a batch: on the host, and as one piece of memory on the device, which gets
// it in one copy. The parts are consecutive and no longer than the batch needs, so that a step of a
// few rows copies a few bytes. Their places depend only on the numbers of rows, logit rows, draws and
// taken tokens, as replayed steps (stepKey) need it.
type inputs struct {
	host   []int32
	tokens []int32 // [T] parts of host
	pos    []int32 // [T]
	slots  []int32 // [T]
	marks  []int32 // [T] zeros
	// windowSlots [T] are the slots in layers with a window; absent if there are no window blocks.
	windowSlots []int32

	dev  device.Mat // [1, len(host)] I32
	draw device.Mat // [1, draws * DrawWords] of it, at an even word; empty where the host chooses
	// changes [draws, 2] of it is the table of LogitChanges.
	changes device.Mat
	from    device.Mat // [T, 1] of it: where a step takes its tokens from; empty where it brings them
	spans   device.Mat // [1, *] of it, at a multiple of 16 bytes: the table of spans that layers see; absent on host memory
	// tables has the tables of all pieces, if a batch has several: Look chooses one.
	tables []device.Mat
}

// inputWords returns the largest size of inputs, in 32-bit words.
func inputWords(lim Limits, l device.Layout) int {
	n := lim.columns()*lim.Tokens + lim.LogitRows
	if l != nil {
		n = whole(whole(n+lim.Seqs)+lim.LogitRows*(l.DrawWords()+2)) + tableWords(lim, l) + windowWords(lim, l)
	}
	return n
}

// tableWords bounds the tables of spans: one of all sequences, and for each further piece of a batch
// a table of the sequence that the piece's first row cuts in two. Every other sequence is in one
// table.
func tableWords(lim Limits, l device.Layout) int {
	blocks := (lim.Context + lim.BlockTokens - 1) / lim.BlockTokens
	return l.SpanWords(lim.Seqs, lim.Seqs*blocks) + (lim.windows(lim.Tokens)-1)*whole(l.SpanWords(1, blocks)+3)
}

// whole rounds words up to 16 bytes: draws and a table of spans start at a multiple of them.
func whole(words int) int { return (words + 3) &^ 3 }

// allocInputs allocates the inputs.
func (r *Rows) allocInputs() error {
	in, n := &r.inputs, inputWords(r.lim, r.layout)
	var err error
	if in.dev, err = device.AllocMat(r.dev, tensor.I32, 1, n); err != nil {
		return err
	}
	r.bufs = append(r.bufs, in.dev.Buf)
	in.host = make([]int32, n)
	if r.layout != nil {
		in.tables = make([]device.Mat, 0, r.lim.windows(r.lim.Tokens))
	}
	return nil
}

// begin lays out the parts that a batch of t rows always has.
func (in *inputs) begin(t, columns int) {
	in.windowSlots = in.host[4*t : columns*t : columns*t]
	in.tokens, in.pos, in.slots = in.host[:t:t], in.host[t:2*t:2*t], in.host[2*t:3*t:3*t]
	in.marks = in.host[3*t : 4*t : 4*t]
	clear(in.marks)
}

// column is part [at, at+n) on the device as a column.
func (in *inputs) column(at, n int) device.Mat {
	m := in.dev.ColRange(at, at+n)
	m.Rows, m.Cols, m.Stride = n, 1, 1
	return m
}

// sendInputs lays out the other parts, sets the state's matrices to them, and enqueues the copy to
// the device.
func (st *State) sendInputs(s device.Stream) {
	in, t := &st.inputs, st.T
	st.IDs, st.Positions, st.Slots, st.Marks = in.column(0, t), in.column(t, t), in.column(2*t, t), in.column(3*t, t)
	if st.lim.WindowBlocks > 0 {
		st.WindowSlots = in.column(4*t, t)
	}
	at := st.lim.columns() * t
	st.WantedRows = in.column(at, copy(in.host[at:], st.Wanted))
	at += len(st.Wanted)
	if st.layout != nil {
		in.from = in.column(at, 0)
		if st.From != nil {
			in.from = in.column(at, copy(in.host[at:], st.Take))
			at += len(st.Take)
		}
		at = whole(at)
		words, draws := st.layout.DrawWords(), st.draws()
		for i := range draws {
			st.layout.PutDraw(in.host[at+i*words:][:words], draws[i])
		}
		in.draw = in.dev.ColRange(at, at+len(draws)*words)
		at = st.putChanges(s, at+len(draws)*words)
		at = st.putSpans(whole(at))
	}
	s.CopyIn(in.dev.ColRange(0, at), int32Bytes(in.host[:at]))
}

// putSpans writes the tables of spans of all pieces of the batch, from word at on, and returns the
// word after them.
func (st *State) putSpans(at int) int {
	in, n := &st.inputs, st.Windows()
	in.tables, st.windowed.tables = in.tables[:0], st.windowed.tables[:0]
	for i := range n {
		if n > 1 {
			st.cutSpans(st.window(i))
		}
		at = st.putWindows(whole(at))
		from := at
		at += st.layout.PutSpans(in.host[at:], st.Prefill, st.Decode)
		in.tables = append(in.tables, in.dev.ColRange(from, at))
	}
	if n > 1 {
		st.cutSpans(0, st.T)
	}
	in.spans = in.tables[0]
	if st.lim.WindowBlocks > 0 {
		st.windowed.table = st.windowed.tables[0]
	}
	return at
}

// takeTokens enqueues the copy of tokens that another step chooses.
func (st *State) takeTokens(s device.Stream) {
	if st.From == nil {
		return
	}
	words := func(m device.Mat) device.Mat {
		m.DType = tensor.F32 // of the same size; the bits are copied
		return m
	}
	// The table is all rows, because From may have more rows when this step is replayed.
	p := st.On(st.dev, s, nil)
	p.GatherRows(words(st.IDs), words(st.From.full.chosen), st.inputs.from)
	p.Send()
}

// columns returns the number of columns that a batch always has.
func (l Limits) columns() int {
	if l.WindowBlocks > 0 {
		return 5
	}
	return 4
}

// PrefillSpans returns the spans of the batch's prompts in the form that operators take.
func (r *Rows) PrefillSpans() device.Spans {
	return device.Spans{List: r.Prefill, Table: r.table()}
}

// DecodeSpans returns the spans of the batch's generated rows in the form that operators take.
func (r *Rows) DecodeSpans() device.Spans {
	return device.Spans{List: r.Decode, Decode: true, Table: r.table()}
}

// table returns the table of spans on an accelerator.
func (r *Rows) table() device.Mat {
	if r.layout == nil {
		return device.Mat{}
	}
	return r.inputs.spans
}
