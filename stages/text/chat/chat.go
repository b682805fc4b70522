// Package chat turns a conversation into the text of a prompt by a model's chat template, as
// transformers' apply_chat_template does. It also says which parts of that text are a client's
// words, so that only the template can yield control tokens.
//
// Whatever a template would render silently wrong is refused first: unknown roles, malformed
// content, tool calls whose arguments are not JSON, and what the template at hand leaves out of its
// prompt (probe.go finds that out when the template is compiled).
package chat

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"
	"unicode/utf8"

	"krater/stages/text/chat/template"
	"krater/stages/text/tokenizer"
	"krater/stages/text/toolcall"
)

// MaxInput bounds messages, tools and template variables together, in bytes of JSON.
const MaxInput = 16 << 20

// Options describe the model around a template.
type Options struct {
	BOS, EOS string // bos_token, eos_token
	// Tokens are further named tokens that templates may use (unk_token, pad_token, ...), by name.
	Tokens map[string]string
	// ToolUse is the source of another template for conversations with tools, as models with a list
	// of named templates have it. Empty: there is none.
	ToolUse string
	// SpecialTokens are the texts of the tokens that only the template may yield. nil: all text of
	// a client is protected, whatever it spells.
	SpecialTokens []string
	// AssistantTokens are the SpecialTokens that the content and reasoning of an assistant message
	// may also contain, because the model writes them in its answers and they control nothing:
	// "<think>", "</think>".
	AssistantTokens []string
	// Now is the clock of strftime_now; nil: time.Now.
	Now func() time.Time
}

// Template is a compiled chat template. It is immutable and safe for concurrent use.
type Template struct {
	main, tools *template.Program // tools is main where there is only one
	fixed       map[string]template.Value
	now         func() time.Time
	protect     *finder
	exempt      *finder
	sum         [sha256.Size]byte
	source      string
	traits      traits
	format      toolcall.Format
}

// Conversation is a client's conversation as JSON, with its members in order: the order of object
// keys decides the text.
type Conversation struct {
	Messages []byte // array of messages in the chat-completions shape
	Tools    []byte // array of tools; nil, null or empty: none
	Kwargs   []byte // object of further template variables; nil or null: none
	// AddGenerationPrompt opens an assistant message at the end.
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the prompt after the content of the last message, an assistant's,
	// so that the model continues it. It turns AddGenerationPrompt off.
	ContinueFinalMessage bool
}

// Range is text[Start:End] in bytes.
type Range = tokenizer.Range

// Result is a rendered prompt.
type Result struct {
	Text string
	// Protected are the ranges of Text, in order, that come from the client and spell a special
	// token, or a part of one: no special token may be recognised that touches them.
	Protected []Range
}

// Compile compiles a template. The error names the line.
func Compile(source string, o Options) (*Template, error) {
	t := &Template{now: o.Now, protect: newFinder(o.SpecialTokens), exempt: newFinder(o.AssistantTokens)}
	if o.SpecialTokens == nil {
		t.protect = nil
	}
	var err error
	if t.main, err = template.Compile(source); err != nil {
		return nil, err
	}
	t.tools = t.main
	if o.ToolUse != "" {
		if t.tools, err = template.Compile(o.ToolUse); err != nil {
			return nil, err
		}
	}
	t.fixed = map[string]template.Value{"bos_token": template.NewString(o.BOS), "eos_token": template.NewString(o.EOS)}
	for name, text := range o.Tokens {
		if !identifier(name) || template.Reserved(name) {
			return nil, errors.New("chat template: a token cannot be named " + name)
		}
		t.fixed[name] = template.NewString(text)
	}
	for name, text := range t.fixed {
		if !utf8.ValidString(text.AsString()) {
			return nil, errors.New("chat template: " + name + " is not valid UTF-8")
		}
	}
	t.source = source
	t.sum = sha256.Sum256([]byte(source + "\x00" + o.ToolUse))
	t.traits = probe(t)
	t.format = toolcall.Detect(source + "\n" + o.ToolUse)
	return t, nil
}

// Sum identifies the template: the SHA-256 of its source.
func (t *Template) Sum() [sha256.Size]byte { return t.sum }

// Source returns the text of the template for conversations without tools.
func (t *Template) Source() string { return t.source }

// Bounds of the text that Render makes of a conversation, so that a short request does not become a
// long text: a multiple of its bytes, and a constant for the template's own words.
const (
	growth = 4
	base   = 512 << 10
)

// Render is RenderContext without an end.
func (t *Template) Render(c Conversation) (Result, error) {
	return t.RenderContext(context.Background(), c)
}

// RenderContext checks a conversation and renders it. The error is an *Error, or what ctx ended
// with.
func (t *Template) RenderContext(ctx context.Context, c Conversation) (Result, error) {
	vars, err := t.check(c)
	if err != nil {
		return Result{}, err
	}
	final := ""
	if c.ContinueFinalMessage {
		if final, err = openFinal(vars["messages"]); err != nil {
			return Result{}, err
		}
	}
	vars["add_generation_prompt"] = template.NewBool(c.AddGenerationPrompt && !c.ContinueFinalMessage)
	output := min(template.DefaultOutput, base+growth*(len(c.Messages)+len(c.Tools)+len(c.Kwargs)))
	marked, err := t.run(vars, template.Config{Now: t.now, Output: output, Memory: 128 * template.DefaultOutput, Ctx: ctx})
	if cause := ctx.Err(); cause != nil {
		return Result{}, cause
	}
	if err != nil {
		return Result{}, err
	}
	text, client := template.Unmark(marked)
	if c.ContinueFinalMessage {
		if text, err = cutFinal(text, final); err != nil {
			return Result{}, err
		}
	}
	return Result{Text: text, Protected: t.ranges(text, client)}, nil
}

// run renders with the program that the tools call for, and turns what a template may raise into an
// *Error.
func (t *Template) run(vars map[string]template.Value, c template.Config) (string, error) {
	prog := t.main
	if vars["tools"].IsTruthy() {
		prog = t.tools
	}
	text, err := prog.Run(vars, c)
	var raised *template.Raised
	switch {
	case err == nil:
		return text, nil
	case errors.As(err, &raised):
		return "", fail("messages", "%s", raised.Message)
	case errors.Is(err, template.ErrLimit):
		return "", fail("messages", "%v", err)
	}
	return "", fail("messages", "the model's chat template cannot render this conversation: %v", err)
}
