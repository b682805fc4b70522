package stages

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/hosttest"
)

// choosing is a state of a device that chooses tokens, and a batch of a generated row and a
// prompt's end whose draws change logits: the first has 9 tokens, of which the answer has 3.
func choosing(t *testing.T) (*State, *Step) {
	t.Helper()
	lim, err := Limits{Tokens: 8, Seqs: 3, Blocks: 6, BlockTokens: 4}.For(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	st, err := NewState(tableDevice{}, testConfig(), lim)
	if err != nil {
		t.Fatal(err)
	}
	if st.Histories, err = NewHistories(tableDevice{}, lim); err != nil {
		t.Fatal(err)
	}
	if got, want := int64(st.Histories.rows.Buf.Size()), HistoriesBytes(lim, tableLayout{}); got != want {
		t.Errorf("histories of %d bytes, planned are %d", got, want)
	}
	penalty := device.Change{Repetition: 2, Prompt: 6, Bias: []device.Bias{{ID: 3, Add: 1}}}
	bias := device.Change{Repetition: 1, Prompt: 2, Bias: []device.Bias{{ID: 4, Add: 1}}}
	return st, &Step{
		Tokens: []int32{9, 5, 6},
		Spans: []Span{
			{Span: device.Span{Row: 0, Len: 1, Pos: 8, Blocks: []int32{0, 2, 4}}, Seq: 8, Decode: true, Want: true},
			{Span: device.Span{Row: 1, Len: 2, Pos: 0, Blocks: []int32{3}}, Seq: 9, Want: true},
		},
		Draws: []device.Draw{
			{N: 3, Change: penalty.Encode(), Slot: 2, Stored: -1, Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8}},
			{N: 0, Change: bias.Encode(), Slot: 0, Stored: -1, Mask: []uint32{0x3ff}},
		},
	}
}

// TestHistories: the first draw of a sequence brings its change and its tokens, later ones what
// is new; the step tells its rows where they are.
func TestHistories(t *testing.T) {
	st, b := choosing(t)
	all := st.Histories.rows
	memory := func(slot, from, n int) []int32 {
		return all.RowRange(slot, slot+1).ColRange(from, from+n).I32s()
	}
	fill := func() device.LogitChanges {
		t.Helper()
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		c, ok := st.LogitChanges()
		if !ok {
			t.Fatal("nothing changes the logits")
		}
		return c
	}
	c := fill()
	if got, want := c.Table.I32s(), []int32{2, 0, 0, int32(st.masks.number)}; !slices.Equal(got, want) || c.Table.Rows != 2 || c.Table.Off%8 != 0 {
		t.Errorf("table %v at %d, want %v", got, c.Table.Off, want)
	}
	if got := c.Masks.RowRange(1, 2).I32s(); got[0] != 0x3ff || got[device.MaskFlag(st.cfg.Vocab)] != 2*int32(st.masks.number)+1 {
		t.Errorf("mask %x", got)
	}
	for i := range b.Draws {
		d := &b.Draws[i]
		if got := memory(d.Slot, 0, len(d.Change)); !slices.Equal(got, d.Change) {
			t.Errorf("slot %d has the change %v, want %v", d.Slot, got, d.Change)
		}
	}
	if got := memory(2, device.ChangeWords, 9); !slices.Equal(got, []int32{1, 2, 3, 4, 5, 6, 7, 8, 0}) {
		t.Errorf("tokens %v", got)
	}
	// The device has noted the step's token at 8, and an answer of the host's two tokens follows.
	memory(2, 0, 1)[0], memory(2, device.ChangeWords, 9)[8] = 77, 9
	b.Spans, b.Tokens = b.Spans[:1], []int32{12 - 9}
	b.Spans[0].Pos, b.Draws = 10, b.Draws[:1]
	b.Draws[0].N, b.Draws[0].Stored, b.Draws[0].Tokens = 5, 9, []int32{-1, -1, -1, -1, -1, -1, -1, -1, -1, 4}
	c = fill()
	if got := memory(2, device.ChangeWords, 11); !slices.Equal(got, []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 4, 0}) || memory(2, 0, 1)[0] != 77 {
		t.Errorf("tokens %v after the change %v", got, memory(2, 0, 1))
	}
	if got := c.Table.I32s(); !slices.Equal(got, []int32{2, 0}) {
		t.Errorf("table %v", got)
	}
	changed := st.stepKey()
	b.Draws = []device.Draw{{}}
	if err := st.Fill(hosttest.Stream{}, b); err != nil {
		t.Fatal(err)
	}
	if _, ok := st.LogitChanges(); ok || changed == 0 || st.stepKey() == changed {
		t.Errorf("changes %v, keys %d with and %d without", ok, changed, st.stepKey())
	}
}

func TestHistoriesRefuse(t *testing.T) {
	for _, x := range []struct {
		why    string
		change func(st *State, b *Step)
	}{
		{"row 3 of histories", func(st *State, b *Step) { b.Draws[0].Slot = 3 }},
		{"row 2 of histories", func(st *State, b *Step) { st.Histories = nil }},
		{"a mask of 2 words", func(st *State, b *Step) { b.Draws[1].Mask = make([]uint32, 2) }},
		{"7 tokens before position 8", func(st *State, b *Step) { b.Draws[0].Tokens = b.Draws[0].Tokens[1:] }},
		{"9 of them stored", func(st *State, b *Step) { b.Draws[0].Stored = 9 }},
		{"1 tokens before position 1", func(st *State, b *Step) { b.Draws[1].Tokens = []int32{1} }},
		{"4 of the answer at position 8", func(st *State, b *Step) { b.Draws[0].N = 4 }},
	} {
		st, b := choosing(t)
		x.change(st, b)
		if err := st.Fill(hosttest.Stream{}, b); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: got %v", x.why, err)
		}
	}
	if h, err := NewHistories(hosttest.Device{}, Limits{Seqs: 3, Context: 9}); h != nil || err != nil {
		t.Errorf("histories %v, %v where the host chooses", h, err)
	}
}
