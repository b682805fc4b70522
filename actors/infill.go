package actors

import (
	"krater/actors/engine"
	"krater/stages/text/tokenizer"
)

// infill has the texts of the tokens by which a model fills in the middle of a text.
type infill struct {
	before, between, after string // around the text's beginning and its end: the answer follows
	endFirst               bool   // the end comes before the beginning
}

// infills has one entry per family, from papers and model cards.
var infills = []infill{
	{before: "<｜fim▁begin｜>", between: "<｜fim▁hole｜>", after: "<｜fim▁end｜>"},          // DeepSeek
	{before: "<|fim_prefix|>", between: "<|fim_suffix|>", after: "<|fim_middle|>"},    // Qwen, Gemma
	{before: "<fim_prefix>", between: "<fim_suffix>", after: "<fim_middle>"},          // StarCoder, MiniMax
	{before: "<|code_prefix|>", between: "<|code_suffix|>", after: "<|code_middle|>"}, // GLM
	{before: "[SUFFIX]", between: "[PREFIX]", endFirst: true},                         // Mistral
	{before: "<|fim_begin|>", between: "<|fim_hole|>", after: "<|fim_end|>"},          // Seed
	{before: "<|fim▁begin|>", between: "<|fim▁hole|>", after: "<|fim▁end|>"},          // DeepSeek-Coder, first version
	{before: "<fim▁begin>", between: "<fim▁hole>", after: "<fim▁end>"},                // its conversions
}

// infillEnds are tokens that end such an answer, beside the end token.
var infillEnds = []string{"<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>", "<|code_end|>"}

// findInfill returns the tokens of a tokenizer; nil if it has none.
func findInfill(t *tokenizer.Tokenizer) *infill {
	for i := range infills {
		f := &infills[i]
		known := true
		for _, text := range []string{f.before, f.between, f.after} {
			_, ok := t.TokenID(text)
			known = known && (ok || text == "")
		}
		if known {
			return f
		}
	}
	return nil
}

// text joins the parts of a text around the answer. protected are the parts themselves.
func (f *infill) text(beginning, end string) (text string, protected []tokenizer.Range) {
	first, second := beginning, end
	if f.endFirst {
		first, second = end, beginning
	}
	from := len(f.before)
	then := from + len(first) + len(f.between)
	return f.before + first + f.between + second + f.after, []tokenizer.Range{{Start: from, End: from + len(first)}, {Start: then, End: then + len(second)}}
}

// fill returns the text of a prompt with a suffix, and how to encode it.
func (g *Gateway) fill(p engine.Prompt, o tokenizer.EncodeOptions) (string, tokenizer.EncodeOptions, error) {
	f := findInfill(g.opt.Tokenizer)
	if f == nil {
		return "", o, &engine.Error{Kind: engine.BadRequest, Param: "suffix", Message: "'suffix' is not supported: the model has no tokens for filling in the middle of a text"}
	}
	text, protected := f.text(*p.Text, *p.Suffix)
	if !o.ParseSpecial {
		o.ParseSpecial, o.Protected = true, protected
	}
	return text, o, nil
}

// infillStops returns the tokens that end an answer before a suffix.
func (g *Gateway) infillStops() (ids []int32) {
	for _, text := range infillEnds {
		if id, ok := g.opt.Tokenizer.TokenID(text); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
