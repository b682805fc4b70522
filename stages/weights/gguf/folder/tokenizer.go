package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"krater/stages/weights/gguf"
)

// The types of tokens.
const (
	tokenNormal = 1 + iota
	tokenUnknown
	tokenControl
	tokenUserDefined
	tokenUnused
	tokenByte
)

// Bounds of what is made of scores: the bytes of a token, and the merges. Real tokens stay below
// 100 bytes, and half a million merges belong to the largest vocabularies.
const (
	maxToken  = 1 << 8
	maxMerges = 1 << 22
)

// vocabulary holds the tokens that the metadata list.
type vocabulary struct {
	*gguf.Metadata
	tokens []string
	types  []int64
}

// added is a token that is cut out of a text before it is tokenized.
type added struct {
	ID      int    `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// Tokenizer makes tokenizer.json and tokenizer_config.json, with the chat template, of a file's
// metadata. Byte-level tokenizers (gpt2) and SentencePiece's BPE (llama) are supported. What the
// file does not keep are white space that belongs to special tokens, and further templates of the
// post-processor.
func (d *Folder) Tokenizer() (tokenizer, config []byte, err error) {
	return Tokenizer(&d.file.Metadata)
}

// Tokenizer is Folder.Tokenizer for metadata alone.
func Tokenizer(m *gguf.Metadata) (tokenizer, config []byte, err error) {
	v, err := readVocabulary(m)
	if err != nil {
		return nil, nil, err
	}
	kind, err := m.String("tokenizer.ggml.model")
	if err != nil {
		return nil, nil, err
	}
	var parts object
	addBOS := false
	switch kind {
	case "gpt2":
		parts, addBOS, err = v.byteLevel()
	case "llama":
		parts, err = v.sentencePiece()
		addBOS = true
	default:
		err = fmt.Errorf("%w: tokenizer.ggml.model is %.40q (known: gpt2, llama)", ErrTokenizer, kind)
	}
	if err != nil {
		return nil, nil, err
	}
	parts["added_tokens"], parts["version"] = v.added(), "1.0"
	c, err := v.config(addBOS)
	if err != nil {
		return nil, nil, err
	}
	if whole, err := m.String("tokenizer.huggingface.json"); err == nil {
		tokenizer = []byte(whole)
	} else if tokenizer, err = json.Marshal(parts); err != nil {
		return nil, nil, err
	}
	config, err = json.Marshal(c)
	return tokenizer, config, err
}

func readVocabulary(m *gguf.Metadata) (*vocabulary, error) {
	v := &vocabulary{Metadata: m}
	var err error
	if v.tokens, err = m.Strings("tokenizer.ggml.tokens"); err != nil {
		return nil, err
	}
	if v.types, err = m.Ints("tokenizer.ggml.token_type"); errors.Is(err, gguf.ErrKeyMissing) {
		v.types, err = slices.Repeat([]int64{tokenNormal}, len(v.tokens)), nil
	}
	switch {
	case err != nil:
		return nil, err
	case len(v.types) != len(v.tokens):
		return nil, fmt.Errorf("%w: %d tokens and %d token types", ErrTokenizer, len(v.tokens), len(v.types))
	}
	seen := make(map[string]int, len(v.tokens))
	for id, text := range v.tokens {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%w: token %d is not UTF-8: %.40q", ErrTokenizer, id, text)
		}
		if first, twice := seen[text]; twice && text != "" {
			return nil, fmt.Errorf("%w: tokens %d and %d are both %.40q", ErrTokenizer, first, id, text)
		}
		seen[text] = id
	}
	for _, name := range []string{"bos", "eos", "unknown", "padding"} { // these exist, whatever their type
		if id, ok := v.id(name); ok && (v.types[id] == tokenUnused || v.types[id] == tokenNormal && name != "unknown") {
			v.types[id] = tokenControl
		}
	}
	return v, nil
}

// id is one of the special tokens.
func (v *vocabulary) id(name string) (int, bool) {
	n, err := v.Int("tokenizer.ggml." + name + "_token_id")
	return int(n), err == nil && n >= 0 && n < int64(len(v.tokens)) && v.tokens[n] != ""
}

// isAdded reports whether a token is cut out of texts.
func (v *vocabulary) isAdded(id int) bool {
	return v.tokens[id] != "" && (v.types[id] == tokenControl || v.types[id] == tokenUserDefined || v.types[id] == tokenUnknown)
}

// added lists the tokens that are cut out of texts.
func (v *vocabulary) added() []added {
	list := []added{}
	for id, text := range v.tokens {
		if v.isAdded(id) {
			list = append(list, added{id, text, v.types[id] != tokenUserDefined})
		}
	}
	return list
}

// byteLevel makes the parts of a tokenizer whose tokens spell bytes. Added tokens and unused ones
// are no part of its vocabulary, unless merges name them.
func (v *vocabulary) byteLevel() (parts object, addBOS bool, err error) {
	name, err := v.String("tokenizer.ggml.pre")
	if errors.Is(err, gguf.ErrKeyMissing) {
		err = fmt.Errorf("%w: the file does not say how text is split (tokenizer.ggml.pre); convert the model again with a current llama.cpp", ErrTokenizer)
	}
	if err != nil {
		return nil, false, err
	}
	pre, ok := preTokenizers[name]
	if !ok {
		return nil, false, fmt.Errorf("%w: tokenizer.ggml.pre is %.40q (known: %s)", ErrTokenizer, name, strings.Join(slices.Sorted(maps.Keys(preTokenizers)), ", "))
	}
	merges, err := v.Strings("tokenizer.ggml.merges")
	if err != nil {
		return nil, false, err
	}
	named := make(map[string]bool, 2*len(merges))
	for i, merge := range merges {
		left, right, ok := strings.Cut(merge, " ")
		if !ok || left == "" || right == "" {
			return nil, false, fmt.Errorf("%w: merge %d is %.40q, which is not two tokens", ErrTokenizer, i, merge)
		}
		named[left], named[right], named[left+right] = true, true, true
	}
	vocab := make(map[string]int, len(v.tokens))
	for id, text := range v.tokens {
		if text != "" && (named[text] || !v.isAdded(id) && v.types[id] != tokenUnused) {
			vocab[text] = id
		}
	}
	return object{
		"normalizer": pre.normalizer(), "pre_tokenizer": pre.steps(), "decoder": object{"type": "ByteLevel"},
		"model": object{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre.ignoreMerges},
	}, pre.addBOS, nil
}

// sentencePiece makes the parts of a tokenizer whose tokens have scores: two neighbours become
// the token that they spell, the one of the best score first. So each way to cut a token in two
// is a merge, in the order of the scores.
func (v *vocabulary) sentencePiece() (object, error) {
	scores, err := v.Floats("tokenizer.ggml.scores")
	if err != nil {
		return nil, err
	}
	if len(scores) != len(v.tokens) {
		return nil, fmt.Errorf("%w: %d tokens and %d scores", ErrTokenizer, len(v.tokens), len(scores))
	}
	model := object{"type": "BPE", "fuse_unk": true}
	vocab := make(map[string]int, len(v.tokens))
	for id, text := range v.tokens {
		if text == "" {
			continue
		}
		vocab[text] = id
		if v.types[id] == tokenUnknown {
			model["unk_token"] = text
		}
	}
	if id, ok := v.id("unknown"); ok {
		model["unk_token"] = v.tokens[id]
	}
	_, model["byte_fallback"] = vocab["<0x00>"]
	model["vocab"] = vocab
	if model["merges"], err = v.merges(scores, vocab); err != nil {
		return nil, err
	}
	prefix, err := v.Bool("tokenizer.ggml.add_space_prefix")
	if errors.Is(err, gguf.ErrKeyMissing) {
		prefix, err = true, nil
	}
	if err != nil {
		return nil, err
	}
	const mark = "\u2581" // stands for a space
	space := object{"type": "Replace", "pattern": object{"String": " "}, "content": mark}
	normalizers := []object{space}
	decoders := []object{{"type": "Replace", "pattern": object{"String": mark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
	if prefix {
		normalizers = []object{{"type": "Prepend", "prepend": mark}, space}
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return object{
		"normalizer": object{"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": nil,
		"decoder": object{"type": "Sequence", "decoders": decoders}, "model": model,
	}, nil
}

// merges lists the ways to cut each normal token in two tokens.
func (v *vocabulary) merges(scores []float64, vocab map[string]int) ([][2]string, error) {
	type merge struct {
		left, right string
		score       float64
	}
	var list []merge
	for id, text := range v.tokens {
		if v.types[id] != tokenNormal {
			continue
		}
		if len(text) > maxToken {
			return nil, fmt.Errorf("%w: token %d has %d bytes, at most %d are accepted", ErrTokenizer, id, len(text), maxToken)
		}
		first := len(list)
		for i := range text {
			if i == 0 {
				continue
			}
			_, ok := vocab[text[:i]]
			if _, both := vocab[text[i:]]; ok && both {
				list = append(list, merge{text[:i], text[i:], scores[id]})
			}
		}
		if len(list) > maxMerges {
			return nil, fmt.Errorf("%w: the tokens can be made in more than %d ways", ErrTokenizer, maxMerges)
		}
		slices.SortStableFunc(list[first:], func(a, b merge) int { return vocab[a.left] - vocab[b.left] })
	}
	slices.SortStableFunc(list, func(a, b merge) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	out := make([][2]string, len(list))
	for i, m := range list {
		out[i] = [2]string{m.left, m.right}
	}
	return out, nil
}

// config makes tokenizer_config.json.
func (v *vocabulary) config(addBOS bool) (object, error) {
	c := object{"tokenizer_class": "PreTrainedTokenizerFast"}
	for field, name := range map[string]string{"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"} {
		if id, ok := v.id(name); ok {
			c[field] = v.tokens[id]
		}
	}
	for field, def := range map[string]bool{"add_bos_token": addBOS, "add_eos_token": false} {
		add, err := v.Bool("tokenizer.ggml." + field)
		if errors.Is(err, gguf.ErrKeyMissing) {
			add, err = def, nil
		}
		if err != nil {
			return nil, err
		}
		_, known := c[strings.TrimPrefix(field, "add_")]
		c[field] = add && known
	}
	decoder := map[string]added{}
	for _, a := range v.added() {
		decoder[fmt.Sprint(a.ID)] = a
	}
	c["added_tokens_decoder"] = decoder
	return c, v.templates(c)
}

// templates sets the chat template, or several with their names.
func (v *vocabulary) templates(c object) error {
	const key = "tokenizer.chat_template"
	if v.Has(key) {
		text, err := v.String(key)
		if err != nil {
			return err
		}
		c["chat_template"] = text
	}
	var list []object
	for _, k := range v.Keys() {
		if name, ok := strings.CutPrefix(k, key+"."); ok {
			text, err := v.String(k)
			if err != nil {
				return err
			}
			list = append(list, object{"name": name, "template": text})
		}
	}
	if text, ok := c["chat_template"]; ok && len(list) > 0 {
		c["chat_template"] = append(list, object{"name": "default", "template": text})
	}
	return nil
}
