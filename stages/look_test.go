package stages

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
)

// tableDevice wants spans as a table: their numbers, row, length, position and number of
// blocks of each, then the blocks.
type tableDevice struct{ hosttest.Device }

func (tableDevice) Accelerator() device.Accelerator { return tableLayout{} }

type tableLayout struct{ device.Accelerator }

func (tableLayout) RowType() tensor.DType        { return tensor.BF16 }
func (tableLayout) StepKey([]device.Span) uint64 { return 5 }
func (tableLayout) DrawWords() int               { return 2 }
func (tableLayout) PutDraw([]int32, device.Draw) {}
func (tableLayout) AllocShared(n int) (device.Buffer, []byte, error) {
	b := make([]byte, n)
	return hosttest.Buffer(b), b, nil
}
func (tableLayout) ScratchBytes(s *device.StepSizes) int { return s.Rows }
func (tableLayout) SpanWords(spans, blocks int) int      { return 3 + 4*spans + blocks }
func (tableLayout) PutSpans(dst []int32, prefill, decode []device.Span) int {
	table := []int32{int32(len(prefill)), int32(len(decode)), 77}
	for _, sp := range append(slices.Clone(prefill), decode...) {
		table = append(table, int32(sp.Row), int32(sp.Len), int32(sp.Pos), int32(len(sp.Blocks)))
		table = append(table, sp.Blocks...)
	}
	if copy(dst, table) < len(table) {
		panic("no room for a table")
	}
	return len(table)
}

// randomSpans returns sequences with the given number of rows in all, each with all the blocks of
// its context.
func randomSpans(rng *rand.Rand, lim Limits, rows int) *Step {
	b := &Step{Tokens: make([]int32, rows)}
	for row := 0; row < rows; {
		n := rows - row
		if left := lim.Seqs - len(b.Spans); left > 1 {
			n = 1 + rng.IntN(n)
		}
		n = min(n, lim.Context)
		sp := Span{Span: device.Span{Row: row, Len: n, Pos: rng.IntN(lim.Context - n + 1)}, Decode: n == 1 && rng.IntN(2) == 0}
		for range (lim.Context + lim.BlockTokens - 1) / lim.BlockTokens {
			sp.Blocks = append(sp.Blocks, int32(rng.IntN(lim.Blocks)))
		}
		b.Spans, row = append(b.Spans, sp), row+n
	}
	return b
}

// TestTablesOfPieces: on an accelerator a layer finds the table of its piece, which equals the table
// of a batch that has only this piece. All tables fit into the planned memory, and embed and head see
// the same as before.
func TestTablesOfPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		lim := Limits{Tokens: 1 + rng.IntN(40), Seqs: 1 + rng.IntN(5), Blocks: 50, BlockTokens: 1 + rng.IntN(5), Context: 40}
		lim.Window = 1 + rng.IntN(lim.Tokens)
		st, err := NewState(tableDevice{}, testConfig(), lim)
		if err != nil {
			t.Fatal(err)
		}
		b := randomSpans(rng, lim, 1+rng.IntN(lim.Tokens))
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		prefill, decode := slices.Clone(st.Prefill), slices.Clone(st.Decode)
		seen := 0
		for i := range st.Windows() {
			if st.Windows() > 1 {
				st.Look(i)
			}
			for _, sp := range append(slices.Clone(st.Prefill), st.Decode...) {
				seen += sp.Len
			}
			table := st.PrefillSpans().Table
			if other := st.DecodeSpans().Table; other.Off != table.Off || other.Cols != table.Cols || table.Off%16 != 0 {
				t.Fatalf("prompts have the table %v, generated rows %v", table, other)
			}
			want := make([]int32, 1000)
			want = want[:tableLayout{}.PutSpans(want, st.Prefill, st.Decode)]
			if got := table.I32s(); !slices.Equal(got, want) {
				t.Fatalf("%+v, piece %d: %v, want %v", lim, i, got, want)
			}
		}
		if seen != len(b.Tokens) {
			t.Fatalf("%+v: pieces have %d rows of %d", lim, seen, len(b.Tokens))
		}
		st.Whole()
		same := func(a, b device.Span) bool { return a.Row == b.Row && a.Len == b.Len && a.Pos == b.Pos }
		if st.T != len(b.Tokens) || !slices.EqualFunc(st.Prefill, prefill, same) || !slices.EqualFunc(st.Decode, decode, same) {
			t.Fatalf("%+v: the whole is not what it was", lim)
		}
	}
}

// TestGenerated: the generated rows that come first are counted, of what a piece has and of
// those with logits.
func TestGenerated(t *testing.T) {
	st, err := NewState(tableDevice{}, testConfig(), Limits{Tokens: 12, Seqs: 5, Blocks: 50, BlockTokens: 4, Context: 40, Window: 6, LogitRows: 8})
	if err != nil {
		t.Fatal(err)
	}
	b := &Step{Tokens: make([]int32, 9)}
	for i, n := range []int{1, 1, 4, 1, 2} { // decode, decode, prompt, decode, prompt
		sp := Span{Span: device.Span{Row: []int{0, 1, 2, 6, 7}[i], Len: n, Blocks: []int32{int32(i)}}, Decode: n == 1, Want: i != 1}
		b.Spans = append(b.Spans, sp)
	}
	if err := st.Fill(hosttest.Stream{}, b); err != nil {
		t.Fatal(err)
	}
	whole, wanted := st.Generated(), st.WantedGenerated()
	st.Look(0)
	first := st.Generated()
	st.Look(1)
	if second := st.Generated(); whole != 2 || wanted != 1 || first != 2 || second != 1 {
		t.Errorf("%d generated rows come first, %d of those wanted, %d and %d in pieces", whole, wanted, first, second)
	}
}

// TestTablesArePlanned: a state takes what StateBytes says, tables of the most pieces there
// are with it.
func TestTablesArePlanned(t *testing.T) {
	cfg := testConfig()
	lim := Limits{Tokens: 32, Seqs: 3, LogitRows: 3, Blocks: 50, BlockTokens: 4, Context: 40}
	one := inputWords(lim, tableLayout{})
	lim.Window = 8
	// Three more of 3+4+10 words, in whole 16 bytes, that may begin 3 words later.
	if got, want := inputWords(lim, tableLayout{})-one, 3*20; got != want {
		t.Errorf("three more pieces take %d words, want %d", got, want)
	}
	st, err := NewState(tableDevice{}, cfg, lim)
	if err != nil {
		t.Fatal(err)
	}
	took := int64(0)
	for _, b := range st.bufs {
		took += int64(b.Size())
	}
	if want := StateBytes(cfg, lim, tableLayout{}); took != want {
		t.Errorf("a state has %d bytes, planned are %d", took, want)
	}
}

// TestPiecesAreNotRepeated: the tables of a step in pieces lie where the former ones end.
func TestPiecesAreNotRepeated(t *testing.T) {
	lim := Limits{Tokens: 8, Seqs: 4, Blocks: 6, BlockTokens: 4}
	for window, want := range map[int]bool{2: false, 4: true} {
		lim.Window = window
		st, err := NewState(tableDevice{}, testConfig(), lim)
		if err != nil {
			t.Fatal(err)
		}
		b := &Step{Tokens: make([]int32, 3)}
		for i := range b.Tokens {
			b.Spans = append(b.Spans, Span{Span: device.Span{Row: i, Len: 1, Blocks: []int32{int32(i)}}, Decode: true, Want: true})
		}
		if err := st.Fill(hosttest.Stream{}, b); err != nil {
			t.Fatal(err)
		}
		if key := st.stepKey(); (key != 0) != want {
			t.Errorf("3 generated rows in pieces of %d: key %d", window, key)
		}
	}
}
