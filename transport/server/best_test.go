package server

import (
	"encoding/json/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// rated plays an answer whose tokens have these log-probabilities, from place 3 of the queue.
func rated(text string, logprobs ...float32) enginetest.Script {
	e := engine.Event{Kind: engine.Tokens, Text: text}
	for _, l := range logprobs {
		e.Tokens = append(e.Tokens, engine.Token{ID: 1, Text: []byte(text), Logprob: l})
	}
	return enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Queued, Position: 3}},
		enginetest.Step{Event: e},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: len(logprobs), Prompt: 2}}},
	)
}

// TestBestOf: of the candidates of each prompt those are given whose tokens were the most likely on
// average, the best first, and all are counted. Log-probabilities are shown only to who asked for
// them.
func TestBestOf(t *testing.T) {
	for _, c := range []struct {
		ask   string
		shown bool
	}{{`"best_of":3`, false}, {`"best_of":3,"logprobs":0`, true}} {
		e, made := enginetest.New(), 0
		scripts := []enginetest.Script{
			rated("long", -1, -1, -1, -1), rated("good", -0.5), rated("worst", -3, -0.5), // means -1, -0.5, -1.75
			rated("x", -4), rated("y", -2), rated("z", -3),
		}
		e.Choose(func(*engine.Request) (enginetest.Script, error) {
			made++
			return scripts[made-1], nil
		})
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":["a","b"],"n":2,`+c.ask+`}`))
		r.Header.Set("Content-Type", "application/json")
		New(e, Options{}).Handler().ServeHTTP(w, r)
		var out struct {
			Choices []struct {
				Index    int
				Text     string
				Logprobs *struct{ Tokens []string }
			}
			Usage struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &out, json.MatchCaseInsensitiveNames(true)); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		want := []string{"good", "long", "y", "z"}
		if len(out.Choices) != len(want) {
			t.Fatalf("%s", w.Body)
		}
		for i, choice := range out.Choices {
			if choice.Index != i || choice.Text != want[i] || (choice.Logprobs != nil) != c.shown {
				t.Errorf("%s: choice %d: %+v", c.ask, i, choice)
			}
		}
		if out.Usage.Prompt != 4 || out.Usage.Completion != 10 {
			t.Errorf("usage %+v", out.Usage)
		}
		if at := w.Header().Get(queueHeader); at != "3" {
			t.Errorf("position %q", at)
		}
	}
}

// TestChoicesShareAPrompt: the engine is told which requests have one prompt, and whose they are.
func TestChoicesShareAPrompt(t *testing.T) {
	e := enginetest.New()
	s := New(e, Options{Keys: []KeyHash{HashKey("one"), HashKey("two")}})
	post := func(key, body string) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+key)
		if s.Handler().ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	post("one", `{"prompt":["a","b"],"n":2}`)
	post("two", `{"prompt":["a","b"]}`)
	got := e.Requests()
	if len(got) != 6 {
		t.Fatalf("%d requests", len(got))
	}
	groups := map[uint64]int{}
	for i, r := range got {
		groups[r.Group]++
		if owner := got[i/4*4].Owner; r.Owner != owner || owner == "" || strings.Contains(owner, "one") {
			t.Errorf("request %d is of %q", i, r.Owner)
		}
	}
	if got[0].Owner == got[4].Owner || len(groups) != 3 || groups[0] != 2 || got[0].Group != got[1].Group || got[2].Group != got[3].Group {
		t.Errorf("owners %q and %q, groups %v", got[0].Owner, got[4].Owner, groups)
	}
}
