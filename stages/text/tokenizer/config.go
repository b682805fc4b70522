package tokenizer

import (
	"encoding/json/jsontext"
	"fmt"
	"maps"
	"slices"
)

// configFile is the part of tokenizer_config.json that is read.
type configFile struct {
	BOS    jsontext.Value         `json:"bos_token"`
	EOS    jsontext.Value         `json:"eos_token"`
	AddBOS *bool                  `json:"add_bos_token"`
	AddEOS *bool                  `json:"add_eos_token"`
	Added  map[string]*addedToken `json:"added_tokens_decoder"` // by id
}

// configure applies tokenizer_config.json, which may be missing.
func (t *Tokenizer) configure(data []byte) error {
	if data == nil {
		return nil
	}
	var c configFile
	if err := decode("top level", data, &c); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(c.Added)) {
		id, ok := smallInt([]byte(key))
		if !ok || c.Added[key] == nil {
			return malformed("added_tokens_decoder", "%q is not the id of a token", key)
		}
		a := *c.Added[key]
		a.ID = id
		if err := t.addToken(a, true); err != nil {
			return err
		}
	}
	var err error
	if id, e := t.named("bos_token", c.BOS); e != nil {
		err = e
	} else if id >= 0 {
		t.bos = id
	}
	if id, e := t.named("eos_token", c.EOS); e != nil {
		err = e
	} else if id >= 0 {
		t.eos = id
	}
	if err != nil {
		return err
	}
	return t.addBOSAndEOS(c)
}

// addBOSAndEOS lets add_bos_token and add_eos_token, where they are given, overrule the
// post-processor, as LlamaTokenizerFast does.
func (t *Tokenizer) addBOSAndEOS(c configFile) error {
	if c.AddBOS != nil {
		has := len(t.prefix) > 0 && t.prefix[0] == t.bos
		switch {
		case *c.AddBOS && t.bos < 0:
			return malformed("add_bos_token", "without a bos_token")
		case *c.AddBOS && !has:
			t.prefix = append([]int32{t.bos}, t.prefix...)
		case !*c.AddBOS && has:
			t.prefix = t.prefix[1:]
		}
	}
	if c.AddEOS != nil {
		last := len(t.suffix) - 1
		has := last >= 0 && t.suffix[last] == t.eos
		switch {
		case *c.AddEOS && t.eos < 0:
			return malformed("add_eos_token", "without an eos_token")
		case *c.AddEOS && !has:
			t.suffix = append(t.suffix, t.eos)
		case !*c.AddEOS && has:
			t.suffix = t.suffix[:last]
		}
	}
	return nil
}

// named returns the id of a token that is given as its text or as an object with a content; -1 if
// it is not given.
func (t *Tokenizer) named(part string, v jsontext.Value) (int32, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return -1, nil
	}
	var text string
	if v.Kind() == '{' {
		var a addedToken
		if err := decode(part, v, &a); err != nil {
			return -1, err
		}
		text = a.Content
	} else if err := decode(part, v, &text); err != nil {
		return -1, err
	}
	id, ok := t.TokenID(text)
	if !ok {
		return -1, malformed(part, "%q is not in the vocabulary", text)
	}
	return id, nil
}

// addToken adds an added token. If it is present already, it must have the same id. With override,
// the new flags replace the old ones, except that a special token stays special.
func (t *Tokenizer) addToken(a addedToken, override bool) error {
	const part = "added_tokens"
	if a.Content == "" {
		return nil
	}
	if a.ID < 0 || a.ID > maxID {
		return malformed(part, "%q has the id %d", a.Content, a.ID)
	}
	if id, ok := t.TokenID(a.Content); ok && id != a.ID {
		return malformed(part, "%q has the id %d, but %d elsewhere", a.Content, a.ID, id)
	}
	if text, ok := t.spelling(a.ID); ok && text != a.Content {
		return malformed(part, "%q and %q have the same id %d", a.Content, text, a.ID)
	}
	if old := t.added[a.Content]; old != nil {
		if !override {
			return malformed(part, "%q occurs twice", a.Content)
		}
		a.Special = a.Special || old.Special
	}
	t.added[a.Content], t.addedByID[a.ID] = &a, &a
	t.size = max(t.size, int(a.ID)+1)
	return nil
}

// spelling returns the text of a token as spelled in the file.
func (t *Tokenizer) spelling(id int32) (string, bool) {
	if a := t.addedByID[id]; a != nil {
		return a.Content, true
	}
	text, ok := t.model.text(id)
	if !ok || !t.model.byteLevel || !t.model.vocab.has(id) {
		return text, ok
	}
	chars := make([]rune, 0, len(text))
	for i := range len(text) {
		chars = append(chars, byteChar[text[i]])
	}
	return string(chars), true
}

// buildTries sorts the added tokens by where they are looked for.
func (t *Tokenizer) buildTries() {
	for _, id := range slices.Sorted(maps.Keys(t.addedByID)) {
		a := t.addedByID[id]
		if !a.Normalized {
			t.raw.add(a.Content, a)
			continue
		}
		// The text is normalised as well, so that it can be found.
		if text, _, err := normalize(t.normalizers, a.Content, nil, new(regexBudget)); err == nil {
			t.normalized.add(text, a)
		}
	}
}

// partError puts the part of the file in front of an error.
func partError(part string, err error) error { return fmt.Errorf("%s: %w", part, err) }
