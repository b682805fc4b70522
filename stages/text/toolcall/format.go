package toolcall

import (
	"slices"
	"strings"
)

// Format is how a family of models writes calls and reasoning. The zero value is plain text.
type Format struct {
	name    string
	form    string // of calls that are written, where the format reads several; "": the name
	think   []tags
	openers []string // a call begins with one
	borders []string // what may stand around calls
	inner   []string // markers within a call
	call    state    // takes a call; nil: hermesCall
	between state    // follows the end of a call
	bare    bool     // an answer may be a call without a marker
	harmony bool
	shortID bool
}

// tags stand around reasoning.
type tags struct{ begin, end string }

// formats are all of them, in the order in which Detect looks for them. Each is found by the first
// of its marks in the template's text.
var formats = []struct {
	sign string
	Format
}{
	{harmonyChannel, Format{name: "harmony", harmony: true,
		inner: append([]string{harmonyChannel, harmonyType, harmonyMessage}, harmonyEnds...)}},
	{kimiOpen, Format{name: "kimi_k2", call: kimiCall, openers: []string{kimiOpen},
		borders: []string{"<|tool_calls_section_begin|>", kimiEnd, kimiClose}, inner: []string{kimiArgs}}},
	{"｜DSML｜", Format{name: "deepseek_v32", call: dsmlCall, openers: []string{dsmlOpen}, borders: []string{
		"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"}, inner: []string{"｜DSML｜"}}},
	{deepseekOpen, Format{name: "deepseek_v3", call: deepseekCall, openers: []string{deepseekOpen},
		borders: []string{"<｜tool▁calls▁begin｜>", deepseekEnd, deepseekClose}, inner: []string{deepseekSep}}},
	{minimax3Mark, Format{name: "minimax_m3", call: minimax3Call, openers: []string{minimax3Open},
		borders: []string{minimax3Mark + "<tool_call>", minimax3Mark + "</tool_call>"}, inner: []string{minimax3Mark}}},
	{"<minimax:tool_call>", Format{name: "minimax_m2", call: minimaxCall, openers: []string{minimaxOpen},
		borders: []string{"<minimax:tool_call>", "</minimax:tool_call>"}}},
	{gemmaOpen, Format{name: "gemma4", call: gemmaCall, openers: []string{gemmaOpen}, borders: []string{gemmaClose},
		inner: []string{gemmaQuote, "<|tool_response>", "<|channel>"}}},
	{mistralOpen, Format{name: "mistral", call: mistralCall, between: bareCall, openers: []string{mistralOpen},
		inner: []string{mistralArgs, mistralID}, shortID: true}},
	{"<arg_key>", Format{name: "glm4", openers: []string{hermesOpen}, borders: []string{hermesClose},
		inner: []string{glmForm.open, glmForm.nameEnd, glmForm.valueOpen, glmForm.close}}},
	{coderOpen, Format{name: "qwen3_coder", call: coderCall, openers: []string{coderOpen, hermesOpen}, borders: []string{hermesClose}}},
	{hermesOpen, hermes},
	{pythonTag, llama},
	{"<|start_header_id|>", llama},
}

var (
	hermes = Format{name: "hermes", openers: []string{hermesOpen}, borders: []string{hermesClose}}
	llama  = Format{name: "llama3", call: llamaCall, between: bareCall, bare: true, openers: []string{pythonTag}, inner: []string{"<|eom_id|>"}}
)

// thoughts are the tags around reasoning that templates show.
var thoughts = []tags{
	{"<think>", "</think>"},
	{"<mm:think>", "</mm:think>"},
	{"[THINK]", "[/THINK]"},
	{"<|channel>thought", "<channel|>"},
	{"<seed:think>", "</seed:think>"},
}

// Detect finds the format in the text of a chat template. A template that shows none has the Hermes
// form.
func Detect(template string) Format {
	f := hermes
	for _, one := range formats {
		if strings.Contains(template, one.sign) {
			f = one.Format
			break
		}
	}
	for _, t := range thoughts {
		// Some templates put the tags together from variables.
		if strings.Contains(template, t.begin) || strings.Contains(template, t.end) {
			f.think = append(f.think, t)
		}
	}
	switch {
	case f.name == "deepseek_v3" && strings.Contains(template, "```json"):
		f.form = "deepseek_fenced"
	case f.name == "mistral" && strings.Contains(template, mistralArgs):
		f.form = "mistral_args"
	case f.name == "deepseek_v32" && !strings.Contains(template, "function_calls"): // some put the tags together from variables
		f.form = "deepseek_v4"
	}
	if f.call == nil {
		f.call = hermesCall
	}
	if f.between == nil {
		f.between = answer
	}
	return f
}

// Hermes returns the format with calls in the Hermes form.
func (f Format) Hermes() Format {
	f.form, f.bare = hermes.name, false
	f.openers, f.borders = append(slices.Clone(f.openers), hermesOpen), append(slices.Clone(f.borders), hermesClose)
	return f
}

// Name names the format: "hermes".
func (f Format) Name() string { return f.name }

// Reasons reports whether the format has reasoning apart from the answer.
func (f Format) Reasons() bool { return len(f.think) > 0 || f.harmony }

// Closing returns a text that ends reasoning, so that the answer follows; "" if the format has none.
func (f Format) Closing() string {
	switch {
	case f.harmony:
		return harmonyEnds[0] + harmonyStart + "assistant" + harmonyChannel + "final" + harmonyMessage
	case len(f.think) > 0:
		return f.think[0].end
	}
	return ""
}

// ShortIDs reports whether the ids of calls must be nine letters and digits.
func (f Format) ShortIDs() bool { return f.shortID }

// Markers are the texts that a model writes around the parts of an answer. Some are control tokens.
func (f Format) Markers() []string {
	var all []string
	for _, t := range f.think {
		all = append(all, t.begin, t.end)
	}
	all = append(all, f.openers...)
	all = append(all, f.borders...)
	return append(all, f.inner...)
}

// Uses reports whether a control token's text is a marker or a part of one.
func (f Format) Uses(token string) bool {
	for _, m := range f.Markers() {
		if strings.Contains(m, token) {
			return true
		}
	}
	return false
}

// Opens reports whether a prompt that ends so has begun the reasoning of the answer.
func (f Format) Opens(prompt string) bool {
	prompt = strings.TrimRight(prompt, " \t\r\n")
	for _, t := range f.think {
		if strings.HasSuffix(prompt, t.begin) {
			return true
		}
	}
	return false
}
