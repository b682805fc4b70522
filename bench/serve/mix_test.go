package serve

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// TestPrompts: the server counts the tokens that a prompt was made to have, for every kind of
// prompt, over every door.
func TestPrompts(t *testing.T) {
	for _, door := range Doors {
		inBubble(t, func(r *rig) {
			for _, m := range []Mix{
				{Prompt: Lengths{"uniform", 30, 300}, Answer: fixed(3)},
				{Prompt: Lengths{"uniform", 30, 300}, Answer: fixed(3), Prefix: 100, PrefixShare: 0.5},
				{Prompt: Lengths{"lognormal", 161, 1.3}, Answer: Lengths{"lognormal", 100, 0.9}, ShareGPT: true, Prefix: 50, PrefixShare: 0.5},
			} {
				p := r.plan(door)
				m.Seed = 9
				p.Mix, p.Load.Requests = m, 60
				if got := r.run(p)[0]; got.PromptsOff != 0 || got.Outcomes[OK] != 60 || got.PromptTokens < 60*30 {
					t.Errorf("%s, %+v: %d prompts of other lengths, %v %v", door, m, got.PromptsOff, got.Outcomes, got.Errors)
				}
			}
		})
	}
}

// TestPromptsAreNew: no prompt begins as another one did, neither of the same load nor of another
// load, another door or another run, but for the prefix that was asked for. So nothing else comes
// from the prefix cache of a server.
func TestPromptsAreNew(t *testing.T) {
	const prefix, prompt, begin = 80, 64, 16
	inBubble(t, func(r *rig) {
		var mu sync.Mutex
		seen, shared := map[string]bool{}, 0
		r.engine.Choose(func(q *engine.Request) (enginetest.Script, error) {
			mu.Lock()
			defer mu.Unlock()
			text := asked(t, q.Prompt)
			if len(text) > prefix {
				text = text[prefix:]
				shared++
			}
			if text = text[:begin]; seen[text] {
				t.Errorf("a prompt begins with %q again", text)
			}
			seen[text] = true
			return enginetest.Timed(enginetest.Finish(engine.FinishLength, "x"), 0, 10*time.Millisecond, 0), nil
		})
		for seed, load := range []func(*Plan){
			func(p *Plan) { p.Concurrency, p.Rates = nil, []float64{40, 40, 80} },
			func(p *Plan) {
				p.Concurrency = []int{2}
				p.Load.Requests, p.Load.Duration, p.Soak = 0, 500*time.Millisecond, &Watcher{Every: 100 * time.Millisecond}
			},
		} {
			p := r.plan("completions", "completions", "chat")
			p.Mix = Mix{Prompt: fixed(prompt), Answer: fixed(1), Prefix: prefix, PrefixShare: 0.5, Seed: uint64(seed)}
			load(p)
			r.run(p)
		}
		if n := len(seen); n < 200 || shared < n/3 || shared > 2*n/3 {
			t.Errorf("%d prompts, %d with the prefix", n, shared)
		}
	})
}

// asked returns a prompt without what a template puts around it, a letter for each token.
func asked(t *testing.T, p engine.Prompt) (text string) {
	if p.Chat == nil {
		for _, id := range p.IDs {
			text += string(rune(id))
		}
		return text
	}
	var messages []struct{ Content string }
	if err := json.Unmarshal(p.Chat.Messages, &messages); err != nil {
		t.Error(err)
	}
	for _, m := range messages {
		text += m.Content
	}
	return text
}

// source makes one with words of a tokenizer of letters.
func source(t *testing.T, m Mix, chat bool) *Source {
	t.Helper()
	w := &Words{around: 12, system: 9, pair: 17, Context: 2048}
	for i, text := range strings.Fields(candidates[1]) {
		w.texts, w.ids = append(w.texts, text), append(w.ids, int32(i))
	}
	s, err := NewSource(m, w, chat, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConversations: turns go on with what was said, in the order of a conversation; the same seed
// gives the same ones; none outgrows the context.
func TestConversations(t *testing.T) {
	m := Mix{ShareGPT: true, Prompt: Lengths{"lognormal", 161, 1.3}, Answer: Lengths{"lognormal", 338, 0.9}, Prefix: 64, PrefixShare: 0.3, Seed: 4, Disconnect: 0.2, Cancel: 0.1}
	ids, again, talk := source(t, m, false), source(t, m, false), source(t, m, true)
	last := map[int]*Ask{}
	talks, prefixed, faults, turns := map[int]int{}, 0, map[Fault]int{}, 0
	const n = 4000
	var shared []int32
	for range n {
		a, b := ids.Next(), again.Next()
		if !slices.Equal(a.IDs, b.IDs) || a.Max != b.Max || a.Fault != b.Fault || a.Leave != b.Leave {
			t.Fatal("the same seed gives other requests")
		}
		if len(a.IDs) != a.Prompt || a.Prompt+a.Max > 2048 || a.Max < 1 || a.Leave < 1 || a.Leave > a.Max {
			t.Fatalf("%d ids for %d tokens, an answer of %d left at %d", len(a.IDs), a.Prompt, a.Max, a.Leave)
		}
		if p := last[a.Talk]; p != nil {
			if a.Turn != p.Turn+1 || len(a.IDs) < len(p.IDs)+p.Max || !slices.Equal(a.IDs[:len(p.IDs)], p.IDs) {
				t.Fatalf("turn %d of conversation %d does not go on with turn %d", a.Turn, a.Talk, p.Turn)
			}
		}
		last[a.Talk] = a
		talks[a.Talk] = max(talks[a.Talk], a.Turn)
		faults[a.Fault]++
		if a.Turn == 1 && len(a.IDs) > 64 {
			if shared == nil {
				shared = ids.sharedIDs()
			}
			if slices.Equal(a.IDs[:64], shared) {
				prefixed++
			}
		}
		c := talk.Next()
		for i, msg := range c.Messages {
			want := []string{"user", "assistant"}[(len(c.Messages)-1-i)%2]
			if len(c.Messages)%2 == 0 && i == 0 {
				want = "system"
			}
			if msg.Role != want {
				t.Fatalf("message %d of %d is the %s's", i, len(c.Messages), msg.Role)
			}
		}
	}
	for _, k := range talks {
		turns += k
	}
	if mean := float64(turns) / float64(len(talks)); mean < 2 || mean > turnsMean { // the context ends some early
		t.Errorf("%v turns in the mean", mean)
	}
	if share := float64(prefixed) / float64(len(talks)); math.Abs(share-0.3) > 0.05 {
		t.Errorf("%v have the prefix", share)
	}
	if math.Abs(float64(faults[Disconnects])/n-0.2) > 0.03 || math.Abs(float64(faults[Cancels])/n-0.1) > 0.02 {
		t.Errorf("%v", faults)
	}
}

// sharedIDs returns the ids of the system prompt.
func (s *Source) sharedIDs() []int32 {
	var out []int32
	for _, i := range s.shared {
		out = append(out, s.words.ids[i])
	}
	return out
}

// TestImpossibleMixes are refused before anything is asked.
func TestImpossibleMixes(t *testing.T) {
	w := &Words{texts: []string{"a"}, ids: []int32{1}, Context: 100}
	for _, m := range []Mix{{Disconnect: 0.6, Cancel: 0.6}, {Cancel: -1}, {PrefixShare: 2}, {Prefix: 99}, {Prefix: -1}} {
		if _, err := NewSource(m, w, false, 0); err == nil {
			t.Errorf("%+v is taken", m)
		}
	}
}
