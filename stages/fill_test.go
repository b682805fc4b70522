package stages

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/hosttest"
	"krater/stages/model"
)

func testConfig() *model.Config {
	return testLayers(2, 0)
}

// testLayers is a model whose first layers are dense.
func testLayers(layers, dense int) *model.Config {
	c := &model.Config{Hidden: 4, Vocab: 10, MaxContext: 64}
	moe := model.MoE{Experts: 4, FF: 4, SharedFF: 4, Router: device.Router{Experts: 4, TopK: 2}}
	c.Stack(layers, nil, func(i int) (model.Mixer, model.FFN) {
		if i < dense {
			return nil, model.Dense{}
		}
		return nil, moe
	})
	return c
}

func testState(t *testing.T) *State {
	t.Helper()
	st, err := NewState(hosttest.Device{}, testConfig(), Limits{Tokens: 8, Seqs: 3, Blocks: 6, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// mixed is a batch of a prompt chunk, a decode row and a short prompt.
func mixed() *Step {
	return &Step{
		Tokens: []int32{1, 2, 3, 4, 5, 6},
		Spans: []Span{
			{Span: device.Span{Row: 0, Len: 3, Pos: 2, Blocks: []int32{5, 1}}, Seq: 7},
			{Span: device.Span{Slot: 2, Row: 3, Len: 1, Pos: 8, Blocks: []int32{0, 2, 4}}, Seq: 8, Decode: true, Want: true},
			{Span: device.Span{Slot: 1, Row: 4, Len: 2, Pos: 0, Blocks: []int32{3}}, Seq: 9, Want: true},
		},
	}
}

func TestFill(t *testing.T) {
	st, b := testState(t), mixed()
	if err := st.Fill(hosttest.Stream{}, b); err != nil {
		t.Fatal(err)
	}
	b.Spans[0].Blocks[0] = 99 // the state keeps its own block tables
	for _, x := range []struct {
		name      string
		got, want []int32
	}{
		{"ids", st.IDs.I32s(), []int32{1, 2, 3, 4, 5, 6}},
		{"positions", st.Positions.I32s(), []int32{2, 3, 4, 8, 0, 1}},
		{"slots", st.Slots.I32s(), []int32{22, 23, 4, 16, 12, 13}},
		{"wanted", st.WantedRows.I32s(), []int32{3, 5}},
		{"owner", st.Owner, []int32{1, 2}},
		{"blocks", st.Prefill[0].Blocks, []int32{5, 1}},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("%s: got %v, want %v", x.name, x.got, x.want)
		}
	}
	if len(st.Prefill) != 2 || len(st.Decode) != 1 || st.Decode[0].Row != 3 {
		t.Errorf("prefill %v, decode %v", st.Prefill, st.Decode)
	}
	for name, shape := range map[string][3]int{
		"hidden": {st.Hidden.Rows, st.Hidden.Cols, 0}, "experts": {st.ExpertOut.Rows, st.ExpertOut.Cols, 1},
		"router": {st.RouterIDs.Rows, st.RouterIDs.Cols, 2}, "logits": {st.Logits.Rows, st.Logits.Cols, 3},
	} {
		want := [][2]int{{6, 4}, {12, 4}, {6, 2}, {2, 10}}[shape[2]]
		if shape[0] != want[0] || shape[1] != want[1] {
			t.Errorf("%s is %v, want %v", name, shape[:2], want)
		}
	}
}

func TestFillAllLogits(t *testing.T) {
	st, err := NewState(hosttest.Device{}, testConfig(), Limits{Tokens: 8, Seqs: 3, LogitRows: 6, Blocks: 6, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	b := mixed()
	b.AllLogits = true
	if err := st.Fill(hosttest.Stream{}, b); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(st.Wanted, []int32{0, 1, 2, 3, 4, 5}) || !slices.Equal(st.Owner, []int32{0, 0, 0, 1, 2, 2}) {
		t.Errorf("wanted %v, owners %v", st.Wanted, st.Owner)
	}
}

func TestFillRefuses(t *testing.T) {
	for _, x := range []struct {
		why    string
		change func(b *Step)
	}{
		{"0 rows", func(b *Step) { b.Tokens = nil }},
		{"9 rows", func(b *Step) { b.Tokens = make([]int32, 9) }},
		{"token 10", func(b *Step) { b.Tokens[2] = 10 }},
		{"token -1", func(b *Step) { b.Tokens[2] = -1 }},
		{"4 sequences", func(b *Step) { b.Spans = append(b.Spans, Span{}) }},
		{"starts at row 2, expected 3", func(b *Step) { b.Spans[1].Row = 2 }},
		{"has 3 rows, 2 are left", func(b *Step) { b.Spans[2].Len = 3 }},
		{"has 0 rows", func(b *Step) { b.Spans[0].Len = 0 }},
		{"cover 5 of 6", func(b *Step) { b.Spans[2].Len = 1 }},
		{"exceed the context of 24", func(b *Step) { b.Spans[1].Pos = 24 }},
		{"exceed the context", func(b *Step) { b.Spans[1].Pos = -1 }},
		{"do not hold position 4", func(b *Step) { b.Spans[0].Blocks = b.Spans[0].Blocks[:1] }},
		{"block 6 is not one of 6", func(b *Step) { b.Spans[1].Blocks[1] = 6 }},
		{"block -1", func(b *Step) { b.Spans[1].Blocks[1] = -1 }},
		{"logits of more than 3 rows", func(b *Step) { b.AllLogits = true }},
	} {
		b := mixed()
		x.change(b)
		err := testState(t).Fill(hosttest.Stream{}, b)
		if !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: got %v", x.why, err)
		}
	}
}

func TestFillDoesNotAllocate(t *testing.T) {
	st, b := testState(t), mixed()
	var s device.Stream = hosttest.Stream{}
	if n := testing.AllocsPerRun(100, func() {
		if err := st.Fill(s, b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLimits(t *testing.T) {
	cfg := testConfig()
	got, err := Limits{Tokens: 8, Seqs: 3, Blocks: 100, BlockTokens: 4}.For(cfg)
	if err != nil || got.Context != 64 || got.LogitRows != 3 || got.Slots() != 400 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []Limits{
		{}, {Tokens: 1, Seqs: 1, Blocks: 1}, {Tokens: 1, Seqs: 1, BlockTokens: 1},
		{Tokens: 1, Blocks: 1, BlockTokens: 1}, {Seqs: 1, Blocks: 1, BlockTokens: 1},
		{Tokens: 1, Seqs: 1, Blocks: 1 << 30, BlockTokens: 16},
		{Tokens: 1, Seqs: 1, Blocks: 1, BlockTokens: 1, Context: -1},
	} {
		if _, err := bad.For(cfg); !errors.Is(err, ErrLimits) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

// TestPlaceholders: ids that stand for an image are looked up as the padding token; the step keeps them.
func TestPlaceholders(t *testing.T) {
	cfg := testConfig()
	cfg.Placeholders, cfg.Pad = []int32{3, 6}, 9
	st, err := NewState(hosttest.Device{}, cfg, Limits{Tokens: 8, Seqs: 3, Blocks: 6, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	b := mixed()
	if err := st.Fill(hosttest.Stream{}, b); err != nil {
		t.Fatal(err)
	}
	if got, want := st.inputs.tokens[:6], []int32{1, 2, 9, 4, 5, 9}; !slices.Equal(got, want) || b.Tokens[2] != 3 {
		t.Errorf("looks up %v of %v, want %v", got, b.Tokens, want)
	}
}
