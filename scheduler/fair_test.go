package scheduler

import (
	"fmt"
	"testing"
)

// served is a server in the middle of its work: what its keys have sent goes on for ever.
type served struct {
	core  *Core
	next  uint64
	first map[uint64]int // batches made when a request's first token came
	made  int
	line  []Batch
	refil func(id uint64) // called with each request that ended
}

func newServed(t *testing.T, cfg Config) *served {
	return &served{core: newCore(t, cfg), first: map[uint64]int{}}
}

// add sends a request and returns its id.
func (s *served) add(t *testing.T, r Request) uint64 {
	t.Helper()
	s.next++
	r.ID = s.next
	mustAdd(t, s.core, r)
	return r.ID
}

// step makes what batches there can be, and brings the oldest back.
func (s *served) step(t *testing.T) {
	t.Helper()
	for b, ok := s.core.Next(0); ok; b, ok = s.core.Next(0) {
		s.line = append(s.line, b)
		s.made++
	}
	if len(s.line) == 0 {
		t.Fatalf("nothing to do: %+v", s.core.Stats())
	}
	b := s.line[0]
	s.line = s.line[1:]
	var outcomes []Outcome
	for _, sp := range b.Spans {
		if sp.Last {
			outcomes = append(outcomes, Outcome{ID: sp.ID, NewTokens: 1})
			if s.first[sp.ID] == 0 {
				s.first[sp.ID] = s.made
			}
		}
	}
	if err := s.core.Done(b.ID, outcomes); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.core.Effects() {
		if e.Kind == Ended && s.refil != nil {
			s.refil(e.ID)
		}
	}
}

// wait steps until a request has its first token, and returns how many batches were made.
func (s *served) wait(t *testing.T, id uint64, most int) int {
	t.Helper()
	began := s.made
	for s.first[id] == 0 {
		if s.step(t); s.made-began > most {
			return s.made - began
		}
	}
	return s.first[id] - began
}

// usual is a server with the defaults of the command line, about.
var usual = Config{BlockTokens: 32, Blocks: 4096, MaxBatchTokens: 1024, MaxSeqs: 32, PrefillChunk: 512, PrefillShare: 256, MaxQueue: 256, MicroBatches: 1, PrefillBatches: 1}

// firstTokenBound is the bound that docs/scheduling.md promises: the most batches until the first
// token of a request that is the only one of its key. keys is the number of keys with requests, at
// most the number of sequences that can run. A device that takes batches ahead adds those in flight.
func firstTokenBound(cfg Config, keys, prompt int) int {
	return keys*(share(prompt, cfg.PrefillShare)+1) + debt*(keys-1) + 2*cfg.Depth()
}

// TestFirstToken: whatever others have sent, a request of a key that has nothing else gets its
// first token within the bound.
func TestFirstToken(t *testing.T) {
	chat := func(key uint64) Request { return Request{PromptLen: 700, MaxNew: 600, Key: key} }
	loads := map[string]func(key uint64) []Request{ // of one of the others
		"many long chats": func(key uint64) (all []Request) {
			for range 192 {
				all = append(all, chat(key))
			}
			return all
		},
		"many chats of a high priority": func(key uint64) (all []Request) {
			for range 150 {
				r := chat(key)
				r.Priority = 1000
				all = append(all, r)
			}
			return all
		},
		"a request of 128 scored prompts": func(key uint64) (all []Request) {
			for range 128 {
				all = append(all, Request{PromptLen: 2000, MaxNew: 1, Scored: true, Key: key})
			}
			return all
		},
		"long contexts": func(key uint64) (all []Request) {
			for range 8 {
				all = append(all, Request{PromptLen: 20_000, MaxNew: 2000, Key: key})
			}
			return all
		},
	}
	for name, load := range loads {
		for _, others := range []uint64{1, 2, 5, 15} {
			if name == "long contexts" && others > 5 {
				continue // one of each key is more than all memory: TestOvertaker
			}
			for _, aging := range []int{0, 10, 1000} {
				for _, ahead := range []bool{false, true} {
					for _, prompt := range []int{8, 1500} {
						t.Run(fmt.Sprintf("%s/others=%d/aging=%d/ahead=%v/prompt=%d", name, others, aging, ahead, prompt), func(t *testing.T) {
							t.Parallel()
							testFirstToken(t, load, others, aging, ahead, prompt)
						})
					}
				}
			}
		}
	}
}

func testFirstToken(t *testing.T, load func(uint64) []Request, others uint64, aging int, ahead bool, prompt int) {
	cfg := usual
	cfg.Aging, cfg.Ahead, cfg.MaxQueue = aging, ahead, 4096
	s := newServed(t, cfg)
	sent := map[uint64]Request{}
	send := func(r Request) { sent[s.add(t, r)] = r }
	s.refil = func(id uint64) {
		if r, ok := sent[id]; ok {
			send(r)
			delete(sent, id)
		}
	}
	for key := range others {
		for _, r := range load(key + 1) {
			send(r)
		}
	}
	most, longest := firstTokenBound(cfg, int(others)+1, prompt), 0
	for range 4 {
		for range 600 {
			s.step(t)
		}
		id := s.add(t, Request{PromptLen: prompt, MaxNew: 8, Key: 1 << 40})
		longest = max(longest, s.wait(t, id, most))
		if longest > most {
			t.Fatalf("no first token in %d batches, want at most %d: %+v", longest, most, s.core.Stats())
		}
		for s.core.byID[id] != nil {
			s.step(t)
		}
	}
	t.Logf("first token after %d batches at most, of %d", longest, most)
}

// TestOvertaker: a request that needs more memory than is available does not delay small
// requests of other keys, and starts when what ran before it has ended, however many of
// those come.
func TestOvertaker(t *testing.T) {
	cfg := usual
	s := newServed(t, cfg)
	for range 6 {
		s.add(t, Request{PromptLen: 20_000, MaxNew: 1000, Key: 1})
	}
	for range 600 {
		s.step(t)
	}
	large := s.add(t, Request{PromptLen: 110_000, MaxNew: 8, Key: 2})
	for s.core.byID[1] != nil {
		id := s.add(t, Request{PromptLen: 300, MaxNew: 8, Key: 3})
		if most := firstTokenBound(cfg, 3, 300); s.wait(t, id, most) > most {
			t.Fatalf("no request overtakes the large request: %+v", s.core.Stats())
		}
		if same := s.core.byID[large]; same.phase != waiting && s.core.byID[1] != nil {
			t.Fatal("the large request has started beside the others: the test shows nothing")
		}
	}
	for range 100 { // more than would fit beside it
		s.add(t, Request{PromptLen: 2000, MaxNew: 300, Key: 4})
	}
	if most := 110_000/cfg.PrefillShare*3 + 1000; s.wait(t, large, most) > most {
		t.Errorf("the large request has no token: %+v", s.core.Stats())
	}
}

// TestPlaces: a key that has all slots and memory gives up what is beyond an equal share, and no
// more: the keys do not take places from each other in turn.
func TestPlaces(t *testing.T) {
	for _, prompt := range []int{20, 4000} { // slots are short, or memory
		cfg := usual
		s := newServed(t, cfg)
		for range 64 {
			s.add(t, Request{PromptLen: prompt, MaxNew: 3000, Key: 1})
		}
		for range 700 {
			s.step(t)
		}
		all := len(s.core.keys[payer{key: 1}].running)
		for range 64 {
			s.add(t, Request{PromptLen: prompt, MaxNew: 3000, Key: 2})
		}
		for range 700 {
			s.step(t)
		}
		one, two := len(s.core.keys[payer{key: 1}].running), len(s.core.keys[payer{key: 2}].running)
		if diff := one - two; diff < -2 || diff > 2 || one+two < all-4 {
			t.Errorf("prompts of %d: one key runs %d, the other %d, the first had %d", prompt, one, two, all)
		}
		if n := s.core.Stats().Preemptions; int(n) > all {
			t.Errorf("prompts of %d: %d preemptions for %d places", prompt, n, all)
		}
		t.Logf("prompts of %d: %d of %d and %d, %d preemptions", prompt, one, all, two, s.core.Stats().Preemptions)
	}
}

// TestQueueOfKeys: no key takes all places of the queue, except key 0.
func TestQueueOfKeys(t *testing.T) {
	cfg := usual
	cfg.MaxQueue = 100
	c := newCore(t, cfg)
	id, got := uint64(0), []int{}
	for _, key := range []uint64{1, 2, 3, 4, 0} {
		n := 0
		for id++; c.Add(Request{ID: id, PromptLen: 1, MaxNew: 1, Key: key}, 0) == nil; id++ {
			n++
		}
		got = append(got, n)
	}
	if want := []int{75, 19, 5, 1, 0}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("keys have %v places, want %v", got, want)
	}
}
