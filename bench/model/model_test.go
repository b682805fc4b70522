package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/bench/clock"
	"krater/bench/read"
	"krater/bench/stat"
	"krater/kernels/cpu"
	"krater/stages"
)

// TestReport: the arithmetic of a report of made-up steps. Of ten steps six had two cores and took
// 10 ms for 300 MB; reads then gave 40 GB/s.
func TestReport(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	reader, s := read.New(dev), &stat.Series{}
	for i, state := range []string{"one core", "two cores"} {
		for range 4 + 2*i {
			s.Add([]float64{20, 10}[i])
			reader.Fake([]float64{20e9, 40e9}[i])
		}
		s.Mark(state)
		reader.Mark(state)
	}
	spent := []clock.Spent{
		{Stage: clock.Attention, Operator: "MatMulQ", Calls: 8, Time: 2 * time.Millisecond, Bytes: 100e6},
		{Stage: clock.Attention, Operator: "MLADecode", Calls: 2, Time: 4 * time.Millisecond, Bytes: 100e6},
		{Stage: clock.Experts, Operator: "ExpertsQ", Calls: 2, Time: 12 * time.Millisecond, Bytes: 400e6},
	}
	r := &Report{Threads: 2, Level: "avx512"}
	r.decode(s, reader, spent, 20*time.Millisecond, 2)
	if r.Regime != "two cores" || r.DecodeTokS != 100 || r.BytesPerStep != 300e6 || r.DecodeGBps != 30 || r.ReadGBps != 40 || r.DecodeRatio != 0.75 || r.BestRatio != 0.75 || r.Decode.N != 6 || len(r.StepsMS) != 10 {
		t.Errorf("%+v", r)
	}
	if want := (Regime{"one core", 0.4, 50, 20, 0.75}); len(r.Regimes) != 2 || r.Regimes[1] != want {
		t.Errorf("%+v", r.Regimes)
	}
	want := []Stage{{clock.Experts, 6, 0.6, 200, 400. / 12}, {clock.Attention, 3, 0.3, 100, 200. / 6}, {Other, 1, 0.1, 0, 0}}
	if !slices.Equal(r.Breakdown, want) {
		t.Errorf("%+v", r.Breakdown)
	}
	if r.Operators[0].Operator != "ExpertsQ" || r.Operators[2].Calls != 4 {
		t.Errorf("%+v", r.Operators)
	}
	r.prefill(512, stat.Sample{1000, 900, 1100}, stat.Sample{1900, 1700}, "", spent)
	r.context(512, 0, s, reader, spent, 20*time.Millisecond)
	r.context(32768, 32256, s, reader, spent, 20*time.Millisecond)
	r.batch(8, s, reader, spent, 20*time.Millisecond)
	if p := r.Prefill[0]; p.TokS != 512 || p.Runs != 3 || r.Batch[0].TokS != 800 || r.Context[0].TokS != 100 || r.Context[0].GBps != 60 {
		t.Errorf("%+v %+v %+v", p, r.Batch, r.Context)
	}
	r.Scaling = []Scaling{{Threads: 1, TokS: 60}, r.Of()}
	checkShown(t, r)
}

// checkShown looks for the figures in text and charts.
func checkShown(t *testing.T, r *Report) {
	t.Helper()
	var text strings.Builder
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"two cores 60 %", "experts", "prefill 512 ms", "32768 (32256 made-up rows)", "other", "Decode by threads"} {
		if !strings.Contains(text.String(), word) {
			t.Errorf("%q is not in\n%s", word, text.String())
		}
	}
	titles := []string{}
	for _, c := range r.Charts() {
		titles = append(titles, c.Title)
	}
	if !slices.Equal(titles, []string{"Decode by threads", "Prefill by length", "Decode by depth", "A decode step"}) {
		t.Errorf("%q", titles)
	}
	if c := r.Charts()[2]; !slices.Equal(c.Series[0].X, []float64{prompt, 512, 32768}) {
		t.Errorf("%+v", c)
	}
	if c := r.Charts()[0]; !slices.Equal(c.Series[0].X, []float64{1, 2}) || !slices.Equal(c.Series[0].Y, []float64{60, 100}) {
		t.Errorf("%+v", c)
	}
}

func TestRoom(t *testing.T) {
	o := Options{Prefill: []int{512}, Context: []int{600}, Decode: 8, Batch: []int{1, 32}}
	if o.Positions() != 617 || o.Blocks(32) != 32 || o.Blocks(1000) != 32 {
		t.Errorf("%d positions, %d blocks", o.Positions(), o.Blocks(32))
	}
}

// rows is a runner that notes what it was given.
type rows struct {
	lim   stages.Limits
	seen  map[uint64][]int32 // tokens by sequence
	most  int                // rows of a step
	wants int
}

func (r *rows) Limits() stages.Limits { return r.lim }

func (r *rows) Step(b *stages.Step, _ stages.Probe, read func(*stages.State) error) error {
	r.most = max(r.most, len(b.Tokens))
	for _, s := range b.Spans {
		if s.Pos != len(r.seen[s.Seq]) {
			return fmt.Errorf("sequence %d goes on at %d after %d tokens", s.Seq, s.Pos, len(r.seen[s.Seq]))
		}
		r.seen[s.Seq] = append(r.seen[s.Seq], b.Tokens[s.Row:s.Row+s.Len]...)
		if s.Want {
			r.wants++
		}
	}
	return read(nil)
}

// TestStart: every sequence gets its own prompt once, in order, within the rows of a step, and its
// last row alone is wanted.
func TestStart(t *testing.T) {
	for _, c := range []struct{ streams, length, chunk int }{{1, 50, 7}, {5, 16, 33}, {5, 16, 3}, {3, 10, 1000}} {
		r := &rows{lim: stages.Limits{Tokens: 40, Seqs: 8, Blocks: 100, BlockTokens: 4, Context: 99}, seen: map[uint64][]int32{}}
		b := &bench{o: Options{Chunk: c.chunk, Vocab: 1000}, run: r}
		q, _, err := b.start(c.streams, c.length, 9)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if len(r.seen) != c.streams || r.wants != c.streams || r.most > min(40, c.chunk) || q.pos != c.length {
			t.Errorf("%+v: %d sequences, %d wanted, %d rows at most", c, len(r.seen), r.wants, r.most)
		}
		used := map[int32]bool{}
		for i, s := range q.batch.Spans {
			for p, id := range r.seen[uint64(i)] {
				if id != token(i, p, 1000) {
					t.Fatalf("%+v: token %d of sequence %d", c, p, i)
				}
			}
			if len(r.seen[uint64(i)]) != c.length || 4*len(s.Blocks) < c.length+9 {
				t.Errorf("%+v: %d tokens, %d blocks", c, len(r.seen[uint64(i)]), len(s.Blocks))
			}
			for _, block := range s.Blocks {
				if used[block] {
					t.Errorf("%+v: block %d belongs to two sequences", c, block)
				}
				used[block] = true
			}
		}
		if _, _, err := b.start(9, 1, 1); err == nil {
			t.Error("more streams than there are were started")
		}
	}
}

// filler is a runner that keeps which block's rows each block has.
type filler struct {
	rows
	has   map[int32]int32
	moves int // of a step
}

func (f *filler) Step(b *stages.Step, _ stages.Probe, read func(*stages.State) error) error {
	f.moves = max(f.moves, len(b.Moves))
	for _, m := range b.Moves {
		from, ok := f.has[m.From]
		if m.Kind != stages.Copy || !ok {
			return fmt.Errorf("%s of block %d, which has no rows", m.Kind, m.From)
		}
		f.has[m.To] = from
	}
	for _, s := range b.Spans {
		if block := s.Blocks[s.Pos/f.lim.BlockTokens]; s.Len > 1 {
			for i := s.Pos / f.lim.BlockTokens; i*f.lim.BlockTokens < s.Pos+s.Len; i++ {
				f.has[s.Blocks[i]] = s.Blocks[i]
			}
		} else if _, ok := f.has[block]; !ok {
			return fmt.Errorf("a row in block %d, which has none before it", block)
		}
	}
	return read(nil)
}

// TestDeep: a long context is copies of a short prompt of the same stream, block by block, and says so.
func TestDeep(t *testing.T) {
	const tokens, length = 48, 10000
	f := &filler{rows: rows{lim: stages.Limits{Tokens: 100, Seqs: 2, Blocks: 1000, BlockTokens: tokens, Context: 20000}}, has: map[int32]int32{}}
	b := &bench{o: Options{Chunk: 96, Vocab: 1000}, run: f}
	q, made, err := b.deep(2, length, 50)
	if err != nil {
		t.Fatal(err)
	}
	const have = 11 // blocks of 48 for 512 tokens
	if q.pos != length || made != length-have*tokens || len(q.batch.Moves) != 0 || f.moves > madeMoves {
		t.Errorf("position %d, %d made up, %d moves left, %d in a step", q.pos, made, len(q.batch.Moves), f.moves)
	}
	for _, s := range q.batch.Spans {
		for i := range (length + tokens - 1) / tokens {
			if got, want := f.has[s.Blocks[i]], s.Blocks[i%have]; got != want {
				t.Fatalf("block %d has the rows of %d, want %d", i, got, want)
			}
		}
	}
	f.has = map[int32]int32{}
	if q, made, err := b.deep(1, madeFrom, 9); err != nil || made != 0 || q.pos != madeFrom || f.has[q.batch.Spans[0].Blocks[40]] != q.batch.Spans[0].Blocks[40] {
		t.Errorf("a context of %d: %d rows made up, %v", madeFrom, made, err)
	}
}
