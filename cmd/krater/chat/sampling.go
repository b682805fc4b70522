package chat

import (
	"fmt"

	"krater/actors/engine"
	"krater/transport/api"
)

// Sampling are the flags of krater run and krater chat that choose tokens.
type Sampling struct {
	Temperature *float64 `help:"0 is greedy; default: the model's."`
	TopP        *float64 `help:"Nucleus sampling; default: the model's."`
	TopK        *int     `help:"Choose among the k most likely; default: the model's."`
	Seed        *uint64  `help:"Seed of the random choice."`
	MaxTokens   int      `help:"Tokens of the answer at most; 0: up to the context." default:"0"`
}

// Check names the first flag out of its range.
func (f *Sampling) Check() error {
	if f.MaxTokens < 0 {
		return fmt.Errorf("--max-tokens %d: want 0 or more", f.MaxTokens)
	}
	return nil
}

// Request is a request with the flags and the model's own values, without a prompt.
func (f *Sampling) Request(id string, info engine.Info) *engine.Request {
	r := &engine.Request{ID: id, Sampling: info.Defaults, MaxTokens: f.MaxTokens, Logprobs: -1}
	if f.Temperature != nil {
		r.Sampling.Temperature = *f.Temperature
	}
	if f.TopP != nil {
		r.Sampling.TopP = *f.TopP
	}
	if f.TopK != nil {
		r.Sampling.TopK = *f.TopK
	}
	r.Sampling.Seed = f.Seed
	return r
}

// wire is what the flags say as a part of a request to a server.
func (f *Sampling) wire() api.Sampling {
	s := api.Sampling{Temperature: f.Temperature, TopP: f.TopP, TopK: f.TopK}
	if f.Seed != nil {
		seed := int64(*f.Seed)
		s.Seed = &seed
	}
	return s
}
