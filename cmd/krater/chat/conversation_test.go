package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/cmd/krater/term"
	"krater/transport/api"
	"krater/transport/client"
)

// typed is a line of a scripted user, or the error that a key causes instead.
type typed struct {
	line   string
	pasted bool
	err    error
}

// script types lines, then leaves; it keeps the prompts.
type script struct {
	lines   []typed
	prompts []string
}

func (s *script) Read(prompt string) (string, bool, error) {
	s.prompts = append(s.prompts, prompt)
	if len(s.lines) == 0 {
		return "", false, io.EOF
	}
	l := s.lines[0]
	s.lines = s.lines[1:]
	return l.line, l.pasted, l.err
}

// says are lines that are typed as they are.
func says(lines ...string) *script {
	s := &script{}
	for _, l := range lines {
		s.lines = append(s.lines, typed{line: l})
	}
	return s
}

// echo answers what it was asked last, and keeps the conversations.
type echo struct {
	asked [][]client.Message
	ends  []End // of the answers, in order
	err   error
}

func (e *echo) Ask(_ context.Context, messages []client.Message, show func(string) error) (End, error) {
	if e.err != nil {
		return End{}, e.err
	}
	e.asked = append(e.asked, messages)
	r := End{prompt: 10 * len(messages), tokens: 2}
	if len(e.ends) > 0 {
		r, e.ends = e.ends[0], e.ends[1:]
	}
	if r.cancelled && r.tokens == 0 {
		return r, nil
	}
	return r, show("re: " + messages[len(messages)-1].Content)
}

// talked runs a scripted chat and gives what was shown.
func talked(t *testing.T, c *Conversation, s *script, e *echo) string {
	t.Helper()
	var out bytes.Buffer
	c.Talker, c.Lines, c.Out = e, s, &out
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestMessages: of one line and several, typed and pasted.
func TestMessages(t *testing.T) {
	pasted := func(lines ...string) *script {
		s := &script{}
		for i, l := range lines {
			s.lines = append(s.lines, typed{line: l, pasted: i < len(lines)-1})
		}
		return s
	}
	for name, c := range map[string]struct {
		in   *script
		want []string
	}{
		"one line":             {says("hello", "", "  ", "again"), []string{"hello", "again"}},
		"backslash":            {says(`a \`, `b\`, "c"), []string{"a \nb\nc"}},
		"block":                {says(`"""first`, `/second \`, "", `third"""`, "next"), []string{"first\n/second \\\n\nthird", "next"}},
		"block of one line":    {says(`"""one"""`), []string{"one"}},
		"block on its own":     {says(`"""`, "x", `""" `), []string{"\nx\n"}},
		"quotes inside":        {says(`say """ now`), []string{`say """ now`}},
		"a slash":              {says("//etc is a folder"), []string{"/etc is a folder"}},
		"pasted":               {pasted("one", `two \`, "/three", "four"), []string{"one\ntwo \\\n/three\nfour"}},
		"pasted quotes":        {pasted(`"""`, "x"), []string{"\"\"\"\nx"}},
		"Ctrl-D ends a text":   {&script{lines: []typed{{line: `"""a`}, {err: io.EOF}, {line: "b"}}}, []string{"a\n", "b"}},
		"Ctrl-C gives it up":   {&script{lines: []typed{{line: `"""a`}, {err: term.ErrInterrupted}, {line: "b"}}}, []string{"b"}},
		"Ctrl-C behind a text": {&script{lines: []typed{{err: term.ErrDropped}, {err: term.ErrDropped}, {line: "b"}}}, []string{"b"}},
	} {
		e := &echo{}
		talked(t, &Conversation{}, c.in, e)
		var got []string
		for _, m := range e.asked {
			got = append(got, m[len(m)-1].Content)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	s := says(`"""`, "x", `"""`)
	talked(t, &Conversation{}, s, &echo{})
	if want := []string{">>> ", "... ", "... ", ">>> "}; !slices.Equal(s.prompts, want) {
		t.Errorf("prompts %q, want %q", s.prompts, want)
	}
	big := strings.Repeat("x", 3<<20)
	e := &echo{}
	if out := talked(t, &Conversation{}, says(big+`\`, big+`\`, "small"), e); len(e.asked) != 1 || !strings.Contains(out, "may have at most 4 MiB") {
		t.Errorf("%d messages of any size", len(e.asked))
	}
}

// TestChatRemembers what was said, with the system text, until it is told to forget.
func TestChatRemembers(t *testing.T) {
	e := &echo{}
	file := filepath.Join(t.TempDir(), "talk.json")
	out := talked(t, &Conversation{System: "Be brief."}, says("a", "b", "/undo", "c", "/save "+file, "/save "+file, "/save", "/system Be long.", "d", "/system", "/reset", "/system none", "e", "/nonsense", "/help", "/exit", "f"), e)
	roles := func(m []client.Message) string {
		var parts []string
		for _, x := range m {
			parts = append(parts, x.Role[:1]+":"+x.Content)
		}
		return strings.Join(parts, "|")
	}
	want := []string{"s:Be brief.|u:a", "s:Be brief.|u:a|a:re: a|u:b", "s:Be brief.|u:a|a:re: a|u:c", "s:Be long.|u:a|a:re: a|u:c|a:re: c|u:d", "u:e"}
	for i, m := range e.asked {
		if i >= len(want) || roles(m) != want[i] {
			t.Errorf("question %d: got %q, want %q", i, roles(m), want[min(i, len(want)-1)])
		}
	}
	if len(e.asked) != len(want) {
		t.Errorf("%d questions, want %d", len(e.asked), len(want))
	}
	for _, w := range []string{"re: a\n", "2 messages remain", "Wrote ", "exists already", "/save FILE", "System message: Be long.", "There is no system message.", "Unknown command /nonsense", "/undo  "} {
		if !strings.Contains(out, w) {
			t.Errorf("%q is not shown: %s", w, out)
		}
	}
	kept := saved(t, file)
	if roles(kept.Messages) != "s:Be brief.|u:a|a:re: a|u:c|a:re: c" {
		t.Errorf("saved %q", roles(kept.Messages))
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// TestChatSaysHowFullTheContextIs, and what to do when nothing goes into it any more.
func TestChatSaysHowFullTheContextIs(t *testing.T) {
	e := &echo{ends: []End{{prompt: 50, tokens: 10}, {prompt: 70, tokens: 10, cached: 60}, {prompt: 90, tokens: 10, cut: true}}}
	out := talked(t, &Conversation{Name: "small", Context: 100}, says("a", "b", "/context", "c"), e)
	if strings.Contains(out, "60 of 100") || strings.Count(out, "context: 80 of 100 tokens, 80 %") != 2 || !strings.Contains(out, "60 of the last prompt from the cache") ||
		!strings.Contains(out, "the context is full (100 tokens)") || !strings.Contains(out, "small, 100 tokens of context") {
		t.Errorf("got %s", out)
	}
	for _, err := range []error{&engine.Error{Kind: engine.ContextLength, Message: "it has 101 tokens"}, &api.Error{Code: api.CodeContextLength, Message: "it has 101 tokens"}} {
		e := &echo{err: err}
		c := &Conversation{messages: []client.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}}
		if out := talked(t, c, says("c"), e); !strings.Contains(out, "The conversation no longer fits: it has 101 tokens. /undo") || len(c.messages) != 2 {
			t.Errorf("got %s, %v", out, c.messages)
		}
	}
	if out := talked(t, &Conversation{}, says("c"), &echo{err: errors.New("refused")}); !strings.Contains(out, "No answer: refused.") {
		t.Errorf("got %s", out)
	}
	e = &echo{ends: []End{{cancelled: true}, {tokens: 1, cancelled: true}, {tokens: 5, cut: true}}}
	c := &Conversation{Most: 5}
	if out := talked(t, c, says("gone", "half", "cut"), e); strings.Count(out, "Cancelled.") != 2 || !strings.Contains(out, "cut after 5 tokens (--max-tokens)") || len(c.messages) != 4 {
		t.Errorf("got %s, %v", out, c.messages)
	}
}

// TestInterruptsLeaveAtTheSecond, unless something was typed between them.
func TestInterruptsLeaveAtTheSecond(t *testing.T) {
	e := &echo{}
	s := &script{lines: []typed{{err: term.ErrInterrupted}, {line: "a"}, {err: term.ErrInterrupted}, {err: term.ErrDropped}, {err: term.ErrInterrupted}, {err: term.ErrInterrupted}, {line: "b"}}}
	if out := talked(t, &Conversation{}, s, e); len(e.asked) != 1 || strings.Count(out, "Press Ctrl-C again") != 3 {
		t.Errorf("%d questions: %s", len(e.asked), out)
	}
}

// saved reads what /save wrote.
func saved(t *testing.T, file string) (v struct{ Messages []client.Message }) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}
