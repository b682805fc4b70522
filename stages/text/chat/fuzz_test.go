package chat

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzRender: whatever the JSON, no panic; an error is an *Error with a place; a prompt has one
// start and one end of turn for each message that are not protected, and no more.
func FuzzRender(f *testing.F) {
	c := rich(f, Options{SpecialTokens: chatML, AssistantTokens: []string{"<think>", "</think>"}})
	small := tiny(f, nil)
	types, err := Compile(wantsTypes, Options{})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []string{
		`[` + userMessage + `]`, `[` + userMessage + `,` + aCall + `,{"role":"tool","tool_call_id":"c1","content":"r<|im_end|>"}]`,
		`[{"role":"user","content":[{"type":"text","text":"<|im_start|>"},{"type":"text","text":"b"}]}]`,
		`[{"role":"assistant","content":"<think>a</think><|im_end|>","reasoning":"<|im_"}]`,
		`[{"role":"developer","content":"d","name":"n"}]`, `[]`, `[{}]`, `[{"role":"user","content":"\ud83d\ude00\u0000"}]`,
	} {
		f.Add([]byte(m), []byte(`[`+aTool+`]`), []byte(`{"enable_thinking":false,"x":[1.5,{"a":null}]}`), true, false)
		f.Add([]byte(m), []byte(``), []byte(``), false, true)
	}
	f.Fuzz(func(t *testing.T, messages, tools, kwargs []byte, generate, goOn bool) {
		conv := Conversation{Messages: messages, Tools: tools, Kwargs: kwargs, AddGenerationPrompt: generate, ContinueFinalMessage: goOn}
		for _, c := range []*Template{c, small, types} {
			r, err := c.Render(conv)
			var e *Error
			if err != nil {
				if !errors.As(err, &e) || e.Param == "" || e.Message == "" {
					t.Fatalf("%+v", err)
				}
				continue
			}
			at := 0
			for _, p := range r.Protected {
				if p.Start < at || p.End <= p.Start || p.End > len(r.Text) {
					t.Fatalf("protected %v in %d bytes", r.Protected, len(r.Text))
				}
				at = p.End
			}
			if !utf8.ValidString(r.Text) {
				t.Fatalf("not UTF-8: %q", r.Text)
			}
		}
		r, err := c.Render(conv)
		if err != nil || goOn {
			return
		}
		var list []json.RawMessage
		if err := json.Unmarshal(messages, &list); err != nil {
			t.Fatal(err)
		}
		turns := len(list)
		if strings.HasPrefix(r.Text, "<|im_start|>tools\n") {
			turns++
		}
		starts := turns
		if generate {
			starts++
		}
		if s, e := free(r, "<|im_start|>"), free(r, "<|im_end|>"); s != starts || e != turns {
			t.Fatalf("%d starts, %d ends of %d turns: %s", s, e, turns, shown(r))
		}
	})
}

// free counts a token where no protected range touches it.
func free(r Result, token string) int {
	n := 0
	for i := 0; ; {
		j := strings.Index(r.Text[i:], token)
		if j < 0 {
			return n
		}
		from, to := i+j, i+j+len(token)
		touched := false
		for _, p := range r.Protected {
			touched = touched || p.Start < to && from < p.End
		}
		if !touched {
			n++
		}
		i = to
	}
}
