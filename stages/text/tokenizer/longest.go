package tokenizer

// longestText returns the maximum number of bytes of a text that one token represents, or 0 if
// there is no limit: if a step drops text, or joins it without end.
func (t *Tokenizer) longestText() int {
	longest := t.model.longest()
	if longest == 0 {
		return 0
	}
	for _, a := range t.addedByID {
		if a.LStrip || a.RStrip {
			return 0
		}
		longest = max(longest, len(a.Content))
	}
	for _, n := range t.normalizers {
		longest *= shrinks(n)
	}
	for _, p := range t.splitters {
		if s, ok := p.(splitter); ok && s.behavior == removed {
			return 0
		}
	}
	return longest
}

// shrinks returns the number of bytes at most become one in a normalizer, 0 for any number.
func shrinks(n normalizer) int {
	switch n := n.(type) {
	case prepender:
		return 1
	case literalReplacer:
		if n.repl == "" {
			return 0
		}
		return (len(n.old) + len(n.repl) - 1) / len(n.repl)
	case lowercaser:
		return 3 // the kelvin sign becomes k
	case unicodeForm:
		return 4 // a mathematical A becomes A; U+1FBE with two marks becomes U+0390
	}
	return 0
}

// longest returns the length of the longest token, or 0 if characters can be left out or joined to
// one unknown token.
func (m *bpe) longest() int {
	if m.fallback == nil && (m.unk < 0 || m.fuseUnk) && !m.complete() {
		return 0
	}
	n := 0
	for id := range m.vocab.spans {
		if m.vocab.has(int32(id)) {
			n = max(n, len(m.vocab.bytes(int32(id))))
		}
	}
	if m.unk >= 0 {
		n = max(n, 4) // it represents one character, whatever its own text
	}
	return n
}

// complete reports whether every byte has a token.
func (m *bpe) complete() bool {
	for _, id := range m.bytes {
		if id < 0 {
			return false
		}
	}
	return m.byteLevel
}
