package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/source"
	"krater/stages/synth"
)

type synthCmd struct {
	source.Synthetic
	source.Blocks
	config.Options
	As       string `help:"What to write: ${enum}. cache has the experts as integers, as --cpu-expert-bits and --group-size say, and the rest in BF16. gguf has random blocks of the types that --expert-type and --other-type name." enum:"cache,safetensors,gguf" default:"cache"`
	Out      string `help:"Folder to create." type:"path" placeholder:"DIR"`
	InMemory bool   `help:"Make the model in memory in the chosen precision, report its memory, and exit."`
	JSON     bool   `name:"json" help:"Print the result as JSON."`
}

// Run implements the command.
func (c *synthCmd) Run(e *console.Env) error {
	switch {
	case c.InMemory == (c.Out != ""):
		return errors.New("choose where the model goes: --out DIR or --in-memory")
	case c.InMemory:
		return c.memory(e)
	}
	m, err := c.Make()
	if err := errors.Join(c.Options.Check(), err); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f, r := synth.Folder{Dir: c.Out, Threads: c.ThreadCount(), Files: source.Companions(m)}, synthReport{Shape: m.Shape, Layers: len(m.Config.Layers), Path: c.Out, As: c.As}
	f.Progress = func(done, all int64) {
		r.Bytes = done
		e.Shown().Set("synth", term.Bytes, done, all)
	}
	start := time.Now()
	switch c.As {
	case "gguf":
		err = c.WriteGGUF(ctx, m, f)
	case "safetensors":
		err = m.WriteSafetensors(ctx, f)
	default:
		err = c.cache(ctx, m, f, &r)
	}
	e.Shown().End() // clear the progress before the report
	if err != nil {
		return err
	}
	r.Seconds = time.Since(start).Seconds()
	return r.print(e.Out, c.JSON)
}

// cache writes experts as integers: INT4 unless a flag says otherwise, even for a small model.
func (c *synthCmd) cache(ctx context.Context, m *synth.Model, f synth.Folder, r *synthReport) error {
	if c.Precision == "mixed" && c.CPUExpertBits == "auto" {
		c.CPUExpertBits = "4"
	}
	p, err := c.Resolve(m.Config, false, false)
	if err != nil {
		return err
	}
	if p.Experts.Zero() && m.Config.MoE.Experts > 0 {
		return errors.New("--as cache needs --cpu-expert-bits 4 or 8; --as safetensors writes experts in BF16")
	}
	r.Start = fmt.Sprintf("--model %s --cpu-expert-bits %d --group-size %s", c.Out, p.Experts.Bits(), c.GroupSize)
	return m.WriteCache(ctx, f, p.Experts)
}

// synthReport is the output of krater synth.
type synthReport struct {
	Shape   string  `json:"shape"`
	Layers  int     `json:"layers"`
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes"` // size of all weights

	As    string `json:"as,omitempty"`
	Path  string `json:"path,omitempty"`
	Start string `json:"start,omitempty"` // flags of a command that uses it

	Resident int64       `json:"resident_bytes,omitempty"` // memory of the process
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

// inMemoryKV is the KV cache of a model that is made only to measure its memory.
const inMemoryKV = 64 << 20

// memory makes the model and reports its memory.
func (c *synthCmd) memory(e *console.Env) error {
	src, err := c.Source()
	if err != nil {
		return err
	}
	f := c.Options
	f.MaxSeqs, f.KVCache = 1, cmp.Or(f.KVCache, inMemoryKV)
	start := time.Now()
	s, err := local.Prepare(console.ForLoad(e, src, f, config.Case{}))
	if err != nil {
		return err
	}
	if err := s.Load(context.Background()); err != nil {
		return err
	}
	defer s.Close()
	r := synthReport{Shape: src.Synth.Shape, Layers: len(s.Config.Layers), Seconds: time.Since(start).Seconds(), Bytes: s.Parts.WeightBytes, Resident: machine.Resident()}
	for _, n := range s.Plan.Needs {
		if n.Part.Weight() && n.Bytes > 0 {
			r.Parts = append(r.Parts, synthPart{n.Part.String(), n.Bytes, n.Detail})
		}
	}
	for _, x := range s.Made().Took {
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
