package server

import (
	"encoding/json/jsontext"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts anew")

// scripts holds the scripts that a transcript's "script" line names.
var scripts = map[string]enginetest.Script{
	"hello":  enginetest.Text("Hello", " world", "!"),
	"length": enginetest.Finish(engine.FinishLength, "Hello", " wor"),
	"fails":  enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "stage group:0 failed"}, "Hel"),
	"calls": enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ReasoningPart, Text: "Weather"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ReasoningPart, Text: "?"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "I look."}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "f"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `{"a":`}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `"\u00e9"}`}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "g", CallID: "functions.g:1"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `{}`}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: 9, Prompt: 3, Reasoning: 2}}},
	),
	"emoji": enginetest.Text("日本", "🦀", " \"q\" <b> \\"),
	"logprobs": enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "Hi", Tokens: []engine.Token{
			{ID: 1, Text: []byte("Hi"), Logprob: -0.25, Top: []engine.TokenProb{{ID: 1, Text: []byte("Hi"), Logprob: -0.25}, {ID: 2, Text: []byte("Yo"), Logprob: -1.5}}},
		}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Tokens: []engine.Token{ // half a character: no text yet
			{ID: 3, Text: []byte{0xc3}, Logprob: -0.5, Top: []engine.TokenProb{{ID: 3, Text: []byte{0xc3}, Logprob: -0.5}, {ID: 2, Text: []byte("Yo"), Logprob: -2}}},
		}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "é", Tokens: []engine.Token{
			{ID: 4, Text: []byte{0xa9}, Logprob: -0.125, Top: []engine.TokenProb{{ID: 4, Text: []byte{0xa9}, Logprob: -0.125}, {ID: 2, Text: []byte("Yo"), Logprob: -3}}},
		}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: 3, Cached: 2}}},
	),
}

func init() {
	scripts["scored"] = enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Scored, Tokens: []engine.Token{
			{ID: 256, Text: []byte("<bos>"), Hidden: true, Logprob: float32(math.NaN())}, {ID: 97, Text: []byte("a"), Logprob: -1.5, Rank: 2, Top: []engine.TokenProb{{ID: 98, Text: []byte("b"), Logprob: -0.5}}},
		}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Scored, Tokens: []engine.Token{
			{ID: 99, Text: []byte("c"), Logprob: -0.25, Rank: 1, Top: []engine.TokenProb{{ID: 99, Text: []byte("c"), Logprob: -0.25}}},
		}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "Hi", Tokens: []engine.Token{{ID: 1, Text: []byte("Hi"), Logprob: -0.125}}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: 1, Prompt: 3}}},
	)
}

var (
	idField      = regexp.MustCompile(`"id":"(chatcmpl-|cmpl-|call_)[0-9a-f]{32}"`)
	createdField = regexp.MustCompile(`"created":\d{10}`)
)

// A transcript file holds a script's name, a request and, below, the whole answer as a client sees
// it; ids and times are masked.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitN(string(data), "\n", 4) // script, request line, body, answer
			if len(lines) < 3 {
				t.Fatal("a transcript needs three lines")
			}
			script, ok := scripts[strings.TrimPrefix(lines[0], "script ")]
			if !ok {
				t.Fatalf("no script %q", lines[0])
			}
			method, path, _ := strings.Cut(lines[1], " ")
			got := strings.Join(lines[:3], "\n") + "\n" + converse(script, method, path, lines[2])
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(data) {
				t.Errorf("got\n%s\nwant\n%s", got, data)
			}
		})
	}
}

func converse(script enginetest.Script, method, path, body string) string {
	e := enginetest.New()
	e.Play(script)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	New(e, Options{}).Handler().ServeHTTP(w, r)
	text := idField.ReplaceAllString(w.Body.String(), `"id":"${1}ID"`)
	text = createdField.ReplaceAllString(text, `"created":0`)
	return fmt.Sprintf("%d %s\n%s", w.Code, w.Header().Get("Content-Type"), text)
}

// FuzzChat sends any bytes to the chat route: the answer is always whole JSON or a whole stream,
// never a 500, and no stream stays open.
func FuzzChat(f *testing.F) {
	files, _ := filepath.Glob("testdata/transcripts/chat*.txt")
	for _, file := range files {
		data, _ := os.ReadFile(file)
		if lines := strings.SplitN(string(data), "\n", 4); len(lines) > 2 {
			f.Add([]byte(lines[2]))
		}
	}
	f.Add([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"n":2,"stop":["a"],"logit_bias":{"1":2}}`))
	fuzzRoute(f, "/v1/chat/completions")
}

// FuzzCompletions is FuzzChat for the text route.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte(`{"prompt":[[1,2],[3]],"echo":true,"stream":true}`))
	f.Add([]byte(`{"prompt":["a","b"],"n":2,"logprobs":1}`))
	fuzzRoute(f, "/v1/completions")
}

// FuzzTokenize is FuzzChat for what is only counted.
func FuzzTokenize(f *testing.F) {
	f.Add([]byte(`{"prompt":"a","return_token_strs":true,"parse_special":true}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`))
	fuzzRoute(f, "/tokenize")
}

// FuzzDetokenize is FuzzChat for token ids.
func FuzzDetokenize(f *testing.F) {
	f.Add([]byte(`{"tokens":[1,257,300],"skip_special_tokens":true}`))
	fuzzRoute(f, "/detokenize")
}

func fuzzRoute(f *testing.F, path string) {
	e := enginetest.New()
	s := New(e, Options{MaxBody: 1 << 16})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/json")
		s.Handler().ServeHTTP(w, r)
		text := w.Body.String()
		switch {
		case w.Code == http.StatusOK && strings.HasPrefix(text, "data: "):
			if !strings.HasSuffix(text, "data: [DONE]\n\n") {
				t.Fatalf("%q gives a stream that does not end: %q", body, text)
			}
		case !jsontext.Value(text).IsValid():
			t.Fatalf("%q gives %d %q", body, w.Code, text)
		case w.Code != 200 && w.Code != 400 && w.Code != 404 && w.Code != 413:
			t.Fatalf("%q gives %d %s", body, w.Code, text)
		}
		if w.Code != 200 && !strings.HasPrefix(text, `{"error":{"message":"`) {
			t.Fatalf("%q gives %d %s", body, w.Code, text)
		}
		if e.Open() != 0 {
			t.Fatalf("%q leaves %d streams open", body, e.Open())
		}
	})
}
