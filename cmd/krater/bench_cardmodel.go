package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"krater/bench/model"
	"krater/cmd/krater/console"
	"krater/stages/direct"
)

// cardModelReport is the report with what it is of.
type cardModelReport struct {
	Model string `json:"model"`
	Card  string `json:"card"`
	benchHost
	Precision string `json:"precision"`
	KVType    string `json:"kv_dtype"`
	LoadMS    int64  `json:"load_ms"`
	*model.CardReport
}

// profiler is a device that tells what its operators take.
type profiler interface {
	Profile(tell func(op string, d time.Duration))
}

// runCard measures a model on a GPU.
func (c *benchModelCmd) runCard(e *console.Env) error {
	f := c.engineFlags
	src, err := c.sourceOr(c.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.config()
	if err != nil {
		return err
	}
	o := model.CardOptions{Prefill: c.Prefill, Decode: c.Decode, Batch: c.Batch, Context: c.Context, Vocab: cfg.Vocab}
	f.MaxSeqs = max(1, slices.Max(append([]int{1}, o.Batch...)))
	f.KVCache = size(int64(o.Blocks(f.BlockTokens)) * kvBlockBytes(cfg, f.BlockTokens, kvTypes[f.KVDType]))
	start := time.Now()
	s, err := prepareSource(e, src, &f, limits{})
	if err != nil {
		return err
	}
	if s.card == nil {
		return errors.New("bench model --device cuda needs a GPU")
	}
	o.Chunk = f.PrefillChunk
	if err := s.load(context.Background(), &f, reportOn(e)); err != nil {
		return err
	}
	defer s.Close()
	d, err := direct.New(s.card, s.parts)
	if err != nil {
		return err
	}
	defer d.Close()
	r := &cardModelReport{Model: src.name, Card: s.card.Describe(), benchHost: host(), KVType: f.KVDType,
		Precision: precisionName(s.look.options.Precision), LoadMS: time.Since(start).Milliseconds()}
	o.Progress = e.Steps(len(o.Prefill) + (1+len(o.Batch))*max(1, len(o.Context)))
	if p, ok := s.card.(profiler); ok && c.Profile {
		o.Profile = func(tell func(string, time.Duration), f func() error) error {
			p.Profile(tell)
			defer p.Profile(nil)
			return f()
		}
	}
	r.CardReport, err = model.RunCard(d, o)
	e.Shown().End()
	if err != nil {
		return err
	}
	return c.write(e, r.benchHost, r, r)
}
