package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"krater/actors/engine"
)

// endsLater is a context that ends when it has been looked at so often.
type endsLater struct {
	context.Context
	left int
}

func (c *endsLater) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestOverlongPrompts: a prompt over the context is refused with numbers that are true, as ids and as
// text, and counted to its end only if it is not far over. One whose client leaves is given up.
func TestOverlongPrompts(t *testing.T) {
	r := newRig(t, setup{limits: small(1)})
	gw := r.gateway(t)
	size := gw.Info().Context
	text := func(tokens int) engine.Prompt {
		s := strings.Repeat("\x01", tokens) // no merge has this byte
		return engine.Prompt{Text: &s, NoBOS: true}
	}
	says := func(words string) string {
		return fmt.Sprintf("maximum context length is %d tokens, and the prompt has %s; leave room", size, words)
	}
	for _, c := range []struct {
		name   string
		prompt engine.Prompt
		kind   engine.Kind
		words  string
	}{
		{"full", text(size), engine.ContextLength, says(fmt.Sprint(size))},
		{"a little over", text(2 * size), engine.ContextLength, says(fmt.Sprint(2 * size))},
		{"over twice", text(2*size + 1), engine.ContextLength, says(fmt.Sprintf("at least %d", 2*size+1))},
		{"far over, by its bytes", text(4 << 20), engine.ContextLength, says(fmt.Sprintf("at least %d", gw.opt.Tokenizer.AtLeast(4<<20)))},
		{"ids", engine.Prompt{IDs: make([]int32, size)}, engine.ContextLength, says(fmt.Sprint(size))},
		{"very many ids", engine.Prompt{IDs: make([]int32, 1<<20)}, engine.ContextLength, says(fmt.Sprintf("at least %d", 1<<20))},
	} {
		_, err := gw.Submit(t.Context(), &engine.Request{Prompt: c.prompt, MaxTokens: 1})
		if no, ok := errors.AsType[*engine.Error](err); !ok || no.Kind != c.kind || !strings.Contains(no.Message, c.words) {
			t.Errorf("%s: %v, want %q", c.name, err, c.words)
		}
	}
	if ids, err := gw.Tokenize(t.Context(), text(1000), 1000); err != nil || len(ids) != 1000 {
		t.Errorf("as many as wanted: %d, %v", len(ids), err)
	}
	_, err := gw.Tokenize(t.Context(), text(1001), 1000)
	if no, ok := errors.AsType[*engine.Error](err); !ok || no.Kind != engine.ContextLength || !strings.Contains(no.Message, "at least 1001 tokens, the limit is 1000") {
		t.Errorf("one more than wanted: %v", err)
	}
	_, err = gw.Tokenize(&endsLater{t.Context(), 1}, text(1<<20), 1<<22)
	if no, ok := errors.AsType[*engine.Error](err); !ok || no.Kind != engine.Cancelled {
		t.Errorf("the client left: %v", err)
	}
}

// TestDetokenizeIsBounded: few ids can have a long text, but not any.
func TestDetokenizeIsBounded(t *testing.T) {
	r := newRig(t, setup{limits: small(1)})
	gw := r.gateway(t)
	longest, bytes := int32(0), 0
	for id := range int32(gw.Info().Vocab) {
		if b, ok := gw.opt.Tokenizer.TokenBytes(id); ok && len(b) > bytes {
			longest, bytes = id, len(b)
		}
	}
	ids := make([]int32, textMost/bytes+1)
	for i := range ids {
		ids[i] = longest
	}
	if text, err := gw.Detokenize(ids[1:], false); err != nil || len(text) > textMost {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	_, err := gw.Detokenize(ids, false)
	if no, ok := errors.AsType[*engine.Error](err); !ok || no.Kind != engine.BadRequest || !strings.Contains(no.Message, fmt.Sprint(textMost)) {
		t.Errorf("one token more: %v", err)
	}
}

// TestProgress: a request that wants it sees how much of a long prompt is there, in order, and another
// one does not.
func TestProgress(t *testing.T) {
	limits := small(1)
	limits.Tokens = 16
	r := newRig(t, setup{limits: limits})
	gw := r.gateway(t)
	ids := make([]int32, gw.Info().Context-1)
	for _, wants := range []bool{true, false} {
		s, err := gw.Submit(t.Context(), &engine.Request{Prompt: engine.Prompt{IDs: ids}, MaxTokens: 1, Logprobs: -1, Progress: wants, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1}})
		if err != nil {
			t.Fatal(err)
		}
		last, events := 0, 0
		for e := (engine.Event{}); e.Kind != engine.Done; {
			if e, err = s.Next(t.Context()); err != nil || e.Kind == engine.Failed {
				t.Fatalf("%+v %v", e, err)
			}
			if e.Kind != engine.Progress {
				continue
			}
			if events++; e.Position <= last || e.Position >= len(ids) || e.Usage.Prompt != len(ids) {
				t.Errorf("%d after %d of %d", e.Position, last, e.Usage.Prompt)
			}
			last = e.Position
		}
		s.Close()
		if (events > 0) != wants {
			t.Errorf("wanted %v: %d events", wants, events)
		}
		ids[0]++ // not in the cache
	}
}
