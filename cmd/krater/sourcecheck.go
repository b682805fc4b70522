package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"krater/kernels/machine"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/text/tokenizer"
	"krater/stages/weights"
)

// check reads all small files of the model and the headers of its weights, so that every fault
// of them is found before any weight is read. What is not there may be missing, unless the
// model is to be served.
func (s *source) check(cfg *model.Config, served bool) error {
	if s.checked || s.synth != nil || s.dir == "" && !served { // made, or built in
		return nil
	}
	if served || s.has("tokenizer.json") {
		tok, config, err := s.tokenizer()
		if err == nil {
			err = s.checkVocab(tok, cfg.Vocab)
		}
		if err == nil {
			_, err = s.template(tok, config)
		}
		if err != nil {
			return err
		}
	}
	if s.dir == "" {
		s.checked = true
		return nil
	}
	set, err := s.open()
	if errors.Is(err, weights.ErrNoWeights) && !served { // a config alone can be planned
		return nil
	}
	if err == nil {
		defer set.Close()
		err = load.CheckTensors(cfg, set, !hasExperts(cfg, set))
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", s.name, err)
	}
	s.checked = served
	return nil
}

// refusal is why a server for the flags would not load the model, as far as that is known
// without a card; nil: nothing speaks against it.
func (s *source) refusal(f engineFlags, l limits, m *machine.Machine) error {
	cfg, _, err := s.config()
	if err == nil {
		err = s.check(cfg, true)
	}
	if err != nil || f.onCard() {
		return err
	}
	look, err := s.look(cfg, &f, l, m)
	if err == nil {
		err = look.refusal(f.Force)
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", s.name, err)
	}
	return nil
}

// has reports whether a file is there, in whatever state.
func (s *source) has(name string) bool {
	_, err := fs.Stat(s.files, name)
	return !errors.Is(err, fs.ErrNotExist)
}

// hasWeights reports whether there is more than a config to plan by.
func (s *source) hasWeights() bool {
	return s.has("model.safetensors") || s.has("model.safetensors.index.json")
}

// hasExperts reports whether routed experts are among the tensors: the folder of a synthetic
// model may have them as integers alone.
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
func (s *source) checkVocab(tok *tokenizer.Tokenizer, vocab int) error {
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
		s.name, tok.VocabSize(), vocab, strings.Join(list, ", "))
}

// checkFiles is check as doctor shows it.
func (s *source) checkFiles(cfg *model.Config) check {
	c := check{Name: "model files", OK: true, Value: "whole", Recommended: "whole files that fit together"}
	if !s.hasWeights() && s.dir != "" {
		c.Value = "no weights: planned by config.json alone"
	}
	if err := s.check(cfg, s.hasWeights()); err != nil {
		c.OK, c.Value, c.Fix = false, strings.ReplaceAll(err.Error(), "\n", "; "), "fetch what is wrong again; no command can load the model as it is"
	}
	return c
}

// stopIDs are the tokens that end an answer: of both configs and of the tokenizer.
func (s *source) stopIDs(cfg *model.Config, gen model.Generation, tok *tokenizer.Tokenizer) []int32 {
	if id, ok := tok.EOS(); ok {
		return cfg.StopIDs(gen, id)
	}
	return cfg.StopIDs(gen)
}

// checkEnd wants a token that ends answers.
func (s *source) checkEnd(cfg *model.Config, gen model.Generation) check {
	c := check{Name: "end token", Value: "none", Recommended: "a token that ends answers", Fix: "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json; without one answers go on to max_tokens or to the end of the context"}
	if tok, _, err := s.tokenizer(); err == nil {
		var names []string
		for _, id := range s.stopIDs(cfg, gen, tok) {
			text, _ := tok.TokenBytes(id)
			names = append(names, fmt.Sprintf("%d %.40q", id, text))
		}
		if c.OK = len(names) > 0; c.OK {
			c.Value, c.Fix = strings.Join(names, ", "), ""
		}
	}
	return c
}
