package benches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/placement"
	"krater/cmd/krater/console"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/offload"
	"krater/stages/source"
)

// strategiesCmd runs a model under every strategy, on the simulated device or on a GPU. On the
// simulated device, bytes, hits and memory are the same as on any GPU, and times are virtual: they
// are the times of a GPU and a host with the given rates.
type strategiesCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	JSON    bool          `name:"json" help:"Print the report as JSON."`
	Prefill []int         `help:"Prompt lengths to measure." default:"512,1024,2000"`
	Decode  int           `help:"Tokens generated after a short prompt." default:"32"`
	Prompts int           `help:"Also measure this many prompts of the first length together; 0: none." default:"0"`
	Streams int           `help:"Also measure this many streams together, with one and with two micro-batches; 0: none." default:"0"`
	Budgets []config.Size `help:"Memory for experts, with one table each; default: half of what all experts take, or on a GPU with --vram what is left." placeholder:"SIZE"`
	Trace   string        `help:"With --streams on a GPU: folder for traces of the actors, one Chrome trace file per strategy, budget and number of micro-batches." placeholder:"DIR"`
	Only    []string      `help:"Strategies by name or number, or a pair for prefill and decode: layer_grouped/hot_cached_static; default: all." placeholder:"NAME"`
	Windows int           `help:"Measure decode alone, of --streams streams, in this many windows of each strategy in turn, and print medians; 0: measure each strategy by itself." default:"0"`
	Counted int           `name:"heat-tokens" help:"Tokens of the warm-up that counts the heat; 0: those of a prompt of 512 and --decode." default:"0"`
	NoHeat  bool          `help:"Treat the first experts by id as the hot ones, instead of counting in a warm-up."`

	CopyRate    float64 `help:"Simulated rate of copies to the GPU, GB/s." default:"53"`
	MemoryRate  float64 `help:"Simulated memory bandwidth of the GPU, GB/s." default:"2460"`
	ComputeRate float64 `help:"Simulated rate of products on the GPU, TFLOP/s." default:"468"`
	LaunchUS    float64 `name:"launch-us" help:"Simulated time to launch an operator, in microseconds." default:"1"`
	CopyUS      float64 `name:"copy-us" help:"Simulated time to start a copy, in microseconds." default:"3"`
	HostMemory  float64 `help:"Simulated memory bandwidth of the host, GB/s." default:"83"`
	HostCompute float64 `help:"Simulated rate of products on the host, TFLOP/s." default:"4"`
}

// StrategiesReport is the report of the command.
type StrategiesReport struct {
	Model string `json:"model"`
	benchHost
	Precision   string           `json:"precision"`
	Threshold   int              `json:"threshold"`
	Heat        string           `json:"heat"`
	ExpertBytes int64            `json:"expert_bytes"` // of one
	Experts     int              `json:"experts"`
	Card        string           `json:"card,omitempty"`  // the GPU that was measured
	Rates       *simRates        `json:"rates,omitempty"` // rates of virtual times
	Strategies  []strategyResult `json:"strategies"`      // results, budget by budget
	Skipped     []string         `json:"skipped,omitempty"`
}

// simRates are the rates for virtual times, in the units of the flags.
type simRates struct {
	Copy        float64 `json:"copy_gbps"`
	Memory      float64 `json:"memory_gbps"`
	Compute     float64 `json:"compute_tflops"`
	LaunchUS    float64 `json:"launch_us"`
	CopyUS      float64 `json:"copy_us"`
	HostMemory  float64 `json:"host_memory_gbps"`
	HostCompute float64 `json:"host_compute_tflops"`
}

// strategyResult is one strategy with one budget, for prefill and decode.
type strategyResult struct {
	Strategy string           `json:"strategy"`
	Budget   int64            `json:"budget_bytes"`
	Runs     string           `json:"runs"`            // the strategy that ran, if it fell back to another
	Falls    []string         `json:"falls,omitempty"` // one line per phase
	Prefill  []strategyPhase  `json:"prefill"`
	Prompts  *strategyPhase   `json:"prompts,omitempty"` // several together
	Decode   strategyPhase    `json:"decode"`
	Together []strategyParts  `json:"together,omitempty"` // several streams, by number of micro-batches
	Windows  []strategyWindow `json:"windows,omitempty"`  // of decode, where strategies were measured in turn
	VRAM     int64            `json:"vram_bytes"`         // largest use
	OnRank   int64            `json:"experts_on_rank_bytes"`
	KVTokens int64            `json:"kv_tokens"` // that fit next to it
}

// strategyPhase is a prompt, or the tokens after one.
type strategyPhase struct {
	Tokens     int     `json:"tokens"`
	MS         float64 `json:"ms"`
	TokensPerS float64 `json:"tokens_per_second"`
	Copied     int64   `json:"copied_bytes"`
	HitRate    float64 `json:"hit_rate"`
	HostShare  float64 `json:"host_share"` // share of the used experts that the host computed
}

func (c *strategiesCmd) check(context int) (skipped []string, err error) {
	if c.MaxSeqs = max(1, c.Streams, c.Prompts); c.Device != config.CUDA {
		c.Device = config.HostSim
	}
	switch {
	case c.Windows < 0 || c.Windows > 1000:
		return nil, fmt.Errorf("--windows %d: want 0 to 1000", c.Windows)
	case c.Counted < 0 || c.Counted > context:
		return nil, fmt.Errorf("--heat-tokens %d: the model's context is %d", c.Counted, context)
	case c.Prompts < 0 || c.Prompts > 64:
		return nil, fmt.Errorf("--prompts %d: want 0 to 64", c.Prompts)
	case c.Streams < 0 || c.Streams > 1024:
		return nil, fmt.Errorf("--streams %d: want 0 to 1024", c.Streams)
	case c.Device == config.CUDA && c.Streams > 0 && c.Windows == 0 && c.Decode < 4*chainWarm:
		return nil, fmt.Errorf("--decode %d: want %d or more with --streams on a GPU", c.Decode, 4*chainWarm)
	case c.Trace != "" && (c.Streams == 0 || c.Device != config.CUDA):
		return nil, errors.New("--trace needs --streams and --device cuda")
	case c.MicroBatches != 0:
		return nil, errors.New("--micro-batches: --streams always measures one and two")
	case c.Decode < 2 || c.Decode > 1<<16:
		return nil, fmt.Errorf("--decode %d: want 2 to %d", c.Decode, 1<<16)
	case min(c.CopyRate, c.MemoryRate, c.ComputeRate, c.HostMemory, c.HostCompute) <= 0 || min(c.LaunchUS, c.CopyUS) < 0:
		return nil, errors.New("the rates of a simulated GPU and host must be above 0")
	case c.PrefillStrategy != config.Auto || c.DecodeStrategy != config.Auto || c.ExpertDivisor != -1 || c.CacheStrategy != "" || c.NoGPUDecode:
		return nil, errors.New("bench strategies runs every strategy; select with --only")
	}
	var fit []int
	for _, n := range c.Prefill {
		if n < 1 || n > 1<<20 {
			return nil, fmt.Errorf("--prefill %d: want 1 to %d", n, 1<<20)
		}
		if n+1 > context {
			skipped = append(skipped, fmt.Sprintf("--prefill %d: the model's context is %d", n, context))
			continue
		}
		fit = append(fit, n)
	}
	if c.Prefill = fit; benchPrompt+c.Decode > context {
		return nil, fmt.Errorf("--decode %d: the model's context is %d", c.Decode, context)
	}
	return skipped, nil
}

// pair is a strategy for prefill and one for decode, which may be the same.
type pair struct{ prefill, decode dispatch.Strategy }

func (p pair) String() string {
	if p.prefill.Name() == p.decode.Name() {
		return p.prefill.Name()
	}
	return p.prefill.Name() + "/" + p.decode.Name()
}

// pairs returns the pairs to compare.
func (c *strategiesCmd) pairs() (list []pair, err error) {
	for _, s := range dispatch.All() {
		if len(c.Only) == 0 {
			list = append(list, pair{s, s})
		}
	}
	for _, text := range c.Only {
		prefill, decode, two := strings.Cut(text, "/")
		if !two {
			decode = prefill
		}
		var p pair
		if p.prefill, err = dispatch.Parse(prefill); err == nil {
			p.decode, err = dispatch.Parse(decode)
		}
		if err != nil {
			return nil, fmt.Errorf("--only: %w", err)
		}
		list = append(list, p)
	}
	return list, nil
}

// Run implements the command.
func (c *strategiesCmd) Run(e *console.Env) error {
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	if cfg.MoE.Experts == 0 {
		return fmt.Errorf("model %s has no routed experts", src.Name)
	}
	skipped, err := c.check(cfg.MaxContext)
	if err != nil {
		return err
	}
	list, err := c.pairs()
	if err != nil {
		return err
	}
	r, err := c.measure(e, src, list)
	if err != nil {
		return err
	}
	r.Skipped = skipped
	if c.JSON {
		return console.WriteJSON(e.Out, r)
	}
	return r.text(e.Out)
}

// measure loads the model once and places its experts again for every strategy.
func (c *strategiesCmd) measure(e *console.Env, src *source.Source, list []pair) (*StrategiesReport, error) {
	if c.PrefillPass == 0 {
		c.PrefillPass = slices.Max(append(c.Prefill, 1))
		if c.Prompts > 0 && len(c.Prefill) > 0 {
			c.PrefillPass = max(c.PrefillPass, c.Prompts*c.Prefill[0])
		}
	}
	if c.KVCache == 0 && c.Device == config.CUDA {
		c.KVCache = c.cacheSize(src)
	}
	c.PrefillStrategy, c.DecodeStrategy, c.MicroBatches = config.CPUOnly, config.CPUOnly, 1
	s, err := local.Prepare(console.ForLoad(e, src, c.Options, config.Case{}))
	if err != nil {
		return nil, err
	}
	s.Rates = hostsim.Rates{
		Up:     hostsim.Link{BytesPerSecond: int64(c.CopyRate * 1e9), Latency: micros(c.CopyUS)},
		Down:   hostsim.Link{BytesPerSecond: int64(c.CopyRate * 1e9), Latency: micros(c.CopyUS)},
		Memory: int64(c.MemoryRate * 1e9), Flops: int64(c.ComputeRate * 1e12), Launch: micros(c.LaunchUS),
	}
	if err := s.Load(context.Background()); err != nil {
		return nil, err
	}
	defer s.Close()
	s.ClosePlacement()
	sim, _ := s.Rank().Device.(*hostsim.Device)
	tell := func(what string) { fmt.Fprintln(e.Err, "krater:", what) }
	if s.OnGPU() {
		begun := time.Now()
		b := &strategiesBench{c: c, s: s, tell: tell, now: func() time.Duration { return time.Since(begun) }}
		return b.run(list)
	}
	b := &strategiesBench{c: c, s: s, tell: tell, now: sim.Clock().Now, sim: hostsim.NewProcessor(s.Host, sim.Clock(), hostsim.Rates{Memory: int64(c.HostMemory * 1e9), Flops: int64(c.HostCompute * 1e12)})}
	return b.run(list)
}

// cacheSize returns the size of the KV cache that the benchmark's texts need.
func (c *strategiesCmd) cacheSize(src *source.Source) config.Size {
	cfg, _, err := src.Config()
	if err != nil {
		return 0 // loading reports the error
	}
	longest := slices.Max(append(c.Prefill, benchPrompt+c.Decode+1))
	if len(c.Prefill) > 0 {
		longest = max(longest, c.Prompts*(c.Prefill[0]+c.BlockTokens))
	}
	tokens := max(longest, c.Streams*(benchPrompt+c.answerMost()+c.BlockTokens)) + 2*c.BlockTokens
	return config.Size(int64(tokens/c.BlockTokens+1) * cfg.KVBlockBytes(c.BlockTokens, config.KVTypes[c.KVDType]))
}

func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

// strategiesBench is a running measurement.
type strategiesBench struct {
	c    *strategiesCmd
	s    *local.Model
	tell func(string)
	now  func() time.Duration
	sim  *hostsim.Processor // the host next to the simulated device; nil: times are real
	heat [][]uint32
	room int64 // memory of the rank
}

// host returns the CPU.
func (b *strategiesBench) host() offload.Host {
	if b.sim != nil {
		return b.sim
	}
	return b.s.Host
}

// run measures every strategy with every budget.
func (b *strategiesBench) run(list []pair) (*StrategiesReport, error) {
	c := b.c
	if err := b.warmUp(); err != nil {
		return nil, err
	}
	one := b.s.Plan.Experts.Slot
	experts := 0 // of all layers
	for layer := range b.s.Config.Layers {
		if b.s.Config.MoELayer(layer) {
			experts += b.s.Config.MoE.Experts
		}
	}
	r := &StrategiesReport{
		Model: b.s.Source.Name, benchHost: host(), Precision: precisionName(b.s.Plan.Load.Precision), Threshold: c.GPUPrefillThreshold, Heat: "counted by a warm-up",
		ExpertBytes: one, Experts: experts,
	}
	if b.sim != nil {
		r.Rates = &simRates{c.CopyRate, c.MemoryRate, c.ComputeRate, c.LaunchUS, c.CopyUS, c.HostMemory, c.HostCompute}
	} else {
		r.Card = b.s.Rank().Describe()
	}
	if c.NoHeat {
		b.heat, r.Heat = nil, "not counted: the first by id"
	}
	if len(c.Budgets) == 0 {
		c.Budgets = []config.Size{config.Size(one * int64(experts) / 2)}
		if left := b.left(); b.sim == nil && c.VRAM.One() > 0 {
			c.Budgets[0] = config.Size(max(1, min(left, one*int64(experts))))
		}
	}
	b.room = int64(planner.RefuseShare * float64(c.VRAM.One()))
	if c.VRAM.One() == 0 { // enough to hold the whole model
		b.room = b.s.Rank().Memory().Used + b.states() + one*int64(experts)
	}
	for _, budget := range c.Budgets {
		if c.Windows > 0 {
			res, err := b.inTurn(list, int64(budget))
			if err != nil {
				return nil, err
			}
			r.Strategies = append(r.Strategies, res...)
			continue
		}
		for _, s := range list {
			b.tell(fmt.Sprintf("%s with %s", s, budget))
			res, err := b.strategy(s, int64(budget))
			if err != nil {
				return nil, fmt.Errorf("%s with %s: %w", s, budget, err)
			}
			r.Strategies = append(r.Strategies, res)
		}
	}
	return r, nil
}

// left returns the GPU memory for experts next to what else is or will be there.
func (b *strategiesBench) left() int64 {
	m, lim := b.s.Rank().Memory(), b.s.Parts.Limits
	return int64(config.GPUShare*float64(m.Total)) - m.Used - b.states() - plan.ViewBytes(b.s.Config) - offload.StageBytes(b.s.Config, lim, b.s.Plan.Load.Layout)
}

// states returns the memory of the batches.
func (b *strategiesBench) states() int64 {
	for _, n := range b.s.Plan.Needs {
		if n.Part == load.States {
			return n.Bytes
		}
	}
	return 0
}

// named returns a strategy that exists.
func (b *strategiesBench) named(name string) dispatch.Strategy {
	s, err := dispatch.Parse(name)
	if err != nil {
		panic(err)
	}
	return s
}

// placed calls f with the experts placed.
func (b *strategiesBench) placed(o placement.Options, f func(*placement.Model, *placement.Placement) error) error {
	o.Threshold = b.c.GPUPrefillThreshold
	p, err := placement.New(b.s.Rank().Device, b.host(), b.s.Parts, o)
	if err != nil {
		return err
	}
	defer p.Close()
	m, err := placement.NewModel(b.s.Rank().Device, b.host(), b.s.Parts, p)
	if err != nil {
		return err
	}
	defer m.Close()
	return f(m, p)
}

// strategy measures one strategy with one budget.
func (b *strategiesBench) strategy(s pair, budget int64) (r strategyResult, err error) {
	r = strategyResult{Strategy: s.String(), Budget: budget}
	o := placement.Options{Prefill: s.prefill, Decode: s.decode, Budget: max(1, budget), PrefillBudget: int64(b.c.PrefillExpertVRAM), Heat: b.heat, Now: b.now}
	err = b.placed(o, func(m *placement.Model, p *placement.Placement) error {
		r.Runs = pair{p.Strategy(dispatch.Prefill), p.Strategy(dispatch.Decode)}.String()
		r.Falls = placement.TellFalls(p.Falls())
		for i, n := range b.c.Prefill {
			x, err := b.prefill(m, p, n, 1, i)
			if err != nil {
				return err
			}
			r.Prefill = append(r.Prefill, x)
		}
		if b.c.Prompts > 0 && len(b.c.Prefill) > 0 {
			x, err := b.prefill(m, p, b.c.Prefill[0], b.c.Prompts, 0)
			if err != nil {
				return err
			}
			r.Prompts = &x
		}
		for range b.tries() - 1 {
			if r.Decode, err = b.phase(m, p, []*drive.Sequence{b.sequence(benchPrompt, b.c.Decode+1, 9)}, b.c.Decode); err != nil {
				return err
			}
		}
		r.VRAM = b.s.Rank().Memory().Used
		for parts := 1; b.c.Streams > 0 && parts <= 2; parts++ {
			x, err := b.together(p, parts, &r)
			if err != nil {
				return err
			}
			r.Together = append(r.Together, x)
		}
		_, r.OnRank = p.Slots()
		lim := b.s.Parts.Limits
		kv := config.KVSizeOf(b.s.Config, &b.s.Plan.Load)
		r.KVTokens = max(0, kv.Blocks(b.room-r.VRAM+kv.Bytes(int64(lim.Blocks)))*int64(lim.BlockTokens))
		return nil
	})
	return r, err
}

// tries returns the number of measurements: the first one finds caches as they were before, and
// real times are noisy.
func (b *strategiesBench) tries() int {
	if b.sim == nil {
		return 4
	}
	return 2
}

// prefill puts prompts of the given length through the model together. It returns the last try, or
// the fastest one if times are real.
func (b *strategiesBench) prefill(m *placement.Model, p *placement.Placement, length, prompts, seed int) (best strategyPhase, err error) {
	for try := range b.tries() {
		var seqs []*drive.Sequence
		for j := range prompts {
			seqs = append(seqs, &drive.Sequence{Prompt: b.prompt(length, seed+2*try+10*j), New: 1})
		}
		x, err := b.phase(m, p, seqs, prompts*length)
		if err != nil {
			return best, err
		}
		if b.sim != nil || try < 2 || x.MS < best.MS {
			best = x
		}
	}
	return best, nil
}

// phase runs sequences and measures them: from the first token if they generate several, otherwise
// up to it.
func (b *strategiesBench) phase(m *placement.Model, p *placement.Placement, seqs []*drive.Sequence, tokens int) (strategyPhase, error) {
	stats := func() (s placement.Stats) {
		for phase := range dispatch.Phases {
			x := p.Stats(phase)
			s.Hits, s.Misses, s.Host = s.Hits+x.Hits, s.Misses+x.Misses, s.Host+x.Host
			s.Copies, s.CopiedBytes = s.Copies+x.Copies, s.CopiedBytes+x.CopiedBytes
		}
		return s
	}
	start, before := b.now(), stats()
	if q := seqs[0]; q.New > 1 {
		q.See = func(pos int, _ []float32) {
			if pos == len(q.Prompt)-1 {
				start, before = b.now(), stats()
			}
		}
	}
	if err := drive.Run(m, seqs, drive.Options{Draws: b.sim == nil}); err != nil {
		return strategyPhase{}, err
	}
	took, s := b.now()-start, stats().Since(before)
	x := strategyPhase{Tokens: tokens, MS: microseconds(took) / 1e3, Copied: s.CopiedBytes, HitRate: s.HitRate()}
	x.TokensPerS = float64(tokens) / took.Seconds()
	if n := s.Hits + s.Misses + s.Host; n > 0 {
		x.HostShare = float64(s.Host) / float64(n)
	}
	return x, nil
}
