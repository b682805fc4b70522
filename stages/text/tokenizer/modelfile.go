package tokenizer

import (
	"bytes"
	"encoding/json/jsontext"
	"math"
	"unicode/utf8"
)

// modelFile is the "model" part of a tokenizer.json. The vocabulary and the merges, up to half a
// million entries, are read straight into the tables.
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
				return malformed("model.vocab", "occurs twice")
			}
			return m.readVocab(dec)
		case "merges":
			if m.pairs != nil || m.late != nil {
				return malformed("model.merges", "occurs twice")
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
		return malformed("model.vocab", "%q occurs twice", v.text(id))
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

// readMerge reads the two texts of a merge into m.text, one after the other, and returns the length
// of the first.
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
