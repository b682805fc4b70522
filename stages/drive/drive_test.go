package drive

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"krater/stages"
	"krater/stages/internal/hosttest"
	"krater/stages/model"
)

const vocab = 97

// parrot is a Runner whose next token is a hash of all tokens before it, which
// it reads back from its cache through the block tables.
type parrot struct {
	st      *stages.State
	cache   []int32
	steps   int
	rowsMax int
}

func newParrot(t *testing.T, lim stages.Limits) *parrot {
	t.Helper()
	cfg := &model.Config{Layers: make([]model.LayerSpec, 1), Hidden: 1, Vocab: vocab, MaxContext: 1000}
	st, err := stages.NewState(hosttest.Device{}, cfg, lim)
	if err != nil {
		t.Fatal(err)
	}
	return &parrot{st: st, cache: make([]int32, lim.Slots())}
}

func (p *parrot) Limits() stages.Limits { return p.st.Limits() }

func (p *parrot) Step(b *stages.Step, _ stages.Probe, read func(*stages.State) error) error {
	if err := p.st.Fill(hosttest.Stream{}, b); err != nil {
		return err
	}
	p.steps++
	p.rowsMax = max(p.rowsMax, p.st.T)
	ids := p.st.IDs.I32s()
	for i, slot := range p.st.Slots.I32s() {
		p.cache[slot] = ids[i]
	}
	bt := p.st.Limits().BlockTokens
	for i, row := range p.st.Wanted {
		sp := p.st.Spans[p.st.Owner[i]]
		h := uint32(1)
		for pos := range sp.Pos + int(row) - sp.Row + 1 {
			h = h*31 + uint32(p.cache[int(sp.Blocks[pos/bt])*bt+pos%bt])
		}
		logits := p.st.Logits.RowRange(i, i+1).F32s()
		clear(logits)
		logits[h%vocab] = 1
	}
	return read(p.st)
}

// alone returns text with the n tokens appended that parrot must generate.
func alone(text []int32, n int) []int32 {
	text = slices.Clone(text)
	for range n {
		h := uint32(1)
		for _, x := range text {
			h = h*31 + uint32(x)
		}
		text = append(text, int32(h%vocab))
	}
	return text[len(text)-n:]
}

func prompt(n, seed int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32((i*seed + seed) % vocab)
	}
	return p
}

func TestRun(t *testing.T) {
	lim := stages.Limits{Tokens: 16, Seqs: 5, LogitRows: 12, Blocks: 40, BlockTokens: 4}
	for _, chunk := range []int{0, 1, 3, 100} {
		for n := 1; n <= 5; n++ {
			t.Run(fmt.Sprintf("chunk %d, %d sequences", chunk, n), func(t *testing.T) {
				seqs := make([]*Sequence, n)
				seen := make([][]int, n)
				for i := range seqs {
					seqs[i] = &Sequence{Prompt: prompt(1+7*i, i+2), New: 6, All: i%2 == 1,
						See: func(pos int, _ []float32) { seen[i] = append(seen[i], pos) }}
				}
				p := newParrot(t, lim)
				if err := Run(p, seqs, Options{Chunk: chunk}); err != nil {
					t.Fatal(err)
				}
				for i, q := range seqs {
					if want := alone(q.Prompt, 6); !slices.Equal(q.Out, want) {
						t.Errorf("sequence %d: got %v, want %v", i, q.Out, want)
					}
					first := len(q.Prompt) - 1
					if q.All {
						first = 0
					}
					var want []int
					for pos := first; pos < len(q.Prompt)+5; pos++ {
						want = append(want, pos)
					}
					if !slices.Equal(seen[i], want) {
						t.Errorf("sequence %d: saw %v, want %v", i, seen[i], want)
					}
				}
				if p.rowsMax > lim.Tokens {
					t.Errorf("%d rows in a batch", p.rowsMax)
				}
			})
		}
	}
}

func TestRunStops(t *testing.T) {
	p := newParrot(t, stages.Limits{Tokens: 16, Seqs: 2, Blocks: 40, BlockTokens: 4})
	text := prompt(5, 3)
	want := alone(text, 10)
	q := &Sequence{Prompt: text, New: 10, Stop: want[3:4]}
	none := &Sequence{Prompt: text}
	if err := Run(p, []*Sequence{q, none}, Options{}); err != nil {
		t.Fatal(err)
	}
	if end := slices.Index(want, want[3]) + 1; !slices.Equal(q.Out, want[:end]) || len(none.Out) != 0 {
		t.Errorf("got %v and %v, want %v", q.Out, none.Out, want[:end])
	}
}

// TestRunGiven: tokens that are given continue a sequence in place of those chosen, which come after them.
func TestRunGiven(t *testing.T) {
	p := newParrot(t, stages.Limits{Tokens: 16, Seqs: 2, Blocks: 40, BlockTokens: 4})
	text, given := prompt(5, 3), []int32{7, 9, 11}
	q := &Sequence{Prompt: text, New: 8, Given: given}
	if err := Run(p, []*Sequence{q}, Options{}); err != nil {
		t.Fatal(err)
	}
	if want := alone(slices.Concat(text, given), 5); !slices.Equal(q.Out, slices.Concat(given, want)) {
		t.Errorf("got %v, want %v and %v", q.Out, given, want)
	}
}

func TestRunRefuses(t *testing.T) {
	p := newParrot(t, stages.Limits{Tokens: 16, Seqs: 2, Blocks: 4, BlockTokens: 4})
	for name, seqs := range map[string][]*Sequence{
		"empty":           {{}},
		"too many":        {{Prompt: prompt(1, 1)}, {Prompt: prompt(1, 1)}, {Prompt: prompt(1, 1)}},
		"too long":        {{Prompt: prompt(17, 1)}},
		"blocks run out":  {{Prompt: prompt(9, 1)}, {Prompt: prompt(5, 1)}},
		"answer too long": {{Prompt: prompt(10, 1), New: 8}},
	} {
		if err := Run(p, seqs, Options{}); !errors.Is(err, ErrStuck) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := Run(p, []*Sequence{{Prompt: prompt(10, 1), New: 7}}, Options{}); err != nil {
		t.Errorf("a full cache: %v", err)
	}
}
