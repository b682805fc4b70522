package tokenizer

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// MaxFile bounds the size of tokenizer.json, in bytes.
const MaxFile = 1 << 28

// Load reads tokenizer.json and, if there is one, tokenizer_config.json from a model folder.
func Load(dir fs.FS) (*Tokenizer, error) {
	tokenizerJSON, err := readBounded(dir, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	configJSON, err := readBounded(dir, "tokenizer_config.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return Parse(tokenizerJSON, configJSON)
}

func readBounded(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > MaxFile {
		return nil, malformed(name, "%d bytes, the limit is %d", info.Size(), MaxFile)
	}
	buf := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, MaxFile+1)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return buf.Bytes(), nil
}

// Parse makes a Tokenizer from the contents of tokenizer.json and of tokenizer_config.json, which
// may be nil. From the latter it takes bos_token, eos_token, add_bos_token, add_eos_token and
// added_tokens_decoder. Truncation and padding of tokenizer.json are ignored: a server must not
// shorten a prompt.
//
// Errors are ErrMalformed or ErrUnsupported and name the part of the file. The Tokenizer keeps
// nothing of the arguments.
func Parse(tokenizerJSON, configJSON []byte) (*Tokenizer, error) {
	loadClasses()
	if len(tokenizerJSON) > MaxFile {
		return nil, malformed("tokenizer.json", "%d bytes, the limit is %d", len(tokenizerJSON), MaxFile)
	}
	f, err := readFile(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.configure(configJSON); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t.finish()
	return t, nil
}

// newTokenizer returns a Tokenizer without a model.
func newTokenizer() *Tokenizer {
	return &Tokenizer{
		added: map[string]*addedToken{}, addedByID: map[int32]*addedToken{},
		raw: newTrie(), normalized: newTrie(), bos: -1, eos: -1, long: make(chan struct{}, 1),
	}
}

// finish makes what encoding needs of the parts.
func (t *Tokenizer) finish() {
	t.buildTries()
	t.longest = t.longestText()
}

// file is the top level of a tokenizer.json. The model, which is big, is already parsed; the rest
// is raw.
type file struct {
	parts map[string]jsontext.Value
	model *modelFile
}

func readFile(data []byte) (*file, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	f := &file{parts: map[string]jsontext.Value{}}
	err := eachMember(dec, "top level", func(name string) error {
		if _, twice := f.parts[name]; twice || name == "model" && f.model != nil {
			return malformed(name, "occurs twice")
		}
		if name == "model" {
			var err error
			f.model, err = readModel(dec)
			return err
		}
		v, err := dec.ReadValue()
		f.parts[name] = v.Clone()
		return err
	})
	if err != nil {
		return nil, syntax(err)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil, malformed("top level", "something follows")
	}
	if f.model == nil {
		return nil, malformed("model", "is missing")
	}
	return f, nil
}

// syntax turns an error of the JSON reader into ErrMalformed.
func syntax(err error) error {
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrUnsupported) {
		return err
	}
	return fmt.Errorf("%w: %v", ErrMalformed, err)
}

// eachMember reads an object. It calls member after each name; member must read the value.
func eachMember(dec *jsontext.Decoder, what string, member func(name string) error) error {
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != '{' {
		return malformed(what, "is not an object")
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
	_, err = dec.ReadToken()
	return err
}

// decode unmarshals a small part of a file.
func decode(part string, data []byte, to any) error {
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("%s: %w: %v", part, ErrMalformed, err)
	}
	return nil
}

// build makes the tokenizer without its tries.
func (f *file) build() (*Tokenizer, error) {
	t, err := newTokenizer(), error(nil)
	if t.normalizers, err = f.normalizers(); err != nil {
		return nil, err
	}
	if t.splitters, err = f.preTokenizers(); err != nil {
		return nil, err
	}
	if t.decoders, err = f.decoders(); err != nil {
		return nil, err
	}
	if t.model, err = f.model.build(endsInBytes(t.splitters)); err != nil {
		return nil, err
	}
	if decodesBytes(t.decoders) != t.model.byteLevel {
		return nil, unsupported("decoder", "ByteLevel in only one of pre_tokenizer and decoder")
	}
	t.size = t.model.size()
	var added []addedToken
	if err := decode("added_tokens", f.list("added_tokens"), &added); err != nil {
		return nil, err
	}
	for _, a := range added {
		if err := t.addToken(a, false); err != nil {
			return nil, err
		}
	}
	if t.prefix, t.suffix, err = f.postProcessor(t); err != nil {
		return nil, err
	}
	if len(t.prefix) > 0 {
		t.bos = t.prefix[0]
	}
	return t, nil
}

// list returns a part that is a list, the empty one if it is missing or null.
func (f *file) list(name string) jsontext.Value {
	if v := f.parts[name]; v != nil && v.Kind() != 'n' {
		return v
	}
	return jsontext.Value("[]")
}
