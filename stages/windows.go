package stages

import "krater/kernels/device"

// windowed has the spans and block tables of the layers with a window, if their rows are in window
// blocks (Limits.WindowBlocks).
type windowed struct {
	prefill, decode []device.Span // Rows.Prefill and Decode, with tables of window blocks
	table           device.Mat    // what inputs.spans is for the other layers
	tables          []device.Mat  // what inputs.tables is for the other layers
	short           []device.Span // scratch of putWindows
}

// Paging returns where the rows of the KV cache are for a layer that sees the given number of tokens
// (0: all): the slots of the batch's rows, and the spans of prompts and of generated rows, with
// their block tables.
func (r *Rows) Paging(window int) (slots device.Mat, prefill, decode device.Spans) {
	if window == 0 || r.lim.WindowBlocks == 0 {
		return r.Slots, r.PrefillSpans(), r.DecodeSpans()
	}
	w := &r.windowed
	return r.WindowSlots, device.Spans{List: w.prefill, Table: w.table}, device.Spans{List: w.decode, Decode: true, Table: w.table}
}

// tableMargin is the number of positions before a row's window that are in a table for an accelerator
// too: its kernels begin at multiples of up to 128 positions.
const tableMargin = 128

// tableBlocks returns the most entries of a generated row in such a table.
func (l Limits) tableBlocks() int { return (l.sees+tableMargin)/l.BlockTokens + 2 }

// windowWords returns the most words of the tables of layers with a window, as tableWords does for the others.
func windowWords(lim Limits, l device.Layout) int {
	if lim.WindowBlocks == 0 {
		return 0
	}
	each := lim.tableBlocks() + 1 // a prompt's window may begin within a block and end within another
	first := whole(l.SpanWords(lim.Seqs, lim.Seqs*each+lim.Tokens/lim.BlockTokens) + 3)
	return first + (lim.windows(lim.Tokens)-1)*whole(l.SpanWords(1, each)+3)
}

// putWindows writes the table of layers with a window from word at on, and returns the first word of
// the next table. The table lists only blocks that the span's rows may read. For generated rows it has the
// same size at all positions, so the next table stays in its place and a graph can be replayed.
func (st *State) putWindows(at int) int {
	if st.lim.WindowBlocks == 0 {
		return at
	}
	w, bt := &st.windowed, st.lim.BlockTokens
	short, blocks := w.short[:0], 0
	for _, list := range [...][]device.Span{w.prefill, w.decode} {
		for _, sp := range list {
			sp.Skip = max(0, sp.Pos+1-st.lim.sees-tableMargin) / bt
			sp.Blocks = sp.Blocks[sp.Skip : (sp.Pos+sp.Len+bt-1)/bt]
			blocks += max(len(sp.Blocks), st.lim.tableBlocks())
			short = append(short, sp)
		}
	}
	end := at + st.layout.SpanWords(len(short), blocks)
	n := st.layout.PutSpans(st.inputs.host[at:], short[:len(w.prefill)], short[len(w.prefill):])
	clear(st.inputs.host[at+n : end])
	w.tables, w.short = append(w.tables, st.inputs.dev.ColRange(at, end)), short
	return whole(end)
}
