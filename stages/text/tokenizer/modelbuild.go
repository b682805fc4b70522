package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// build makes the model. byteLevel says that the text arrives as bytes.
func (m *modelFile) build(byteLevel bool) (*bpe, error) {
	f := m.fields
	switch {
	case f.Dropout != nil && *f.Dropout != 0:
		return nil, unsupported("model.dropout", "%v", *f.Dropout)
	case f.Prefix != nil && *f.Prefix != "":
		return nil, unsupported("model.continuing_subword_prefix", "%q", *f.Prefix)
	case f.Suffix != nil && *f.Suffix != "":
		return nil, unsupported("model.end_of_word_suffix", "%q", *f.Suffix)
	}
	b := &bpe{
		vocab: m.vocab, pairs: m.pairs, cache: new(wordCache), byteLevel: byteLevel,
		unk: -1, fuseUnk: f.FuseUnk, ignoreMerges: f.IgnoreMerges,
	}
	if f.UnkToken != nil {
		id, ok := m.vocab.id(*f.UnkToken)
		if !ok {
			return nil, malformed("model.unk_token", "%q is not in the vocabulary", *f.UnkToken)
		}
		b.unk = id
	}
	if f.ByteFallback {
		b.fallback = new([256]int32)
		for i := range b.fallback {
			id, ok := m.vocab.id(fmt.Sprintf("<0x%02X>", i))
			if !ok {
				return nil, unsupported("model.byte_fallback", "without a token <0x%02X>", i)
			}
			b.fallback[i] = id
		}
	}
	if byteLevel {
		return b, b.spell()
	}
	b.runes = new(runeTable)
	for id := range m.vocab.spans {
		if !m.vocab.has(int32(id)) {
			continue
		}
		text := m.vocab.bytes(int32(id))
		if r, n := utf8.DecodeRune(text); n == len(text) && n > 0 {
			b.runes.put(r, int32(id))
		}
	}
	if m.cuttable(b) {
		b.bounds = m.bounds
	}
	return b, nil
}

// cuttable reports whether the bounds hold: every character of a text becomes at least one symbol
// (omitting one would join its neighbours), no symbol whose spelling differs from its text takes
// part in a merge, and unknown characters do not fuse.
func (m *modelFile) cuttable(b *bpe) bool {
	if b.fallback == nil {
		return b.unk >= 0 && !b.fuseUnk && !m.operands[b.unk]
	}
	for _, id := range b.fallback {
		if m.operands[id] {
			return false
		}
	}
	return true
}

// spell turns the keys of a byte-level vocabulary into the bytes they spell.
func (b *bpe) spell() error {
	from := b.vocab
	b.vocab = newVocab()
	b.odd = &oddTokens{ids: map[string]int32{}, texts: map[int32]string{}}
	for id := range from.spans {
		if !from.has(int32(id)) {
			continue
		}
		text := from.text(int32(id))
		start := len(b.vocab.blob)
		blob, ok := appendSpelled(b.vocab.blob, text)
		if !ok {
			b.odd.ids[text], b.odd.texts[int32(id)] = int32(id), text
			continue
		}
		b.vocab.blob = blob
		b.vocab.put(int32(id), start)
	}
	b.vocab.index()
	for i := range b.bytes {
		b.bytes[i] = -1
		if id, ok := b.vocab.findBytes([]byte{byte(i)}); ok {
			b.bytes[i] = id
		} else if b.fallback != nil {
			return unsupported("model.byte_fallback", "in a byte-level vocabulary that lacks byte 0x%02X", i)
		}
	}
	return nil
}

// size returns the highest id plus one.
func (b *bpe) size() int {
	n := len(b.vocab.spans)
	if b.odd != nil {
		for id := range b.odd.texts {
			n = max(n, int(id)+1)
		}
	}
	return n
}
