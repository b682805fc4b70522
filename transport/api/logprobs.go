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

// NewChatLogprobs returns the chat form; nil when there are no tokens.
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

// TextOffsets counts the characters of the text sent, token by token. The zero value is at the
// start of the answer.
type TextOffsets struct {
	chars  int
	part   []byte // the bytes of a character that is not whole yet, at most 3
	answer bool   // the prompt's tokens, if any, have been counted
	prompt int    // characters of the prompt that is sent; 0: not known
	rest   string // part of the prompt not counted yet
}

// OffsetsOf counts the tokens of a prompt that is sent as this text, and of its answer.
func OffsetsOf(prompt string) TextOffsets {
	return TextOffsets{prompt: utf8.RuneCountInString(prompt), rest: prompt}
}

// step moves on by n characters.
func (o *TextOffsets) step(n int) {
	for o.chars += n; n > 0 && o.rest != ""; n-- {
		_, size := utf8.DecodeRuneInString(o.rest)
		o.rest = o.rest[size:]
	}
}

// alignWithin is how many bytes ahead align looks.
const alignWithin = 64

// align looks for a token of the prompt in the rest of its text, and returns the token's text as it
// appears there. A tokenizer may drop or change characters: white space next to an added token,
// characters that it normalises, a space that it inserts in front.
func (o *TextOffsets) align(token string) string {
	bare := strings.TrimPrefix(token, " ")
	switch i := strings.Index(o.rest[:min(len(o.rest), alignWithin+len(token))], token); {
	case i == 0 || o.rest == "":
	case strings.HasPrefix(o.rest, bare):
		return bare
	case i > 0 && utf8.ValidString(token):
		o.step(utf8.RuneCountInString(o.rest[:i]))
	}
	return token
}

// add returns the offset at which the token starts and moves on.
func (o *TextOffsets) add(text []byte) int {
	if len(text) > 0 {
		if next := append(o.part, text[0]); utf8.FullRune(next) && !utf8.Valid(next) {
			o.end() // the token does not continue the character
		}
	}
	if len(o.part) == 0 {
		text = []byte(o.align(string(text)))
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
		o.step(1)
	}
	return start
}

// end handles the end of an incomplete character, which becomes one U+FFFD.
func (o *TextOffsets) end() {
	if len(o.part) > 0 {
		o.part = nil
		o.step(1)
	}
}

// endPrompt goes to the end of the prompt.
func (o *TextOffsets) endPrompt() {
	o.end()
	if o.rest, o.answer = "", true; o.prompt > 0 {
		o.chars = o.prompt
	}
}

// NewTextLogprobs returns the completions form of the next tokens of the prompt and of the answer
// that follows; nil if there are none.
func NewTextLogprobs(at *TextOffsets, prompt, answer []engine.Token) *TextLogprobs {
	if len(prompt)+len(answer) == 0 {
		return nil
	}
	out := &TextLogprobs{}
	for i := range prompt {
		out.add(&prompt[i], at)
	}
	if len(answer) > 0 && !at.answer {
		at.endPrompt()
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

// NewPromptLogprobs returns a prompt's tokens in vLLM's form.
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
