package source

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
)

// Check reads the model's small files and the headers of its weights, so that a fault is found
// before any weight is read. Files may be missing unless the model is to be served.
func (s *Source) Check(cfg *model.Config, served bool) error {
	if s.checked || s.Synth != nil || s.Dir == "" && !served { // made, or built in
		return nil
	}
	if served || s.HasTokenizer() {
		tok, config, err := s.Tokenizer()
		if err == nil {
			err = s.checkVocab(tok, cfg.Vocab)
		}
		if err == nil {
			_, err = s.Template(tok, config)
		}
		if err != nil {
			return err
		}
	}
	if s.Dir == "" {
		s.checked = true
		return nil
	}
	set, err := s.Open()
	if errors.Is(err, weights.ErrNoWeights) && !served { // a config alone can be planned
		return nil
	}
	if err == nil {
		defer set.Close()
		err = load.CheckTensors(cfg, set, !hasExperts(cfg, set))
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", s.Name, err)
	}
	s.checked = served
	return nil
}

// Has reports whether a file exists, in whatever state.
func (s *Source) Has(name string) bool {
	_, err := fs.Stat(s.Files, name)
	return !errors.Is(err, fs.ErrNotExist)
}

// HasWeights reports whether there are weights besides a config.
func (s *Source) HasWeights() bool {
	return s.encoded || s.Has("model.safetensors") || s.Has("model.safetensors.index.json")
}

// hasExperts reports whether the tensors include routed experts. The folder of a synthetic model
// may have them as integers only.
func hasExperts(cfg *model.Config, set *weights.Set) bool {
	for i := range cfg.Layers {
		if cfg.MoELayer(i) {
			_, ok := set.Tensor(cfg.ExpertNames(i, 0).Gate)
			return ok
		}
	}
	return true
}

// beyondShown bounds the tokens that an error names.
const beyondShown = 8

// checkVocab refuses a tokenizer that gives ids for which the model has no embedding.
func (s *Source) checkVocab(tok *tokenizer.Tokenizer, vocab int) error {
	ids := tok.Beyond(vocab)
	if len(ids) == 0 {
		return nil
	}
	var list []string
	for _, id := range ids[:min(len(ids), beyondShown)] {
		text, _ := tok.TokenBytes(id)
		list = append(list, fmt.Sprintf("%d %.40q", id, text))
	}
	if more := len(ids) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("model %s: the tokenizer needs an embedding of %d rows, the model has %d (vocab_size); tokens without a row: %s",
		s.Name, tok.VocabSize(), vocab, strings.Join(list, ", "))
}

// StopIDs returns the tokens that end an answer, from both configs and the tokenizer.
func (s *Source) StopIDs(cfg *model.Config, gen model.Generation, tok *tokenizer.Tokenizer) []int32 {
	if id, ok := tok.EOS(); ok {
		return cfg.StopIDs(gen, id)
	}
	return cfg.StopIDs(gen)
}
