package actors

import (
	"testing"

	"krater/actors/engine"
	"krater/scheduler"
	"krater/stages/sample"
	"krater/stages/text/chat"
)

const partsTemplate = `{% for m in messages %}{{ m.content }}{% endfor %}{# <think></think> <tool_call> #}`

// parts joins the events of an answer: its reasoning, its text, its calls and their arguments.
func parts(events []engine.Event) (reasoning, text string, calls []string, done engine.Event) {
	for _, e := range events {
		switch {
		case e.Kind == engine.Done:
			done = e
		case e.Part == engine.ReasoningPart:
			reasoning += e.Text
		case e.Part == engine.CallPart:
			calls = append(calls, e.Name+" ")
		case e.Part == engine.ArgumentsPart:
			calls[len(calls)-1] += e.Text
		default:
			text += e.Text
		}
	}
	return reasoning, text, calls, done
}

func TestOutputParts(t *testing.T) {
	g := desk(t)
	template, err := chat.Compile(partsTemplate, chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g.opt.Template = template
	const tools = `[{"type":"function","function":{"name":"f"}}]`
	const call = `<tool_call>{"name":"f","arguments":{"a":"é"}}</tool_call>`
	for _, c := range []struct {
		name, text, prompt, stop string
		parts                    *engine.Parts
		lag                      bool // the reader takes nothing before the end
		reasoning, answer        string
		calls                    int
		reasoned                 int
	}{
		{name: "parts", parts: &engine.Parts{Tools: []byte(tools)}, text: "<think>a</think>b" + call + call, reasoning: "a", answer: "b", calls: 2, reasoned: 10},
		{name: "a slow reader", lag: true, parts: &engine.Parts{Tools: []byte(tools)}, text: "<think>a</think>b" + call + call, reasoning: "a", answer: "b", calls: 2, reasoned: 10},
		{name: "one call", parts: &engine.Parts{Tools: []byte(tools), Single: true}, text: "b" + call + call + "x", answer: "b", calls: 1},
		{name: "no tools", parts: &engine.Parts{}, text: "<think>a</think>" + call, reasoning: "a", answer: call, reasoned: 10},
		{name: "not asked for", text: "<think>a</think>", answer: "<think>a</think>"},
		{name: "the prompt reasons", parts: &engine.Parts{}, prompt: "u<think>\n", text: "a</think>b", reasoning: "a", answer: "b", reasoned: 9},
		{name: "cut in a marker", parts: &engine.Parts{Tools: []byte(tools)}, text: "b<tool_", answer: "b<tool_"},
		{name: "a stop string", parts: &engine.Parts{Tools: []byte(tools)}, stop: "END", text: "b <tENDx", answer: "b <t"},
	} {
		req := engine.Request{Parts: c.parts, Logprobs: -1}
		if c.stop != "" {
			req.Stop = []string{c.stop}
		}
		a := newAnswer(3)
		o := newOutput(g, &req, a, 1)
		o.take(template, &req, bytesOf(t, g.opt.Tokenizer, c.prompt))
		o.begin(1)
		var events []engine.Event
		for i, id := range bytesOf(t, g.opt.Tokenizer, c.text) {
			if o.Token(sample.Result{ID: id}, int64(i)) {
				break
			}
			if !c.lag {
				events = append(events, drainEvents(t, a)...)
			}
		}
		o.Ended(scheduler.Stop, nil, 100)
		events = append(events, drainEvents(t, a)...)
		reasoning, text, calls, done := parts(events)
		if reasoning != c.reasoning || text != c.answer || len(calls) != c.calls || done.Finish != engine.FinishStop {
			t.Errorf("%s: reasoning %q, text %q, calls %q, finish %v", c.name, reasoning, text, calls, done.Finish)
		}
		for _, call := range calls {
			if call != `f {"a":"é"}` {
				t.Errorf("%s: call %q", c.name, call)
			}
		}
		// Each byte is a token; those of the markers count.
		if done.Usage.Reasoning != c.reasoned {
			t.Errorf("%s: %d tokens of reasoning, want %d", c.name, done.Usage.Reasoning, c.reasoned)
		}
	}
}
