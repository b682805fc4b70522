package stages

import "krater/kernels/device"

// windowed is where layers with a window find the rows of the KV cache, if they have blocks of their
// own (Limits.WindowBlocks).
type windowed struct {
	prefill, decode []device.Span // Rows.Prefill and Decode with the other block tables
	table           device.Mat    // inputs.spans of these
	tables          []device.Mat  // inputs.tables of these
	short           []device.Span // scratch of putWindows
}

// Paging is where a layer that sees the given number of tokens (0: all) finds the rows of its KV
// cache: the rows of the batch, and its prompts and generated rows with their block tables.
func (r *Rows) Paging(window int) (slots device.Mat, prefill, decode device.Spans) {
	if window == 0 || r.lim.WindowBlocks == 0 {
		return r.Slots, r.PrefillSpans(), r.DecodeSpans()
	}
	w := &r.windowed
	return r.WindowSlots, device.Spans{List: w.prefill, Table: w.table}, device.Spans{List: w.decode, Decode: true, Table: w.table}
}

// tableMargin is how many positions before the first one that a row sees are in a table for an
// accelerator, whose kernels begin at multiples of up to 128.
const tableMargin = 128

// tableBlocks bounds the entries for a generated row in such a table.
func (l Limits) tableBlocks() int { return (l.sees+tableMargin)/l.BlockTokens + 2 }

// windowWords bounds the tables of layers with a window as tableWords does those of the others.
func windowWords(lim Limits, l device.Layout) int {
	if lim.WindowBlocks == 0 {
		return 0
	}
	each := lim.tableBlocks() + 1 // the rows of a prompt begin and end within a block
	first := whole(l.SpanWords(lim.Seqs, lim.Seqs*each+lim.Tokens/lim.BlockTokens) + 3)
	return first + (lim.windows(lim.Tokens)-1)*whole(l.SpanWords(1, each)+3)
}

// putWindows writes the table of layers with a window from word at on, and returns the first word of
// the next table. It has only blocks that the span's rows may see. A table of generated rows takes
// the same room whatever their positions are, so that the next one is always in one place.
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
