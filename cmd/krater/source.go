package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"krater/models"
	"krater/scheduler/files"
	"krater/stages/model"
	"krater/stages/synth"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
)

// source is a model's files, from a folder or from the binary itself.
type source struct {
	name  string
	dir   string // "": embedded
	files fs.FS  // everything but the weights
	open  func() (*weights.Set, error)
	synth *synth.Model                 // instead of open: its weights are made, not read
	seen  map[string][sha256.Size]byte // of files read, by name

	tok       *tokenizer.Tokenizer // once it was read
	tokConfig []byte
	checked   bool // by check, as one that is to be served
}

// openSource finds the model without reading its weights.
func openSource(dir string) (*source, error) {
	if dir == "" {
		tiny, err := models.Default()
		if err != nil {
			return nil, err
		}
		return &source{name: "krater-tiny", files: tiny, open: func() (*weights.Set, error) { return weights.FromBytes(tiny.Weights()) }}, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &source{name: filepath.Base(abs), dir: abs, files: files.Dir(abs), open: func() (*weights.Set, error) { return weights.Open(abs) }}, nil
}

// fileMaxBytes bounds the JSON files of a model; the largest real tokenizer.json
// has 33 MB.
const fileMaxBytes = 256 << 20

// read gives a file's bytes; optional ones may be absent.
func (s *source) read(name string, optional bool) ([]byte, error) {
	f, err := s.files.Open(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model %s: there is no %s in %s: a model's folder has config.json, safetensors, tokenizer.json and tokenizer_config.json", s.name, name, s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s.name, err)
	}
	defer f.Close()
	data, err := files.ReadAll(f, fileMaxBytes)
	if err == nil && len(data) == 0 {
		err = errors.New("the file is empty; its download may not have ended")
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %s: %w", s.name, name, err)
	}
	if s.seen == nil {
		s.seen = map[string][sha256.Size]byte{}
	}
	s.seen[name] = sha256.Sum256(data)
	return data, nil
}

// config reads config.json and generation_config.json.
func (s *source) config() (*model.Config, model.Generation, error) {
	data, err := s.read("config.json", false)
	if err != nil {
		return nil, model.Generation{}, err
	}
	cfg, err := model.Parse(data)
	if err != nil {
		return nil, model.Generation{}, fmt.Errorf("model %s: config.json: %w", s.name, err)
	}
	gen := model.DefaultGeneration()
	if data, err = s.read("generation_config.json", true); err != nil {
		return nil, gen, err
	}
	if data != nil {
		if gen, err = model.ParseGeneration(data); err != nil {
			return nil, gen, fmt.Errorf("model %s: generation_config.json: %w", s.name, err)
		}
	}
	return cfg, gen, nil
}

// tokenizer reads tokenizer.json and, where there is one, tokenizer_config.json, once.
func (s *source) tokenizer() (*tokenizer.Tokenizer, []byte, error) {
	if s.tok != nil {
		return s.tok, s.tokConfig, nil
	}
	data, err := s.read("tokenizer.json", false)
	if err != nil {
		return nil, nil, err
	}
	config, err := s.read("tokenizer_config.json", true)
	if err != nil {
		return nil, nil, err
	}
	tok, err := tokenizer.Parse(data, config)
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: tokenizer.json: %w", s.name, err)
	}
	s.tok, s.tokConfig = tok, config
	return tok, config, nil
}

// template reads the model's chat template; nil when it has none.
func (s *source) template(tok *tokenizer.Tokenizer, config []byte) (*chat.Template, error) {
	extra, err := s.read("chat_template.jinja", true)
	if err != nil {
		return nil, err
	}
	t, err := chat.FromConfig(config, extra, tok.AddedTexts())
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s.name, err)
	}
	return t, nil
}
