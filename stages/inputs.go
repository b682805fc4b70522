package stages

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// inputs is what a batch brings: on the host, and as one piece of memory on the device.
// An accelerator gets it in one copy, with the table of spans that its operators read.
type inputs struct {
	host   []int32
	tokens []int32 // [tokens] parts of host
	pos    []int32 // [tokens]
	slots  []int32 // [tokens]
	take   []int32 // [seqs] where a step takes its tokens from; empty where the device cannot choose
	draws  []int32 // [logit rows * DrawWords], at an even word; empty where the device cannot choose
	rows   []int32 // [logit rows]
	spans  []int32 // the table's room; empty on host memory

	dev  device.Mat // [1, len(host)] I32
	draw device.Mat // [1, len(draws)] of it
	from device.Mat // [len(take), 1] of it
	used int        // words of spans
}

// inputWords is the size of inputs, in 32-bit words.
func inputWords(lim Limits, l device.Layout) int {
	n := 3*lim.Tokens + lim.LogitRows
	if l != nil {
		n = whole(n+lim.LogitRows*l.DrawWords()+lim.Seqs) + l.SpanWords(lim.Seqs, lim.Seqs*((lim.Context+lim.BlockTokens-1)/lim.BlockTokens))
	}
	return n
}

// whole rounds words up to 16 bytes: a table of spans starts at a multiple of them.
func whole(words int) int { return (words + 3) &^ 3 }

// allocInputs makes the state's inputs on dev and their views.
func (st *State) allocInputs(dev device.Device) error {
	in, t := &st.inputs, st.lim.Tokens
	n := inputWords(st.lim, st.layout)
	var err error
	if in.dev, err = device.AllocMat(dev, tensor.I32, 1, n); err != nil {
		return err
	}
	st.bufs = append(st.bufs, in.dev.Buf)
	in.host = make([]int32, n)
	at := 0
	if st.layout != nil {
		n := st.lim.LogitRows * st.layout.DrawWords()
		in.draws, in.draw = in.host[:n:n], in.dev.ColRange(0, n)
		at = n
	}
	cut := func(n int) ([]int32, device.Mat) {
		part := in.host[at : at+n : at+n]
		m := in.dev.ColRange(at, at+n)
		m.Rows, m.Cols, m.Stride = n, 1, 1
		at += n
		return part, m
	}
	in.tokens, st.full.ids = cut(t)
	in.pos, st.full.positions = cut(t)
	in.slots, st.full.slots = cut(t)
	in.rows, st.full.rows = cut(st.lim.LogitRows)
	if st.layout != nil {
		in.take, in.from = cut(st.lim.Seqs)
	}
	if st.layout != nil {
		at = whole(at)
	}
	in.spans = in.host[at:]
	return nil
}

// sendInputs enqueues the copy of what Fill wrote to the device.
func (st *State) sendInputs(s device.Stream) {
	in := &st.inputs
	copy(in.rows, st.Wanted)
	if st.layout != nil {
		words := st.layout.DrawWords()
		for i := range st.draws {
			st.layout.PutDraw(in.draws[i*words:(i+1)*words], st.draws[i])
		}
		in.used = st.layout.PutSpans(in.spans, st.Prefill, st.Decode)
		n := len(in.host) - len(in.spans) + in.used
		s.CopyIn(in.dev.ColRange(0, n), int32Bytes(in.host[:n]))
		return
	}
	s.CopyIn(st.IDs, int32Bytes(in.tokens[:st.T]))
	s.CopyIn(st.Positions, int32Bytes(in.pos[:st.T]))
	s.CopyIn(st.Slots, int32Bytes(in.slots[:st.T]))
	if len(st.Wanted) > 0 {
		s.CopyIn(st.Rows, int32Bytes(st.Wanted))
	}
}

// gatherer moves words: a token's number is as good as any.
type gatherer interface {
	GatherRows(s device.Stream, out, table, ids device.Mat)
}

// takeTokens enqueues the taking of tokens that another step chooses.
func (st *State) takeTokens(s device.Stream, b *Batch) error {
	if b.From == nil {
		return nil
	}
	ops, ok := s.Device().(gatherer)
	if !ok || len(b.Take) != st.T || st.T > len(st.inputs.take) || len(b.From.draws) == 0 {
		return fmt.Errorf("%w: tokens of another step for %d rows", ErrBatch, st.T)
	}
	for i, from := range b.Take {
		if int(from) >= len(b.From.draws) || from < 0 {
			return fmt.Errorf("%w: row %d takes token %d of %d", ErrBatch, i, from, len(b.From.draws))
		}
	}
	words := func(m device.Mat, n int) device.Mat {
		m = m.RowRange(0, n)
		m.DType = tensor.F32 // of the same size, moved as it is
		return m
	}
	ops.GatherRows(s, words(st.full.ids, st.T), words(b.From.full.chosen, len(b.From.draws)), st.inputs.from.RowRange(0, st.T))
	return nil
}

// PrefillSpans are the batch's prompts as operators take them.
func (st *State) PrefillSpans() device.Spans {
	return device.Spans{List: st.Prefill, Table: st.table()}
}

// DecodeSpans are the batch's generated rows.
func (st *State) DecodeSpans() device.Spans {
	return device.Spans{List: st.Decode, Decode: true, Table: st.table()}
}

// table is the table of spans on an accelerator.
func (st *State) table() device.Mat {
	if st.layout == nil {
		return device.Mat{}
	}
	in := &st.inputs
	return in.dev.ColRange(len(in.host)-len(in.spans), len(in.host))
}
