package actors

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/stages"
)

// asked is a request whose tokens are compared bit for bit: drawn, with log-probabilities.
func asked(ids []int32, n int, seed uint64) *engine.Request {
	req := greedy(ids, n)
	req.Logprobs = 1
	req.Sampling.Temperature, req.Sampling.Seed = 1, &seed
	return req
}

// whole runs a request to its end.
func whole(t *testing.T, gw *Gateway, req *engine.Request) ([]engine.Token, engine.Usage) {
	t.Helper()
	st, err := gw.Submit(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return finished(t, st)
}

// finished reads an answer to its end.
func finished(t *testing.T, st engine.Stream) (all []engine.Token, u engine.Usage) {
	t.Helper()
	events, err := everything(st)
	if err != nil {
		t.Fatal(err)
	}
	_, last := ending(t, events)
	if last.Kind != engine.Done {
		t.Fatalf("ended with %+v", last)
	}
	for _, e := range events {
		if e.Kind == engine.Tokens {
			all = append(all, e.Tokens...)
		}
	}
	return all, last.Usage
}

func ids(tokens []engine.Token) (out []int32) {
	for i := range tokens {
		out = append(out, tokens[i].ID)
	}
	return out
}

// prefixed is a setup with room for long prompts in small blocks.
func prefixed(model string) setup {
	return setup{dir: golden(model), groups: 2, chunk: 24, share: 16, limits: stages.Limits{Tokens: 80, Seqs: 6, Blocks: 120, BlockTokens: 4}}
}

// TestAHitChangesNoToken: A, then A with an answer and more (CASES 15): against a cache that is
// never used every token has the same bits, in both forms of attention, and the prompt is
// found, the answer too unless it was computed otherwise than a prompt.
func TestAHitChangesNoToken(t *testing.T) {
	for _, c := range []struct {
		model   string
		answers bool // are found
	}{{"deepseek_v2_lite", false}, {"qwen2", true}} {
		t.Run(c.model, func(t *testing.T) {
			r := loadModel(t, prefixed(c.model).defaults())
			talk := func(reuse bool) (turns [][]engine.Token, cached []int) {
				o := r.options(t, prefixed(c.model).defaults())
				o.Policy.NoReuse = !reuse
				p, err := Start(r.placed(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				gw := r.open(t, p)
				text := []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7}
				for turn := range uint64(3) {
					got, u := whole(t, gw, asked(text, 21, turn))
					turns, cached = append(turns, got), append(cached, u.Cached)
					text = slices.Concat(text, ids(got), []int32{2, 7, 1, 8, 2, 8})
				}
				s := gw.Stats()
				for range 1000 {
					if s.KVBlocksUsed == 0 {
						break
					}
					time.Sleep(time.Millisecond) // the end is told before the last batch is back
					s = gw.Stats()
				}
				if s.KVBlocksUsed > 0 || reuse && (s.PrefixHits == 0 || s.PrefixQueries < s.PrefixHits || s.KVBlocksCached == 0) || !reuse && s.PrefixHits > 0 {
					t.Errorf("reuse %v: %d of %d tokens found, %d blocks kept", reuse, s.PrefixHits, s.PrefixQueries, s.KVBlocksCached)
				}
				return turns, cached
			}
			want, none := talk(false)
			got, cached := talk(true)
			for i := range want {
				if !slices.EqualFunc(got[i], want[i], sameToken) {
					t.Errorf("turn %d: other tokens or other bits", i)
				}
			}
			// Blocks of 4: 12 of the first 14 tokens, then 40 of 41. With answers all 34 and 61 tokens that were fed
			// back, up to the middle of a block.
			most := []int{0, 12, 40}
			if c.answers {
				most = []int{0, 34, 61}
			}
			if !slices.Equal(none, []int{0, 0, 0}) || !slices.Equal(cached, most) {
				t.Errorf("cached %v and %v, want none and %v", none, cached, most)
			}
		})
	}
}

// TestOwnersKeepTheirPrefixes: nobody finds what another's prompt has left, unless that is
// allowed.
func TestOwnersKeepTheirPrefixes(t *testing.T) {
	r := loadModel(t, prefixed("qwen2").defaults())
	for _, shared := range []bool{false, true} {
		p, err := Start(r.placed(), r.options(t, prefixed("qwen2").defaults()))
		if err != nil {
			t.Fatal(err)
		}
		gw := r.open(t, p)
		gw.opt.ShareKV = shared
		text := slices.Repeat([]int32{3, 1, 4, 1, 5}, 5)
		var cached []int
		for _, owner := range []string{"one", "two", "one", ""} {
			req := asked(text, 3, 1)
			req.Owner = owner
			_, u := whole(t, gw, req)
			cached = append(cached, u.Cached)
		}
		// A prompt that was there before is copied up to its last token.
		want := []int{0, 0, 24, 0}
		if shared {
			want = []int{0, 24, 24, 24}
		}
		if !slices.Equal(cached, want) {
			t.Errorf("shared %v: cached %v, want %v", shared, cached, want)
		}
		for owner, has := range map[string]bool{"one": true, "two": true, "three": shared} {
			list, err := gw.Prefixes(t.Context(), owner)
			if err != nil || list.BlockTokens != 4 {
				t.Fatalf("%+v, %v", list, err)
			}
			for n := 4; n < len(text); n += 4 {
				if slices.Contains(list.Digests, digest(text[:n])) != has {
					t.Errorf("shared %v: the list for %q has the first %d tokens: %v", shared, owner, n, !has)
				}
			}
		}
		p.Close()
	}
}

// digest is FNV-1a of the ids, four bytes each.
func digest(ids []int32) uint64 {
	h := fnv.New64a()
	for _, id := range ids {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	}
	return h.Sum64()
}

// TestChoicesShareTheirPrompt: the prompt of several choices is computed once, and each has
// the tokens that it has alone.
func TestChoicesShareTheirPrompt(t *testing.T) {
	for _, model := range []string{"deepseek_v2_lite", "qwen2"} {
		s, h := prefixed(model), newHold(4) // choices of one that has ended compute its last tokens again
		s.wrap = h.wrap
		r := newRig(t, s)
		gw := r.gateway(t)
		text := slices.Repeat([]int32{3, 1, 4, 1, 5, 9, 2}, 4)
		var open []engine.Stream
		for i := range uint64(4) {
			req := asked(text, 9, i)
			req.Group = 7
			st, err := gw.Submit(context.Background(), req)
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
			if want := []int{0, 27, 27, 27}[i]; u.Cached != want {
				t.Errorf("%s: choice %d has %d tokens from the cache, want %d", model, i, u.Cached, want)
			}
		}
		computed := gw.Stats().PromptTokens
		if computed != 28+3 {
			t.Errorf("%s: %d rows of prompts, want the prompt and its last token for the others", model, computed)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		o := r.options(t, prefixed(model).defaults())
		o.Policy.NoReuse = true
		p, err := Start(r.placed(), o)
		if err != nil {
			t.Fatal(err)
		}
		alone := r.open(t, p)
		for i := range got {
			if want, _ := whole(t, alone, asked(text, 9, uint64(i))); !slices.EqualFunc(got[i], want, sameToken) {
				t.Errorf("%s: choice %d is another than alone", model, i)
			}
		}
		p.Close()
	}
}

// TestPreemptionChangesNoToken: with a cache too small for all at once requests lose their
// blocks to others and are computed again, and each has the tokens that it has alone, bit for
// bit.
func TestPreemptionChangesNoToken(t *testing.T) {
	for _, model := range []string{"deepseek_v2_lite", "qwen2"} {
		for _, c := range []struct{ reuse, answers bool }{{true, false}, {true, true}, {false, false}} {
			reuse := c.reuse
			t.Run(fmt.Sprintf("%s %+v", model, c), func(t *testing.T) {
				o := setup{dir: golden(model), groups: 2, depth: 2, chunk: 24, share: 16, limits: stages.Limits{Tokens: 80, Seqs: 6, Blocks: 21, BlockTokens: 4}}.defaults()
				r := loadModel(t, o)
				start := func(change func(*Policy)) (*Pipeline, *Gateway) {
					opt := r.options(t, o)
					opt.Policy.ReuseAnswers = c.answers
					change(&opt.Policy)
					p, err := Start(r.placed(), opt)
					if err != nil {
						t.Fatal(err)
					}
					return p, r.open(t, p)
				}
				ask := func(i int) *engine.Request {
					req := asked([]int32{3, 1, 4, int32(i), 5, 9, 2}, 40+i, uint64(i))
					req.Priority = i % 2
					return req
				}
				p, gw := start(func(c *Policy) { c.NoReuse = !reuse })
				var open []engine.Stream
				for i := range 6 {
					st, err := gw.Submit(context.Background(), ask(i))
					if err != nil {
						t.Fatal(err)
					}
					open = append(open, st)
				}
				var got [][]engine.Token
				for _, st := range open {
					tokens, _ := finished(t, st)
					got = append(got, tokens)
				}
				rest(t, &rig{Pipeline: p, loaded: r}, gw)
				if n := gw.Stats().Preemptions; n == 0 {
					t.Error("nobody was preempted: the test shows nothing")
				}
				p.Close()
				p, gw = start(func(c *Policy) { c.NoReuse = true })
				defer p.Close()
				for i := range got {
					if want, _ := whole(t, gw, ask(i)); !slices.EqualFunc(got[i], want, sameToken) {
						t.Errorf("request %d is another than alone", i)
					}
				}
			})
		}
	}
}

// TestPromptLogprobs: a prompt's tokens have the log-probabilities that they have in an answer,
// for chunks of any size, and for a prompt alone or among others.
func TestPromptLogprobs(t *testing.T) {
	o := prefixed("qwen2")
	o.limits.LogitRows = 7
	r := newRig(t, o)
	gw := r.gateway(t)
	none := 2
	answer, _ := whole(t, gw, func() *engine.Request {
		req := asked([]int32{3, 1, 4, 1, 5}, 30, 1)
		req.Logprobs = 2
		return req
	}())
	text := slices.Concat([]int32{3, 1, 4, 1, 5}, ids(answer))
	var open []engine.Stream
	for i := range 3 {
		req := asked(text, 2, uint64(i))
		req.PromptLogprobs = &none
		st, err := gw.Submit(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	for _, st := range open {
		events, err := everything(st)
		if err != nil {
			t.Fatal(err)
		}
		var scored []engine.Token
		for _, e := range events {
			if e.Kind == engine.Scored {
				scored = append(scored, e.Tokens...)
			}
		}
		if !slices.Equal(ids(scored), text) || scored[0].Logprob == scored[0].Logprob {
			t.Fatalf("scored %v, want %v", ids(scored), text)
		}
		for i, tok := range answer {
			s := scored[5+i]
			if !sameToken(s, tok) {
				t.Errorf("token %d: %+v as a prompt, %+v as an answer", i, s, tok)
			}
			if s.Rank < 1 || s.Rank == 1 != (s.Top[0].ID == s.ID) {
				t.Errorf("token %d: rank %d of %+v", i, s.Rank, s)
			}
		}
	}
}
