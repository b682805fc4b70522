package actors

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/models"
	"krater/stages/sample"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
)

// BenchmarkToken measures the work of the host for one token between the sampler and the answer that a door
// reads: text, stop strings, the parser of tool calls, and for a constrained answer the mask and its
// grammar. An op is one token; cpu-us/op is its processor time, with that of goroutines beside it.
func BenchmarkToken(b *testing.B) {
	const template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}<|im_start|>assistant\n"
	const tools = `[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]`
	const schema = `{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}}`
	object := `{"name": "the keeper of the lighthouse at the harbour", "age": 42}`
	text := "[" + strings.Repeat(object+", ", 30) + object + "]"
	for _, c := range []struct {
		name string
		req  engine.Request
	}{
		{"plain", engine.Request{}},
		{"stops and tools", engine.Request{Stop: []string{"END", "\n\n\n"}, Parts: &engine.Parts{Tools: []byte(tools)}}},
		{"tools and grammar", engine.Request{
			Stop: []string{"END", "\n\n\n"}, Parts: &engine.Parts{Tools: []byte(tools)},
			Format: &engine.Format{Kind: engine.JSONSchema, Source: []byte(schema), Param: "response_format"},
		}},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkToken(b, template, text, c.req) })
	}
}

// tokenDesk is a gateway whose model's tokens and template are real.
func tokenDesk(b *testing.B, source string) *Gateway {
	files, err := models.Default()
	if err != nil {
		b.Skip(err)
	}
	tok, err := tokenizer.Load(files)
	if err != nil {
		b.Fatal(err)
	}
	template, err := chat.Compile(source, chat.Options{})
	if err != nil {
		b.Fatal(err)
	}
	g := desk(b)
	eos, _ := tok.EOS()
	g.opt = GatewayOptions{Tokenizer: tok, Template: template, Vocab: tok.VocabSize(), EOS: []int32{eos}}
	return g
}

func benchmarkToken(b *testing.B, source, text string, req engine.Request) {
	g := tokenDesk(b, source)
	req.Prompt.Chat, req.Logprobs = &engine.Chat{}, -1
	ids := g.opt.Tokenizer.Encode(text, tokenizer.EncodeOptions{})
	var limits *constraint
	var out msg.Output
	var a *answer
	at := len(ids)
	start := func() {
		a = newAnswer(1)
		o := newOutput(g, &req, a, 1)
		o.take(g.opt.Template, &req, ids[:1])
		compiled, err := g.constrain(&req, ids[:1])
		if err != nil {
			b.Fatal(err)
		}
		if compiled != nil {
			limits = &constraint{matcher: compiled.Matcher(), none: g.vocabulary().None(), param: "response_format"}
		}
		out, at = o, 0
	}
	start()
	for range ids { // the grammar finds its masks
		if limits != nil {
			_ = limits.allow(at, true)
			if err := limits.took(ids[at]); err != nil {
				b.Fatalf("token %d of %s: %v", at, fmt.Sprintf("%.80s", text), err)
			}
			at++
		}
	}
	b.ReportAllocs()
	before := cpuTime(b)
	start()
	for b.Loop() {
		if at == len(ids) {
			start()
		}
		if limits != nil {
			if limits.allow(at, true) == nil {
				b.Fatal("no mask")
			}
			if err := limits.took(ids[at]); err != nil {
				b.Fatal(err)
			}
		}
		if out.Token(sample.Result{ID: ids[at]}, int64(at)) {
			b.Fatal("the answer ends")
		}
		at++
		a.mu.Lock()
		for len(a.pending) > 0 {
			_ = a.pop()
		}
		a.mu.Unlock()
	}
	b.ReportMetric((cpuTime(b)-before)*1e6/float64(b.N), "cpu-us/op")
}

// cpuTime is the processor time of this process in seconds.
func cpuTime(b *testing.B) float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
