package scheduler

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var roomy = Config{
	BlockTokens: 16, Blocks: 4096, MaxBatchTokens: 512, MaxSeqs: 256, PrefillChunk: 256, PrefillShare: 128, MaxQueue: 512, MicroBatches: 1, PrefillBatches: 1, MaxRetries: 2,
}

func newCore(t testing.TB, cfg Config) *Core {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustAdd(t testing.TB, c *Core, list ...Request) {
	t.Helper()
	for _, r := range list {
		if err := c.Add(r, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func mustNext(t testing.TB, c *Core) Batch {
	t.Helper()
	b, ok := c.Next(0)
	if !ok {
		t.Fatal("no batch")
	}
	return b
}

// stepper runs whole steps without allocating.
type stepper struct {
	core     *Core
	outcomes []Outcome
}

func (s *stepper) done(b Batch) error {
	s.outcomes = s.outcomes[:0]
	for i := range b.Spans {
		if b.Spans[i].Last {
			s.outcomes = append(s.outcomes, Outcome{ID: b.Spans[i].ID, NewTokens: 1})
		}
	}
	err := s.core.Done(b.ID, s.outcomes)
	s.core.Effects()
	return err
}

func (s *stepper) step() error {
	b, ok := s.core.Next(0)
	if !ok {
		return errors.New("no batch")
	}
	s.core.Effects()
	return s.done(b)
}

// TestOutcomes: a report that does not match its batch is refused and the batch
// is still in flight afterwards.
func TestOutcomes(t *testing.T) {
	cases := []struct {
		name string
		give []Outcome
		want string // "" for accepted
	}{
		{"one each", []Outcome{{ID: 1, NewTokens: 1}, {ID: 2, NewTokens: 1}}, ""},
		{"ends without a token", []Outcome{{ID: 1, End: Stop}, {ID: 2, End: Failed}}, ""},
		{"the cancelled one is not read", []Outcome{{ID: 1, NewTokens: 1}, {ID: 2, NewTokens: 99, End: Drained}}, ""},
		{"none", nil, "wants 2, got 0"},
		{"one too many", []Outcome{{ID: 1, NewTokens: 1}, {ID: 2, NewTokens: 1}, {}}, "wants 2, got 3"},
		{"wrong order", []Outcome{{ID: 2, NewTokens: 1}, {ID: 1, NewTokens: 1}}, "wants request 1, got 2"},
		{"no token", []Outcome{{ID: 1}, {ID: 2, NewTokens: 1}}, "request 1 made 0 tokens"},
		{"two tokens from one row", []Outcome{{ID: 1, NewTokens: 2}, {ID: 2, NewTokens: 1}}, "request 1 made 2 tokens"},
		{"a negative number", []Outcome{{ID: 1, NewTokens: -1, End: Stop}, {ID: 2, NewTokens: 1}}, "request 1 made -1 tokens"},
		{"a reason that is not the sampler's", []Outcome{{ID: 1, NewTokens: 1, End: Length}, {ID: 2, NewTokens: 1}}, "request 1 ends with length"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := newCore(t, roomy)
			mustAdd(t, c, Request{ID: 1, PromptLen: 3, MaxNew: 4}, Request{ID: 2, PromptLen: 3, MaxNew: 4})
			b := mustNext(t, c)
			if strings.Contains(tc.name, "cancelled") {
				c.Cancel(2, Cancelled)
			}
			before := c.Stats()
			err := c.Done(b.ID, tc.give)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrOutcome) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Done = %v, want ErrOutcome with %q", err, tc.want)
			}
			if after := c.Stats(); !reflect.DeepEqual(before, after) {
				t.Fatalf("a refused Done changed %+v to %+v", before, after)
			}
			if err := c.Fail(b.ID, err, true); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLateReader: an actor may still look at a batch that failed, until that is gone.
// Neither its spans nor its block tables change under it.
func TestLateReader(t *testing.T) {
	lose := map[string]func(*Core, Batch){
		"fail": func(c *Core, b Batch) { c.Fail(b.ID, errors.New("lost"), false) },
		"retry, then the end": func(c *Core, b Batch) {
			c.Fail(b.ID, errors.New("lost"), true)
			c.Cancel(1, Cancelled)
			c.Cancel(2, Cancelled)
		},
	}
	for name, f := range lose {
		t.Run(name, func(t *testing.T) {
			cfg := roomy
			cfg.MicroBatches, cfg.PrefillBatches = 2, 2
			c := newCore(t, cfg)
			mustAdd(t, c, Request{ID: 1, PromptLen: 40, MaxNew: 4}, Request{ID: 2, PromptLen: 20, MaxNew: 4})
			late := mustNext(t, c)
			want := fmt.Sprintf("%+v", late)
			f(c, late)
			mustAdd(t, c, Request{ID: 4, PromptLen: 90, MaxNew: 4}, Request{ID: 5, PromptLen: 8, MaxNew: 4}, Request{ID: 6, PromptLen: 70, MaxNew: 4})
			mustNext(t, c)
			if got := fmt.Sprintf("%+v", late); got != want {
				t.Fatalf("the lost batch changed\nfrom %s\nto   %s", want, got)
			}
		})
	}
}

// TestEffectsOutliveTheNextCalls: the slice is the driver's until it asks again.
func TestEffectsOutliveTheNextCalls(t *testing.T) {
	c := newCore(t, roomy)
	mustAdd(t, c, Request{ID: 1, PromptLen: 1, MaxNew: 1}, Request{ID: 2, PromptLen: 1, MaxNew: 1})
	b := mustNext(t, c)
	got := c.Effects()
	want := slices.Clone(got)
	if err := c.Done(b.ID, []Outcome{{ID: 1, NewTokens: 1}, {ID: 2, NewTokens: 1}}); err != nil {
		t.Fatal(err)
	}
	if len(want) != 2 || !slices.Equal(got, want) {
		t.Fatalf("effects changed from %v to %v", want, got)
	}
	if n := len(c.Effects()); n != 4 {
		t.Fatalf("%d effects of two ends, want 4", n)
	}
	if n := len(c.Effects()); n != 0 {
		t.Fatalf("%d effects twice", n)
	}
}

// TestSteadyStateAllocatesNothing: neither decode, nor a stream of short
// requests, nor mixed prefill.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, micros := range []int{1, 3} {
		cfg := roomy
		cfg.MicroBatches, cfg.PrefillBatches = micros, micros
		c := newCore(t, cfg)
		for id := range uint64(30) {
			mustAdd(t, c, Request{ID: id, PromptLen: 5, MaxNew: 2000})
		}
		s := &stepper{core: c}
		id := uint64(100)
		work := func() {
			id++
			if err := c.Add(Request{ID: id, PromptLen: 60, MaxNew: 3, Deadline: 1 << 40}, 0); err != nil {
				t.Fatal(err)
			}
			for range micros {
				if err := s.step(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 50 {
			work()
		}
		if n := testing.AllocsPerRun(200, work); n > 0 {
			t.Errorf("%d micro-batches: %v allocations a step", micros, n)
		}
	}
}

// TestDecodeGap: eight streams run, 3,000 rows of prompts wait, and every stream
// has its row in each MicroBatches batches, beside at most PrefillShare other rows
// (CASES 26).
func TestDecodeGap(t *testing.T) {
	for micros := 1; micros <= 4; micros++ {
		cfg := roomy
		cfg.MicroBatches, cfg.PrefillBatches, cfg.PrefillShare = micros, micros, 40
		c := newCore(t, cfg)
		s := &stepper{core: c}
		for id := range uint64(8) {
			mustAdd(t, c, Request{ID: id, PromptLen: 1, MaxNew: 1000})
		}
		for c.Stats().Decoding < 8 {
			if err := s.step(); err != nil {
				t.Fatal(err)
			}
		}
		mustAdd(t, c, Request{ID: 100, PromptLen: 2000, MaxNew: 1}, Request{ID: 101, PromptLen: 1000, MaxNew: 1})
		last := map[uint64]uint64{}
		var flying []Batch
		for c.Stats().Prefilling+c.Stats().Waiting > 0 {
			b, ok := c.Next(0)
			if !ok {
				if err := s.done(flying[0]); err != nil {
					t.Fatal(err)
				}
				flying = flying[1:]
				continue
			}
			flying = append(flying, b)
			if b.Rows-b.Decode > cfg.PrefillShare {
				t.Fatalf("%d micro-batches: %d prefill rows beside streams", micros, b.Rows-b.Decode)
			}
			for _, sp := range b.Spans {
				// A row goes out in batch n, is back before n+MicroBatches, and is followed
				// within MicroBatches batches.
				if was := last[sp.ID]; sp.Decode && was > 0 && b.ID-was > uint64(2*micros-1) {
					t.Fatalf("%d micro-batches: stream %d in batch %d, then in %d", micros, sp.ID, was, b.ID)
				}
				last[sp.ID] = b.ID
			}
		}
		if len(last) != 10 {
			t.Fatalf("%d micro-batches: %d sequences were served, want 10", micros, len(last))
		}
	}
}
