package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// tight is a core with far too little memory for its 24 random requests.
type tight struct {
	*Core
	rng       *rand.Rand
	left      map[uint64]Request // that have not ended
	running   map[uint64]bool
	line      []Batch // in flight
	since     int     // batches since one had a row of the first request
	preempted int
}

func newTight(t *testing.T, seed uint64) *tight {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := Config{BlockTokens: 2, Blocks: 20, MaxBatchTokens: 16, MaxSeqs: 6, PrefillChunk: 6, PrefillShare: 4, MaxQueue: 64,
		MicroBatches: 1 + rng.IntN(3), Ahead: rng.IntN(2) == 0, RAMBlocks: rng.IntN(10)}
	cfg.PrefillBatches = 1 + rng.IntN(cfg.MicroBatches)
	w := &tight{Core: newCore(t, cfg), rng: rng, left: map[uint64]Request{}, running: map[uint64]bool{}}
	for id := uint64(1); id <= 24; id++ {
		r := Request{ID: id, PromptLen: 1 + rng.IntN(12), MaxNew: 1 + rng.IntN(26), Priority: rng.IntN(2), Key: rng.Uint64N(2)}
		r.Prompt = make([]int32, r.PromptLen)
		mustAdd(t, w.Core, r)
		w.left[id] = r
	}
	return w
}

// first returns the first of the running requests: the earliest of the keys' own first ones, by
// priority and arrival. 0: none runs.
func (w *tight) first() (first uint64) {
	own := map[uint64]uint64{}
	for id := range w.running {
		r := w.left[id]
		if o := own[r.Key]; o == 0 || r.Priority > w.left[o].Priority || r.Priority == w.left[o].Priority && id < o {
			own[r.Key] = id
		}
	}
	for _, id := range own {
		if first == 0 || id < first {
			first = id
		}
	}
	return first
}

// take starts all batches that can start and takes one of those in flight, at random. A batch that
// was started ahead of another one's end comes after it.
func (w *tight) take() (b Batch, ok bool) {
	for b, ok := w.Next(0); ok; b, ok = w.Next(0) {
		w.line = append(w.line, b)
	}
	if len(w.line) == 0 {
		return b, false
	}
	at := w.rng.IntN(len(w.line))
	for i := range w.line {
		if w.line[i].ID == w.line[at].After {
			at = i
			break
		}
	}
	b = w.line[at]
	w.line = append(w.line[:at:at], w.line[at+1:]...)
	return b, true
}

// done ends a batch. It returns an error if the first request waits for too long.
func (w *tight) done(b Batch) error {
	first := w.first()
	var outcomes []Outcome
	w.since++
	for _, sp := range b.Spans {
		if sp.ID == first {
			w.since = 0
		}
		if sp.Last {
			outcomes = append(outcomes, Outcome{ID: sp.ID, NewTokens: 1, Tokens: []int32{int32(sp.ID)}})
		}
	}
	if w.since > 6*w.cfg.Depth() {
		return fmt.Errorf("the first, %d, had no row in %d batches", first, w.since)
	}
	return w.Done(b.ID, outcomes)
}

// follow takes in the effects of a batch. It returns an error if the first request is preempted.
func (w *tight) follow() error {
	for _, e := range w.Effects() {
		switch e.Kind {
		case Started, Resumed:
			w.running[e.ID] = true
		case Preempted:
			w.preempted++
			if w.first() == e.ID {
				return fmt.Errorf("the first, %d, was preempted", e.ID)
			}
			delete(w.running, e.ID)
		case Ended:
			delete(w.left, e.ID)
			delete(w.running, e.ID)
			w.since = 0
		}
	}
	return nil
}

// TestFirstGoesOn: with far too little memory the first of all that run is never preempted
// and never waits for long, so all requests are served in the end.
func TestFirstGoesOn(t *testing.T) {
	preempted := 0
	for seed := range uint64(60) {
		w := newTight(t, seed)
		for len(w.left) > 0 {
			b, ok := w.take()
			if !ok {
				t.Fatalf("seed %d: stuck: %+v", seed, w.Stats())
			}
			if err := w.done(b); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := w.follow(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if st := w.Stats(); st.BlocksUsed != 0 || st.Ended[Length] != 24 {
			t.Fatalf("seed %d: %+v", seed, st)
		}
		preempted += w.preempted
	}
	if preempted < 500 {
		t.Errorf("only %d were preempted", preempted)
	}
}
