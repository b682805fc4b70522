package tokenizer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
)

// Bounds of a tiktoken.model: its bytes, and the bytes of a token. Kimi K2's has 2.8 MB, and its
// longest token 128 bytes.
const (
	maxTiktoken      = 32 << 20
	maxTiktokenToken = 256
)

// kimiReserved is the number of special tokens behind the ordinary ones (num_reserved_special_tokens
// of tokenization_kimi.py).
const kimiReserved = 256

// ParseTiktoken makes a Tokenizer from the contents of tiktoken.model and tokenizer_config.json, as
// Kimi K2 and K2.5 are released: without a tokenizer.json. The first is OpenAI's format of ranks: on
// each line a token in base64 and its rank, which is its id. The lowest rank is merged first, and a
// piece that is a token needs no merging.
//
// How text is split and which special tokens there are is code in such a release
// (tokenization_kimi.py), so a configuration that names other code is refused. The special tokens are
// the 256 ids behind the ranks: those of added_tokens_decoder, the others named <|reserved_token_ID|>.
//
// Errors are as from Parse.
func ParseTiktoken(ranks, configJSON []byte) (*Tokenizer, error) {
	loadClasses()
	model, err := readRanks(ranks)
	if err != nil {
		return nil, fmt.Errorf("tiktoken.model: %w", err)
	}
	t := newTokenizer()
	t.model, t.size = model, model.size()
	t.splitters = []preTokenizer{splitter{find: matcher(matchKimi)}, byteLevelSplitter{}}
	t.decoders = []decoderSpec{byteLevelDecoder{}}
	if err := t.kimiSpecials(configJSON); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t.finish()
	return t, nil
}

// readRanks reads the lines of tiktoken.model. The ranks are 0, 1, 2, ... in any order.
func readRanks(data []byte) (*bpe, error) {
	if len(data) > maxTiktoken {
		return nil, malformed("top level", "%d bytes, the limit is %d", len(data), maxTiktoken)
	}
	v := newVocab()
	lines := bytes.Split(data, []byte("\n"))
	for number, line := range lines {
		if line = bytes.TrimRight(line, "\r"); len(line) == 0 {
			continue
		}
		part := fmt.Sprintf("line %d", number+1)
		text, rank, ok := bytes.Cut(line, []byte(" "))
		id, isID := smallInt(rank)
		switch {
		case !ok || !isID:
			return nil, malformed(part, "%.40q is not a token in base64 and its rank", line)
		case int(id) >= len(lines):
			return nil, malformed(part, "the rank %d in a file of %d lines", id, len(lines))
		case v.has(id):
			return nil, malformed(part, "the rank %d occurs twice", id)
		case base64.StdEncoding.DecodedLen(len(text)) > maxTiktokenToken+2:
			return nil, malformed(part, "a token of more than %d bytes", maxTiktokenToken)
		}
		from := len(v.blob)
		var err error
		if v.blob, err = base64.StdEncoding.AppendDecode(v.blob, text); err != nil || len(v.blob) == from {
			return nil, malformed(part, "%.40q is not a token in base64", text)
		}
		v.put(id, from)
	}
	if v.count != len(v.spans) {
		return nil, malformed("ranks", "%d of 0 to %d are missing", len(v.spans)-v.count, len(v.spans)-1)
	}
	if id := v.index(); id >= 0 {
		return nil, malformed("ranks", "the token %.40q occurs twice", v.text(id))
	}
	m := &bpe{vocab: v, pairs: newPairTable(2 * v.count), cache: new(wordCache), byteLevel: true, odd: &oddTokens{}, unk: -1, ignoreMerges: true}
	for b := range m.bytes {
		id, ok := v.findBytes([]byte{byte(b)})
		if !ok {
			return nil, malformed("ranks", "no token for the byte 0x%02X", b)
		}
		m.bytes[b] = id
	}
	m.pairRanks()
	return m, nil
}

// pairRanks fills the pairs from the ranks: any two tokens merge whose bytes together are a token, in
// the order of that token's rank.
func (m *bpe) pairRanks() {
	for id := range m.vocab.spans {
		text := m.vocab.bytes(int32(id))
		for k := 1; k < len(text); k++ {
			left, ok := m.vocab.findBytes(text[:k])
			if !ok {
				continue
			}
			if right, ok := m.vocab.findBytes(text[k:]); ok {
				m.pairs.set(left, right, int32(id), id)
			}
		}
	}
}

// kimiSpecials applies tokenizer_config.json and names the special tokens that it does not name.
func (t *Tokenizer) kimiSpecials(config []byte) error {
	var c struct {
		Class string `json:"tokenizer_class"`
		Auto  struct {
			Tokenizer []*string `json:"AutoTokenizer"`
		} `json:"auto_map"`
	}
	if config == nil {
		return malformed("top level", "is missing, and tiktoken.model has no special tokens")
	}
	if err := decode("top level", config, &c); err != nil {
		return err
	}
	code := ""
	for _, name := range c.Auto.Tokenizer {
		if name != nil {
			code = *name
			break
		}
	}
	if !strings.HasPrefix(code, "tokenization_kimi.") {
		return unsupported("auto_map", "a tiktoken.model with the code of %q (%s); that of tokenization_kimi is", code, c.Class)
	}
	first := int32(len(t.model.vocab.spans))
	if err := t.configure(config); err != nil {
		return err
	}
	for id := first; id < first+kimiReserved; id++ {
		if t.addedByID[id] == nil {
			a := addedToken{ID: id, Content: fmt.Sprintf("<|reserved_token_%d|>", id), Special: true}
			if err := t.addToken(a, false); err != nil {
				return err
			}
		}
	}
	return nil
}
