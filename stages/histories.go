package stages

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Histories is a device's memory for changes of logits: a row for each of Limits.Seqs sequences, with
// its device.Change and its tokens. All states of a pipeline share it, because each step adds its
// token to the row.
type Histories struct {
	rows device.Mat // [Seqs, historyWords] I32
}

// historyWords returns the size of a row.
func historyWords(lim Limits) int { return device.ChangeWords + whole(lim.Context) }

// HistoriesBytes returns the number of bytes that NewHistories allocates for limits checked by
// Limits.For. It is 0 on a device that does not choose tokens.
func HistoriesBytes(lim Limits, l device.Layout) int64 {
	if drawWords(l) == 0 {
		return 0
	}
	return 4 * int64(lim.Seqs) * int64(historyWords(lim))
}

// NewHistories allocates the memory on dev; nil on a device that does not choose tokens.
func NewHistories(dev device.Device, lim Limits) (*Histories, error) {
	if drawWords(device.LayoutOf(dev)) == 0 {
		return nil, nil
	}
	m, err := device.AllocMat(dev, tensor.I32, lim.Seqs, historyWords(lim))
	if err != nil {
		return nil, fmt.Errorf("histories of %d sequences: %w", lim.Seqs, err)
	}
	return &Histories{m}, nil
}

// Close frees the memory.
func (h *Histories) Close() {
	if h != nil {
		h.rows.Buf.Free()
	}
}

// store enqueues the copies of what the row of a draw lacks.
func (h *Histories) store(s device.Stream, d *device.Draw) {
	row := h.rows.RowRange(d.Slot, d.Slot+1)
	put := func(at int, words []int32) {
		s.CopyIn(row.ColRange(at, at+len(words)), int32Bytes(words))
	}
	if d.Stored < 0 {
		put(0, d.Change)
	}
	if from := max(0, d.Stored); from < len(d.Tokens) {
		put(device.ChangeWords+from, d.Tokens[from:])
	}
}

// checkChanges checks the changes of logits by the draws.
func (st *State) checkChanges() error {
	st.changed = false
	draws, words := st.draws(), (st.cfg.Vocab+31)/32
	for i := range draws {
		d := &draws[i]
		if d.Mask != nil && len(d.Mask) != words {
			return fmt.Errorf("%w: a mask of %d words for a vocabulary of %d", ErrBatch, len(d.Mask), st.cfg.Vocab)
		}
		st.changed = st.changed || d.Later || d.Mask != nil || d.Change != nil
		if d.Change == nil {
			continue
		}
		sp := &st.Spans[st.Owner[i]]
		at := sp.Pos + int(st.Wanted[i]) - sp.Row
		prompt, penalises := d.Change.Prompt(), d.Change.Penalises()
		switch {
		case st.Histories == nil || d.Slot < 0 || d.Slot >= st.lim.Seqs:
			return fmt.Errorf("%w: row %d of histories", ErrBatch, d.Slot)
		case len(d.Change) > device.ChangeWords || prompt+int(d.N) != at+1:
			return fmt.Errorf("%w: a change of %d words, %d tokens of prompt and %d of the answer at position %d", ErrBatch, len(d.Change), prompt, d.N, at)
		case penalises && (len(d.Tokens) != at || d.Stored > at), !penalises && len(d.Tokens) > 0:
			return fmt.Errorf("%w: %d tokens before position %d, %d of them stored", ErrBatch, len(d.Tokens), at, d.Stored)
		}
	}
	return nil
}

// putChanges writes the table of changes from word at of the inputs on, and returns the word after it.
// It gives the masks that are known, and enqueues the copies of what histories lack.
func (st *State) putChanges(s device.Stream, at int) int {
	in, draws := &st.inputs, st.draws()
	number := st.masks.next()
	for i := range draws {
		d, entry := &draws[i], in.host[at+2*i:][:2]
		entry[0], entry[1] = -1, 0
		if d.Change != nil {
			entry[0] = int32(d.Slot)
			st.Histories.store(s, d)
		}
		if d.Later || d.Mask != nil {
			entry[1] = int32(number)
		}
		if d.Mask != nil {
			st.GiveMask(i, d.Mask)
		}
	}
	n := len(draws)
	in.changes = in.dev.ColRange(at, at+2*n)
	in.changes.Rows, in.changes.Cols, in.changes.Stride = n, 2, 2
	return at + 2*n
}

// LogitChanges returns the changes of the step's logits before the device chooses tokens; ok is false if
// there are none.
func (st *State) LogitChanges() (c device.LogitChanges, ok bool) {
	if !st.changed {
		return device.LogitChanges{}, false
	}
	c = device.LogitChanges{Draws: st.inputs.draw, Table: st.inputs.changes, IDs: st.IDs, Rows: st.WantedRows,
		Masks: st.masks.dev.RowRange(0, len(st.draws())), Limit: maskLimit}
	if st.Histories != nil {
		c.Store = st.Histories.rows
	}
	return c, true
}
