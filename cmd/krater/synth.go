package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/models"
	"krater/scheduler/planner"
	"krater/stages/synth"
	"krater/stages/weights/quant"
)

// synthFlags choose a model of random weights.
type synthFlags struct {
	Shape       string `help:"Shape of a model of random weights, whose answers are noise: deepseek-v2-lite, qwen2.5-7b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-next, kimi-k2." placeholder:"NAME"`
	Layers      int    `help:"Layers of the shape that are made; 0: all." default:"0"`
	Vocab       int    `help:"Tokens of the shape that are made; 0: all." default:"0"`
	RoutingSkew string `help:"How the work is divided among experts: ${enum}. zipf gives half of it to a quarter of them." enum:"uniform,zipf" default:"uniform"`
	WeightsSeed uint64 `help:"Seed of the random weights." default:"1"`
}

// model is the model that the flags choose.
func (f *synthFlags) model() (*synth.Model, error) {
	if f.Shape == "" {
		return nil, fmt.Errorf("--shape: choose one of %s", strings.Join(synth.Shapes(), ", "))
	}
	return synth.New(f.Shape, synth.Options{Layers: f.Layers, Vocab: f.Vocab, Seed: f.WeightsSeed, Skew: synth.Skew(f.RoutingSkew)})
}

// source is the model as something that can be loaded: its weights are made where
// they are used.
func (f *synthFlags) source() (*source, error) {
	m, err := f.model()
	if err != nil {
		return nil, err
	}
	name := m.Shape
	if f.Layers > 0 {
		name = fmt.Sprintf("%s, %d layers", name, f.Layers)
	}
	files := memoryFiles{"config.json": m.JSON, "tokenizer.json": madeTokenizer(m.Config.Vocab)}
	return &source{name: name, files: files, synth: m}, nil
}

// sourceOr is the model of random weights that the flags choose, or that of a folder ("": the
// built-in one).
func (f *synthFlags) sourceOr(dir string) (*source, error) {
	switch {
	case f.Shape == "" && (f.Layers != 0 || f.Vocab != 0):
		return nil, errors.New("--layers and --vocab belong to --shape")
	case f.Shape == "":
		return openSource(dir)
	case dir != "":
		return nil, errors.New("--model and --shape name two models")
	}
	return f.source()
}

// madeTokenizer is a tokenizer.json of n tokens, each with a text: a byte the first 256, t
// and its number the others.
func madeTokenizer(n int) []byte {
	vocab := make(map[string]int, n)
	next := rune(256)
	for b := range rune(min(n, 256)) {
		r := b // as byte-level tokenizers write it: printable ones as they are, others from 256 on
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r, next = next, next+1
		}
		vocab[string(r)] = int(b)
	}
	for i := 256; i < n; i++ {
		vocab["t"+strconv.Itoa(i)] = i
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	text, _ := json.Marshal(map[string]any{ // plain data
		"version": "1.0", "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"pre_tokenizer": byteLevel, "decoder": byteLevel, "added_tokens": []any{},
	})
	return text
}

type synthCmd struct {
	synthFlags
	engineFlags
	As       string `help:"What is written: ${enum}. A cache has the experts as integers, by --cpu-expert-bits and --group-size, and the rest in BF16." enum:"cache,safetensors,gguf" default:"cache"`
	Out      string `help:"Folder to make." type:"path" placeholder:"DIR"`
	InMemory bool   `help:"Make the model in memory, by the flags of precision, tell what it took, and end."`
	JSON     bool   `name:"json" help:"Print the result as JSON."`
}

// Run implements the command.
func (c *synthCmd) Run(e *console.Env) error {
	switch {
	case c.InMemory == (c.Out != ""):
		return errors.New("say where the model goes: --out DIR or --in-memory")
	case c.InMemory:
		return c.memory(e)
	case c.As == "gguf":
		return errors.New("--as gguf: GGUF files cannot be written; there are safetensors and cache")
	}
	if err := c.engineFlags.check(); err != nil {
		return err
	}
	m, err := c.model()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f := synth.Folder{Dir: c.Out, Threads: c.threads(), Files: companions(m)}
	r := synthReport{Shape: m.Shape, Layers: len(m.Config.Layers), Path: c.Out, As: c.As}
	f.Progress = func(done, all int64) {
		r.Bytes = done
		e.Shown().Set("synth", term.Bytes, done, all)
	}
	start := time.Now()
	if c.As == "safetensors" {
		err = m.WriteSafetensors(ctx, f)
	} else {
		err = c.cache(ctx, m, f, &r)
	}
	e.Shown().End() // before the report
	if err != nil {
		return err
	}
	r.Seconds = time.Since(start).Seconds()
	return r.print(e.Out, c.JSON)
}

// cache writes experts as integers: INT4 unless a flag says otherwise, however
// small the model is.
func (c *synthCmd) cache(ctx context.Context, m *synth.Model, f synth.Folder, r *synthReport) error {
	p, err := c.precision(m.Config, false, false)
	if err != nil {
		return err
	}
	if p.Experts == 0 && c.Precision == "mixed" && c.CPUExpertBits == "auto" {
		p.Experts = 4
	}
	if p.Experts == 0 {
		return errors.New("a cache has experts of 4 or 8 bits (--cpu-expert-bits); --as safetensors writes them in BF16")
	}
	r.Start = fmt.Sprintf("--model %s --cpu-expert-bits %d --group-size %s", c.Out, p.Experts, c.GroupSize)
	return m.WriteCache(ctx, f, quant.Spec{Bits: p.Experts, Group: p.Group})
}

// companions are the files that a model needs to be served: the tokenizer of the
// default model, where the vocabulary has room for its tokens. The other tokens
// have no text.
func companions(m *synth.Model) map[string][]byte {
	files, err := models.Default()
	if err != nil {
		return nil
	}
	s := &source{name: models.Name, files: files}
	tok, config, err := s.tokenizer()
	if err != nil || tok.VocabSize() > m.Config.Vocab {
		return nil
	}
	text, err := s.read("tokenizer.json", false)
	if err != nil {
		return nil
	}
	return map[string][]byte{"tokenizer.json": text, "tokenizer_config.json": config}
}

// synthReport is what krater synth prints.
type synthReport struct {
	Shape   string  `json:"shape"`
	Layers  int     `json:"layers"`
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes"` // of all weights

	As    string `json:"as,omitempty"`
	Path  string `json:"path,omitempty"`
	Start string `json:"start,omitempty"` // flags for a command that uses it

	Resident int64       `json:"resident_bytes,omitempty"` // in memory: of the process
	Parts    []synthPart `json:"parts,omitempty"`
	Steps    []synthStep `json:"steps,omitempty"`
}

type synthPart struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Detail string `json:"detail"`
}

type synthStep struct {
	Name    string  `json:"name"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// inMemoryKV is the KV cache of a model that is made only to see what it takes.
const inMemoryKV = 64 << 20

// memory makes the model and tells what it took.
func (c *synthCmd) memory(e *console.Env) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	f := c.engineFlags
	if f.MaxSeqs = 1; f.KVCache == 0 {
		f.KVCache = inMemoryKV
	}
	start := time.Now()
	s, err := prepareSource(e, src, &f, limits{})
	if err != nil {
		return err
	}
	if err := s.load(context.Background(), &f, reportOn(e)); err != nil {
		return err
	}
	defer s.Close()
	r := synthReport{Shape: src.synth.Shape, Layers: len(s.cfg.Layers), Seconds: time.Since(start).Seconds(), Bytes: s.parts.WeightBytes, Resident: machine.Resident()}
	for _, n := range s.look.needs {
		if n.Part.Weight() && n.Bytes > 0 {
			r.Parts = append(r.Parts, synthPart{n.Part.String(), n.Bytes, n.Detail})
		}
	}
	for _, x := range s.made.Took {
		r.Steps = append(r.Steps, synthStep{x.What, x.Bytes, x.Took.Seconds()})
	}
	return r.print(e.Out, c.JSON)
}

// print writes the report for people or as JSON.
func (r *synthReport) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	where := "in memory"
	if r.Path != "" {
		where = fmt.Sprintf("%s, %s", r.Path, r.As)
	}
	fmt.Fprintf(out, "%s, %d layers: %s, %s in %.1f s (%.2f GB/s)\n", r.Shape, r.Layers, where, planner.Size(r.Bytes), r.Seconds, float64(r.Bytes)/1e9/max(1e-9, r.Seconds))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range r.Parts {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", p.Name, planner.Size(p.Bytes), p.Detail)
	}
	for _, s := range r.Steps {
		fmt.Fprintf(w, "  made %s\t%s\t%.2f s\n", s.Name, planner.Size(s.Bytes), s.Seconds)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Start != "" {
		fmt.Fprintf(out, "start it with %s\n", r.Start)
	}
	if r.Resident > 0 {
		fmt.Fprintf(out, "the process has %s of memory\n", planner.Size(r.Resident))
	}
	return nil
}
