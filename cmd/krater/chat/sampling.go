package chat

import (
	"fmt"

	"krater/actors/engine"
	"krater/transport/api"
)

// Sampling are the flags of krater run and krater chat for choosing tokens.
type Sampling struct {
	Temperature *float64 `help:"Sampling temperature; 0 is greedy; default: the model's."`
	TopP        *float64 `help:"Nucleus sampling: choose among the most likely tokens with this total probability; default: the model's."`
	TopK        *int     `help:"Choose among this many most likely tokens; default: the model's."`
	Seed        *uint64  `help:"Seed of the random choice."`
	MaxTokens   int      `help:"Maximum number of tokens of an answer; 0: up to the end of the context." default:"0"`
}

// Check returns an error for the first flag out of its range.
func (f *Sampling) Check() error {
	if f.MaxTokens < 0 {
		return fmt.Errorf("--max-tokens %d: want 0 or more", f.MaxTokens)
	}
	return nil
}

// Request returns a request without a prompt, with the flags and the model's defaults.
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

// wire returns the flags as fields of a request to a server.
func (f *Sampling) wire() api.Sampling {
	s := api.Sampling{Temperature: f.Temperature, TopP: f.TopP, TopK: f.TopK}
	if f.Seed != nil {
		seed := int64(*f.Seed)
		s.Seed = &seed
	}
	return s
}
