package benches

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/clock"
	"krater/bench/model"
	"krater/bench/read"
	"krater/cmd/krater/console"
	"krater/kernels/cpu"
	"krater/stages/direct"
	"krater/stages/load"
	"krater/stages/source"
)

type modelCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	Output
	Prefill []int `help:"Prompt lengths to measure." default:"512,2048,8192"`
	Decode  int   `help:"Number of measured decode steps." default:"128"`
	Batch   []int `help:"Numbers of streams that decode together." default:"1,8,32"`
	Context []int `help:"Further context lengths at which decode is measured, in tokens. Above 8192 the cache has copies of the rows of a short prompt." default:"512,2048"`
	Profile bool  `help:"On a GPU: also measure every operator, in a separate run."`
	Scaling []int `help:"Further numbers of threads for decode; the model is loaded once for each."`
}

// modelReport is the report and the model that it describes.
type modelReport struct {
	Model string `json:"model"`
	benchHost
	Precision string `json:"precision"`
	KVType    string `json:"kv_dtype"`
	*model.Report
	Skipped []string `json:"skipped,omitempty"` // lengths that exceed the model's context
}

// Run implements the command.
func (c *modelCmd) Run(e *console.Env) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Device == config.CUDA {
		return c.runGPU(e)
	}
	r, err := c.measure(e, c.options(), c.Threads)
	if err != nil {
		return err
	}
	for _, n := range c.Scaling {
		one, err := c.measure(e, model.Options{Decode: c.Decode}, n)
		if err != nil {
			return err
		}
		r.Scaling = append(r.Scaling, one.Of())
	}
	if len(c.Scaling) > 0 && !slices.Contains(c.Scaling, r.Threads) {
		r.Scaling = append(r.Scaling, r.Of())
	}
	slices.SortFunc(r.Scaling, func(a, b model.Scaling) int { return a.Threads - b.Threads })
	return c.write(e, r.benchHost, r, r)
}

// check names the first flag out of its range.
func (c *modelCmd) check() error {
	if c.Decode < 4 || c.Decode > 1<<20 {
		return fmt.Errorf("--decode %d: want 4 to %d", c.Decode, 1<<20)
	}
	for _, l := range []struct {
		name string
		list []int
		most int
	}{{"prefill", c.Prefill, 1 << 20}, {"context", c.Context, 1 << 20}, {"batch", c.Batch, 1 << 12}, {"scaling", c.Scaling, benchThreadsMax}} {
		for _, n := range l.list {
			if n < 1 || n > l.most {
				return fmt.Errorf("--%s %d: want 1 to %d", l.name, n, l.most)
			}
		}
	}
	if c.LayerGroups != 1 || c.ExpertPools > 1 {
		return errors.New("bench model runs without actors; use --layer-groups and --expert-pools with krater bench engine")
	}
	return c.Output.Check()
}

func (c *modelCmd) options() model.Options {
	return model.Options{Prefill: c.Prefill, Decode: c.Decode, Batch: c.Batch, Context: c.Context}
}

// measure loads the model for the given number of threads and measures it.
func (c *modelCmd) measure(e *console.Env, o model.Options, threads int) (*modelReport, error) {
	f := c.Options
	f.Threads = threads
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return nil, err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return nil, err
	}
	r := &modelReport{Model: src.Name, benchHost: host(), KVType: f.KVDType}
	o.Chunk, o.Vocab = f.Chunk(0), cfg.Vocab
	if r.Skipped, err = fit(&o, cfg.MaxContext); err != nil {
		return nil, err
	}
	// Make room for exactly what is measured.
	f.MaxSeqs = max(1, slices.Max(append([]int{1}, o.Batch...)))
	f.KVCache = config.Size(int64(o.Blocks(f.BlockTokens)) * cfg.KVBlockBytes(f.BlockTokens, config.KVTypes[f.KVDType]))
	s, err := local.Prepare(console.ForLoad(e, src, f, config.Case{AllRows: true}))
	if err != nil {
		return nil, err
	}
	r.Precision = precisionName(s.Plan.Load.Precision)
	var timed *clock.Device
	s.Wrap = func(dev *cpu.Device) load.Device {
		timed = clock.New(dev, cfg.Vocab)
		return timed
	}
	if err := s.Load(context.Background()); err != nil {
		return nil, err
	}
	defer s.Close()
	d, err := direct.New(timed, s.Parts)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	o.ReadBytes = readBytes(e)
	next := e.Steps(1 + len(o.Batch) + len(o.Prefill) + len(o.Context))
	o.Progress = func(what string) { next(fmt.Sprintf("%s, %d threads", what, s.Host.Team().Threads())) }
	r.Report, err = model.Run(d, s.Host, timed, o)
	e.Shown().End()
	return r, err
}

// fit removes the lengths that exceed the context, and reports them.
func fit(o *model.Options, context int) (skipped []string, err error) {
	short := model.Options{Decode: o.Decode}
	if short.Positions() > context {
		return nil, fmt.Errorf("--decode %d: the model's context has %d tokens, want %d", o.Decode, context, short.Positions())
	}
	for _, l := range []struct {
		what string
		list *[]int
	}{{"prefill", &o.Prefill}, {"context", &o.Context}} {
		var kept []int
		for _, n := range *l.list {
			with := model.Options{Decode: o.Decode, Prefill: []int{n}}
			if with.Positions() > context {
				skipped = append(skipped, fmt.Sprintf("%s %d: the model's context has %d tokens", l.what, n, context))
				continue
			}
			kept = append(kept, n)
		}
		*l.list = kept
	}
	return skipped, nil
}

// readBytes returns the amount of memory for plain reads: more than the caches hold, if there is
// enough memory.
func readBytes(e *console.Env) int {
	const most = 800 << 20
	if free := e.Here().Available(); free > 0 {
		return int(max(8*read.WindowBytes, min(most, free/4)))
	}
	return most
}

// precisionName describes the precision of a model's parts.
func precisionName(p load.Precision) string {
	if !p.Integer() {
		return "bf16"
	}
	text := ""
	for _, x := range p.Parts() {
		kept := "bf16"
		if !x.Format.Zero() {
			kept = x.Format.Name()
		}
		text += x.Name + " " + kept + ", "
	}
	if g := p.Any().Group; g != 0 {
		return text + fmt.Sprintf("groups of %d", g)
	}
	return text + "one scale per row"
}
