//go:build !race

// It compares bits of many answers; other tests lose steps, preempt and cancel under the race detector.

package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages"
)

// stateKinds are golden models with every kind of state that a sequence may have.
var stateKinds = []struct{ model, state string }{
	{"deepseek_v2_lite", "latent KV"},
	{"qwen3_moe", "KV"},
	{"mistral", "KV of a window in every layer"},
	{"gpt_oss", "KV, of a window in some layers"},
	{"glm_moe_dsa", "latent KV, and index keys in some layers"},
	{"gemma4_e", "KV, of a window in some layers, and used by others than its own"},
	{"qwen3_next", "KV, and DeltaNet's states with the tail of its convolution"},
	{"deepseek_v4", "rows of a window, compressed entries and those of an index, and the raw rows that the next ones are made of"},
	{"qwen4_exp", "KV, index keys of tokens and blocks, DeltaNet's states, token ids, and the tail of a table's convolution"},
	{"glm5_next", "latent KV, keys of pools with the open pool's tokens, and KDA's states with the tails of its convolutions"},
	{"minimax_m3", "KV, and in some layers index keys by which each key head chooses blocks"},
}

// TestStateCases: whatever a model keeps of a sequence, an answer has the bits that it has in a cache
// of its own, computed in one go. Prompts are in chunks of every size and begin with cached
// prefixes, requests are preempted and resumed, steps are lost behind some or all layers and repeated,
// and a client leaves while others are served.
func TestStateCases(t *testing.T) {
	chunks := []int{1, 7, 64}
	for i, k := range stateKinds {
		limits := stages.Limits{Tokens: 80, Seqs: 6, Blocks: 200, BlockTokens: 8, Snapshots: 8}
		alone := setup{dir: golden(k.model), chunk: 64, share: 64, limits: limits, noReuse: true}
		r := newRig(t, alone)
		gw := r.gateway(t)
		want := conversation(t, gw)
		if s := gw.Stats(); s.Preemptions+s.PrefixHits > 0 {
			t.Fatalf("%s: %d preemptions, %d tokens from the cache where there should be none", k.model, s.Preemptions, s.PrefixHits)
		}
		for j := range 4 {
			if testing.Short() && (i+j/2+j)%2 > 0 {
				continue // the next kind has it
			}
			simulated, groups, chunk := j/2 == 1, 1+j%2, chunks[(i+j)%len(chunks)]
			t.Run(fmt.Sprintf("%s/simulated=%t/groups%d/chunk%d", k.model, simulated, groups, chunk), func(t *testing.T) {
				crowded := setup{dir: golden(k.model), groups: groups, depth: 2, chunk: chunk, share: 64, retries: 50, simulated: simulated, limits: limits}
				crowded.limits.Blocks, crowded.limits.WindowBlocks = 14, 14
				for i, got := range crowd(t, crowded) {
					if !slices.EqualFunc(got, want[i], sameToken) {
						t.Errorf("%s: answer %d: %v, want %v", k.state, i, got, want[i])
					}
				}
			})
		}
	}
}

// crowd holds the conversation where there is room for few of its requests, beside a request that
// its client leaves. Six steps are lost: before, between and behind the layers of the last group. No
// batch passes before the first requests have all come.
func crowd(t *testing.T, o setup) [][]engine.Token {
	var seen, lost atomic.Int64
	h := newHold(7)
	last := fmt.Sprintf("group%d", o.groups-1)
	o.wrap = func(actor string, n node) node {
		if actor != "sample" && actor != last {
			return n
		}
		return hook{h.wrap(actor, n), func(_ *turn, m any) {
			if _, ok := m.(msg.Carrier); ok && seen.Add(1)%17 == 8 && lost.Add(1) <= 6 {
				panic(errors.New("the step is lost"))
			}
		}}
	}
	r := newRig(t, o)
	gw := r.gateway(t)
	left, err := gw.Submit(context.Background(), greedy(slices.Repeat([]int32{70, 71, 72}, 10), 60))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	got := conversation(t, gw, h.release, func(*Gateway) {
		go func() {
			defer close(gone)
			left.Next(context.Background())
			left.Close()
		}()
	})
	<-gone
	rest(t, r, gw)
	s := gw.Stats()
	if s.Preemptions == 0 || s.PrefixHits == 0 || lost.Load() < 6 || s.Finished["abort"] != 1 {
		t.Errorf("%d preemptions, %d tokens from the cache, %d lost steps, ended %v: the test is too easy", s.Preemptions, s.PrefixHits, lost.Load(), s.Finished)
	}
	return got
}
