package actors

import (
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/stages/text/tokenizer"
)

// TestInfillText: the order of the parts, and where a client's own text lies.
func TestInfillText(t *testing.T) {
	for _, f := range infills {
		text, protected := f.text("begin", "end")
		want := f.before + "begin" + f.between + "end" + f.after
		first, second := "begin", "end"
		if f.endFirst {
			want, first, second = f.before+"end"+f.between+"begin"+f.after, "end", "begin"
		}
		if text != want || text[protected[0].Start:protected[0].End] != first || text[protected[1].Start:protected[1].End] != second {
			t.Errorf("%s %v, want %s", text, protected, want)
		}
	}
}

// TestInfillPrompt: a prompt with a suffix has the model's own tokens around its parts, whose text
// yields such tokens only if the request says so.
func TestInfillPrompt(t *testing.T) {
	const plain = `{"model":{"vocab":{"a":0,"b":1,"<":2,">":3,"|":4,"f":5,"i":6,"m":7,"_":8,"p":9,"r":10,"e":11,"x":12},"merges":[]},"decoder":{"type":"Fuse"},"added_tokens":[`
	added := `{"id":20,"content":"<|fim_prefix|>"},{"id":21,"content":"<|fim_suffix|>"},{"id":22,"content":"<|fim_middle|>"},{"id":23,"content":"<|fim_pad|>"},{"id":24,"content":"<s>","special":true}`
	tok, err := tokenizer.Parse([]byte(plain+added+`]}`), []byte(`{"bos_token":"<s>","add_bos_token":true}`))
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{opt: GatewayOptions{Tokenizer: tok, Vocab: 30}}
	text, suffix, marker := "a", "b", "<|fim_pad|>"
	for _, c := range []struct {
		prompt engine.Prompt
		want   []int32
	}{
		{engine.Prompt{Text: &text, Suffix: &suffix, ParseSpecial: true}, []int32{24, 20, 0, 21, 1, 22}},
		{engine.Prompt{Text: &text, Suffix: &suffix, NoBOS: true}, []int32{20, 0, 21, 1, 22}},
		{engine.Prompt{Text: &marker, Suffix: &suffix, ParseSpecial: true, NoBOS: true}, []int32{20, 23, 21, 1, 22}},
	} {
		if got, err := g.Tokenize(t.Context(), c.prompt, 100); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v %v, want %v", got, err, c.want)
		}
	}
	if got, err := g.Tokenize(t.Context(), engine.Prompt{Text: &marker, Suffix: &suffix, NoBOS: true}, 100); err != nil || slices.Contains(got, 23) {
		t.Errorf("%v %v: a client's text became a token", got, err)
	}
	if got := g.infillStops(); !slices.Equal(got, []int32{23}) {
		t.Errorf("%v", got)
	}
	if tok, err = tokenizer.Parse([]byte(plain+`]}`), nil); err != nil {
		t.Fatal(err)
	}
	g.opt.Tokenizer = tok
	if _, err := g.Tokenize(t.Context(), engine.Prompt{Text: &text, Suffix: &suffix}, 100); err == nil {
		t.Error("a model without such tokens takes a suffix")
	}
}
