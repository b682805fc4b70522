package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/actors"
	"krater/actors/engine"
)

// A guest is a request, and company those that are served with it.
type guest struct {
	prompt      []int32
	tokens      int
	temperature float64
}

// company are equal guests, others of several lengths, greedy and drawn.
func company(equal, tokens int, lengths ...int) (list []guest) {
	for range equal {
		list = append(list, guest{prompt: randomIDs(6, 0), tokens: tokens})
	}
	for i, n := range lengths {
		list = append(list, guest{prompt: randomIDs(n, i+1), tokens: tokens + i%2, temperature: float64(i%2) * 0.8})
	}
	return list
}

// randomIDs are n tokens of krater-tiny.
func randomIDs(n, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(100 + (i*i*7+i*31+seed*977+11)%8000)
	}
	return ids
}

// said is the answer to a guest: text and, if the answer has them, tokens and the bits of log-probabilities.
type said struct {
	ids  []int32
	bits []uint32
	text string
}

func (a said) equal(b said) bool {
	return a.text == b.text && slices.Equal(a.ids, b.ids) && slices.Equal(a.bits, b.bits)
}

// table is krater-tiny as actors.
type table struct {
	gw *actors.Gateway
	// tokensOnly leaves out log-probabilities: what a GPU chooses itself, a step ahead.
	tokensOnly bool
}

// tableFor loads krater-tiny with flags of `krater run`.
func tableFor(t *testing.T, args ...string) *table {
	t.Helper()
	return tableOf(t, tinyDir(), args...)
}

// tableOf loads the model of a folder.
func tableOf(t *testing.T, dir string, args ...string) *table {
	t.Helper()
	s, p := startedOf(t, dir, args...)
	gw, err := s.Gateway(p, "")
	if err != nil {
		t.Fatal(err)
	}
	return &table{gw: gw}
}

// serve answers a guest; begun is called with its first token.
func (x *table) serve(g guest, begun func()) (a said, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	seed := uint64(5)
	r := engine.Request{ID: "test", Prompt: engine.Prompt{IDs: g.prompt}, MaxTokens: g.tokens, IgnoreEOS: true, Logprobs: 3,
		Sampling: engine.Sampling{Temperature: g.temperature, TopP: 1, RepetitionPenalty: 1, Seed: &seed}}
	if x.tokensOnly {
		r.Logprobs = -1
	}
	s, err := x.gw.Submit(ctx, &r)
	if err != nil {
		return a, err
	}
	defer s.Close()
	once := sync.OnceFunc(begun)
	defer once()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return a, err
		}
		a.text += e.Text
		for _, tok := range e.Tokens {
			a.ids = append(a.ids, tok.ID)
			a.bits = append(a.bits, math.Float32bits(tok.Logprob))
			for _, p := range tok.Top {
				a.bits = append(a.bits, uint32(p.ID), math.Float32bits(p.Logprob))
			}
		}
		switch e.Kind {
		case engine.Done:
			return a, nil
		case engine.Failed:
			return a, errors.New(e.Err.Message)
		}
		if len(e.Tokens) > 0 {
			once()
		}
	}
}

// together answers all guests at once or, in turn, each when the one before it has been given a
// token.
func (x *table) together(t *testing.T, list []guest, inTurn bool) []said {
	t.Helper()
	out := make([]said, len(list))
	var wg sync.WaitGroup
	for i, g := range list {
		begun := make(chan struct{})
		wg.Go(func() {
			var err error
			if out[i], err = x.serve(g, func() { close(begun) }); err != nil {
				t.Errorf("guest %d: %v", i, err)
			}
		})
		if inTurn {
			<-begun
		}
	}
	wg.Wait()
	return out
}

// alone answers one guest after the other.
func (x *table) alone(t *testing.T, list []guest) (out []said) {
	t.Helper()
	for i, g := range list {
		if i > 0 && slices.Equal(g.prompt, list[i-1].prompt) && g.temperature == 0 {
			out = append(out, out[i-1]) // the same question
			continue
		}
		out = append(out, x.together(t, list[i:i+1], false)...)
	}
	return out
}

// differences names the guests who were answered something else than alone.
func differences(alone, got []said) (who []int) {
	for i := range alone {
		if !alone[i].equal(got[i]) {
			who = append(who, i)
		}
	}
	return who
}

// TestBatchInvariant: on the processor, and where it plays a device, answers have the bits that
// they have alone, whatever requests are served with them, whenever they come and however prompts
// are cut; with --batch-invariant or --same-tokens and without.
func TestBatchInvariant(t *testing.T) {
	list := company(8, 9, 2, 21, 70, 130, 5)
	var want []said
	for i, args := range [][]string{
		nil, {"--batch-invariant", "--prefill-chunk", "16", "--prefill-share", "7"},
		{"--block-tokens", "4", "--layer-groups", "2"},
		{"--device", "hostsim", "--same-tokens"}, {"--device", "hostsim", "--prefill-chunk", "5", "--max-seqs", "3", "--no-prefix-cache"},
	} {
		x := tableFor(t, args...)
		if i == 0 {
			want = x.alone(t, list)
		}
		for _, inTurn := range []bool{false, true} {
			if who := differences(want, x.together(t, list, inTurn)); who != nil {
				t.Errorf("%q, in turn: %v: guests %v are answered something else than alone", args, inTurn, who)
			}
		}
	}
}

// blockOf4 is a KV block of 4 tokens of krater-tiny, in bytes.
const blockOf4 = 4 * 80 * 2 * 7

// TestPreempted: those who give up their memory and have it computed again go on with the bits they
// would have had.
func TestPreempted(t *testing.T) {
	var list []guest
	for i := range 4 {
		list = append(list, guest{prompt: randomIDs(5+i, i), tokens: 90, temperature: float64(i%2) * 0.9})
	}
	for _, device := range []string{"cpu", "hostsim"} {
		x := tableFor(t, "--device", device, "--block-tokens", "4", "--kv-cache", fmt.Sprint(40*blockOf4)) // each takes 25
		want := x.alone(t, list)
		if who := differences(want, x.together(t, list, false)); who != nil {
			t.Errorf("%s: guests %v are answered something else than alone", device, who)
		}
		if x.gw.Stats().Preemptions == 0 {
			t.Errorf("%s: no request was preempted", device)
		}
	}
}
