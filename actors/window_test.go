//go:build !race

// It compares bits of many answers; other tests lose steps, preempt and cancel under the race detector.

package actors

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/kernels/tensor"
	"krater/stages"
)

// TestWindowsAnswerAlike: requests have the same answers, to the bit, whether layers with a window have
// few window blocks or keep all rows: with prompts in chunks of any size, prefixes from the cache,
// preempted sequences and several batches in flight, on one rank and on two.
func TestWindowsAnswerAlike(t *testing.T) {
	for _, name := range []string{"mistral", "gpt_oss", "gpt_oss_mxfp4"} {
		for _, kv := range []tensor.DType{tensor.F32, tensor.I8} {
			if kv == tensor.I8 && testing.Short() && name != "mistral" {
				continue
			}
			var want [][]engine.Token
			for _, x := range []struct {
				chunk     int
				ranks     int
				simulated bool
				policy    Policy
				blocks    int
				windows   int
			}{
				{chunk: 64, ranks: 1, policy: Policy{NoReuse: true}, blocks: 200}, // each alone from its first token
				{chunk: 1, ranks: 1, blocks: 28, windows: 28},
				{chunk: 7, ranks: 1, blocks: 28, windows: 28},
				{chunk: 64, ranks: 1, blocks: 400, windows: 140, simulated: true},
				{chunk: 7, ranks: 2, blocks: 28, windows: 28},
				{chunk: 64, ranks: 2, blocks: 28, windows: 28, simulated: true},
			} {
				what := fmt.Sprintf("%s, KV %s, chunks of %d, %d ranks, %d blocks, %d window blocks", name, kv, x.chunk, x.ranks, x.blocks, x.windows)
				o := setup{dir: golden(name), depth: 3, chunk: x.chunk, share: 64, kv: kv,
					limits: stages.Limits{Tokens: 80, Seqs: 6, Blocks: x.blocks, BlockTokens: 4, Window: 24, WindowBlocks: x.windows}}.defaults()
				h := newHold(6)
				o.wrap = h.wrap
				l := loadModel(t, o)
				sizes := []int{len(l.cfg.Layers)}
				if x.ranks == 2 {
					sizes = []int{1, len(l.cfg.Layers) - 1}
				}
				p := l.over(t, o, l.spread(t, o, sizes, x.simulated), func(opt *Options) { opt.Policy.NoReuse = x.policy.NoReuse })
				gw := l.open(t, p)
				got := conversation(t, gw, h.release)
				s := gw.Stats()
				if want == nil {
					want = got
					continue
				}
				for i := range got {
					if !slices.EqualFunc(got[i], want[i], sameToken) {
						t.Errorf("%s: answer %d: %v, want %v", what, i, got[i], want[i])
					}
				}
				if s.PrefixHits == 0 || s.Preemptions == 0 && x.blocks < 100 {
					t.Errorf("%s: %d preemptions, %d tokens from the cache: the test is too easy", what, s.Preemptions, s.PrefixHits)
				}
			}
		}
	}
}

// TestWindowedChoices: the choices of one prompt share all its blocks with their window blocks. Each copies
// the last block, which is not full, and its window block.
func TestWindowedChoices(t *testing.T) {
	o := prefixed("gpt_oss")
	o.limits.WindowBlocks = 115
	h := newHold(4) // choices of one that has ended compute its last tokens again
	o.wrap = h.wrap
	r := newRig(t, o)
	gw := r.gateway(t)
	text := slices.Repeat([]int32{3, 1, 4, 1, 5, 9, 2}, 4)
	text = append(text, 8, 8)
	ask := func(i uint64, group uint64) *engine.Request {
		req := asked(text, 9, i)
		req.Group = group
		return req
	}
	var open []engine.Stream
	for i := range uint64(4) {
		st, err := gw.Submit(context.Background(), ask(i, 7))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	h.release(gw)
	var got [][]engine.Token
	for i, st := range open {
		tokens, u := finished(t, st)
		got = append(got, tokens)
		if want := []int{0, 29, 29, 29}[i]; u.Cached != want {
			t.Errorf("choice %d has %d tokens from the cache, want %d", i, u.Cached, want)
		}
	}
	o.limits.WindowBlocks, o.wrap = 0, nil
	all := newRig(t, o).gateway(t)
	for i := range got {
		if want, _ := whole(t, all, ask(uint64(i), 0)); !slices.EqualFunc(got[i], want, sameToken) {
			t.Errorf("choice %d is another than alone, with all rows kept", i)
		}
	}
}
