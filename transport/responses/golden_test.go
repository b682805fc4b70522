package responses

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

// The ends of an answer, each as one transcript.
var answers = []struct {
	name   string
	script enginetest.Script
	ask    string // further members of the request
}{
	{"stop", enginetest.Text("The ", "lamp ", "<turns> & \"shines\"\n\u2028."), `"instructions":"Be brief.","metadata":{"b":"2","a":"1"},"user":"u1"`},
	{"length", enginetest.Finish(engine.FinishLength, "The ", "lamp"), `"max_output_tokens":2`},
	{"empty", enginetest.Text(), `"store":false`},
	{"failed", enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "the expert pool stopped"}, "The "), `"truncation":"auto"`},
	{"failed_early", enginetest.Fail(&engine.Error{Kind: engine.Overloaded, Message: "no room"}), `"top_p":0.5`},
	{"cancelled", enginetest.Finish(engine.FinishCancelled, "The "), `"temperature":0`},
	{"unqueued", enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "Hi"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Text: "!", Finish: engine.FinishStop, Usage: engine.Usage{Prompt: 9, Completion: 2, Cached: 4, Reasoning: 1}}},
	), `"tools":[{"type":"function","name":"f"}],"tool_choice":"none","parallel_tool_calls":false`},
	{"logprobs", enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Started}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "a", Tokens: []engine.Token{token("a", -0.25)}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Tokens: []engine.Token{token("\xe2\x82", -1)}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "€", Tokens: []engine.Token{token("\xac", -0.5)}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: 3}}},
	), `"top_logprobs":1,"include":["message.output_text.logprobs","reasoning.encrypted_content"]`},
	{"calls", enginetest.Steps(callSteps...), `"tools":[{"type":"function","name":"f","parameters":{"type":"object"}},{"type":"function","name":"g"}],"reasoning":{"effort":"low","summary":"auto"}`},
	{"calls_cut", enginetest.Steps(append(callSteps[:5:5], enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishLength, Usage: engine.Usage{Completion: 4}}})...), `"tools":[{"type":"function","name":"f"}]`},
	{"reasoning", enginetest.Steps(callSteps[0], enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}}), `"enable_thinking":true`},
	{"warmup", enginetest.Text("never"), `"generate":false`},
}

// callSteps are an answer with reasoning, text and two calls.
var callSteps = []enginetest.Step{
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.ReasoningPart, Text: "Weather"}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.ReasoningPart, Text: "?"}},
	{Event: engine.Event{Kind: engine.Tokens, Text: "I look."}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "f"}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `{"a":`}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `"\u00e9"}`}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.CallPart, Name: "g", CallID: "functions.g:1"}},
	{Event: engine.Event{Kind: engine.Tokens, Part: engine.ArgumentsPart, Text: `{}`}},
	{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Completion: 9, Reasoning: 2}}},
}

func token(text string, p float32) engine.Token {
	return engine.Token{Text: []byte(text), Logprob: p, Top: []engine.TokenProb{{Text: []byte(text), Logprob: p}}}
}

// paced waits before every step until all that was made is delivered, so that no deltas are joined.
func paced(s enginetest.Script) enginetest.Script {
	return func(i int) (enginetest.Step, bool) {
		synctest.Wait()
		return s(i)
	}
}

// TestTranscripts fixes every byte of the event sequences, and that the WebSocket, SSE and the
// plain answer agree.
func TestTranscripts(t *testing.T) {
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			inBubble(t, Options{}, func(r *rig) {
				r.engine.Play(paced(a.script))
				c := r.dial()
				c.send(`{"type":"response.create","model":"test-model","input":"What is a lighthouse?",` + a.ask + `}`)
				var lines []string
				for i, f := range c.turn() {
					if i > 0 && f.Sequence <= i-1 {
						t.Errorf("event %d has the number %d", i, f.Sequence)
					}
					lines = append(lines, f.raw)
				}
				golden(t, a.name+".jsonl", strings.Join(lines, "\n")+"\n")

				sse := stream(r, `{"stream":true,"input":"What is a lighthouse?",`+a.ask+`}`)
				compareSSE(t, sse, lines)

				status, whole := r.do("POST", "/v1/responses", `{"input":"What is a lighthouse?",`+a.ask+`}`)
				last := parseFrame(t, []byte(lines[len(lines)-1]))
				if last.Type == "response.failed" {
					if status < 429 || !strings.Contains(whole, `"error":{`) {
						t.Errorf("the failed answer came as %d %s", status, whole)
					}
					return
				}
				want := mask(strings.TrimSuffix(lines[len(lines)-1][strings.Index(lines[len(lines)-1], `"response":`)+len(`"response":`):], "}"))
				if got := mask(strings.TrimSpace(whole)); got != want {
					t.Errorf("the plain answer differs from the last event:\n got %s\nwant %s", got, want)
				}
			})
		})
	}
}

// TestLogprobsOfDeltas: the deltas of an answer have its tokens between them, each once: those of
// the first piece, those before it that have no text yet, and those behind the last one.
func TestLogprobsOfDeltas(t *testing.T) {
	piece := func(text string, tokens ...string) enginetest.Step {
		ev := engine.Event{Kind: engine.Tokens, Text: text}
		for _, name := range tokens {
			ev.Tokens = append(ev.Tokens, token(name, -1))
		}
		return enginetest.Step{Event: ev}
	}
	last := piece("", "g")
	last.Event.Kind, last.Event.Finish = engine.Done, engine.FinishStop
	lengths := map[string]enginetest.Script{
		"abcdefg": enginetest.Steps(piece("", "a"), piece("x", "b", "c"), piece("", "d"), piece("y", "e"), piece("", "f"), last),
		"abg":     enginetest.Steps(piece("", "a"), piece("x", "b"), last),
		"g":       enginetest.Steps(last),
	}
	for want, script := range lengths {
		inBubble(t, Options{}, func(r *rig) {
			r.engine.Play(paced(script))
			c := r.dial()
			c.send(`{"type":"response.create","input":"hi","top_logprobs":1}`)
			live := c.turn()
			id := live[0].Response.ID
			c.send(`{"type":"response.resume","response_id":"` + id + `"}`) // its deltas are joined
			for _, frames := range [][]frame{live, c.turn()} {
				got := map[string]string{}
				for _, f := range frames {
					for _, p := range f.Logprobs {
						got[f.Type] += p.Token
					}
				}
				if got["response.output_text.delta"] != want || got["response.output_text.done"] != want {
					t.Errorf("want %s, got %v", want, got)
				}
			}
		})
	}
}

// stream posts a request and gives the whole SSE answer.
func stream(r *rig, payload string) string {
	r.t.Helper()
	answer, err := r.server.Client().Post("http://example.com/v1/responses", "application/json", strings.NewReader(payload))
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		r.t.Fatalf("%d %s: %s", answer.StatusCode, kind, data)
	}
	return string(data)
}

// mask hides the ids.
func mask(s string) string { return anyID.ReplaceAllString(s, "${1}_x") }

// compareSSE holds a stream against the WebSocket's frames. The stream may have joined deltas, so
// those are compared by their text.
func compareSSE(t *testing.T, sse string, frames []string) {
	t.Helper()
	var got, want strings.Builder
	for _, block := range strings.Split(strings.TrimSuffix(sse, "\n\n"), "\n\n") {
		event, data, ok := strings.Cut(block, "\n")
		name, named := strings.CutPrefix(event, "event: ")
		data, isData := strings.CutPrefix(data, "data: ")
		if !ok || !named || !isData || strings.Contains(data, "\n") {
			t.Fatalf("not an event with a name and one line of data: %q", block)
		}
		if f := parseFrame(t, []byte(data)); f.Type != name {
			t.Errorf("the event %s has the type %s", name, f.Type)
		}
		outline(t, &got, data)
	}
	for _, f := range frames {
		outline(t, &want, f)
	}
	if got.String() != want.String() {
		t.Errorf("SSE and WebSocket differ:\n got %s\nwant %s", got.String(), want.String())
	}
}

func outline(t *testing.T, b *strings.Builder, data string) {
	t.Helper()
	f := parseFrame(t, []byte(data))
	if strings.HasSuffix(f.Type, ".delta") {
		b.WriteString(f.Delta)
		return
	}
	b.WriteString("\n" + mask(data) + "\n")
}
