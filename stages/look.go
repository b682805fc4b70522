package stages

import "krater/kernels/device"

// Windows returns the number of pieces in which the batch goes through the layers.
func (st *State) Windows() int { return st.lim.windows(st.Total()) }

// window is rows [from, to) of piece i.
func (st *State) window(i int) (from, to int) {
	from = i * st.lim.LayerRows()
	return from, min(from+st.lim.LayerRows(), st.Total())
}

// Look selects piece i of the batch, of Windows, for layers: until Whole is called, T, the matrices,
// Prefill and Decode describe its rows. Hidden and the KV cache keep their contents. The contents of
// all other matrices belong to the piece, so nothing may be Pending. A batch of several pieces needs
// Look before layers run; a batch of one piece does not.
func (st *State) Look(i int) {
	st.piece(st.window(i))
	if st.layout != nil {
		st.inputs.spans = st.inputs.tables[i]
		if st.lim.WindowBlocks > 0 {
			st.windowed.table = st.windowed.tables[i]
		}
	}
}

// Whole undoes Look, so that embed and head see all rows.
func (st *State) Whole() { st.piece(0, st.Total()) }

// piece cuts the matrices and spans to rows [from, to) of the batch.
func (st *State) piece(from, to int) {
	t, all, in := to-from, st.Total(), &st.inputs
	st.T, st.first = t, from
	st.IDs, st.Positions, st.Slots = in.column(from, t), in.column(all+from, t), in.column(2*all+from, t)
	st.Marks = in.column(3*all+from, t)
	if st.lim.WindowBlocks > 0 {
		st.WindowSlots = in.column(4*all+from, t)
	}
	st.viewRows(from, to)
	st.cutSpans(from, to)
}

// cutSpans has Prefill and Decode be the parts of the batch's spans in rows [from, to).
func (st *State) cutSpans(from, to int) {
	w := &st.windowed
	st.Prefill, st.Decode, w.prefill, w.decode = st.Prefill[:0], st.Decode[:0], w.prefill[:0], w.decode[:0]
	for i := range st.Spans {
		sp := st.Spans[i].Span
		first, end := max(sp.Row, from), min(sp.Row+sp.Len, to)
		if first >= end {
			continue
		}
		cut := device.Span{Slot: sp.Slot, Row: first - from, Len: end - first, Pos: sp.Pos + first - sp.Row, Blocks: sp.Blocks}
		list, windows := &st.Prefill, &w.prefill
		if st.Spans[i].Decode {
			list, windows = &st.Decode, &w.decode
		}
		*list = append(*list, cut)
		if st.lim.WindowBlocks > 0 {
			cut.Blocks = st.Spans[i].Windows
			*windows = append(*windows, cut)
		}
	}
}
