package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/local/predict"
	"krater/bench/stat"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/cmd/krater/wizard"
	"krater/kernels/cuda"
	"krater/kernels/machine"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/source"
	"krater/stages/source/hubcache"
)

type setupCmd struct {
	Folders []string `arg:"" optional:"" help:"Folders of models, or folders that contain some; default: the current folder. Hugging Face's cache is always searched." type:"existingdir"`
	Save    string   `help:"File to write the settings to, for krater serve --config." type:"path" default:"krater.yaml" placeholder:"FILE"`
	Listen  string   `help:"Address for the server to listen on; default: the one in the file, or 127.0.0.1:8080." placeholder:"HOST:PORT"`
}

// Run implements the command: it shows the wizard and then runs the action chosen there.
func (c *setupCmd) Run(e *console.Env) error {
	in, inOK := e.In.(*os.File)
	out, outOK := e.Out.(*os.File)
	if !inOK || !outOK || !term.Is(in) || !term.Is(out) {
		return errors.New("setup needs a terminal; without one, write a settings file yourself: krater serve --print-config shows all settings")
	}
	w := c.wizard(e, e.Here())
	if err := wizard.Run(w, in, out); err != nil {
		return err
	}
	switch w.Done {
	case wizard.Save:
		fmt.Fprintf(e.Out, "wrote %s; start with: krater serve --config %s\n", c.Save, c.Save)
	case wizard.Serve:
		return c.then(e, "serve", "--config", c.Save)
	case wizard.Start:
		return c.then(e, append([]string{"serve"}, c.flags(w, "serve")...)...)
	case wizard.Bench:
		return c.then(e, append([]string{"bench", "model"}, c.flags(w, "bench model")...)...)
	}
	return nil
}

// flags returns the chosen settings, and the other settings of the file, as flags of a command.
func (c *setupCmd) flags(w *wizard.Wizard, command string) (flags []string) {
	_, others := storedSettings(c.Save, slices.Clone(w.Fields))
	for name, value := range otherSettings(others.with(settled(w.Settings()))).of(command) {
		flags = append(flags, "--"+name+"="+value)
	}
	slices.Sort(flags)
	return flags
}

// then runs another command, and prints its command line.
func (c *setupCmd) then(e *console.Env, command ...string) error {
	fmt.Fprintln(e.Out, "krater", cmdline.Line(command))
	if status := run(command, e); status != 0 {
		return console.ExitError(status)
	}
	return nil
}

// wizard describes the choices of a machine.
func (c *setupCmd) wizard(e *console.Env, m *machine.Machine) *wizard.Wizard {
	folders := c.Folders
	if len(folders) == 0 {
		folders = []string{"."}
	}
	models := []wizard.Option{{Label: "krater-tiny, built in"}}
	at := 0 // prefer a model that was found and can run
	for i, f := range hubcache.Find(folders, hubcache.Dir()) {
		models = append(models, wizard.Option{Label: term.Shown(f.Name + "  " + f.Path), Value: f.Path})
		if at == 0 && runs(f.Path) {
			at = i + 1
		}
	}
	cards := setupGPUs()
	fields := []wizard.Field{
		{Key: "model", Title: "Model", Help: foundWhere(folders, len(models)-1), Options: models, At: at},
		{Key: "gpu", Title: "Device", Help: "Device that computes the layers.", Options: deviceOptions(cards)},
		{Key: "vram", Title: "GPU memory", Help: "GPU memory that the model may use.", Options: vramOptions(cards)},
		{Key: "precision", Title: "Precision", Help: "by part: large models keep experts in 4 bits, the rest in 8 or 16.", Options: wizard.Options("", "by part", "bf16", "bf16", "int8", "int8", "int4", "int4")},
		{Key: "kv-dtype", Title: "KV cache", Help: "Type of the keys and values that are kept for every token.", Options: wizard.Options("", "bf16", "fp8", "fp8", "int8", "int8", "f32", "f32")},
		{Key: "max-seqs", Title: "Streams", Help: "Number of requests that run at the same time.", Options: wizard.Options("", "32", "1", "1", "4", "4", "8", "8", "16", "16", "64", "64", "128", "128")},
		{Key: "prefill-strategy", Title: "Prefill strategy", Help: "Where the experts of a prompt are computed (docs/strategies.md).", Options: strategyOptions()},
		{Key: "decode-strategy", Title: "Decode strategy", Help: "Where the experts of generated tokens are computed.", Options: strategyOptions()},
		{Key: "listen", Title: "Address", Help: "0.0.0.0 opens the server to the network; --listen HOST:PORT adds an address.", Options: wizard.Options("", "127.0.0.1:8080", "127.0.0.1:8000", "127.0.0.1:8000", "0.0.0.0:8080", "0.0.0.0:8080")},
	}
	_, err := os.Stat(c.Save)
	stored, others := storedSettings(c.Save, fields)
	if c.Listen != "" {
		choose(&fields[len(fields)-1], c.Listen)
	}
	return &wizard.Wizard{
		Machine: machineLines(m), Fields: fields, File: c.Save, Exists: err == nil, Own: ownSettings(c.Save), Stored: stored,
		Outlook:  wizard.Outlook{Hidden: gpuFields},
		Estimate: func(s wizard.Settings) wizard.Outlook { return estimate(settled(s), others.of("serve"), m, cards) },
		Measure: func(s wizard.Settings, tell func(term.State)) error {
			return measureFor(e, others.of("serve").with(settled(s)), m, tell)
		},
		Store: func(s wizard.Settings) error { return storeSettings(c.Save, others.with(settled(s))) },
	}
}

// runs reports whether a model is of a supported family.
func runs(dir string) bool {
	src, err := source.Open(dir)
	if err == nil {
		_, _, err = src.Config()
	}
	return err == nil
}

// foundWhere says how many models were found, and in which folders.
func foundWhere(folders []string, n int) string {
	in := strings.Join(folders, ", ")
	if in == "." {
		in = "this folder"
	}
	if n == 0 {
		return fmt.Sprintf("No model found in %s or Hugging Face's cache; try krater setup FOLDER or krater pull ORG/MODEL.", in)
	}
	return fmt.Sprintf("%s found in %s and Hugging Face's cache.", planner.Count(n, "model"), in)
}

// gpuFields are the fields that apply to a GPU only.
var gpuFields = []string{"vram", "prefill-strategy", "decode-strategy"}

// settled sets the device of a choice from one field: gpu names a GPU, "" the CPU.
func settled(s wizard.Settings) wizard.Settings {
	if s["gpu"] != "" {
		s["device"] = "cuda"
	}
	return s
}

// deviceOptions returns the CPU and the GPUs that this build can use.
func deviceOptions(cards []setupGPU) []wizard.Option {
	list := wizard.Options("", "CPU")
	for i, c := range cards {
		list = append(list, wizard.Option{Value: strconv.Itoa(i), Label: fmt.Sprintf("GPU %d: %s, %s", i, c.name, planner.Size(c.memory))})
	}
	return list
}

// vramOptions returns parts of the largest GPU's memory.
func vramOptions(cards []setupGPU) []wizard.Option {
	list := wizard.Options("", "all of it")
	for _, gib := range []int64{8, 12, 16, 24, 40, 60} {
		if slices.ContainsFunc(cards, func(c setupGPU) bool { return gib<<30 < c.memory }) {
			list = append(list, wizard.Options(fmt.Sprintf("%dGiB", gib), fmt.Sprintf("%d GiB", gib))...)
		}
	}
	return list
}

func strategyOptions() []wizard.Option {
	list := wizard.Options("", "auto: the fastest that fits")
	for _, s := range dispatch.All() {
		list = append(list, wizard.Options(s.Name(), s.Name())...)
	}
	return list
}

// setupGPU is a GPU that this build can use.
type setupGPU struct {
	name   string
	memory int64
}

// gpusMax bounds the number of GPUs that are looked for.
const gpusMax = 16

// setupGPUs opens each GPU briefly to learn its name and memory. It tries one index after the
// other, because a container may hide the bus.
func setupGPUs() []setupGPU {
	var cards []setupGPU
	for i := range gpusMax {
		c, err := local.OpenGPU(cuda.Options{Index: i})
		if err != nil {
			break
		}
		cards = append(cards, setupGPU{c.Describe(), c.Memory().Total})
		c.Close()
	}
	return cards
}

// machineLines describe the machine.
func machineLines(m *machine.Machine) []string {
	lines := []string{fmt.Sprintf("%s, %s free of %s", m.CPU.Model, planner.Size(m.Available()), planner.Size(m.Total()))}
	for _, g := range m.GPUs {
		lines = append(lines, "GPU "+g.Name)
	}
	return lines
}

// serveFlags returns the flags of krater serve with these settings, parsed as at every start.
func serveFlags(s wizard.Settings) (*serveCmd, error) {
	args := []string{"serve"}
	for k, v := range s {
		args = append(args, "--"+k+"="+v)
	}
	var c cli
	_, _, err := cmdline.Parse(&c, args)
	return &c.Serve, err
}

// estimate plans a choice without loading anything.
func estimate(s wizard.Settings, others otherSettings, m *machine.Machine, cards []setupGPU) (o wizard.Outlook) {
	trouble := func(err error) wizard.Outlook {
		o.Trouble = strings.Join(strings.Fields(err.Error()), " ")
		return o
	}
	if s["device"] == "" {
		o.Hidden = gpuFields
	}
	f, err := serveFlags(others.with(s))
	if err != nil {
		return trouble(err)
	}
	src, err := source.Open(f.Model)
	if err != nil {
		return trouble(err)
	}
	cfg, _, err := src.Config()
	if err != nil {
		return trouble(err)
	}
	if cfg.MoE.Experts == 0 && s["device"] != "" {
		o.Hidden = []string{"prefill-strategy", "decode-strategy"}
	}
	l := config.Case{}
	if i := f.GPUIndex; s["device"] != "" && i < len(cards) {
		l.Rank = config.RankFacts{Name: cards[i].name, Memory: cards[i].memory}
		if f.VRAM.One() > 0 {
			l.Rank.Memory = min(l.Rank.Memory, int64(f.VRAM.One()))
		}
	}
	o.Speed = speed(src.Name, cfg, &f.Options, m, l)
	look, err := plan.New(cfg, src.TokenizerSize(), f.Options, l, m)
	if err != nil {
		return trouble(err)
	}
	for i := range look.Memory.Devices {
		o.Budgets = append(o.Budgets, budgetOf(&look.Memory.Devices[i]))
	}
	if !look.Memory.Fits() {
		o.Trouble = "it does not fit"
	}
	return o
}

// measureFor measures the machine for a choice, as krater plan --measure does, and keeps the
// result. It does not write to the screen.
func measureFor(e *console.Env, s wizard.Settings, m *machine.Machine, tell func(term.State)) error {
	f, err := serveFlags(s)
	if err != nil {
		return err
	}
	src, err := source.Open(f.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	quiet := *e
	quiet.Err, quiet.Progress = io.Discard, term.NewProgress(nil, measureTold, tell)
	p := planCmd{Options: f.Options}
	if err := p.measure(&quiet, m, cfg); err != nil {
		return err
	}
	if predict.Kept(f.CacheDir, predict.Identity(m, f.ThreadCount())) == nil {
		return errors.New("cannot keep the measured rates: name a folder with --cache-dir")
	}
	return nil
}

// measureTold is the time between two updates of a measurement's progress.
const measureTold = 100 * time.Millisecond

// budgetOf returns a device's memory plan, the largest parts first.
func budgetOf(b *planner.Budget) wizard.Budget {
	out := wizard.Budget{Name: b.Name, Bytes: planner.Size(b.Planned), Fits: b.Fits(), Says: b.Verdict()}
	if b.Total > 0 {
		out.Share = float64(b.Planned) / float64(b.Total)
	}
	parts := slices.Clone(b.Components)
	slices.SortStableFunc(parts, func(x, y planner.Component) int { return int(min(1, max(-1, y.Bytes-x.Bytes))) })
	for _, p := range parts {
		out.Parts = append(out.Parts, wizard.Part{Name: p.Name, Size: planner.Size(p.Bytes), Detail: p.Detail})
	}
	return out
}

// cachesHold returns how many bytes of weights the CPU caches may hold.
const cachesHold = 256 << 20

// speed returns the forecast of a choice as lines of text.
func speed(name string, cfg *model.Config, f *config.Options, m *machine.Machine, l config.Case) []string {
	p := predict.Flags{RoutingSkew: "zipf", Streams: 1, Context: forecast.Usual().Context}
	if f.Device != config.CUDA {
		return cpuSpeed(&p, cfg, f, m)
	}
	g := *f
	g.VRAM = config.Each(config.Size(l.Rank.Memory))
	with := *m
	with.GPUs = []machine.GPU{{Name: l.Rank.Name}}
	r, err := p.Report(name, source.Sizes{Config: cfg}, &g, &with, forecast.Usual())
	if errors.Is(err, predict.ErrUnknownGPU) {
		return []string{"speed unknown: Krater does not know this GPU; press m to measure it"}
	}
	if err != nil {
		return []string{"speed unknown: " + err.Error()}
	}
	return []string{r.Line()}
}

// cpuSpeed returns an upper bound for the CPU: a generated token reads the weights that it needs,
// and a prompt multiplies by them.
func cpuSpeed(p *predict.Flags, cfg *model.Config, f *config.Options, m *machine.Machine) []string {
	with := *m
	with.GPUs = nil // a CPU plan uses no GPU
	r, known, err := p.Rates(&with, f)
	if err != nil {
		return []string{"speed unknown: " + err.Error()}
	}
	o, err := f.LoadOptions(cfg, config.Case{}, config.Steps{Chunk: f.Chunk(0)}, 0)
	if err != nil {
		return []string{"speed unknown: " + err.Error()}
	}
	needs, err := load.Plan(cfg, o, load.Use{})
	if err != nil {
		return []string{"speed unknown: " + err.Error()}
	}
	bytes := 0.0
	for part, n := range predict.ByPart(needs) {
		switch part {
		case load.Attention, load.Dense, load.Router, load.Shared, load.Head:
			bytes += float64(n)
		case load.Experts:
			bytes += float64(n) * float64(cfg.MoE.Router.TopK) / float64(max(1, cfg.MoE.Experts))
		}
	}
	if cfg.TieEmbed {
		bytes += float64(predict.ByPart(needs)[load.Embedding])
	}
	if bytes == 0 || r.CPU.ReadGBps == 0 {
		return nil
	}
	// There is no bound where the rate is only assumed, or where caches may hold the weights.
	word, source := "at most", known.CPU
	if bytes < cachesHold {
		word = "about"
	}
	if source == predict.CPUAssumed {
		word, source = "about", "assumed; press m to measure"
	}
	return []string{fmt.Sprintf("decode: %s %s tok/s for one request: %s of weights per token at %s GB/s (%s)",
		word, stat.Number(1e9*r.CPU.ReadGBps/bytes), planner.Size(int64(bytes)), stat.Number(r.CPU.ReadGBps), source)}
}
