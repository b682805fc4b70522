package tokenizer

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// modelFile is the "model" part of a tokenizer.json. The vocabulary and the
// merges, up to half a million entries, are read straight into the tables.
type modelFile struct {
	fields modelFields
	vocab  *vocab     // keyed by the texts of the file
	pairs  *pairTable // nil before the merges are read
	late   jsontext.Value

	bounds   *boundTable
	operands []bool // by id: the token is part of a merge
	text     []byte // the texts of the merge being read
}

// modelFields are the small fields of the model.
type modelFields struct {
	Type         string   `json:"type"`
	Dropout      *float64 `json:"dropout"`
	UnkToken     *string  `json:"unk_token"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
}

func readModel(dec *jsontext.Decoder) (*modelFile, error) {
	m := &modelFile{bounds: new(boundTable)}
	small := []byte{'{'}
	err := eachMember(dec, "model", func(name string) error {
		switch name {
		case "vocab":
			if m.vocab != nil {
				return malformed("model.vocab", "is there twice")
			}
			return m.readVocab(dec)
		case "merges":
			if m.pairs != nil || m.late != nil {
				return malformed("model.merges", "is there twice")
			}
			if m.vocab == nil { // they need the vocabulary
				v, err := dec.ReadValue()
				m.late = v.Clone()
				return err
			}
			return m.readMerges(dec)
		}
		v, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if len(small) > 1 {
			small = append(small, ',')
		}
		small, err = jsontext.AppendQuote(small, name)
		small = append(append(small, ':'), v...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := decode("model", append(small, '}'), &m.fields); err != nil {
		return nil, err
	}
	if m.fields.Type != "BPE" && (m.fields.Type != "" || m.pairs == nil && m.late == nil) {
		return nil, unsupported("model.type", "%q", m.fields.Type)
	}
	if m.vocab == nil {
		return nil, malformed("model.vocab", "is missing")
	}
	if m.late != nil {
		if err := m.readMerges(jsontext.NewDecoder(bytes.NewBuffer(m.late))); err != nil {
			return nil, err
		}
	}
	if m.pairs == nil {
		return nil, malformed("model.merges", "is missing")
	}
	return m, nil
}

// readVocab reads {"text": id, ...}.
func (m *modelFile) readVocab(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '{' {
		// A list of texts with scores is a Unigram model.
		return unsupported("model.vocab", "anything but an object of ids")
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	v := newVocab()
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return err
		}
		from := len(v.blob)
		if v.blob, err = jsontext.AppendUnquote(v.blob, name); err != nil {
			return err
		}
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		id, ok := smallInt(value)
		if !ok {
			return malformed("model.vocab", "the id of %q is %.30s", v.blob[from:], value)
		}
		if v.has(id) {
			return malformed("model.vocab", "%q and %q have the same id %d", v.text(id), v.blob[from:], id)
		}
		v.put(id, from)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	if id := v.index(); id >= 0 {
		return malformed("model.vocab", "%q is there twice", v.text(id))
	}
	m.vocab, m.operands = v, make([]bool, len(v.spans))
	return nil
}

// smallInt parses an id.
func smallInt(text []byte) (int32, bool) {
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' || n > maxID {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return int32(n), len(text) > 0 && n <= maxID
}

// readMerges reads ["left right", ...] or [["left", "right"], ...].
func (m *modelFile) readMerges(dec *jsontext.Decoder) error {
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != '[' {
		return malformed("model.merges", "is not a list")
	}
	m.pairs = newPairTable(m.vocab.count)
	for rank := 0; dec.PeekKind() != ']'; rank++ {
		left, skip, err := m.readMerge(dec)
		if err != nil {
			return err
		}
		if skip {
			rank--
			continue
		}
		if rank == math.MaxInt32 {
			return malformed("model.merges", "too many")
		}
		if err := m.addMerge(left, rank); err != nil {
			return err
		}
	}
	_, err = dec.ReadToken()
	return err
}

// readMerge reads the two texts of a merge, one behind the other, into m.text
// and returns the length of the first.
func (m *modelFile) readMerge(dec *jsontext.Decoder) (left int, skip bool, err error) {
	m.text = m.text[:0]
	switch dec.PeekKind() {
	case '"':
		if err := m.readText(dec); err != nil {
			return 0, false, err
		}
		if bytes.HasPrefix(m.text, []byte("#version")) {
			return 0, true, nil
		}
		left = bytes.IndexByte(m.text, ' ')
		if left < 0 || bytes.IndexByte(m.text[left+1:], ' ') >= 0 {
			return 0, false, malformed("model.merges", "%q is not two tokens", m.text)
		}
		m.text = append(m.text[:left], m.text[left+1:]...)
		return left, false, nil
	case '[':
		if _, err := dec.ReadToken(); err != nil {
			return 0, false, err
		}
		if err := m.readText(dec); err != nil {
			return 0, false, err
		}
		left = len(m.text)
		if err := m.readText(dec); err != nil {
			return 0, false, err
		}
		if dec.PeekKind() != ']' {
			return 0, false, malformed("model.merges", "a merge is not two tokens")
		}
		_, err := dec.ReadToken()
		return left, false, err
	}
	if v, err := dec.ReadValue(); err != nil {
		return 0, false, err
	} else {
		return 0, false, malformed("model.merges", "%.30s is not a merge", v)
	}
}

func (m *modelFile) readText(dec *jsontext.Decoder) error {
	if dec.PeekKind() == ']' {
		return malformed("model.merges", "a merge is not two tokens")
	}
	v, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if v.Kind() != '"' {
		return malformed("model.merges", "%.30s is not a token", v)
	}
	m.text, err = jsontext.AppendUnquote(m.text, v)
	return err
}

// addMerge adds the merge of m.text[:left] and m.text[left:].
func (m *modelFile) addMerge(left, rank int) error {
	var ids [3]int32
	for i, text := range [3][]byte{m.text[:left], m.text[left:], m.text} {
		id, ok := m.vocab.findBytes(text)
		if !ok {
			return malformed("model.merges", "%q of merge %d is not in the vocabulary", text, rank)
		}
		ids[i] = id
	}
	m.pairs.set(ids[0], ids[1], ids[2], rank)
	m.operands[ids[0]], m.operands[ids[1]] = true, true
	if left > 0 && left < len(m.text) {
		l, _ := utf8.DecodeLastRune(m.text[:left])
		r, _ := utf8.DecodeRune(m.text[left:])
		m.bounds.join(l, r)
	}
	return nil
}

// build makes the model. byteLevel says that the text comes as bytes.
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

// cuttable reports whether the bounds hold: every character of a text becomes at
// least one symbol (one that is left out brings its neighbours together), no
// symbol that is not spelled like its text takes part in a merge, and unknown
// characters do not fuse.
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
			b.odd.ids[text], b.odd.texts[int32(id)] = int32(id), strings.Clone(text)
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
