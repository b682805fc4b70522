package benches

import (
	"context"
	"errors"
	"slices"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/model"
	"krater/cmd/krater/console"
	"krater/stages/direct"
)

// gpuModelReport is the report with the GPU and model that it describes.
type gpuModelReport struct {
	Model string `json:"model"`
	Card  string `json:"card"`
	benchHost
	Precision string `json:"precision"`
	KVType    string `json:"kv_dtype"`
	LoadMS    int64  `json:"load_ms"`
	*model.GPUReport
}

// profiler is a device that measures its operators.
type profiler interface {
	Profile(tell func(op string, d time.Duration))
}

// runGPU measures a model on a GPU.
func (c *modelCmd) runGPU(e *console.Env) error {
	f := c.Options
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	o := model.GPUOptions{Prefill: c.Prefill, Decode: c.Decode, Batch: c.Batch, Context: c.Context, Vocab: cfg.Vocab}
	f.MaxSeqs = max(1, slices.Max(append([]int{1}, o.Batch...)))
	f.KVCache = config.Size(int64(o.Blocks(f.BlockTokens)) * cfg.KVBlockBytes(f.BlockTokens, config.KVTypes[f.KVDType]))
	start := time.Now()
	s, err := local.Prepare(console.ForLoad(e, src, f, config.Case{AllRows: true}))
	if err != nil {
		return err
	}
	if !s.OnGPU() {
		return errors.New("bench model --device cuda needs a GPU")
	}
	o.Chunk = s.Plan.Steps.Chunk
	if err := s.Load(context.Background()); err != nil {
		return err
	}
	defer s.Close()
	d, err := direct.New(s.Rank().Device, s.Parts)
	if err != nil {
		return err
	}
	defer d.Close()
	r := &gpuModelReport{Model: src.Name, Card: s.Rank().Describe(), benchHost: host(), KVType: f.KVDType,
		Precision: precisionName(s.Plan.Load.Precision), LoadMS: time.Since(start).Milliseconds()}
	o.Progress = e.Steps(len(o.Prefill) + (1+len(o.Batch))*max(1, len(o.Context)))
	if p, ok := s.Rank().GPU.(profiler); ok && c.Profile {
		o.Profile = func(tell func(string, time.Duration), f func() error) error {
			p.Profile(tell)
			defer p.Profile(nil)
			return f()
		}
	}
	r.GPUReport, err = model.RunGPU(d, o)
	e.Shown().End()
	if err != nil {
		return err
	}
	return c.write(e, r.benchHost, r, r)
}
