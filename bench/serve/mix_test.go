package serve

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestPrompts: the server counts the tokens that a prompt was made to have, for
// every kind of prompt, over every door.
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

// source makes one with words of a tokenizer of letters.
func source(t *testing.T, m Mix, chat bool) *Source {
	t.Helper()
	w := &Words{around: 12, system: 9, pair: 17, Context: 2048}
	for i, text := range strings.Fields(candidates[1]) {
		w.texts, w.ids = append(w.texts, text), append(w.ids, int32(i))
	}
	s, err := NewSource(m, w, chat)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConversations: turns go on with what was said, in the order of a
// conversation; the same seed gives the same ones; none outgrows the context.
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

// sharedIDs are the ids of the system prompt.
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
		if _, err := NewSource(m, w, false); err == nil {
			t.Errorf("%+v is taken", m)
		}
	}
}
