// Package actors is the running pipeline: one actor for every part that a batch
// passes, and the messages between them. Stages compute, the scheduler decides,
// and actors move batches.
package actors

import (
	"cmp"
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
	"krater/scheduler/routing"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/link"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// Options are the parameters of a pipeline.
type Options struct {
	Blueprint Blueprint
	Policy    Policy
	Log       zerolog.Logger
	// InlineBelow is an estimated time of expert work. Below it a group computes the experts itself
	// instead of asking the pools. Negative: never.
	InlineBelow time.Duration
	// TimingShare is the largest share of a step's time that timestamps around its copies may take, in
	// steps whose copies are timed; 0: timingShare.
	TimingShare float64
	// HeatSample n counts routing in one of every n batches; 1: in all, 0: in one of 8, negative: in none.
	HeatSample int
	// Record, unless nil, is called after each step with the choices of all routers for its rows. It may keep
	// the batch. Its time adds to the step's.
	Record func(*routing.Batch)
	// Placements has a placement for each rank whose routed experts were loaded in host memory; nil: all
	// experts are with the other weights.
	Placements []*placement.Placement
	// Partition divides the experts among the pools as they were placed; zero: as the function Partition does.
	Partition expert.Partition

	// Before, unless nil, is a suspended pipeline from which this one takes over: it continues the trace, the
	// counters and the numbers of requests. Adopt passes the requests; until then the new pipeline takes none.
	Before *Pipeline
	// Replay keeps the requests open when a rank is lost (RankError). The caller must then call Suspend, and
	// after that Adopt of the next pipeline, or Abandon. A step that is lost with the rank is repeated.
	// Without Replay the requests fail.
	Replay bool

	// Help describes a helper of the only rank; nil: there is none. A lost helper is reported as rank 1 (RankError).
	Help *Help

	// Turn, unless nil, is called with false when a batch has left for another process, and with true when one
	// returns. It can park threads that would otherwise poll for work. Several goroutines call it at once.
	Turn func(here bool)

	// Remote describes the layers after those of the ranks; nil: there are none.
	Remote *Remote

	segment     *SegmentHops                    // of a part of a pipeline whose leader is another process
	wrap        func(actor string, n node) node // around every new node, in tests; may be nil
	links       []link.Kind                     // in tests; nil: link.Kinds
	hopDeadline time.Duration                   // in tests; 0: link.Deadline
}

// traceEvents is the number of events that each actor's ring keeps: some seconds of decode.
const traceEvents = 4096

// Rates of the estimate behind InlineBelow, per core, on the low side of what
// current machines do: being off by two moves a threshold, nothing else.
const (
	inlineBytesPerSecond = 20e9
	inlineFlopsPerSecond = 40e9
)

// Pipeline is a running pipeline, made from a Blueprint by Start.
type Pipeline struct {
	opt       Options
	scheduler scheduler.Config
	log       zerolog.Logger
	ranks     []*rank
	model     *model.Config
	lim       stages.Limits // of the first rank; the scheduler's are the same on all
	trace     *trace.Registry
	heat      *heatMeter // nil: nothing is counted
	core      *scheduler.Core
	peers     peers
	*requests

	host   host
	routes routes

	rows    []*stages.Rows
	streams []device.Stream // of nodes and batches
	mirrors []*offload.Mirror
	calls   []*offload.HostCalls
	stayed  atomic.Uint64 // bytes of rows that moved to the next group within a rank
	pairs   []*link.Pair  // of each rank and the one before it; the first is nil
	hops    []*link.Hop   // of batches
	help    *help

	linksBefore []engine.Link // what links of the pipelines before have cost

	// mu of requests protects these.
	failure error
	closed  bool
	over    bool          // its requests have ended, or were collected
	told    *engine.Stats // figures, once it is suspended
	base    engine.Stats  // figures of the pipelines before
	failed  chan struct{} // closed with the first failure
	dead    chan struct{} // closed with the first failure that ends the requests
	halted  chan struct{} // closed when the actors have ended

	loss       sync.Once // the first of a rank
	closing    sync.Once
	closeError error
}

// Start starts a pipeline over the ranks of a loaded model. The pipeline owns the memory that it
// allocates, but not the ranks' parts.
func Start(ranks []load.Rank, opt Options) (*Pipeline, error) {
	p, core, err := prepare(ranks, opt)
	if err != nil {
		return nil, err
	}
	p.host = newLibrary(p)
	p.followWorkers()
	if err := p.spawn(core); err != nil {
		return nil, errors.Join(err, p.halt())
	}
	for _, r := range p.ranks {
		if r.place == nil {
			continue
		}
		for _, line := range r.place.Notices() {
			p.log.Warn().Msg(line)
		}
	}
	route := p.opt.Blueprint.String()
	switch {
	case p.opt.segment != nil:
		route = p.opt.Blueprint.route("keeper", "out")
	case p.opt.Remote != nil:
		route = p.opt.Blueprint.route("schedule > embed", fmt.Sprintf("out > %d workers > in > head > sample > stream", len(p.opt.Remote.Sides)))
	}
	p.log.Info().Str("route", route).Msg("pipeline started")
	return p, nil
}

// prepare checks the options and makes a pipeline without actors.
func prepare(list []load.Rank, opt Options) (*Pipeline, *scheduler.Core, error) {
	ranks, err := newRanks(list, &opt)
	if err != nil {
		return nil, nil, err
	}
	cfg, lim := list[0].Config, list[0].Limits
	first, last := 0, len(cfg.Layers)
	if opt.Remote != nil || opt.segment != nil {
		first, last = list[0].Groups[0].First, ranks[len(ranks)-1].end()
	}
	if opt.Remote != nil {
		if err := opt.Remote.check(last, cfg); err != nil {
			return nil, nil, err
		}
	}
	if err := opt.Blueprint.over(list, first, last); err != nil {
		return nil, nil, err
	}
	if part := opt.Partition; part.Pools != 0 {
		if err := part.Check(cfg.MoE.Experts); err != nil {
			return nil, nil, err
		}
		if part.Pools != opt.Blueprint.Pools {
			return nil, nil, fmt.Errorf("blueprint: %d expert pools, the experts are divided among %d", opt.Blueprint.Pools, part.Pools)
		}
	}
	config := schedulerConfig(ranks, &opt)
	opt.TimingShare = cmp.Or(opt.TimingShare, timingShare)
	if opt.Turn == nil {
		opt.Turn = func(bool) {}
	}
	var core *scheduler.Core
	if opt.segment == nil {
		if core, err = scheduler.New(config); err != nil {
			return nil, nil, err
		}
	}
	p := &Pipeline{
		ranks: ranks, model: cfg, lim: lim, opt: opt, scheduler: config, log: opt.Log, core: core,
		failed: make(chan struct{}), dead: make(chan struct{}), halted: make(chan struct{}),
	}
	return p, core, p.follow(opt.Before)
}

// follow begins the records of the pipeline, or takes over those of the one before.
func (p *Pipeline) follow(before *Pipeline) error {
	if before == nil {
		p.trace, p.heat = trace.NewRegistry(traceEvents), newHeatMeter(p.model, p.opt.HeatSample, p.opt.Record)
		p.requests = newRequests(newMeters(p.lim.Blocks))
		p.serving = p
		return nil
	}
	select {
	case <-before.halted:
	default:
		return errors.New("a pipeline takes over from one that was not suspended")
	}
	p.trace, p.heat, p.requests = before.trace, before.heat, before.requests
	p.linksBefore = before.linkCosts()
	p.core.Follow(before.core)
	p.opt.Before = nil // the memory of many pipelines would be kept
	p.base = before.figures()
	return nil
}

// Ahead reports whether a pipeline on these ranks runs one step ahead. It does if the device that
// chooses tokens also reads them and runs steps in order. It then has twice as many batches in flight.
// Between two ranks tokens are sent by message, after they are known.
func Ahead(ranks ...device.Device) bool {
	l := device.LayoutOf(ranks[0])
	return len(ranks) == 1 && l != nil && l.DrawWords() > 0
}

// countWork counts the routed work of a layer of a batch.
func (p *Pipeline) countWork(b *msg.Batch, layer int, work []device.ExpertRows) {
	if p.heat.wants(b.ID) {
		p.heat.observe(stepOf(b), layer, b.State.T, work)
	}
}

// expertBytes returns the number of bytes that a pass over one routed expert reads.
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

// findsExperts reports whether the device finds the routed experts of parts by itself. All layers
// keep their experts in the same way.
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

// inline estimates whether a layer's experts are done sooner on their rank than by the pools.
func (p *Pipeline) inline(r *rank, rows int, work []device.ExpertRows) bool {
	if p.opt.InlineBelow < 0 {
		return false
	}
	c := p.model
	params := float64(3 * c.MoE.FF * c.Hidden)
	bytes := float64(r.expertBytes) * float64(len(work))
	flops := params * 2 * float64(rows*c.MoE.Router.TopK)
	seconds := max(bytes/inlineBytesPerSecond, flops/inlineFlopsPerSecond)
	return seconds < p.opt.InlineBelow.Seconds()
}

// Limits implements drive.Runner.
func (p *Pipeline) Limits() stages.Limits { return p.lim }

// Step implements drive.Runner: one batch that the caller made goes through all
// actors, outside the scheduler. The pipeline must have no requests.
func (p *Pipeline) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	b.Watched = probe != nil
	raw := &msg.Raw{Step: b, Probe: probe, Read: read, Reply: make(chan error, 1)}
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

// Trace returns the record of what the actors did.
func (p *Pipeline) Trace() *trace.Registry { return p.trace }
