package tokenizer

import "sync"

// Tokenizer is a loaded tokenizer.json. It does not change after Parse, and all its methods are
// safe for concurrent use.
type Tokenizer struct {
	model       *bpe
	normalizers []normalizer
	splitters   []preTokenizer
	decoders    []decoderSpec

	added      map[string]*addedToken
	addedByID  map[int32]*addedToken
	raw        *trie // added tokens looked for in the raw text
	normalized *trie // and those looked for in normalised text

	prefix, suffix []int32 // what the post-processor puts around the ids
	bos, eos       int32   // -1 if there is none
	size           int     // highest id + 1
	longest        int     // maximum bytes of a text that one token represents; 0: unknown

	long    chan struct{} // holds an element while a long text is encoded
	scratch sync.Pool     // of *scratch
}

// VocabSize returns the highest token id plus one, added tokens included. A model's logits may have
// more rows.
func (t *Tokenizer) VocabSize() int { return t.size }

// Beyond returns the ids of tokens from n on, in rising order: those that a model with n rows of
// embedding lacks.
func (t *Tokenizer) Beyond(n int) []int32 {
	var ids []int32
	for id := max(0, n); id < t.size; id++ {
		if _, ok := t.tokenText(int32(id)); ok {
			ids = append(ids, int32(id))
		}
	}
	return ids
}

// TokenID returns the id of the token with this text, spelled as in tokenizer.json: added tokens as
// they are ("<|im_end|>"), those of a byte-level vocabulary in its alphabet ("Ġthe").
func (t *Tokenizer) TokenID(text string) (int32, bool) {
	if a := t.added[text]; a != nil {
		return a.ID, true
	}
	return t.model.id(text)
}

// TokenBytes returns the bytes that a token represents within a text, which need not be whole
// characters: "Ġthe" and "▁the" are " the", "<0x0A>" is a line end if the decoder has byte
// fallback. It returns false if no token has the id. The caller owns the bytes.
func (t *Tokenizer) TokenBytes(id int32) ([]byte, bool) {
	text, ok := t.tokenText(id)
	if !ok {
		return nil, false
	}
	return decodeOne(t.decoders, text), true
}

// IsSpecial reports whether id is an added token marked special, one that Decode with skipSpecial
// leaves out.
func (t *Tokenizer) IsSpecial(id int32) bool {
	a := t.addedByID[id]
	return a != nil && a.Special
}

// BOS returns the id of tokenizer_config.json's bos_token, or of the first token that the
// post-processor puts in front; false if there is none.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos >= 0 }

// EOS returns the id of tokenizer_config.json's eos_token; false if there is none. A model may have
// further stop tokens (generation_config.json).
func (t *Tokenizer) EOS() (int32, bool) { return t.eos, t.eos >= 0 }

// AddBOS reports whether Encode with AddSpecial starts with the BOS token.
func (t *Tokenizer) AddBOS() bool {
	return t.bos >= 0 && len(t.prefix) > 0 && t.prefix[0] == t.bos
}

// tokenText returns the text of a token as spelled in tokenizer.json, or, for a byte-level
// vocabulary, the bytes that it spells.
func (t *Tokenizer) tokenText(id int32) (string, bool) {
	if a := t.addedByID[id]; a != nil {
		if t.model.byteLevel {
			if b, ok := appendSpelled(nil, a.Content); ok {
				return string(b), true
			}
		}
		return a.Content, true
	}
	return t.model.text(id)
}

// id returns the token with this text, in the spelling of the vocabulary.
func (m *bpe) id(text string) (int32, bool) {
	if !m.byteLevel {
		return m.vocab.id(text)
	}
	if b, ok := appendSpelled(nil, text); ok {
		return m.vocab.findBytes(b)
	}
	id, ok := m.odd.ids[text]
	return id, ok
}

// text returns the text of a token, or the bytes that it spells.
func (m *bpe) text(id int32) (string, bool) {
	if m.vocab.has(id) {
		return m.vocab.text(id), true
	}
	if m.odd != nil {
		text, ok := m.odd.texts[id]
		return text, ok
	}
	return "", false
}
