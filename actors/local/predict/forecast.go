// Package predict estimates how fast a model would be under each strategy of placing its experts,
// and chooses by that. The rates are measured on this machine, or come from descriptions of GPUs
// and CPUs.
package predict

import (
	"errors"
	"fmt"
	"slices"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/source"
)

// Flags are the options of a forecast.
type Flags struct {
	Card        string      `help:"The GPU: a known name (rtx-4090, h100; a wrong name lists all) or a file that describes one; default: this machine's GPU." placeholder:"NAME|FILE"`
	CPU         string      `name:"cpu" help:"File that describes the CPUs; default: the one in the --card file, the rates measured on this machine, or typical rates of such CPUs." type:"existingfile" placeholder:"FILE"`
	RAM         config.Size `name:"ram" help:"Memory of the host; default: this machine's, or unlimited if --cpu or --card describes other CPUs." default:"0"`
	RoutingSkew string      `help:"How tokens spread over experts: ${enum}. zipf sends half of them to a quarter of the experts, as trained routers do." enum:"uniform,zipf" default:"zipf"`
	Routing     string      `help:"File that says how tokens spread over experts, in place of --routing-skew: recorded choices (krater heatmap --record, krater serve --record-routing), or a heat map." type:"existingfile" placeholder:"FILE"`
	Streams     int         `help:"Number of streams by which the decode strategy is chosen." default:"1"`
	Context     int         `help:"Context length of generated tokens, in tokens." default:"2048"`

	Measured *rates.File `kong:"-"` // measured by this run; nil: not measured
}

// gpuReserve is the share of a GPU's memory that kernels, graphs and the driver take.
const gpuReserve = planner.RefuseShare - config.GPUShare

// errDense reports a model without routed experts.
var errDense = errors.New("no routed experts: nothing to choose")

// NewCase turns a config and options into the inputs of a forecast. ram is the host's memory.
func NewCase(cfg source.Sizes, f *config.Options, r rates.Rates, vram, ram int64, skew string, w forecast.Work) (*forecast.Case, error) {
	if !slices.ContainsFunc(layerNumbers(len(cfg.Layers)), cfg.MoELayer) {
		return nil, errDense
	}
	g := *f
	g.Ranks, g.PPPartition = 0, ""
	g.Device = config.HostSim // may have any strategy and any memory limit
	if err := g.Check(); err != nil {
		return nil, err
	}
	g.Device = config.CUDA
	steps := config.Steps{Chunk: g.Chunk(vram), Pass: g.PrefillPass}
	needs, o, err := gpuNeeds(cfg.Config, &g, steps)
	if err != nil {
		return nil, err
	}
	s, err := shapeOf(cfg, &g, o, needs)
	if err != nil {
		return nil, err
	}
	c := &forecast.Case{Shape: *s, Rates: r, Skew: forecast.Uniform(s.Experts), Work: w}
	if c.Prefill, c.Decode, err = f.Wanted(); err != nil {
		return nil, err
	}
	if skew == "zipf" {
		c.Skew = forecast.Zipf(s.Experts)
	}
	c.Work.Chunk, c.Work.Window = steps.Chunk, steps.Pass
	if c.Work.Window == 0 {
		c.Work.Window = config.PassChunks * steps.Chunk
	}
	c.Budget = forecast.Budget{VRAM: vram, Fixed: int64(gpuReserve * float64(vram)), Experts: int64(f.ExpertVRAM), Prefill: int64(f.PrefillExpertVRAM), RAM: ram}
	for _, n := range needs {
		if n.Part != load.Experts && n.Part != load.KVCache {
			c.Budget.Fixed = planner.Add(c.Budget.Fixed, n.Bytes)
		}
	}
	// Between groups of layers, hidden rows wait; the routers' choices are kept to the end.
	c.Budget.Window = int64(g.States()) * 4 * int64(cfg.Hidden+s.MoE*s.TopK) * int64(max(0, c.Work.Window-steps.Chunk))
	c.Budget.KV = kvWish(&c.Budget, s, &c.Work, int64(f.KVCache))
	if k := config.KVSizeOf(cfg.Config, &o); k.Block > 0 {
		c.Budget.Fixed = planner.Add(c.Budget.Fixed, min(k.Windows, c.Budget.KV/k.Block+1)*k.Window)
	}
	return c, nil
}

// layerNumbers returns the numbers of all layers.
func layerNumbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// gpuNeeds returns what the model takes on a GPU, with a KV cache of one block.
func gpuNeeds(cfg *model.Config, f *config.Options, steps config.Steps) ([]load.Need, load.Options, error) {
	g := *f
	g.KVCache, g.KVRAM = 0, 0
	o, err := g.LoadOptions(cfg, config.Case{}, steps, 0)
	if err != nil {
		return nil, o, err
	}
	o.Blocks = 1
	needs, err := load.Plan(cfg, o, load.Use{States: g.States(), Streams: g.Groups() + 1, Threads: g.ThreadCount()})
	return needs, o, err
}

// kvWish returns the memory of the KV cache. Without a flag, it has room for the streams and the
// longest prompt of the table, but takes at most a quarter of what is left. It always has room for
// the deciding streams and the shortest prompt.
func kvWish(b *forecast.Budget, s *forecast.Shape, w *forecast.Work, flag int64) int64 {
	if flag > 0 {
		return flag
	}
	least, most := w.Streams*(w.Context+1), 0
	for _, n := range w.Batches {
		most = max(most, n*(w.Context+1))
	}
	if len(w.Lengths) > 0 {
		least, most = max(least, slices.Min(w.Lengths)), max(most, slices.Max(w.Lengths))
	}
	left := int64(planner.RefuseShare*float64(b.VRAM)) - b.Fixed
	return max(int64(least)*s.KVToken, min(int64(most)*s.KVToken, left/4))
}

// shapeOf returns the sizes of a model in its precision. needs is its memory on a GPU with options
// o.
func shapeOf(cfg source.Sizes, f *config.Options, o load.Options, needs []load.Need) (*forecast.Shape, error) {
	m := cfg.MoE
	s := &forecast.Shape{Layers: len(cfg.Layers), Experts: m.Experts, TopK: m.Router.TopK}
	for i := range cfg.Layers {
		if cfg.MoELayer(i) {
			s.MoE++
		}
	}
	card, count := ByPart(needs), ByPart(nil)
	plain, values := o, *cfg.Config
	plain.Precision, plain.Layout, values.Types = load.Precision{}, nil, nil
	list, err := load.Plan(&values, plain, load.Use{})
	if err != nil {
		return nil, err
	}
	for part, n := range ByPart(list) { // of values
		count[part] = n / int64(load.KeptType(&values, model.Experts).Size())
	}
	host := *f
	host.Device = config.CPU
	beside, err := host.Resolve(cfg.Config, false, false)
	if err != nil {
		return nil, err
	}
	plain.Precision.Experts = beside.Experts // the host has no other part
	if list, err = load.Plan(cfg.Config, plain, load.Use{}); err != nil {
		return nil, err
	}
	all := int64(s.MoE * s.Experts)
	s.ExpertCard, s.ExpertHost = card[load.Experts]/all, ByPart(list)[load.Experts]/all
	s.ExpertFLOP = 2 * float64(count[load.Experts]) / float64(all)
	for _, p := range []load.Part{load.Attention, load.Dense, load.Router} {
		s.FixedBytes += card[p]
		s.FixedFLOP += 2 * float64(count[p])
	}
	s.SharedBytes, s.SharedFLOP = card[load.Shared], 2*float64(count[load.Shared])
	s.HeadBytes, s.HeadFLOP = card[load.Head], 2*float64(cfg.Vocab)*float64(cfg.Hidden)
	if s.HeadBytes == 0 { // the embedding
		s.HeadBytes = card[load.Embedding]
	}
	s.KVToken = max(1, cfg.Config.KVBlockBytes(o.BlockTokens, o.KVType)/int64(o.BlockTokens))
	if k := config.KVSizeOf(cfg.Config, &o); k.Block > 0 {
		s.KVToken = k.Block / int64(o.BlockTokens)
	}
	attend(s, cfg.Config, &o)
	s.Small = smallOperators(cfg.Config)
	s.StateBytes = cfg.SequenceBytes(o.KVType)
	s.RowBytes = rowBytes(cfg.Config, s)
	s.HandIn, s.HandOut = int64(2*cfg.Hidden+8*s.TopK), int64(4*cfg.Hidden)
	return s, nil
}

// attend sets what the attention of all layers computes and reads.
func attend(s *forecast.Shape, cfg *model.Config, o *load.Options) {
	for _, c := range cfg.Costs() {
		s.ExpandFLOP, s.RowFLOP = s.ExpandFLOP+c.Expand, s.RowFLOP+c.Row
		if c.Heads == 0 {
			s.PairFLOP, s.DecodePair = s.PairFLOP+c.Pair, s.DecodePair+c.DecodePair
			continue
		}
		s.Heads = append(s.Heads, forecast.Heads{Size: c.Heads, Window: c.Window, PairFLOP: c.Pair})
	}
	if o.WindowBlocks == 0 {
		return
	}
	for i := range cfg.Layers {
		c := cfg.Layers[i].Mixer.Cost()
		for _, kept := range cfg.Layers[i].State(cfg.Hidden) {
			at := slices.IndexFunc(s.Heads, func(h forecast.Heads) bool { return h.Size == c.Heads && h.Window == c.Window })
			if kept.Window > 0 && at >= 0 {
				s.Heads[at].KVToken += int64(kept.Bytes(o.KVType))
			}
		}
	}
}

// smallOperators returns how many operators all layers have besides those that every layer has (rates.Card.Launches), each
// a launch that passes over rows.
func smallOperators(cfg *model.Config) (n int) {
	for _, c := range cfg.Costs() {
		n += c.Small
	}
	for i := range cfg.Layers {
		if cfg.Layers[i].NormsAfter {
			n += 3 // two norms, and a sum apart
		}
		if cfg.Layers[i].Scalar {
			n++
		}
		if !cfg.MoELayer(i) {
			continue
		}
		if cfg.MoE.OwnNorms {
			n += 6 // three norms, the shared network's two products, a sum
		}
		if cfg.MoE.Act.Cubic != 0 {
			n += 4 // activations of both networks, assignments sorted by expert, the sum of experts
		}
	}
	return n
}

// Memory traffic of a prompt's row on the GPU besides matrix products, in 16-bit values: passes
// over hidden rows in a layer, and over the rows into, within and out of each expert.
const (
	hiddenPasses = 16
	smallPasses  = 3 // of each of Shape.Small
	expertPasses = 3
	apartPasses  = 6 // of an activation that is an operator of its own
)

func rowBytes(cfg *model.Config, s *forecast.Shape) float64 {
	wide := expertPasses * float64(cfg.Hidden+cfg.MoE.FF)
	if cfg.MoE.Act.Cubic != 0 {
		wide += apartPasses * float64(cfg.MoE.FF)
	}
	return 2 * ((hiddenPasses*float64(len(cfg.Layers))+smallPasses*float64(s.Small))*float64(cfg.Hidden) + float64(s.MoE*s.TopK)*wide)
}

// ByPart adds up needs by part.
func ByPart(needs []load.Need) map[load.Part]int64 {
	sum := map[load.Part]int64{}
	for _, n := range needs {
		sum[n.Part] = planner.Add(sum[n.Part], n.Bytes)
	}
	return sum
}

// Report makes the forecast of a model.
func (p *Flags) Report(name string, cfg source.Sizes, f *config.Options, m *machine.Machine, w forecast.Work) (*Report, error) {
	r, known, err := p.Rates(m, f)
	if err != nil {
		return nil, err
	}
	w.Streams, w.Context = p.Streams, p.Context
	vram := int64(f.VRAM.One())
	if vram == 0 {
		vram = int64(r.Card.MemoryGiB * (1 << 30))
	}
	ram := int64(p.RAM)
	if ram == 0 && known.here {
		ram = m.Total()
	}
	c, err := NewCase(cfg, f, r, vram, ram, p.RoutingSkew, w)
	if errors.Is(err, errDense) {
		return &Report{Model: name, Note: errDense.Error(), Candidates: []forecast.Candidate{}}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := p.route(c); err != nil {
		return nil, err
	}
	served := keptServed(f, m, r.Card.Name, name, &c.Shape)
	if served != nil {
		if done, err := c.Correct(*served); err != nil || !done {
			served = nil // it does not belong to a plan
		}
	}
	made, err := forecast.New(*c)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	report := newPlanReport(name, known, c, made)
	report.Served = served
	if cfg.Cannot != nil {
		report.Cannot = cfg.Cannot.Error()
	}
	switch {
	case cfg.Quantization != nil && cfg.Stored > 0:
		report.Files = fmt.Sprintf("%s, %s", cfg.Quantization, planner.Size(cfg.Stored))
	case len(cfg.Held) > 0:
		report.Files = Types(cfg.Held)
	}
	return report, nil
}

// Advice returns the recommendation of krater plan in one line for the machine's GPU; "" if there
// is no GPU or nothing to choose. card is the GPU's memory; 0: as its description says.
func Advice(name string, cfg *model.Config, f *config.Options, m *machine.Machine, card int64) string {
	if cfg.MoE.Experts == 0 || len(m.GPUs) == 0 {
		return ""
	}
	g := *f
	if g.VRAM.One() == 0 {
		g.VRAM = config.Each(config.Size(card))
	}
	p := Flags{RoutingSkew: "zipf", Streams: 1, Context: forecast.Usual().Context}
	r, err := p.Report(name, source.Sizes{Config: cfg}, &g, m, forecast.Usual())
	if err != nil {
		return "strategies: " + err.Error()
	}
	return fmt.Sprintf("%s, predicted for %s; krater plan has the table", r.Line(), r.Rates.Card.Name)
}
