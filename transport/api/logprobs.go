package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"krater/actors/engine"
)

// minLogprob stands for minus infinity, which JSON cannot hold.
const minLogprob = -9999

func finite(p float32) float32 {
	if math.IsNaN(float64(p)) || p < minLogprob {
		return minLogprob
	}
	return min(p, 0)
}

func alternative(text []byte, p float32) Alternative {
	bytes := make([]int, len(text))
	for i, b := range text {
		bytes[i] = int(b)
	}
	return Alternative{Token: strings.ToValidUTF8(string(text), "\uFFFD"), Logprob: finite(p), Bytes: bytes}
}

// NewChatLogprobs gives the chat form; nil when there are no tokens.
func NewChatLogprobs(tokens []engine.Token) *ChatLogprobs {
	if len(tokens) == 0 {
		return nil
	}
	out := &ChatLogprobs{Content: make([]TokenLogprob, len(tokens))}
	for i, t := range tokens {
		entry := TokenLogprob{Alternative: alternative(t.Text, t.Logprob), Top: []Alternative{}}
		for _, top := range t.Top {
			entry.Top = append(entry.Top, alternative(top.Text, top.Logprob))
		}
		out.Content[i] = entry
	}
	return out
}

// TextOffsets counts the characters of the text that is sent, over the tokens of one
// answer; the zero value stands at its start.
type TextOffsets struct {
	chars  int
	part   []byte // the bytes of a character that is not whole yet, at most 3
	answer bool   // the prompt's tokens, if any, have been counted
}

// add gives the offset at which the token starts and moves on.
func (o *TextOffsets) add(text []byte) int {
	if len(text) > 0 {
		if next := append(o.part, text[0]); utf8.FullRune(next) && !utf8.Valid(next) {
			o.end() // the token does not go on with the character
		}
	}
	start := o.chars
	o.part = append(o.part, text...)
	for len(o.part) > 0 && utf8.FullRune(o.part) {
		r, size := utf8.DecodeRune(o.part)
		if r == utf8.RuneError && size == 1 {
			// The text has one U+FFFD for all bytes that could have begun a character.
			for size < len(o.part) && !utf8.FullRune(o.part[:size+1]) {
				size++
			}
		}
		o.part = o.part[size:]
		o.chars++
	}
	return start
}

// end is the end of the prompt's text, or of a character that breaks off: what has come of
// it is one U+FFFD.
func (o *TextOffsets) end() {
	if len(o.part) > 0 {
		o.part, o.chars = nil, o.chars+1
	}
}

// NewTextLogprobs gives the completions form of the next tokens of the prompt, and of the
// answer behind it; nil when there are none.
func NewTextLogprobs(at *TextOffsets, prompt, answer []engine.Token) *TextLogprobs {
	if len(prompt)+len(answer) == 0 {
		return nil
	}
	out := &TextLogprobs{}
	for i := range prompt {
		out.add(&prompt[i], at)
	}
	if len(answer) > 0 && !at.answer {
		at.answer = true
		at.end()
	}
	for i := range answer {
		out.add(&answer[i], at)
	}
	return out
}

// add appends a token's log-probabilities; the first token of a prompt has none.
func (l *TextLogprobs) add(t *engine.Token, at *TextOffsets) {
	offset := at.chars
	if !t.Hidden {
		offset = at.add(t.Text)
	}
	l.Tokens, l.TextOffset = append(l.Tokens, tokenName(t.Text)), append(l.TextOffset, offset)
	if isNaN(t.Logprob) {
		l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, nil), append(l.TopLogprobs, nil)
		return
	}
	p := finite(t.Logprob)
	top := OrNull[float32]{tokenName(t.Text): p}
	for _, alt := range t.Top {
		top[tokenName(alt.Text)] = finite(alt.Logprob)
	}
	l.TokenLogprobs, l.TopLogprobs = append(l.TokenLogprobs, &p), append(l.TopLogprobs, top)
}

func isNaN(p float32) bool { return p != p }

// NewPromptLogprobs gives a prompt's tokens in vLLM's form.
func NewPromptLogprobs(tokens []engine.Token) PromptLogprobs {
	out := make(PromptLogprobs, len(tokens))
	for i := range tokens {
		t := &tokens[i]
		if isNaN(t.Logprob) {
			continue
		}
		out[i] = OrNull[PromptLogprob]{strconv.Itoa(int(t.ID)): promptLogprob(t.Text, t.Logprob, t.Rank)}
		for j, alt := range t.Top {
			if alt.ID != t.ID {
				out[i][strconv.Itoa(int(alt.ID))] = promptLogprob(alt.Text, alt.Logprob, j+1)
			}
		}
	}
	return out
}

func promptLogprob(text []byte, p float32, rank int) PromptLogprob {
	return PromptLogprob{Logprob: finite(p), Rank: rank, Token: strings.ToValidUTF8(string(text), "\uFFFD")}
}

// tokenName keeps tokens that are no whole characters apart: bytes:\xe2\x80.
func tokenName(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, c := range text {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	return b.String()
}
