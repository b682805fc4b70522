package scheduler

import (
	"errors"
	"fmt"
	"testing"
)

// BenchmarkDecode is one whole step (Next, Effects, Done) of n streams.
func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			cfg := roomy
			cfg.BlockTokens, cfg.Blocks = 1<<20, 1<<18 // so that the streams never end
			c := newCore(b, cfg)
			for id := range uint64(n) {
				mustAdd(b, c, Request{ID: id, PromptLen: 1, MaxNew: 1 << 30})
			}
			run(b, &stepper{core: c})
		})
	}
}

// BenchmarkAhead is one whole step of n streams, two batches always in flight.
func BenchmarkAhead(b *testing.B) {
	for _, n := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprintf("streams=%d", n), func(b *testing.B) {
			cfg := further()
			cfg.BlockTokens, cfg.Blocks = 1<<20, 1<<18
			c := newCore(b, cfg)
			for id := range uint64(n) {
				mustAdd(b, c, Request{ID: id, PromptLen: 1, MaxNew: 1 << 30})
			}
			run(b, &relay{stepper: stepper{core: c}})
		})
	}
}

// telling gives the ids of all tokens, so that blocks are cached. It does not allocate.
type telling struct {
	core     *Core
	ids      [256]int32
	outcomes []Outcome
}

func (s *telling) step() error {
	b, ok := s.core.Next(0)
	if !ok {
		return errors.New("no batch")
	}
	s.core.Effects()
	s.outcomes = s.outcomes[:0]
	for i := range b.Spans {
		if sp := &b.Spans[i]; sp.Last {
			s.ids[i%len(s.ids)] = int32(sp.ID) // prompts are alike, answers are not
			s.outcomes = append(s.outcomes, Outcome{ID: sp.ID, NewTokens: 1, Tokens: s.ids[i%len(s.ids) : i%len(s.ids)+1]})
		}
	}
	err := s.core.Done(b.ID, s.outcomes)
	s.core.Effects()
	return err
}

// BenchmarkCached is one whole step of n streams whose blocks of 16 tokens are cached, in a
// pool that they fill, so that every block they take is evicted from the cache, to host memory
// or not. When the pool is full of held ones they begin anew, which is not counted.
func BenchmarkCached(b *testing.B) {
	for _, ram := range []int{0, 1 << 14} {
		for _, n := range []int{8, 256} {
			b.Run(fmt.Sprintf("ram=%d/streams=%d", ram, n), func(b *testing.B) {
				cfg := roomy
				cfg.Blocks, cfg.RAMBlocks = 1<<15, ram
				c := newCore(b, cfg)
				s := &telling{core: c}
				id := uint64(0)
				fill := func() {
					for range n {
						id++
						mustAdd(b, c, Request{ID: id, PromptLen: 100, Prompt: make([]int32, 100), MaxNew: 1500})
					}
					for c.Stats().Decoding < n {
						if err := s.step(); err != nil {
							b.Fatal(err)
						}
					}
				}
				for range 2 * cfg.Blocks / (n * 100) {
					fill()
					for !c.Idle() {
						if err := s.step(); err != nil {
							b.Fatal(err)
						}
					}
				}
				fill()
				b.ReportAllocs()
				for b.Loop() {
					if c.Idle() {
						b.StopTimer()
						fill()
						b.StartTimer()
					}
					if err := s.step(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLongPrompt is the start of a request of 100,000 tokens: added, and looked up where
// all of it is cached, or nothing.
func BenchmarkLongPrompt(b *testing.B) {
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("cached=%v", known), func(b *testing.B) {
			cfg := roomy
			cfg.Blocks, cfg.MaxBatchTokens, cfg.PrefillChunk = 1<<14, 4096, 4096
			c := newCore(b, cfg)
			s := &telling{core: c}
			r := Request{PromptLen: 100_000, Prompt: make([]int32, 100_000), MaxNew: 1}
			for i := range r.Prompt {
				r.Prompt[i] = int32(i * 7 % 50_000)
			}
			mustAdd(b, c, r)
			for !c.Idle() {
				if err := s.step(); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				r.ID++
				if !known {
					r.Domain = [32]byte{1, byte(r.ID), byte(r.ID >> 8), byte(r.ID >> 16)}
				}
				mustAdd(b, c, r)
				bt := mustNext(b, c)
				b.StopTimer()
				c.Cancel(r.ID, Cancelled)
				for i := range bt.Spans {
					if bt.Spans[i].Last {
						s.outcomes = append(s.outcomes[:0], Outcome{ID: r.ID, NewTokens: 1})
					}
				}
				if err := c.Done(bt.ID, s.outcomes[:bt.Wanted]); err != nil {
					b.Fatal(err)
				}
				c.Effects()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkMixed is a step of 16 streams beside prompts that never run out.
func BenchmarkMixed(b *testing.B) {
	cfg := roomy
	cfg.BlockTokens, cfg.Blocks = 1<<20, 1<<18
	c := newCore(b, cfg)
	for id := range uint64(16) {
		mustAdd(b, c, Request{ID: id, PromptLen: 1, MaxNew: 1 << 30})
	}
	mustAdd(b, c, Request{ID: 100, PromptLen: 1 << 33, MaxNew: 1})
	run(b, &stepper{core: c})
}

// BenchmarkRequest is the whole life of a request: 200 tokens of prompt, 20 of
// answer, 64 running at a time; the figure is for one request.
func BenchmarkRequest(b *testing.B) {
	c := newCore(b, roomy)
	s := &stepper{core: c}
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		id++
		mustAdd(b, c, Request{ID: id, PromptLen: 200, MaxNew: 20, Deadline: 1 << 40})
		for st := c.Stats(); st.Waiting+st.Running() >= 64; st = c.Stats() {
			if err := s.step(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func run(b *testing.B, s interface{ step() error }) {
	for range 10 {
		if err := s.step(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.step(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeys is a step of 256 streams of some keys, all of which have more requests waiting.
func BenchmarkKeys(b *testing.B) {
	for _, keys := range []uint64{1, 2, 16, 200} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			cfg := roomy
			cfg.BlockTokens, cfg.Blocks, cfg.MaxSeqs, cfg.MaxQueue = 1<<20, 1<<18, 256, 4096
			c := newCore(b, cfg)
			for id := range uint64(512) {
				mustAdd(b, c, Request{ID: id, PromptLen: 1, MaxNew: 1 << 30, Key: 1 + id%keys, Priority: int(id % 3)})
			}
			run(b, &stepper{core: c})
		})
	}
}
