package actors

import (
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/stages/sample"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
)

// TestReasoningBudget: a model that would reason for ever answers after its budget, and one that ends
// by itself is left alone.
func TestReasoningBudget(t *testing.T) {
	const model = `{"model":{"vocab":{"a":0,"b":1},"merges":[]},"decoder":{"type":"Fuse"},"added_tokens":[{"id":20,"content":"<think>"},{"id":21,"content":"</think>"},{"id":22,"content":"<e>","special":true}]}`
	tok, err := tokenizer.Parse([]byte(model), nil)
	if err != nil {
		t.Fatal(err)
	}
	template, err := chat.Compile("{% for m in messages %}{{ m.content }}{% endfor %}<think>", chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const vocab = 40
	g := &Gateway{opt: GatewayOptions{Tokenizer: tok, Template: template, Vocab: vocab}}
	for _, c := range []struct {
		name    string
		prompt  []int32
		budget  int
		wants   []int32 // what the model prefers, the last one for ever
		answers []int32
	}{
		{"reasons for ever", []int32{0}, 3, []int32{20, 0}, []int32{20, 0, 0, 21, 0, 0, 0}},
		{"the prompt opens it", []int32{20}, 2, []int32{0}, []int32{0, 0, 21, 0, 0}},
		{"ends in time", []int32{0}, 3, []int32{20, 0, 21, 1}, []int32{20, 0, 21, 1, 1, 1, 1, 1}},
		{"does not reason", []int32{0}, 2, []int32{1}, []int32{1, 1, 1, 1, 1, 1}},
	} {
		req := &engine.Request{Prompt: engine.Prompt{Chat: &engine.Chat{}}, Parts: &engine.Parts{Budget: c.budget}}
		params := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
		g.newBudget(g.budget(req), c.prompt).bind(&params)
		seq, err := sample.New(params, c.prompt, vocab)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for i := range c.answers {
			logits := make([]float32, vocab)
			logits[c.wants[min(i, len(c.wants)-1)]] = 9
			r, err := seq.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.ID)
		}
		if !slices.Equal(got, c.answers) {
			t.Errorf("%s: %v, want %v", c.name, got, c.answers)
		}
	}
	if g.budget(&engine.Request{Prompt: engine.Prompt{Chat: &engine.Chat{}}, Parts: &engine.Parts{}}) != 0 {
		t.Error("a budget that nobody asked for")
	}
}
