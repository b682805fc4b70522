package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// followed is a random script with chunks that follow each other: a pipeline that returns batches with a common sequence in order.
type followed struct {
	core   *Core
	rng    *rand.Rand
	flying []flown
	have   map[uint64]int // rows of a request that are computed or in flight; -1: it begins again
	left   map[uint64]int // tokens of its answer
	behind int            // spans behind rows in flight
	voided int
}

// flown is a batch in flight.
type flown struct {
	id    uint64
	spans []Span
	lost  bool
}

func (x *followed) effects() {
	for _, e := range x.core.Effects() {
		switch e.Kind {
		case Voided:
			x.lose(e.Batch)
			x.voided++
		case Preempted:
			x.have[e.ID] = -1
		case Ended:
			delete(x.left, e.ID)
		}
	}
}

// lose notes that a batch is lost.
func (x *followed) lose(id uint64) {
	i := slices.IndexFunc(x.flying, func(f flown) bool { return f.id == id })
	x.flying[i].lost = true
	for _, sp := range x.flying[i].spans {
		x.have[sp.ID] = -1
	}
}

// next makes a batch. Its rows come behind those before them, or begin again.
func (x *followed) next() error {
	b, ok := x.core.Next(0)
	x.effects()
	if !ok {
		return nil
	}
	for _, sp := range b.Spans {
		have := x.have[sp.ID]
		if want := max(0, have); sp.Pos != want {
			return fmt.Errorf("batch %d: request %d continues at %d, want %d", b.ID, sp.ID, sp.Pos, want)
		}
		x.have[sp.ID] = sp.Pos + sp.Len
		for _, f := range x.flying {
			if slices.ContainsFunc(f.spans, func(o Span) bool { return o.ID == sp.ID }) {
				if f.lost || b.Follows < f.id {
					return fmt.Errorf("batch %d, which follows %d, has rows behind those of %+v", b.ID, b.Follows, f)
				}
				x.behind++
			}
		}
	}
	x.flying = append(x.flying, flown{b.ID, slices.Clone(b.Spans), false})
	return nil
}

// first reports whether no batch before has a sequence of the i-th.
func (x *followed) first(i int) bool {
	for _, f := range x.flying[:i] {
		for _, sp := range f.spans {
			if slices.ContainsFunc(x.flying[i].spans, func(o Span) bool { return o.ID == sp.ID }) {
				return false
			}
		}
	}
	return true
}

// back brings a batch back, or loses it.
func (x *followed) back() error {
	if len(x.flying) == 0 {
		return nil
	}
	i := x.rng.IntN(len(x.flying))
	f := x.flying[i]
	switch {
	case f.lost:
		x.flying = slices.Delete(x.flying, i, i+1)
		return x.core.Gone(f.id)
	case x.rng.IntN(60) == 0:
		if err := x.core.Fail(f.id, errors.New("lost"), true); err != nil {
			return err
		}
		x.lose(f.id)
		return nil
	}
	var outcomes []Outcome
	for _, sp := range f.spans {
		if sp.Last {
			outcomes = append(outcomes, Outcome{ID: sp.ID, NewTokens: 1})
		}
	}
	err := x.core.Done(f.id, outcomes)
	if !x.first(i) {
		if errors.Is(err, ErrAhead) {
			return nil
		}
		// A sequence that has ended, or begins again, needs no order.
	}
	if err != nil {
		return err
	}
	x.flying = slices.Delete(x.flying, i, i+1)
	for _, o := range outcomes {
		if _, ok := x.left[o.ID]; ok {
			x.left[o.ID]--
		}
	}
	return nil
}

// TestFollow: chunks of a prompt are in flight at the same time, in order. Whatever is lost or preempted, the books stay right and every
// request gets its answer.
func TestFollow(t *testing.T) {
	scripts := uint64(1500)
	if testing.Short() {
		scripts = 500
	}
	behind, voided, preempted := 0, 0, uint64(0)
	for seed := range scripts {
		rng := rand.New(rand.NewPCG(seed, 3))
		micro := 2 + rng.IntN(3)
		cfg := Config{
			BlockTokens: 1 + rng.IntN(4), MaxSeqs: 2 + rng.IntN(5), PrefillChunk: 1 + rng.IntN(8), PrefillShare: 1 + rng.IntN(8), MaxQueue: 20,
			MicroBatches: micro, PrefillBatches: 1 + rng.IntN(micro), MaxRetries: 1000, Follow: true,
		}
		cfg.MaxBatchTokens = cfg.MaxSeqs + 1 + rng.IntN(12)
		cfg.Blocks = cfg.blocksFor(46) + rng.IntN(2)*rng.IntN(20)
		core, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		x := &followed{core: core, rng: rng, have: map[uint64]int{}, left: map[uint64]int{}}
		for i := range 6 {
			r := Request{ID: uint64(i + 1), PromptLen: 1 + rng.IntN(40), MaxNew: 1 + rng.IntN(6)}
			x.left[r.ID] = r.MaxNew
			if err := core.Add(r, 0); err != nil {
				t.Fatal(err)
			}
		}
		for step := 0; !core.Idle(); step++ {
			err := x.next()
			if rng.IntN(3) > 0 && err == nil {
				err = x.back()
			}
			x.effects()
			if err == nil {
				err = core.Check()
			}
			if err == nil && step > 20_000 {
				err = fmt.Errorf("no end: %+v", core.Stats())
			}
			if err != nil {
				t.Fatalf("seed %d, step %d, %+v: %v", seed, step, cfg, err)
			}
		}
		if len(x.left) > 0 {
			t.Fatalf("seed %d: requests %v have no end", seed, x.left)
		}
		behind, voided, preempted = behind+x.behind, voided+x.voided, preempted+core.Stats().Preemptions
	}
	if behind < 300 || voided < 100 || preempted < 20 {
		t.Errorf("%d spans behind others in flight, %d batches void, %d preemptions: the scripts are too tame", behind, voided, preempted)
	}
}
