// Package source is a model as its files hold it: config, tokenizer, chat template and weights. The
// files are in a folder, in a .gguf file or in the program itself, or the weights are random. Faults of small files
// are found before any weight is read.
package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"krater/models"
	"krater/scheduler/files"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/source/hubcache"
	"krater/stages/synth"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
	"krater/stages/weights/scaled"
)

// Source is a model's files, from a folder, from a .gguf file or from the binary itself.
type Source struct {
	Name  string
	Dir   string // the folder, or the .gguf file (the first of its parts); "": embedded
	Files fs.FS  // everything but the weights
	Open  func() (*weights.Set, error)
	Synth *synth.Model                 // generates the weights instead of reading them
	Seen  map[string][sha256.Size]byte // hashes of the files read, by name

	tok       *tokenizer.Tokenizer // nil until it is read
	tokConfig []byte
	checked   bool  // Check has run for a model that is to be served
	encoded   bool  // weights may be encoded: a .gguf file
	stored    int64 // bytes of all tensors, where Config has looked
	held      []weights.TypeBytes
}

// Open finds the model without reading its weights. Locate finds dir; "" is the built-in model.
func Open(dir string) (*Source, error) {
	if dir == "" {
		tiny, err := models.Default()
		if err != nil {
			return nil, err
		}
		return &Source{Name: "krater-tiny", Files: tiny, Open: func() (*weights.Set, error) { return weights.FromBytes(tiny.Weights()) }}, nil
	}
	path, err := Locate(dir)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	file, err := ggufIn(abs)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return openGGUF(file)
	}
	return &Source{Name: hubcache.NameOf(abs), Dir: abs, Files: files.Dir(abs), Open: func() (*weights.Set, error) { return scaled.Open(abs) }}, nil
}

// FileMaxBytes bounds the JSON files of a model; the largest real tokenizer.json has 33 MB.
const FileMaxBytes = 256 << 20

// Read returns a file's bytes. An optional file may be missing.
func (s *Source) Read(name string, optional bool) ([]byte, error) {
	f, err := s.Files.Open(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) && s.encoded {
		return nil, fmt.Errorf("model %s: %s: %w", s.Name, s.Dir, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model %s: there is no %s in %s: a model's folder has config.json, safetensors, tokenizer.json and tokenizer_config.json", s.Name, name, s.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s.Name, err)
	}
	defer f.Close()
	data, err := files.ReadAll(f, FileMaxBytes)
	if err == nil && len(data) == 0 {
		err = errors.New("the file is empty; its download may not have ended")
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %s: %w", s.Name, name, err)
	}
	if s.Seen == nil {
		s.Seen = map[string][sha256.Size]byte{}
	}
	s.Seen[name] = sha256.Sum256(data)
	return data, nil
}

// Config reads config.json and generation_config.json.
func (s *Source) Config() (*model.Config, model.Generation, error) {
	data, err := s.Read("config.json", false)
	if err != nil {
		return nil, model.Generation{}, err
	}
	cfg, err := model.Parse(data)
	if err != nil {
		return nil, model.Generation{}, fmt.Errorf("model %s: config.json: %w", s.Name, err)
	}
	if cfg.Quantization != nil || s.encoded {
		if set, err := s.Open(); err == nil { // else Check says what is wrong with the weights, or there are none
			cfg.Types, s.stored, s.held = load.Types(cfg, set), set.Bytes(), set.Types()
			set.Close()
		}
	}
	gen := model.DefaultGeneration()
	if data, err = s.Read("generation_config.json", true); err != nil {
		return nil, gen, err
	}
	if data != nil {
		if gen, err = model.ParseGeneration(data); err != nil {
			return nil, gen, fmt.Errorf("model %s: generation_config.json: %w", s.Name, err)
		}
	}
	return cfg, gen, nil
}

// The file of a tokenizer: tokenizer.json, or in its absence a list of ranks (Kimi K2).
const (
	tokenizerFile = "tokenizer.json"
	ranksFile     = "tiktoken.model"
)

// tokenizerFile returns the name of the tokenizer's file.
func (s *Source) tokenizerFile() string {
	if !s.Has(tokenizerFile) && s.Has(ranksFile) {
		return ranksFile
	}
	return tokenizerFile
}

// HasTokenizer reports whether there is a tokenizer, in whatever state.
func (s *Source) HasTokenizer() bool { return s.Has(s.tokenizerFile()) }

// TokenizerSize returns the size of tokenizer.json, or what it would be: 0 without a tokenizer.
func (s *Source) TokenizerSize() int64 {
	name := s.tokenizerFile()
	if name == ranksFile {
		return 4 * s.Size(name) // a token there is about 18 bytes, here with its merges 75
	}
	return s.Size(name)
}

// Tokenizer reads tokenizer.json, or in its absence tiktoken.model, and, if present,
// tokenizer_config.json, once.
func (s *Source) Tokenizer() (*tokenizer.Tokenizer, []byte, error) {
	if s.tok != nil {
		return s.tok, s.tokConfig, nil
	}
	name, parse := s.tokenizerFile(), tokenizer.Parse
	if name == ranksFile {
		parse = tokenizer.ParseTiktoken
	}
	data, err := s.Read(name, false)
	if err != nil {
		return nil, nil, err
	}
	config, err := s.Read("tokenizer_config.json", true)
	if err != nil {
		return nil, nil, err
	}
	tok, err := parse(data, config)
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", s.Name, err)
	}
	s.tok, s.tokConfig = tok, config
	return tok, config, nil
}

// Template reads the model's chat template; nil when it has none.
func (s *Source) Template(tok *tokenizer.Tokenizer, config []byte) (*chat.Template, error) {
	extra, err := s.Read("chat_template.jinja", true)
	if err != nil {
		return nil, err
	}
	t, err := chat.FromConfig(config, extra, tok.AddedTexts())
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s.Name, err)
	}
	return t, nil
}

// Size returns a file's size, or 0 if it does not exist.
func (s *Source) Size(name string) int64 {
	info, err := fs.Stat(s.Files, name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Sizes is a config whose family need not be supported.
type Sizes struct {
	*model.Config
	Cannot error // why the model cannot be run; nil if it can
	// Where the weights are encoded: bytes of all tensors in the files, 0 if not known, and their types.
	Stored int64
	Held   []weights.TypeBytes
}

// Sizes reads config.json.
func (s *Source) Sizes() (Sizes, error) {
	cfg, _, err := s.Config()
	if !errors.Is(err, model.ErrFamily) {
		if err != nil {
			return Sizes{}, err
		}
		return Sizes{cfg, nil, s.stored, s.held}, nil
	}
	data, err2 := s.Read("config.json", false)
	if err2 != nil {
		return Sizes{}, err2
	}
	cfg, err2 = model.Sizes(data)
	if err2 != nil {
		return Sizes{}, errors.Join(err, err2)
	}
	return Sizes{Config: cfg, Cannot: err}, nil
}
