package stages

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/hosttest"
	"krater/stages/model"
)

// windowConfig is a model in which every other layer sees the newest 6 tokens.
func windowConfig() *model.Config {
	c := testConfig()
	for i := range c.Layers {
		c.Layers[i].Mixer = model.GQA{Window: 6 * (i % 2)}
	}
	return c
}

// skipLayout writes the blocks that a table lacks, too.
type skipLayout struct{ tableLayout }

func (skipLayout) SpanWords(spans, blocks int) int { return 5*spans + blocks }
func (skipLayout) PutSpans(dst []int32, prefill, decode []device.Span) int {
	n := 0
	for _, sp := range append(slices.Clone(prefill), decode...) {
		for _, v := range append([]int32{int32(sp.Row), int32(sp.Len), int32(sp.Pos), int32(sp.Skip), int32(len(sp.Blocks))}, sp.Blocks...) {
			dst[n] = v
			n++
		}
	}
	return n
}

type skipDevice struct{ hosttest.Device }

func (skipDevice) Accelerator() device.Accelerator { return skipLayout{} }

// TestWindowTables: layers with a window find all that their rows see, and what kernels read before
// that, in tables of their own, on an accelerator in short ones; all of it fits into what is planned.
func TestWindowTables(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cfg := windowConfig()
	cfg.MaxContext = 1000
	for range 300 {
		lim := Limits{Tokens: 1 + rng.IntN(300), Seqs: 1 + rng.IntN(5), Blocks: 500, BlockTokens: 2 + rng.IntN(5), Context: 900, WindowBlocks: 400}
		lim.Window = 1 + rng.IntN(lim.Tokens)
		st, err := NewState(skipDevice{}, cfg, lim)
		if err != nil {
			t.Fatal(err)
		}
		if want := int(StateBytes(cfg, st.Limits(), skipLayout{})); allocated(st) != want {
			t.Fatalf("a state has %d bytes, planned are %d", allocated(st), want)
		}
		b := randomSpans(rng, st.Limits(), 1+rng.IntN(lim.Tokens))
		for i := range b.Spans {
			for range b.Spans[i].Blocks {
				b.Spans[i].Windows = append(b.Spans[i].Windows, int32(rng.IntN(lim.WindowBlocks)))
			}
		}
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		for i := range st.Windows() {
			if st.Windows() > 1 {
				st.Look(i)
			}
			checkWindowPiece(t, st)
		}
	}
}

func allocated(st *State) (n int) {
	for _, b := range st.bufs {
		n += b.Size()
	}
	return n
}

// checkWindowPiece holds what layers with a window read of the rows in hand against the spans.
func checkWindowPiece(t *testing.T, st *State) {
	t.Helper()
	slots, prefill, decode := st.Paging(6)
	if all, _, _ := st.Paging(0); all.Off != st.Slots.Off || slots.Off == st.Slots.Off {
		t.Fatal("the slots are others'")
	}
	bt := st.lim.BlockTokens
	table := prefill.Table.I32s()
	for _, sp := range slices.Concat(prefill.List, decode.List) {
		if int(table[0]) != sp.Row || int(table[1]) != sp.Len || int(table[2]) != sp.Pos {
			t.Fatalf("table %v of span %+v", table[:5], sp)
		}
		skip, n := int(table[3]), int(table[4])
		blocks := table[5 : 5+n]
		for p := max(0, sp.Pos-5-tableMargin); p < sp.Pos+sp.Len; p++ {
			if at := p / bt; blocks[at-skip] != sp.Blocks[at] {
				t.Fatalf("position %d of %+v is in block %d, want %d", p, sp, blocks[at-skip], sp.Blocks[at])
			}
		}
		for r := range sp.Len {
			p := sp.Pos + r
			if got, want := slots.I32s()[sp.Row+r], sp.Blocks[p/bt]*int32(bt)+int32(p%bt); got != want {
				t.Fatalf("row %d is in slot %d, want %d", sp.Row+r, got, want)
			}
		}
		table = table[5+n:]
	}
	if slices.ContainsFunc(table, func(v int32) bool { return v != 0 }) {
		t.Fatalf("a table ends with %v", table)
	}
}

// TestWindowTablesStay: the tables of steps of generated rows are always in one place, so that such a
// step can be repeated; a batch without tables of its own has those of the other layers, if the
// blocks are there.
func TestWindowTablesStay(t *testing.T) {
	cfg := windowConfig()
	cfg.MaxContext = 1000
	st, err := NewState(skipDevice{}, cfg, Limits{Tokens: 4, Seqs: 2, Blocks: 300, BlockTokens: 4, WindowBlocks: 200})
	if err != nil {
		t.Fatal(err)
	}
	var places [][2]int
	for _, pos := range []int{0, 3, 200, 799} {
		sp := Span{Decode: true, Want: true, Span: device.Span{Len: 1, Pos: pos, Blocks: make([]int32, pos/4+1)}}
		if err := st.Fill(hosttest.Stream{}, &Step{Tokens: []int32{1}, Spans: []Span{sp}}); err != nil {
			t.Fatal(err)
		}
		_, prefill, decode := st.Paging(6)
		places = append(places, [2]int{decode.Table.Off, st.DecodeSpans().Table.Off})
		if prefill.Table.Off != decode.Table.Off || st.stepKey() == 0 {
			t.Error("prompts have another table, or the step is not repeated")
		}
	}
	if len(slices.Compact(places)) != 1 {
		t.Errorf("tables are at %v", places)
	}
	for _, bad := range [][]int32{{200}, {-1}, {0, 250}} {
		b := &Step{Tokens: []int32{1}, Spans: []Span{{Windows: bad, Span: device.Span{Len: 1, Pos: 4, Blocks: []int32{0, 250}}}}}
		if err := st.Fill(hosttest.Stream{}, b); !errors.Is(err, ErrBatch) {
			t.Errorf("table %v: %v", bad, err)
		}
		if b.Spans[0].Windows = nil; st.Fill(hosttest.Stream{}, b) == nil {
			t.Error("block 250 of 200 is taken")
		}
	}
	if _, err := NewState(skipDevice{}, cfg, Limits{Tokens: 4, Seqs: 2, Blocks: 300, BlockTokens: 4, WindowBlocks: 2}); !errors.Is(err, ErrLimits) {
		t.Errorf("two blocks of 4 where a layer sees 6: %v", err)
	}
}
