package local

import (
	"context"

	"krater/actors/local/config"
)

// held is the part of a model that a member of a cluster has loaded.
type held struct {
	part    config.Part
	options config.Options // it was loaded with
	model   *Model         // nil: nothing is loaded
}

// load loads a part, unless it is loaded with the same options. A part before it is freed.
func (h *held) load(ctx context.Context, c Config, part config.Part) error {
	if h.model != nil && h.part == part && h.options == c.Options {
		return nil
	}
	h.unload()
	c.Part = &part
	m, err := Load(ctx, c)
	if err != nil {
		return err
	}
	*h = held{part, c.Options, m}
	return nil
}

func (h *held) unload() {
	if h.model != nil {
		h.model.Close()
		h.model = nil
	}
}
