package scheduler

import (
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
