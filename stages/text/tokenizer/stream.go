package tokenizer

import "strings"

// Decode returns the text of the ids in whole characters: invalid UTF-8 becomes U+FFFD. With
// skipSpecial, special tokens are omitted. An id without a token adds nothing, as in the reference;
// TokenBytes identifies such ids.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	if t.byteLevelOnly() {
		return t.decodeBytes(ids, skipSpecial)
	}
	var out output
	chain := newChain(t.decoders, &out)
	for _, id := range ids {
		if text, ok := t.shown(id, skipSpecial); ok {
			chain.put(text)
		}
	}
	chain.end()
	return string(out.buf)
}

// byteLevelOnly reports whether ByteLevel is all the decoder there is.
func (t *Tokenizer) byteLevelOnly() bool {
	if len(t.decoders) != 1 {
		return false
	}
	_, ok := t.decoders[0].(byteLevelDecoder)
	return ok
}

// decodeBytes is Decode for the ByteLevel decoder alone, where a text is just the bytes of its
// tokens.
func (t *Tokenizer) decodeBytes(ids []int32, skipSpecial bool) string {
	var b strings.Builder
	b.Grow(len(ids) * 4)
	for _, id := range ids {
		if t.addedByID[id] == nil && t.model.vocab.has(id) {
			b.Write(t.model.vocab.bytes(id))
		} else if text, ok := t.shown(id, skipSpecial); ok {
			b.WriteString(text)
		}
	}
	text, _ := validText(b.String(), nil)
	return text
}

// shown returns the text of a token, or false if it has none or must be omitted.
func (t *Tokenizer) shown(id int32, skipSpecial bool) (string, bool) {
	if skipSpecial && t.IsSpecial(id) {
		return "", false
	}
	return t.tokenText(id)
}

// Stream turns tokens into text as they arrive. The concatenated results of Push and Flush equal
// the result of Decode for all the ids. At any moment they contain only whole characters: the
// beginning of a character is held back, and with a byte-fallback decoder a run of byte tokens
// until it ends, since one bad byte spoils all of it. A Stream is not safe for concurrent use.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	show        func(string) bool // special tokens that are kept all the same
	chain       stage
	out         output
}

// NewStream returns a Stream at the beginning of a text.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	s.chain = newChain(t.decoders, &s.out)
	return s
}

// Show keeps the special tokens whose text f accepts, also with skipSpecial.
func (s *Stream) Show(f func(text string) bool) { s.show = f }

// Push takes the next id and returns the text that is now certain, which is often empty. An id
// without a token adds nothing.
func (s *Stream) Push(id int32) string {
	text, ok := s.t.shown(id, s.skipSpecial)
	if !ok && s.show != nil {
		if text, ok = s.t.tokenText(id); ok {
			ok = s.show(text)
		}
	}
	if ok {
		s.chain.put(text)
	}
	return s.take()
}

// Flush ends the text and returns what was held back; an unfinished character becomes U+FFFD. The
// Stream is then ready for a new text.
func (s *Stream) Flush() string {
	s.chain.end()
	text := s.take()
	s.chain = newChain(s.t.decoders, &s.out)
	return text
}

func (s *Stream) take() string {
	text := string(s.out.buf)
	s.out.buf = s.out.buf[:0]
	return text
}
