package tokenizer

import "strings"

// replaceDecoder is Replace with a String pattern, which is not empty.
type replaceDecoder struct{ old, repl string }

func (d replaceDecoder) stage(next stage, fused bool) (stage, bool) {
	return &replaceStage{replaceDecoder: d, next: next, fused: fused}, fused
}

func (d replaceDecoder) one(text string) (string, bool) {
	return strings.ReplaceAll(text, d.old, d.repl), true
}

type replaceStage struct {
	replaceDecoder
	next  stage
	fused bool
	held  string // an end that may be the beginning of the pattern
}

func (s *replaceStage) put(text string) {
	if !s.fused {
		s.next.put(strings.ReplaceAll(text, s.old, s.repl))
		return
	}
	text = s.held + text
	s.held = ""
	for {
		i := strings.Index(text, s.old)
		if i < 0 {
			break
		}
		s.next.put(text[:i] + s.repl)
		text = text[i+len(s.old):]
	}
	for n := min(len(text), len(s.old)-1); n > 0; n-- {
		if strings.HasSuffix(text, s.old[:n]) {
			s.held = text[len(text)-n:]
			break
		}
	}
	s.next.put(text[:len(text)-len(s.held)])
}

func (s *replaceStage) end() {
	if s.held != "" {
		s.next.put(s.held)
		s.held = ""
	}
	s.next.end()
}

// stripDecoder is Strip: up to start times content off the front of each token and up to stop times
// off its end.
type stripDecoder struct {
	content     string // one character
	start, stop int
}

func (d stripDecoder) stage(next stage, fused bool) (stage, bool) {
	return &stripStage{stripDecoder: d, next: next, fused: fused, left: d.start}, fused
}

// one leaves the token unchanged: what is stripped depends on its position.
func (d stripDecoder) one(text string) (string, bool) { return text, true }

type stripStage struct {
	stripDecoder
	next  stage
	fused bool
	left  int // how often content may still go from the front
	held  int // how often content came last and waits whether it is the end
}

func (s *stripStage) put(text string) {
	text = s.front(text)
	if !s.fused {
		for n := 0; n < s.stop && strings.HasSuffix(text, s.content); n++ {
			text = text[:len(text)-len(s.content)]
		}
		s.next.put(text)
		s.left = s.start
		return
	}
	if text == "" {
		return
	}
	// The last content's of the text so far, at most stop of them, are held.
	n := 0
	for n < s.stop && strings.HasSuffix(text, s.content) {
		text = text[:len(text)-len(s.content)]
		n++
	}
	if text == "" {
		over := max(0, s.held+n-s.stop)
		s.release(over)
		s.held += n
		return
	}
	s.release(s.held)
	s.next.put(text)
	s.held = n
}

func (s *stripStage) end() { s.next.end() }

// front takes content off the front while that is allowed.
func (s *stripStage) front(text string) string {
	for s.left > 0 && text != "" {
		if !strings.HasPrefix(text, s.content) {
			s.left = 0
			break
		}
		text = text[len(s.content):]
		s.left--
	}
	return text
}

// release passes n of the held contents on.
func (s *stripStage) release(n int) {
	if n > 0 {
		s.next.put(strings.Repeat(s.content, n))
		s.held -= n
	}
}

// metaspaceDecoder is Metaspace: marks become spaces, except those of the first token if a mark was
// put in front.
type metaspaceDecoder struct {
	mark  string
	strip bool
}

func (d metaspaceDecoder) stage(next stage, fused bool) (stage, bool) {
	return &metaspaceStage{metaspaceDecoder: d, next: next, fused: fused, first: true}, fused
}

func (d metaspaceDecoder) one(text string) (string, bool) {
	return strings.ReplaceAll(text, d.mark, " "), true
}

type metaspaceStage struct {
	metaspaceDecoder
	next         stage
	fused, first bool
}

func (s *metaspaceStage) put(text string) {
	space := " "
	if s.first && s.strip {
		space = ""
	}
	s.next.put(strings.ReplaceAll(text, s.mark, space))
	s.first = s.fused
}

func (s *metaspaceStage) end() { s.next.end() }

// joinDecoder is the absence of a decoder: the tokens with a space between them.
type joinDecoder struct{}

func (joinDecoder) stage(next stage, _ bool) (stage, bool) {
	return &joinStage{next: next}, true
}
func (joinDecoder) one(text string) (string, bool) { return text, true }

type joinStage struct {
	next stage
	more bool
}

func (s *joinStage) put(text string) {
	if s.more {
		s.next.put(" ")
	}
	s.more = true
	s.next.put(text)
}

func (s *joinStage) end() { s.next.end() }
