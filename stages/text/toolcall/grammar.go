package toolcall

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"krater/stages/text/grammar"
	jsonschema "krater/stages/text/grammar/schema"
)

// Speaker makes the grammar of an answer in a format.
type Speaker struct {
	Rules *grammar.Rules
	// Spell is a text in which control tokens are themselves.
	Spell func(string) *grammar.Expr
	// Tools are the tools that may be called, in the chat-completions shape; Names of them only, if it
	// is not nil. Single allows one call.
	Tools  []byte
	Names  []string
	Single bool

	format Format
	known  tools
	list   []function
}

// function is a tool's declaration.
type function struct {
	Name       string          `json:"name"`
	Parameters json.RawMessage `json:"parameters"`
	Strict     bool            `json:"strict"`
	index      int
}

// ToolError is a tool whose schema has no grammar.
type ToolError struct {
	Index int // in the list of tools
	Err   error
}

func (e *ToolError) Error() string { return e.Err.Error() }
func (e *ToolError) Unwrap() error { return e.Err }

// gap is white space as models write it between parts of an answer.
var gap = grammar.Repeat(grammar.Class(grammar.Runes(' ', '\n')), 0, 4)

// Answer returns the reasoning that the format may have, and then body. inside says that the prompt ends
// within reasoning.
func (f Format) Answer(s *Speaker, body *grammar.Expr, inside bool) *grammar.Expr {
	switch {
	case f.harmony:
		thought := grammar.Seq(s.Spell(harmonyChannel+"analysis"+harmonyMessage), grammar.Until(harmonyEnd), s.Spell(harmonyEnd+harmonyStart+"assistant"))
		return grammar.Seq(grammar.Repeat(thought, 0, 8), body)
	case len(f.think) == 0:
		return body
	}
	var list []*grammar.Expr
	for _, t := range f.think {
		rest := grammar.Seq(grammar.Until(t.end), s.Spell(t.end), gap, body)
		if !inside {
			rest = grammar.Seq(gap, s.Spell(t.begin), rest)
		}
		list = append(list, rest)
	}
	if !inside {
		list = append(list, body)
	}
	return grammar.Alt(list...)
}

// Text returns an answer's text as a format frames it.
func (f Format) Text(s *Speaker, text *grammar.Expr) *grammar.Expr {
	if f.harmony {
		return grammar.Seq(s.Spell(harmonyChannel+"final"+harmonyMessage), text)
	}
	return text
}

// Free is any text that may lead to calls, or to none.
func (f Format) Free(s *Speaker, calls *grammar.Expr) *grammar.Expr {
	anything := grammar.Repeat(grammar.Class(grammar.Any), 0, -1)
	switch {
	case f.harmony:
		return grammar.Alt(f.Text(s, anything), calls)
	case f.bare:
		begin := grammar.Class(grammar.Any.Minus(grammar.Runes('{', ' ', '\n', '\t', '\r')))
		return grammar.Alt(calls, grammar.Optional(grammar.Seq(begin, anything)))
	}
	return grammar.Seq(grammar.Until(append(slices.Clone(f.openers), f.borders...)...), grammar.Optional(calls))
}

// Speaks reports whether calls of the format have a grammar.
func (f Format) Speaks() bool {
	_, ok := spoken[cmp.Or(f.form, f.name)]
	return ok
}

// Strict reports whether a tool demands that its calls follow its schema.
func (s *Speaker) Strict() bool {
	return s.read() == nil && slices.ContainsFunc(s.list, func(f function) bool { return f.Strict })
}

// read reads the tools that may be called.
func (s *Speaker) read() error {
	if s.list != nil {
		return nil
	}
	var in []struct {
		Function function `json:"function"`
	}
	if err := json.Unmarshal(s.Tools, &in); err != nil {
		return err
	}
	s.known = readTools(s.Tools)
	for i, one := range in {
		if one.Function.index = i; s.Names == nil || slices.Contains(s.Names, one.Function.Name) {
			s.list = append(s.list, one.Function)
		}
	}
	if len(s.list) == 0 {
		return errors.New("there is no tool to call")
	}
	return nil
}

// Calls is one call of a tool or several, as a Parser of the format reads them. Errors are
// *ToolError, or about the list of tools.
func (f Format) Calls(s *Speaker) (*grammar.Expr, error) {
	if err := s.read(); err != nil {
		return nil, err
	}
	s.format = f
	shape, ok := spoken[cmp.Or(f.form, f.name)]
	if !ok {
		return nil, fmt.Errorf("calls of the format %s cannot be demanded", f.name)
	}
	var calls []*grammar.Expr
	for i := range s.list {
		e, err := shape.call(s, &s.list[i])
		if err != nil {
			return nil, &ToolError{s.list[i].index, err}
		}
		calls = append(calls, e)
	}
	call := grammar.Rule(s.Rules.Add(grammar.Alt(calls...)))
	more := MaxCalls - 1
	if s.Single || shape.one {
		more = 0
	}
	lead := gap
	if f.harmony {
		lead = grammar.Seq()
	}
	return grammar.Seq(lead, s.Spell(shape.begin), call, grammar.Repeat(grammar.Seq(s.loose(shape.between), call), 0, more), s.Spell(shape.end)), nil
}

// form is how a format writes calls: what stands around and between them, and one call.
type form struct {
	begin, between, end string
	one                 bool // there is room for one call
	call                func(*Speaker, *function) (*grammar.Expr, error)
}

// spoken are the forms in which calls can be demanded.
var spoken = map[string]form{
	"hermes":       {between: "\n", call: jsonForm(hermesOpen+"\n"+`{"name": "`, `", "arguments": `, "}\n"+hermesClose)},
	"llama3":       {one: true, call: jsonForm(`{"name": "`, `", "parameters": `, "}")},
	"mistral":      {begin: mistralOpen + "[", between: ", ", end: "]", call: jsonForm(`{"name": "`, `", "arguments": `, "}")},
	"mistral_args": {call: jsonForm(mistralOpen, mistralArgs, "")},
	"kimi_k2": {begin: "<|tool_calls_section_begin|>", end: kimiEnd, call: func(s *Speaker, f *function) (*grammar.Expr, error) {
		args, err := s.arguments(f, nil)
		number := grammar.Repeat(grammar.Class(grammar.NewSet(grammar.Range{Lo: '0', Hi: '9'})), 1, 3)
		return grammar.Seq(s.Spell(kimiOpen+"functions."+f.Name+":"), number, s.Spell(kimiArgs), args, s.Spell(kimiClose)), err
	}},
	"deepseek_v3":     {begin: "<｜tool▁calls▁begin｜>", end: deepseekEnd, call: jsonForm(deepseekOpen, deepseekSep, deepseekClose)},
	"deepseek_fenced": {begin: "<｜tool▁calls▁begin｜>", between: "\n", end: deepseekEnd, call: jsonForm(deepseekOpen+"function"+deepseekSep, "\n```json\n", "\n```"+deepseekClose)},
	"harmony":         {one: true, call: jsonForm(harmonyChannel+"commentary to=functions.", " "+harmonyType+"json"+harmonyMessage, "")},
	"glm4":            {between: "\n", call: tagForm(hermesOpen, "\n", glmForm, "\n", "", hermesClose)},
	"qwen3_coder":     {between: "\n", call: tagForm(hermesOpen+"\n"+coderOpen, ">\n", coderForm, "\n", "\n", coderForm.end+"\n"+hermesClose)},
	"minimax_m2":      {begin: "<minimax:tool_call>\n", between: "\n", end: "\n</minimax:tool_call>", call: tagForm(minimaxOpen+`"`, `">`+"\n", minimaxForm, "\n", "", minimaxForm.end)},
	"deepseek_v32":    {begin: "<｜DSML｜function_calls>\n", between: "\n", end: "\n</｜DSML｜function_calls>", call: tagForm(dsmlOpen+`"`, `">`+"\n", dsmlForm, "\n", "", dsmlForm.end)},
	"gemma4":          {call: ownForm(gemmaOpen+"call:", "", gemmaClose, gemmaNotation)},
	"minimax_m3":      {begin: minimax3Mark + "<tool_call>\n", between: "\n", end: "\n" + minimax3Mark + "</tool_call>", call: ownForm(minimax3Open+`"`, `">`, minimax3Close, minimax3Notation)},
	"deepseek_v4":     {begin: "<｜DSML｜tool_calls>\n", between: "\n", end: "\n</｜DSML｜tool_calls>", call: tagForm(dsmlOpen+`"`, `">`+"\n", dsmlForm, "\n", "", dsmlForm.end)},
}

// loose returns a text whose line end at its end may be missing: templates of one format differ there.
func (s *Speaker) loose(text string) *grammar.Expr {
	if body, ok := strings.CutSuffix(text, "\n"); ok {
		return grammar.Seq(s.Spell(body), grammar.Optional(grammar.Text("\n")))
	}
	return s.Spell(text)
}

// jsonForm returns a call whose arguments are a JSON object.
func jsonForm(open, middle, end string) func(*Speaker, *function) (*grammar.Expr, error) {
	return func(s *Speaker, f *function) (*grammar.Expr, error) {
		args, err := s.arguments(f, nil)
		return grammar.Seq(s.Spell(open+f.Name+middle), args, s.Spell(end)), err
	}
}

// ownForm returns a call whose arguments are in a notation of the format.
func ownForm(open, middle, end string, notation func(*Speaker) *jsonschema.Notation) func(*Speaker, *function) (*grammar.Expr, error) {
	return func(s *Speaker, f *function) (*grammar.Expr, error) {
		args, err := s.arguments(f, notation(s))
		return grammar.Seq(s.Spell(open+f.Name+middle), args, s.Spell(end)), err
	}
}

// arguments are the object of a tool's arguments. A tool that is not strict may have a schema
// without a grammar: then it is any object.
func (s *Speaker) arguments(f *function, notation *jsonschema.Notation) (*grammar.Expr, error) {
	o := jsonschema.Options{Closed: true, Object: true, Notation: notation}
	text := f.Parameters
	if len(text) == 0 || string(text) == "null" {
		text = json.RawMessage(`{}`)
	}
	e, err := jsonschema.Add(s.Rules, text, o)
	if err != nil && !f.Strict {
		return jsonschema.Object(s.Rules, jsonschema.Options{Notation: notation}), nil
	}
	return e, err
}

// tagForm returns a call whose parameters have tags of their own. line follows each of them, and inner stands
// on both sides of a value.
func tagForm(open, nameEnd string, t *paramForm, line, inner, end string) func(*Speaker, *function) (*grammar.Expr, error) {
	return func(s *Speaker, f *function) (*grammar.Expr, error) {
		text := f.Parameters
		if len(text) == 0 || string(text) == "null" {
			text = json.RawMessage(`{}`)
		}
		members, err := jsonschema.Members(s.Rules, text, jsonschema.Options{Escaped: "<"}) // a closing tag within a string would end it
		if err != nil {
			return nil, err // without names there is no call
		}
		list := []*grammar.Expr{s.loose(open + f.Name + nameEnd)}
		for _, m := range members {
			one := s.parameter(f, t, m, line, inner)
			if !m.Required {
				one = grammar.Optional(one)
			}
			list = append(list, one)
		}
		return grammar.Seq(append(list, s.Spell(end))...), nil
	}
}

// parameter returns a parameter with its value.
func (s *Speaker) parameter(f *function, t *paramForm, m jsonschema.Member, line, inner string) *grammar.Expr {
	name := m.Name
	if t.attributes {
		name = `"` + name + `"`
	}
	kinds := s.known.typesOf(f.Name, m.Name)
	write := func(head string, value *grammar.Expr) *grammar.Expr {
		return grammar.Seq(s.loose(t.open+head+t.nameEnd+t.valueSpace()), s.Spell(t.valueOpen+inner), value, s.loose(inner+t.close+line))
	}
	plain := m.Plain
	if plain == nil {
		plain = grammar.Until(t.close, t.end)
	}
	switch typed := t == dsmlForm; {
	case typed && kinds == stringType:
		return write(name+` string="true"`, plain)
	case typed:
		return write(name+` string="false"`, m.Value)
	case kinds&stringType != 0:
		return write(name, plain)
	}
	return write(name, m.Value)
}

// valueSpace stands between a name and the mark before its value.
func (t *paramForm) valueSpace() string {
	if t.valueOpen != "" {
		return "\n"
	}
	return ""
}
