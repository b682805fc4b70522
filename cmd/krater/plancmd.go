package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/local/predict"
	"krater/bench/cards"
	"krater/bench/meter"
	"krater/bench/stat"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/model"
	"krater/stages/source"
	"krater/stages/synth"
)

type planCmd struct {
	source.Folder
	config.Options
	predict.Flags
	Shape   string `help:"Plan for the shape of a known model instead of a model's folder, as in krater synth." placeholder:"NAME"`
	Layers  int    `help:"With --shape: number of layers; 0: all." default:"0"`
	Prefill []int  `help:"Prompt lengths to predict. The prefill strategy has the best geometric mean of their rates." default:"512,2048,8192"`
	Batch   []int  `help:"Numbers of streams to predict." default:"1,8,32"`
	Measure bool   `help:"Measure this machine's CPUs and GPU first (about 10 s), and keep the result for later plans."`
	JSON    bool   `name:"json" help:"Print JSON: the candidates of every strategy."`
}

// Run implements the command. It needs only config.json, and neither a GPU nor the weights. It
// checks any other files in the model's folder.
func (c *planCmd) Run(e *console.Env) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	cfg, err := src.Sizes()
	if err != nil {
		return err
	}
	if cfg.Cannot == nil {
		if err := src.Check(cfg.Config, false); err != nil {
			return err
		}
	}
	m := e.Here()
	if c.Measure {
		if err := c.measure(e, m, cfg.Config); err != nil {
			return err
		}
	}
	if c.RankCount() > 1 || c.ExpertDevice != "" {
		return c.ranks(e, src, cfg.Config, m)
	}
	w := forecast.Usual()
	w.Lengths, w.Batches = c.Prefill, c.Batch
	r, err := c.Flags.Report(src.Name, cfg, &c.Options, m, w)
	if err != nil {
		return err
	}
	if c.JSON {
		err = console.WriteJSON(e.Out, r)
	} else {
		err = planText{r}.print(term.Paint(e.Out, console.PlanRules...))
	}
	if err == nil && r.Prefill == "" && r.Note == "" { // nothing fits
		err = console.ExitError(1)
	}
	return err
}

// ranks plans a model on several devices: the layers of each, or the experts of a helper, the memory and the share of time. A GPU has the memory that --vram says,
// or that of --card or of the machine's GPUs.
func (c *planCmd) ranks(e *console.Env, src *source.Source, cfg *model.Config, m *machine.Machine) error {
	places, err := c.Places()
	if err != nil {
		return err
	}
	helper, ok, err := c.Helper(places[0])
	if err != nil {
		return err
	}
	if ok {
		places = append(places, helper)
	}
	with := config.Case{Ranks: make([]config.RankFacts, len(places))}
	for i, p := range places {
		if p.Kind != config.CUDA {
			continue
		}
		r, _, err := c.Flags.Rates(m, &c.Options)
		if err != nil {
			return err
		}
		f := &with.Ranks[i]
		if *f = (config.RankFacts{Name: r.Card.Name, Memory: int64(r.Card.MemoryGiB * (1 << 30))}); c.VRAM.Of(i) > 0 {
			f.Memory = int64(c.VRAM.Of(i))
		}
	}
	with.Rank = with.Ranks[0]
	if ok {
		with.Helper, with.Ranks = with.Ranks[1], with.Ranks[:1]
	}
	o, err := plan.New(cfg, src.TokenizerSize(), c.Options, with, m)
	if err != nil {
		return err
	}
	if c.JSON {
		err = console.WriteJSON(e.Out, o.RankReport())
	} else {
		_, err = fmt.Fprintf(e.Out, "%s\n%s\n\n%s\n", src.Name, o.RankTable(), o.Memory)
	}
	if err == nil && !o.Memory.Fits() {
		err = console.ExitError(1)
	}
	return err
}

// source returns the model, or the shape of one.
func (c *planCmd) source() (*source.Source, error) {
	if c.Shape == "" {
		if c.Layers != 0 {
			return nil, errors.New("--layers needs --shape")
		}
		return source.Open(c.Model)
	}
	if c.Model != "" {
		return nil, errors.New("--shape and --model both name a model; use one of them")
	}
	config, err := synth.Config(c.Shape, c.Layers)
	return &source.Source{Name: c.Shape, Files: source.MemoryFiles{"config.json": config}}, err
}

// measure measures the CPUs and, if there is one, the GPU, and keeps the result for later plans.
func (c *planCmd) measure(e *console.Env, m *machine.Machine, cfg *model.Config) error {
	f := &c.Options
	p, err := f.Resolve(cfg, false, false)
	if err != nil {
		return err
	}
	with, tell := console.MeterOf(e, meter.UsualMeter), console.Measuring(e.Shown())
	threads := f.ThreadCount()
	defer e.Shown().End()
	e.Say("measuring this machine, about 10 s")
	got, err := with.CPU(threads, p.Experts, m.Available(), tell)
	if err != nil {
		return fmt.Errorf("--measure: %w", err)
	}
	file := rates.File{Machine: predict.Identity(m, threads), CPU: &got}
	switch card, err := with.Card(f.GPUIndex, tell); {
	case err == nil:
		file.Card = &card
	case !errors.Is(err, meter.ErrUnmeasured):
		return fmt.Errorf("--measure: %w", err)
	case len(m.GPUs) > 0 || errors.Is(err, cards.ErrEmulated):
		e.Say("--measure:", err)
	}
	if err := predict.KeepRates(f.CacheDir, file); err != nil { // it is still good for this plan
		e.Say("the measured rates are not kept:", err)
	}
	c.Measured = &file
	return nil
}

// planText prints a report for people.
type planText struct{ *predict.Report }

// planWidth is the width of a printed plan, unless the user asks for more columns of figures.
const planWidth = 100

// beforeUnit is a space that keeps a number and its unit on one line.
var beforeUnit = regexp.MustCompile(`(\d) (%|B|[KMGT]iB|m?s\b)`)

// paragraph writes text in lines of planWidth. Each line begins with lead, the first one with
// first, which is at most as long.
func paragraph(out io.Writer, first, lead, text string) {
	for _, line := range term.Wrap(beforeUnit.ReplaceAllString(text, "$1\x00$2"), planWidth-len(lead)) {
		fmt.Fprintln(out, first+strings.ReplaceAll(line, "\x00", " "))
		first = lead
	}
}

// print writes the report for people: the recommendation, its inputs, and the figures of all
// strategies.
func (r planText) print(to io.Writer) error {
	var out bytes.Buffer
	if r.Note != "" {
		_, err := fmt.Fprintf(to, "%s: %s\n", r.Model, r.Note)
		return err
	}
	paragraph(&out, "", "  ", fmt.Sprintf("%s, predicted for %s (%s)", r.Line(), r.Rates.Card.Name, r.Known.Card))
	if r.Flags != "" {
		paragraph(&out, "", "  ", "flags: "+r.Flags)
	}
	out.WriteByte('\n')
	r.given(&out)
	if !r.hopeless() {
		decode := fmt.Sprintf("Decode, tok/s of all streams at %d tokens of context", r.Work.Context)
		if r.Prefill != "" {
			decode += fmt.Sprintf(", in the memory that %s leaves", r.Prefill)
		}
		r.table(&out, "Prefill, tok/s by prompt", func(c *forecast.Candidate) *forecast.Side { return &c.Prefill }, r.Work.Lengths, fmt.Sprintf("GB at %d", r.decides()))
		r.table(&out, decode,
			func(c *forecast.Candidate) *forecast.Side { return &c.Decode }, r.Work.Batches, "GB/step")
	}
	_, err := to.Write(out.Bytes())
	return err
}

// given writes the inputs of the forecast.
func (r planText) given(out io.Writer) {
	b := &r.Budget
	c, p := &r.Rates.Card, &r.Rates.CPU
	paragraph(out, "", "  ", fmt.Sprintf("%s on %s, %s of its memory, %s routing", r.Title(), c.Name, planner.Size(b.VRAM), r.Skew))
	if r.Cannot != "" {
		paragraph(out, "  ", "    ", "sizes alone: "+r.Cannot)
	}
	item := func(name, format string, args ...any) {
		paragraph(out, fmt.Sprintf("  %-8s", name), strings.Repeat(" ", 10), fmt.Sprintf(format, args...))
	}
	item("GPU", "reads %s GB/s (%s), multiplies %s / %s / %s TFLOP/s dense / experts / attention (%s), copies %s GB/s, %s while it computes (%s)",
		stat.Number(c.ReadGBps), c.Sources["read_gbps"], stat.Number(c.Dense.Peak), stat.Number(c.Experts.Peak), stat.Number(c.Attention.Peak), c.Sources["experts.peak"],
		stat.Number(c.CopyGBps), stat.Number(c.BusyGBps), c.Sources["copy_gbps"])
	item("CPU", "%s, %s: reads %s GB/s, experts %s GOP/s (%s)", orUnknown(p.Name), planner.Count(p.Threads, "thread"), stat.Number(p.ReadGBps), stat.Number(1e3*p.Experts.Peak), r.Known.CPU)
	if r.Served != nil {
		item("served", "%s", r.ServedLine())
	}
	item("budget", "weights and workspace %s, KV cache %s or more (%d tokens), experts %s of %s",
		planner.Size(b.Fixed), planner.Size(b.KV), b.KV/max(1, r.KVToken), planner.Size(min(r.Room, r.Experts)), planner.Size(r.Experts))
}

func orUnknown(name string) string {
	if name == "" {
		return "unknown processor"
	}
	return name
}

// hopeless reports whether nothing fits, for the same reason.
func (r planText) hopeless() bool {
	for i := range r.Candidates {
		if s := &r.Candidates[i].Prefill; s.Fits || s.Reason != r.Candidates[0].Prefill.Reason {
			return false
		}
	}
	return true
}

// decides returns the prompt length that stands for all of them.
func (r planText) decides() int {
	for i := range r.Candidates {
		if n := r.Candidates[i].Prefill.Decides.N; n > 0 {
			return n
		}
	}
	return 0
}

// table writes one phase: the strategies that fit, with the chosen one marked, and below them the
// bottleneck of each, or why it does not fit. Strategies with the same reason share a line.
func (r planText) table(out *bytes.Buffer, title string, side func(*forecast.Candidate) *forecast.Side, list []int, copied string) {
	t := stat.Table{Title: title, Columns: []string{"", "strategy"}}
	for _, n := range list {
		t.Columns = append(t.Columns, fmt.Sprint(n))
	}
	t.Columns = append(t.Columns, copied, "hits", "VRAM", "KV tokens")
	var reasons []string
	names := map[string][]string{}
	for i := 0; i < len(r.Candidates); i++ {
		c := &r.Candidates[i]
		s, name := side(c), c.Name()
		for ; i+1 < len(r.Candidates) && sameRow(c, &r.Candidates[i+1], side); i++ {
			name = fmt.Sprintf("%s:%d-%d", c.Strategy, c.Groups, r.Candidates[i+1].Groups)
		}
		if names[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		names[s.Reason] = append(names[s.Reason], name)
		if !s.Fits {
			continue
		}
		mark := ""
		if s.Chosen {
			mark = ">"
		}
		row := []any{mark, name}
		for j := range list {
			if s.Points[j].PerSecond == 0 {
				row = append(row, nil)
				continue
			}
			row = append(row, s.Points[j].PerSecond)
		}
		t.Add(append(row, s.Decides.Copied/1e9, s.Decides.HitRate, planner.Size(s.VRAM), s.KV)...)
	}
	out.WriteByte('\n')
	if len(t.Rows) == 0 {
		fmt.Fprintln(out, title)
	} else {
		t.Text(out) // a buffer accepts every write
	}
	for _, reason := range reasons {
		paragraph(out, "   ", "     ", strings.Join(names[reason], ", ")+": "+reason)
	}
}

// sameRow reports whether a different number of groups changes nothing.
func sameRow(a, b *forecast.Candidate, side func(*forecast.Candidate) *forecast.Side) bool {
	x, y := side(a), side(b)
	return a.Strategy == b.Strategy && x.Fits && y.Fits && !x.Chosen && !y.Chosen && x.Reason == y.Reason && x.VRAM == y.VRAM && x.Decides.PerSecond == y.Decides.PerSecond
}
