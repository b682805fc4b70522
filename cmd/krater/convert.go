package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/tensor"
	"krater/scheduler/planner"
	"krater/stages/calibration"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/source"
	"krater/stages/text/tokenizer"
	"krater/stages/weights/cache"
	"krater/stages/weights/quant"
)

type convertCmd struct {
	source.Folder
	config.Options
	Method      string `help:"How to find the integers: ${enum}. auto is feedback with a calibration text and search without one." enum:"auto,absmax,search,weighted,feedback" default:"auto"`
	Calibration string `help:"Text to run the model on, to collect statistics of the experts' inputs." type:"existingfile" placeholder:"FILE"`
	CalTokens   int    `name:"calibration-tokens" help:"Number of tokens of the calibration text to use." default:"16384"`
	JSON        bool   `name:"json" help:"Print the result as JSON."`
}

// calibrationWindow is the number of calibration tokens that attend to each other.
const calibrationWindow = 512

var cacheMethods = map[string]cache.Method{"absmax": cache.Absmax, "search": cache.Search, "weighted": cache.Weighted, "feedback": cache.Feedback}

// method returns the choice of --method.
func (c *convertCmd) method() (cache.Method, error) {
	if c.CalTokens < calibrationWindow {
		return 0, fmt.Errorf("--calibration-tokens %d: want %d or more", c.CalTokens, calibrationWindow)
	}
	if c.Method == "auto" {
		if c.Calibration != "" {
			return cache.Feedback, nil
		}
		return cache.Search, nil
	}
	m := cacheMethods[c.Method]
	if m >= cache.Weighted && c.Calibration == "" {
		return 0, fmt.Errorf("--method %s needs a calibration text: --calibration FILE", m)
	}
	return m, nil
}

// Run implements the command: it builds the cache that later starts use.
func (c *convertCmd) Run(e *console.Env) error {
	method, err := c.method()
	if err != nil {
		return err
	}
	c.MaxSeqs, c.Device = 1, config.CPU // the files are the same for every device
	src, err := source.Open(c.Model)
	if err != nil {
		return err
	}
	s, err := local.Prepare(console.ForLoad(e, src, c.Options, config.Case{}))
	if err != nil {
		return err
	}
	defer s.Close()
	p := s.Plan.Load.Precision
	if !p.Integer() {
		return fmt.Errorf("model %s: nothing to convert: its weights stay as they are (see --cpu-expert-bits)", s.Source.Name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	r := converted{Method: method.String()}
	if !p.Experts.Zero() {
		if err := c.experts(ctx, e, s, method, &r); err != nil {
			return err
		}
	}
	// Loading converts the other matrices and keeps them.
	if err := s.Load(ctx); err != nil {
		return err
	}
	if m := s.Matrices; m != nil {
		r.MatrixPath, r.MatrixBytes, r.MatricesMade = m.Path, m.Bytes(), m.Made
	}
	r.Seconds = time.Since(start).Seconds()
	if c.JSON {
		return json.NewEncoder(e.Out).Encode(r)
	}
	return r.print(e.Out)
}

// converted is the output of krater convert --json.
type converted struct {
	Path         string  `json:"path"` // file of the experts
	Bytes        int64   `json:"bytes"`
	Found        bool    `json:"found"` // the file existed and is valid
	Resumed      int     `json:"resumed_layers"`
	GPUPath      string  `json:"gpu_path,omitempty"` // file of the experts in a GPU's layout
	GPUBytes     int64   `json:"gpu_bytes,omitempty"`
	GPUFound     bool    `json:"gpu_found,omitempty"`
	Method       string  `json:"method"`
	MatrixPath   string  `json:"matrix_path"` // file of the other matrices
	MatrixBytes  int64   `json:"matrix_bytes"`
	MatricesMade int     `json:"matrices_made"`
	Seconds      float64 `json:"seconds"`
}

func (r *converted) print(w io.Writer) error {
	line := func(path string, bytes int64, found bool) {
		what := fmt.Sprintf("made in %.1f s", r.Seconds)
		if found {
			what = "existed and is valid"
		}
		if path != "" {
			fmt.Fprintf(w, "%s: %s, %s\n", path, planner.Size(bytes), what)
		}
	}
	line(r.Path, r.Bytes, r.Found)
	line(r.GPUPath, r.GPUBytes, r.GPUFound)
	line(r.MatrixPath, r.MatrixBytes, r.MatricesMade == 0)
	return nil
}

// experts builds the file of experts.
func (c *convertCmd) experts(ctx context.Context, e *console.Env, s *local.Model, method cache.Method, r *converted) error {
	set, err := s.Source.Open()
	if err != nil {
		return err
	}
	defer set.Close()
	s.Weights = set
	defer func() { s.Weights = nil }() // the load opens its own
	o, err := s.CacheOptions(method)
	if err != nil {
		return err
	}
	if method >= cache.Weighted {
		stats, err := c.statistics(e)
		if err != nil {
			return err
		}
		defer stats.close()
		o.Source.(*cache.Weights).Stats = stats.expert
	}
	if f := c.GPUExperts(s.Config); !f.Zero() {
		gpu := o.Plan
		gpu.For, gpu.Format = tensor.GPU, f
		o.Also = append(o.Also, gpu)
	}
	b, err := cache.Build(ctx, o)
	e.Shown().End()
	if err != nil {
		return fmt.Errorf("model %s: %w", s.Source.Name, err)
	}
	r.Path, r.Bytes, r.Found, r.Resumed = b.Path, b.Bytes, b.Found, b.Resumed
	for _, a := range b.Also {
		r.GPUPath, r.GPUBytes, r.GPUFound = a.Path, a.Bytes, a.Found
	}
	return nil
}

// statistics describe the inputs of experts. They are collected for a few layers at a time.
type statistics struct {
	s      *local.Model
	model  *direct.Model
	ids    []int32
	layers int // number of layers collected at once
	from   int // first of the current layers
	seen   *calibration.Collector
	err    error
	done   func(n, all int) // reports how many tokens have run, over all layers
}

// collectorBytes bounds the memory of the statistics collected at once.
const collectorBytes = 2 << 30

// statistics loads the text, and the model as its files hold it.
func (c *convertCmd) statistics(e *console.Env) (*statistics, error) {
	f := c.Options.AllIn("bf16")
	f.PrefillChunk, f.MaxBatchTokens, f.KVCache = calibrationWindow, calibrationWindow, 0
	src, err := source.Open(c.Model)
	if err != nil {
		return nil, err
	}
	s, err := local.Load(context.Background(), console.ForLoad(e, src, f, config.Case{KVType: tensor.F32}))
	if err != nil {
		return nil, err
	}
	st := &statistics{s: s, from: -1, done: func(n, all int) { e.Shown().Set("run the calibration text", term.Tokens, int64(n), int64(all)) }}
	if err := st.read(c.Calibration, c.CalTokens); err != nil {
		st.close()
		return nil, err
	}
	h, ff := int64(s.Config.Hidden), int64(s.Config.MoE.FF)
	st.layers = int(max(1, min(int64(len(s.Config.Layers)), collectorBytes/(8*int64(s.Config.MoE.Experts)*(h*h+ff*ff)))))
	return st, nil
}

// read tokenizes the start of a text and makes the model that runs it.
func (t *statistics) read(path string, most int) error {
	const bytesPerToken = 32 // more than any text needs
	text, err := readText(path, int64(most)*bytesPerToken)
	if err != nil {
		return err
	}
	tok, _, err := t.s.Source.Tokenizer()
	if err != nil {
		return err
	}
	t.ids = tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
	t.ids = t.ids[:min(len(t.ids), most)]
	if len(t.ids) < calibrationWindow {
		return fmt.Errorf("--calibration: %d tokens, want %d or more", len(t.ids), calibrationWindow)
	}
	t.model, err = direct.New(t.s.Host, t.s.Parts)
	return err
}

// expert is cache.Weights.Stats. It runs the text again for every few layers, which come in order.
func (t *statistics) expert(layer, e int) (in, mid *quant.Hessian, ok bool) {
	if t.err == nil && (t.from < 0 || layer < t.from || layer >= t.from+t.layers) {
		t.err = t.collect(layer)
	}
	if t.err != nil {
		return nil, nil, false
	}
	return t.seen.Expert(layer, e)
}

func (t *statistics) collect(layer int) error {
	t.from, t.seen = layer, nil // free the last ones before the next are made
	seen, err := calibration.New(t.s.Config, t.s.Weights, layer, min(layer+t.layers, len(t.s.Config.Layers)))
	if err != nil {
		return err
	}
	for from := 0; from < len(t.ids); from += calibrationWindow {
		part := t.ids[from:min(from+calibrationWindow, len(t.ids))]
		if err := drive.Run(t.model, []*drive.Sequence{{Prompt: part}}, drive.Options{Probe: seen}); err != nil {
			return err
		}
		runs := (len(t.s.Config.Layers) + t.layers - 1) / t.layers
		t.done(layer/t.layers*len(t.ids)+from+len(part), runs*len(t.ids))
	}
	t.seen = seen
	return seen.Err()
}

func (t *statistics) close() {
	if t.model != nil {
		t.model.Close()
	}
	t.s.Close()
}
