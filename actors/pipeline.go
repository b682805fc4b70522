// Package actors is the pipeline as it runs: one actor for every part a batch
// passes, messages between them, and nothing else. Stages compute, the
// scheduler decides, actors move.
package actors

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/offload"
)

// Options of a pipeline.
type Options struct {
	Blueprint Blueprint
	Scheduler scheduler.Config // Blocks, BlockTokens, MaxSeqs, MaxBatchTokens, Lanes and PrefillBatches are taken from the parts, the blueprint and the placement
	Log       zerolog.Logger
	// InlineBelow is the time of expert work, estimated, under which a group does
	// it itself instead of asking the pools. Negative: never.
	InlineBelow time.Duration
	// LapShare is the part of a step that a device may spend on looking at its clock around the
	// step's copies, in steps whose copies are timed; 0: lapShare.
	LapShare float64
	// HeatSample is of how many batches one is counted for Heat; 1: every one, 0: one of
	// 8, negative: none.
	HeatSample int
	// Placement is where the routed experts are, for parts that were loaded with
	// them on a host beside the device; nil: with the rest.
	Placement *placement.Placement
	// ReuseAnswers takes what an answer has left in the KV cache for the prompts that go on from
	// it, also where the same tokens of a prompt would leave other bits.
	ReuseAnswers bool
	// Invariant is for a card that was opened so: a row's bits hang on its form, generated or
	// of a prompt, which what is computed again keeps and what the cache has is told by.
	Invariant bool
	// Partition is the pools' experts, as they were placed; zero: see Partition.
	Partition expert.Partition

	wrap func(actor string, n node) node // around every new node, in tests; may be nil
}

// traceEvents is how many events each actor's ring keeps: some seconds of decode.
const traceEvents = 4096

// Rates of the estimate behind InlineBelow, per core, on the low side of what
// current machines do: being off by two moves a threshold, nothing else.
const (
	inlineBytesPerSecond = 20e9
	inlineFlopsPerSecond = 40e9
)

// loadRate is how many tokens of KV blocks are loaded from host memory, and as many saved, in
// the time that a card takes for a row of a prompt, on the low side: copies of some 3 us for a
// block of 16 tokens in each of 27 layers, beside 40 us a row (DeepSeek-V2-Lite on an H100). Larger
// models take longer for a row.
const loadRate = 4

// Pipeline is a live blueprint.
type Pipeline struct {
	opt    Options
	log    zerolog.Logger
	parts  *load.Parts
	trace  *trace.Registry
	meters *meters
	heat   *heatMeter // nil: nothing is counted

	host   host
	routes routes

	expertBytes int  // of one routed expert, 0 without
	resident    bool // the device finds the routed experts by itself

	states    []*stages.State
	streams   []device.Stream // of nodes and batches
	mirrors   []*offload.Mirror
	letters   []*offload.Letters
	seats     []seat // of the pools
	linkBytes atomic.Uint64

	homes              int              // orders of steps of a device that computes apart from the host
	times              bool             // the device tells what copies take
	device, poolDevice string           // names of where stages and expert pools compute
	partition          expert.Partition // of the pools

	memory func() device.Memory // of the device that the layers are on

	mu      sync.Mutex
	outputs map[uint64]*output // open requests
	ended   []engine.Running   // the newest of the others, oldest first
	origins origins            // of the others
	lastID  uint64
	failure error
	closed  bool
	failed  chan struct{} // closed with the first fatal failure
	halted  chan struct{} // closed when the actors have ended

	closing    sync.Once
	closeError error
}

// Start makes a blueprint live over the parts of a loaded model. The pipeline
// owns what it allocates, not the parts.
func Start(dev device.Device, parts *load.Parts, opt Options) (*Pipeline, error) {
	opt.Scheduler.Ahead = Ahead(dev)
	p, core, err := prepare(parts, opt)
	if err != nil {
		return nil, err
	}
	p.host = newLibrary(p)
	if err := p.spawn(dev, core); err != nil {
		return nil, errors.Join(err, p.halt())
	}
	if opt.Placement != nil {
		for _, line := range opt.Placement.Notices() {
			p.log.Warn().Msg(line)
		}
	}
	p.log.Info().Str("route", opt.Blueprint.String()).Msg("pipeline started")
	return p, nil
}

// prepare checks the options and makes a pipeline without actors.
func prepare(parts *load.Parts, opt Options) (*Pipeline, *scheduler.Core, error) {
	if err := opt.Blueprint.Check(len(parts.Config.Layers)); err != nil {
		return nil, nil, err
	}
	if len(opt.Blueprint.Groups) != len(parts.Groups) {
		return nil, nil, fmt.Errorf("blueprint: %d groups, the model is loaded in %d", len(opt.Blueprint.Groups), len(parts.Groups))
	}
	for i, g := range parts.Groups {
		if spec := opt.Blueprint.Groups[i]; spec.First != g.First || spec.Last != g.Last {
			return nil, nil, fmt.Errorf("blueprint: group %d has layers [%d, %d), loaded are [%d, %d)", i, spec.First, spec.Last, g.First, g.Last)
		}
	}
	lim := parts.Limits
	opt.Scheduler.Blocks, opt.Scheduler.BlockTokens = lim.Blocks, lim.BlockTokens
	opt.Scheduler.MaxSeqs, opt.Scheduler.MaxBatchTokens = lim.Seqs, lim.Tokens
	opt.Scheduler.Lanes, opt.Scheduler.PrefillBatches = opt.Blueprint.MicroBatches, opt.Blueprint.MicroBatches
	// A card has room for one generated row of a sequence at a time, and promises bits only
	// where it is asked to: there whatever the attention.
	opt.Scheduler.Forms = parts.Config.TwoForms() && !opt.Scheduler.Ahead
	opt.Scheduler.ReuseAnswers = opt.Scheduler.Forms && opt.ReuseAnswers
	if opt.Invariant && opt.Scheduler.Ahead {
		opt.Scheduler.Forms, opt.Scheduler.Singly = true, true
	}
	opt.Scheduler.RAMBlocks, opt.Scheduler.LoadRate, opt.Scheduler.LogitRows = lim.HostBlocks, loadRate, lim.LogitRows
	if p := opt.Placement; p != nil && !p.Leaves(dispatch.Prefill) {
		// The device alone computes prompts: what it copies for one batch of them it would
		// copy for each.
		opt.Scheduler.PrefillBatches = 1
	}
	if part := opt.Partition; part.Pools != 0 {
		if err := part.Check(parts.Config.MoE.Experts); err != nil {
			return nil, nil, err
		}
		if part.Pools != opt.Blueprint.Pools {
			return nil, nil, fmt.Errorf("blueprint: %d expert pools, the experts are divided among %d", opt.Blueprint.Pools, part.Pools)
		}
	}
	core, err := scheduler.New(opt.Scheduler)
	if err != nil {
		return nil, nil, err
	}
	return &Pipeline{
		expertBytes: expertBytes(parts, opt.Placement), resident: findsExperts(parts), opt: opt, log: opt.Log, parts: parts, trace: trace.NewRegistry(traceEvents), meters: newMeters(lim.Blocks),
		heat:    newHeatMeter(parts.Config, opt.HeatSample),
		outputs: map[uint64]*output{}, failed: make(chan struct{}), halted: make(chan struct{}),
	}, core, nil
}

// Ahead reports whether a pipeline on dev runs a step ahead of what it knows: where the
// device chooses tokens and runs steps in order. It has twice as many batches in flight then.
func Ahead(dev device.Device) bool {
	l := device.LayoutOf(dev)
	return l != nil && l.DrawWords() > 0
}

// countWork counts the routed work of a layer of a batch.
func (p *Pipeline) countWork(b *msg.Batch, layer int, work []device.ExpertRows) {
	p.meters.experts.Add(uint64(len(work)))
	p.heat.observe(b.ID, layer, b.State.T, work)
}

// expertBytes is what a pass over one routed expert reads.
func expertBytes(parts *load.Parts, p *placement.Placement) int {
	for _, g := range parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			switch {
			case !g.MoE(layer):
			case p != nil:
				return p.Bank(layer).ExpertBytes()
			default:
				return g.Bank(layer).ExpertBytes()
			}
		}
	}
	return 0
}

// findsExperts reports whether the device finds the routed experts of parts by itself: those of
// one layer are kept as those of any other.
func findsExperts(parts *load.Parts) bool {
	for _, g := range parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if g.MoE(layer) {
				return g.Resident(layer)
			}
		}
	}
	return false
}

// inline estimates whether a layer's experts are done sooner here than by
// asking others.
func (p *Pipeline) inline(rows int, work []device.ExpertRows) bool {
	if p.opt.InlineBelow < 0 {
		return false
	}
	c := p.parts.Config
	params := float64(3 * c.MoE.FF * c.Hidden)
	bytes := float64(p.expertBytes) * float64(len(work))
	flops := params * 2 * float64(rows*c.MoE.Router.TopK)
	seconds := max(bytes/inlineBytesPerSecond, flops/inlineFlopsPerSecond)
	return seconds < p.opt.InlineBelow.Seconds()
}

// Limits implements drive.Runner.
func (p *Pipeline) Limits() stages.Limits { return p.parts.Limits }

// Step implements drive.Runner: one batch that the caller made goes through all
// actors, outside the scheduler. The pipeline must have no requests.
func (p *Pipeline) Step(b *stages.Batch, probe stages.Probe, read func(*stages.State) error) error {
	b.Watched = probe != nil
	raw := &msg.Raw{Batch: b, Probe: probe, Read: read, Reply: make(chan error, 1)}
	p.host.send(p.routes.schedule, raw)
	select {
	case err := <-raw.Reply:
		return err
	case <-p.failed:
		return p.Err()
	case <-p.halted:
		return errClosed
	}
}

// Trace is the record of what the actors did.
func (p *Pipeline) Trace() *trace.Registry { return p.trace }
