package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decoder of tokenizer.json maps the list of token texts to another list, which is finally
// joined. Here each decoder is a stage that takes tokens one at a time and passes on what is
// certain, so that the same code serves Decode and Stream.

// stage takes token texts. After a Fuse or ByteLevel, everything is one token, which arrives in
// several puts.
type stage interface {
	put(text string)
	end()
}

// decoderSpec describes a stage and makes it for one decoding. fused says that the input is one
// token in several puts.
type decoderSpec interface {
	stage(next stage, fused bool) (s stage, fusedAfter bool)
	// one maps a token that is not the first. It returns false if the token is raw bytes and
	// further stages have nothing to do.
	one(text string) (string, bool)
}

// newChain makes the stages of one decoding, which write into out.
func newChain(specs []decoderSpec, out *output) stage {
	// Stages are made from the last to the first, but what is fused is known from the first to the
	// last.
	fused := make([]bool, len(specs)+1)
	for i, s := range specs {
		_, fused[i+1] = s.stage(nil, fused[i])
	}
	var next stage = out
	for i := len(specs) - 1; i >= 0; i-- {
		next, _ = specs[i].stage(next, fused[i])
	}
	return next
}

// decodeOne returns the bytes of a single token.
func decodeOne(specs []decoderSpec, text string) []byte {
	for _, s := range specs {
		var more bool
		if text, more = s.one(text); !more {
			break
		}
	}
	return []byte(text)
}

// output is the last stage. It collects the text.
type output struct{ buf []byte }

func (o *output) put(text string) { o.buf = append(o.buf, text...) }
func (o *output) end()            {}

// byteLevelDecoder is ByteLevel: the token texts, already turned into bytes, are one text, in which
// bytes that are not UTF-8 become U+FFFD.
type byteLevelDecoder struct{}

func (byteLevelDecoder) stage(next stage, _ bool) (stage, bool) {
	return &byteLevelStage{next: next}, true
}
func (byteLevelDecoder) one(text string) (string, bool) { return text, false }

type byteLevelStage struct {
	next stage
	held []byte // the beginning of a character
}

func (s *byteLevelStage) put(text string) {
	if len(s.held) == 0 && utf8.ValidString(text) {
		s.next.put(text)
		return
	}
	s.held = append(s.held, text...)
	s.release(false)
}

func (s *byteLevelStage) end() {
	s.release(true)
	s.next.end()
}

// release passes on all of held but a character that may still be completed.
func (s *byteLevelStage) release(all bool) {
	var b strings.Builder
	i := 0
	for i < len(s.held) {
		r, n := utf8.DecodeRune(s.held[i:])
		if r == utf8.RuneError && n <= 1 {
			bad, cut := badLen(s.held[i:])
			if cut && !all {
				break
			}
			b.WriteString(replacement)
			i += bad
			continue
		}
		b.Write(s.held[i : i+n])
		i += n
	}
	s.held = append(s.held[:0], s.held[i:]...)
	if b.Len() > 0 {
		s.next.put(b.String())
	}
}

// byteFallbackDecoder is ByteFallback: a run of tokens <0xXX> is the text that the bytes spell, or
// one U+FFFD a byte if all of them together are not UTF-8. So nothing of a run is certain before it
// ends.
type byteFallbackDecoder struct{}

func (byteFallbackDecoder) stage(next stage, fused bool) (stage, bool) {
	return &byteFallbackStage{next: next}, fused
}

func (byteFallbackDecoder) one(text string) (string, bool) {
	if b, ok := fallbackByte(text); ok {
		return string([]byte{b}), false
	}
	return text, true
}

// fallbackByte returns the byte of a token <0xXX>.
func fallbackByte(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(text[3:5], 16, 8)
	return byte(n), err == nil
}

type byteFallbackStage struct {
	next stage
	run  []byte
}

func (s *byteFallbackStage) put(text string) {
	if b, ok := fallbackByte(text); ok {
		s.run = append(s.run, b)
		return
	}
	s.flush()
	s.next.put(text)
}

func (s *byteFallbackStage) end() {
	s.flush()
	s.next.end()
}

func (s *byteFallbackStage) flush() {
	switch {
	case len(s.run) == 0:
		return
	case utf8.Valid(s.run):
		s.next.put(string(s.run))
	default:
		for range s.run {
			s.next.put(replacement)
		}
	}
	s.run = s.run[:0]
}

// fuseDecoder is Fuse: the tokens so far become one.
type fuseDecoder struct{}

func (fuseDecoder) stage(next stage, _ bool) (stage, bool) { return next, true }
func (fuseDecoder) one(text string) (string, bool)         { return text, true }
