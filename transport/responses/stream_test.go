package responses

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"krater/actors/engine"
	"krater/transport/enginetest"
)

func TestOneAtATimeWithoutStreamID(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		gate := make(chan struct{})
		r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
		c := r.dial()
		c.send(ask)
		c.until("response.in_progress")
		c.send(ask)
		c.wantError(409, "response_already_in_flight")
		close(gate)
		c.until("response.completed")
		c.send(ask)
		c.turn()
	})
}

// TestStreams: several answers at once, each event with its stream_id, each stream with its own order
// and text, and a stream is free again after its end.
func TestStreams(t *testing.T) {
	inBubble(t, Options{MaxStreams: 3}, func(r *rig) {
		gates := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{}), "c": make(chan struct{})}
		r.engine.Choose(func(req *engine.Request) (enginetest.Script, error) {
			name := strings.Trim(string(req.Prompt.Chat.Messages), `[]{}"`)
			name = name[len(name)-1:]
			return enginetest.Gated(enginetest.Text(name, name, name), 4, gates[name]), nil
		})
		c := r.dial()
		for _, name := range []string{"a", "b", "c"} {
			c.send(fmt.Sprintf(`{"type":"response.create","stream_id":%q,"input":%q}`, name, name))
		}
		synctest.Wait()
		c.send(`{"type":"response.create","stream_id":"d","input":"d"}`)
		c.send(`{"type":"response.create","stream_id":"a","input":"a"}`)
		synctest.Wait()
		codes := map[string]string{}
		text, last, ended := map[string]string{}, map[string]int{}, []string{}
		next := []string{"c", "a", "b"} // opened in this order, each after the end before
		for len(ended) < 3 {
			f := c.recv()
			if f.Type == "error" {
				codes[f.StreamID] = f.Error.Code
				if len(codes) == 1 {
					close(gates[next[0]])
				}
				continue
			}
			if before, seen := last[f.StreamID]; (seen && f.Sequence <= before) || (!seen && f.Sequence != 0) {
				t.Errorf("lane %s: event %d after %d", f.StreamID, f.Sequence, before)
			}
			last[f.StreamID] = f.Sequence
			text[f.StreamID] += f.Delta
			if f.Type == "response.completed" {
				ended = append(ended, f.StreamID)
				if next = next[1:]; len(next) > 0 {
					close(gates[next[0]])
				}
			}
		}
		if fmt.Sprint(ended) != "[c a b]" || fmt.Sprint(text) != "map[a:aaa b:bbb c:ccc]" {
			t.Errorf("ended %v with %v", ended, text)
		}
		if codes["d"] != "too_many_responses_in_flight" || codes["a"] != "too_many_responses_in_flight" {
			t.Errorf("the errors were %v", codes)
		}
		c.send(`{"type":"response.create","stream_id":"a","input":"a"}`)
		for _, f := range c.turn() {
			if f.StreamID != "a" {
				t.Errorf("%s has the stream_id %q", f.Type, f.StreamID)
			}
		}
	})
}

func TestSameLaneTwice(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, make(chan struct{})))
		c := r.dial()
		c.send(`{"type":"response.create","stream_id":"a","input":"hi"}`)
		c.until("response.in_progress")
		c.send(`{"type":"response.create","stream_id":"a","input":"hi"}`)
		if f := c.wantError(409, "response_already_in_flight"); f.StreamID != "a" {
			t.Errorf("the error has the stream_id %q", f.StreamID)
		}
	})
}

// TestContinue: the last responses of a connection go on with store: false, with the conversation
// but without the old instructions, and nobody else has them.
func TestContinue(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		r.engine.SetInfo(func(i *engine.Info) { i.Context = 4096 })
		c := r.dial()
		c.send(`{"type":"response.create","store":false,"instructions":"Old.","input":"one"}`)
		first := c.until("response.completed").Response.ID
		c.send(`{"type":"response.create","store":false,"instructions":"New.","input":[{"role":"user","content":"two"}],"previous_response_id":"` + first + `"}`)
		second := c.until("response.completed").Response
		if second.PreviousID == nil || *second.PreviousID != first {
			t.Errorf("previous_response_id is %v", second.PreviousID)
		}
		const want = `[{"role":"system","content":"New."},{"role":"user","content":"one"},` +
			`{"role":"assistant","content":"Hello world!"},{"role":"user","content":"two"}]`
		if got := r.messages(1); got != want {
			t.Errorf("the engine got %s, want %s", got, want)
		}
		// A fork from the first one, then the second still goes on.
		c.send(`{"type":"response.create","store":false,"input":"fork","previous_response_id":"` + first + `"}`)
		c.until("response.completed")
		c.send(`{"type":"response.create","store":false,"input":"three","previous_response_id":"` + second.ID + `"}`)
		c.until("response.completed")
		if got := r.messages(3); !strings.HasPrefix(got, `[{"role":"user","content":"one"}`) || strings.Count(got, "Hello world!") != 2 {
			t.Errorf("the engine got %s", got)
		}
		other := r.dial()
		other.send(`{"type":"response.create","input":"x","previous_response_id":"` + first + `"}`)
		other.wantError(400, "previous_response_not_found")
		if status, code, _, _ := r.refusal("GET", "/v1/responses/"+first, ""); status != 404 || code != "response_not_found" {
			t.Errorf("GET of what was not stored: %d %s", status, code)
		}
	})
}

// TestOnlyTheLastResponsesStay: of unstored ones the connection keeps a few.
func TestOnlyTheLastResponsesStay(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		var ids []string
		for range maxRecent + 1 {
			c.send(`{"type":"response.create","store":false,"input":"x"}`)
			ids = append(ids, c.until("response.completed").Response.ID)
		}
		for i, known := range []bool{false, true} {
			c.send(`{"type":"response.create","store":false,"input":"y","previous_response_id":"` + ids[i] + `"}`)
			if known {
				c.turn()
			} else {
				c.wantError(400, "previous_response_not_found")
			}
		}
	})
}

// TestFailedContinuationDropsItsID in both ways to fail: refused and failed.
func TestFailedContinuationDropsItsID(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		for _, how := range []string{"refused", "unknown field", "failed", "conflict"} {
			r.engine.Play(enginetest.Text("a"))
			c := r.dial()
			c.send(`{"type":"response.create","store":false,"input":"x"}`)
			id := c.until("response.completed").Response.ID
			next := `{"type":"response.create","store":false,"input":"y","previous_response_id":"` + id + `"`
			switch how {
			case "refused":
				r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
					return nil, &engine.Error{Kind: engine.Overloaded, Message: "full"}
				})
				c.send(next + `}`)
				if f := c.wantError(429, "overloaded"); f.Error.Headers["retry-after"] != "1" {
					t.Errorf("%s: headers %v", how, f.Error.Headers)
				}
			case "unknown field":
				c.send(next + `,"nonsense":1}`)
				c.wantError(400, "unknown_parameter")
			case "failed":
				r.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "broken"}, "a"))
				c.send(next + `}`)
				c.until("response.failed")
			case "conflict": // nothing was tried: the id stays
				gate := make(chan struct{})
				r.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
				c.send(`{"type":"response.create","input":"z"}`)
				c.until("response.in_progress")
				c.send(next + `}`)
				c.wantError(409, "response_already_in_flight")
				close(gate)
				c.until("response.completed")
			}
			r.engine.Play(enginetest.Text("a"))
			c.send(next + `}`)
			if how == "conflict" {
				c.turn()
			} else {
				c.wantError(400, "previous_response_not_found")
			}
		}
	})
}

// TestWarmup: generate: false gives an id that a later request goes on with, also with an empty
// input.
func TestWarmup(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		c := r.dial()
		c.send(`{"type":"response.create","generate":false,"store":false,"input":[{"role":"user","content":"Ready?"}],"tools":[{"type":"function","name":"f"}]}`)
		all := c.turn()
		end := all[len(all)-1]
		if len(all) != 3 || end.Type != "response.completed" || len(end.Response.Output) != 0 {
			t.Errorf("the warm-up gave %d events, the last %s", len(all), end.raw)
		}
		if u := end.Response.Usage; u == nil || u.Output != 0 || u.Input == 0 {
			t.Errorf("the warm-up's usage is %v", u)
		}
		if n := len(r.engine.Requests()); n != 0 {
			t.Errorf("the warm-up reached the engine %d times", n)
		}
		c.send(`{"type":"response.create","input":[],"previous_response_id":"` + end.Response.ID + `"}`)
		c.turn()
		if got := r.messages(0); got != `[{"role":"user","content":"Ready?"}]` {
			t.Errorf("the engine got %s", got)
		}
		c.send(`{"type":"response.create","generate":false}`) // nothing to prepare: still an id
		empty := c.turn()
		c.send(`{"type":"response.create","previous_response_id":"` + empty[2].Response.ID + `"}`)
		c.wantError(400, "invalid_value")
		r.engine.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "loading"})
		c.send(`{"type":"response.create","generate":false,"input":"x"}`)
		c.wantError(503, "unavailable")
	})
}

// TestPromptProgress: a request that wants it gets events about its prompt, which a late reader gets
// too.
func TestPromptProgress(t *testing.T) {
	inBubble(t, Options{}, func(r *rig) {
		step := func(e engine.Event) enginetest.Step { return enginetest.Step{Event: e} }
		r.engine.Play(enginetest.Steps(step(engine.Event{Kind: engine.Started}),
			step(engine.Event{Kind: engine.Progress, Position: 3, Usage: engine.Usage{Prompt: 9, Cached: 1}}), step(engine.Event{Kind: engine.Progress, Position: 6, Usage: engine.Usage{Prompt: 9, Cached: 1}}),
			step(engine.Event{Kind: engine.Tokens, Text: "a"}), step(engine.Event{Kind: engine.Done, Finish: engine.FinishStop})))
		text := r.call("POST", "/v1/responses", `{"input":"x","stream":true,"return_progress":true}`, 200, nil)
		for _, want := range []string{
			"event: response.in_progress\n",
			`"type":"response.prompt_progress","sequence_number":2,"response_id":"resp_`, `"prompt_progress":{"total":9,"cache":1,"processed":3,"time_ms":0}}`,
			`"prompt_progress":{"total":9,"cache":1,"processed":6,"time_ms":0}}`, `"type":"response.output_text.delta"`, `"delta":"a"`, "event: response.completed\n",
		} {
			_, rest, ok := strings.Cut(text, want)
			if !ok {
				t.Fatalf("no %s in\n%s", want, text)
			}
			text = rest
		}
		if !r.engine.Requests()[0].Progress {
			t.Error("the engine is not asked")
		}
	})
}
