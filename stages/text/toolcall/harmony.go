package toolcall

import (
	"bytes"
	"strings"
)

// The markers of harmony, the format of gpt-oss: messages of a header and a body. The header names a
// channel and, for a call, its recipient.
const (
	harmonyStart   = "<|start|>"
	harmonyChannel = "<|channel|>"
	harmonyType    = "<|constrain|>"
	harmonyMessage = "<|message|>"
	harmonyEnd     = "<|end|>"
	harmonyCall    = "<|call|>"
	harmonyReturn  = "<|return|>"
)

var harmonyEnds = []string{harmonyEnd, harmonyCall, harmonyReturn, harmonyStart}

// harmonyHeader takes the header of a message, of which the prompt has the beginning:
// "<|start|>assistant". What can be no header is the answer.
func harmonyHeader(p *Parser) bool {
	n, which := p.find([]string{harmonyMessage})
	head := string(p.buf[:n])
	switch {
	case which < 0 && !p.ending && n <= maxHeader && headerBegins(string(p.buf)):
		return false
	case which < 0 || n > maxHeader || !headerBegins(head):
		for _, mark := range []string{harmonyStart, harmonyChannel} {
			if strings.HasPrefix(head, mark) {
				p.drop(len(mark))
			}
		}
		p.next = harmonyText
		return true
	}
	p.drop(n + len(harmonyMessage))
	p.message(head)
	return true
}

// headerBegins reports whether a header may begin so.
func headerBegins(s string) bool {
	s = strings.TrimLeft(s, " \t\r\n")
	for _, word := range []string{harmonyChannel, harmonyStart, "assistant", "to=", harmonyMessage} {
		if strings.HasPrefix(s, word) || strings.HasPrefix(word, s) {
			return true
		}
	}
	return false
}

// message begins the body that a header announces.
func (p *Parser) message(head string) {
	_, to, called := strings.Cut(head, "to=")
	if n := strings.IndexAny(to, " \t\r\n<"); n >= 0 {
		to = to[:n]
	}
	_, channel, _ := strings.Cut(head, harmonyChannel)
	name := strings.TrimPrefix(to, "functions.")
	switch {
	case called && p.tools != nil && toolName(name) && p.calls < MaxCalls:
		if p.begin(name, "") {
			p.stops, p.skipping = harmonyEnds, skipper{after: harmonyAfter}
			p.next = jsonBody
		}
		return
	case strings.HasPrefix(strings.TrimSpace(channel), "analysis"):
		p.thinking = true
	}
	if p.trim = true; p.wrote[p.kind()] {
		p.separate = true
	}
	p.next = harmonyText
}

// harmonyText takes the body of a message that is text.
func harmonyText(p *Parser) bool {
	n, which := p.find(harmonyEnds)
	body := p.buf[:n]
	if p.separate && len(bytes.TrimSpace(body)) > 0 {
		p.separate = false
		p.emit(p.kind(), "\n\n") // two messages make one text
	}
	p.text(body)
	p.drop(n)
	if which < 0 {
		return false
	}
	if p.gap = p.gap[:0]; !p.trim {
		p.wrote[p.kind()] = true
	}
	p.thinking, p.separate = false, false
	p.next = harmonyAfter
	return true
}

// harmonyAfter leaves out what is between two messages.
func harmonyAfter(p *Parser) bool {
	marks := append([]string{harmonyChannel}, harmonyEnds...)
	n, which := p.find(marks)
	if text := bytes.TrimSpace(p.buf[:n]); len(text) > 0 && !bytes.ContainsAny(text[:1], "}])`,;") {
		p.text(p.buf[:n])
	}
	p.drop(n)
	if which < 0 {
		return false
	}
	if marks[which] == harmonyChannel || marks[which] == harmonyStart {
		p.next = harmonyHeader
		return true
	}
	p.drop(len(marks[which]))
	return true
}
