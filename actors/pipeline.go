// Package actors is the pipeline as it runs: one actor for every part a batch
// passes, messages between them, and nothing else. Stages compute, the
// scheduler decides, actors move.
package actors

import (
	"context"
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
	"krater/stages/model"
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
	device, poolDevice string           // names of where stages and expert pools compute
	partition          expert.Partition // of the pools

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

// errClosed is the cause of what Close leaves without an end.
var errClosed = errors.New("the pipeline is closed")

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
	if err := opt.Blueprint.Check(parts.Config.Layers); err != nil {
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
	opt.Scheduler.Forms = parts.Config.Attention.Kind == model.AttentionMLA && !opt.Scheduler.Ahead && !opt.ReuseAnswers
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

// spawn creates every actor, the receivers before their senders where that is
// possible; nobody sends before all addresses are known.
func (p *Pipeline) spawn(dev device.Device, core *scheduler.Core) error {
	lim, bp := p.parts.Limits, p.opt.Blueprint
	p.device, p.poolDevice = dev.Name(), dev.Name()
	if device.LayoutOf(dev) != nil {
		p.homes = p.lanes(dev)
	}
	batches := make([]*msg.Batch, p.opt.Scheduler.Depth())
	for i := range batches {
		st, err := stages.NewState(dev, p.parts.Config, lim)
		if err != nil {
			return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
		}
		p.states = append(p.states, st)
		batches[i] = msg.NewBatch(st, bp.Pools)
		if device.LayoutOf(dev) != nil {
			batches[i].Home = i % p.lanes(dev)
			if batches[i].Stream, err = p.batchStream(dev, batches[i].Home); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
			p.streams = append(p.streams, batches[i].Stream)
			if err := reserve(dev, batches[i].Stream, p.parts); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
		}
		if p.opt.Placement != nil {
			if batches[i].Mirror, err = p.opt.Placement.NewMirror(); err != nil {
				return fmt.Errorf("batch %d of %d: %w", i+1, len(batches), err)
			}
			p.mirrors = append(p.mirrors, batches[i].Mirror)
			if batches[i].Letters = p.opt.Placement.NewLetters(bp.Pools); batches[i].Letters != nil {
				p.letters = append(p.letters, batches[i].Letters)
			}
		}
	}
	var streams []device.Stream
	for range 3 + len(bp.Groups) {
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		streams = append(streams, s)
		p.streams = append(p.streams, s)
	}
	pools := dev // where the experts of pools compute
	if p.opt.Placement != nil {
		pools = p.opt.Placement.Host()
		p.poolDevice = pools.Name()
		lim.QuantGroup = p.opt.Placement.QuantGroup() // rows are integers there, whatever the device takes
	}
	var err error
	if p.seats, err = newSeats(pools, bp.Pools, lim, p.parts.Config.Hidden); err != nil {
		return err
	}
	next := func() device.Stream {
		s := streams[0]
		streams = streams[1:]
		return s
	}
	r := &p.routes
	r.stream = p.actor("stream", trace.Stream, ownGoroutine, func() node { return streamNode{} })
	scheduleStream := next()
	r.schedule = p.actor("schedule", trace.Schedule, crewGuest, func() node {
		n := newScheduleNode(core, scheduleStream, p.meters, p.host, batches, lim.Seqs)
		n.ahead, n.experts, n.trace = p.opt.Scheduler.Ahead, p.opt.Placement, p.trace
		return n
	})
	var devices []*trace.Ring
	for home := range p.homes {
		devices = append(devices, p.trace.Ring(p.deviceRing(home)))
	}
	r.sample = p.actor("sample", trace.Sample, crewMember, func() node { return &sampleNode{heat: p.heat, devices: devices} })
	headStream := next()
	r.head = p.actor("head", trace.Head, crewMember, func() node { return &headNode{stage: p.parts.Head, stream: headStream, keeps: p.keeps} })
	partition := p.opt.Partition
	if partition.Pools == 0 {
		partition = Partition(pools, p.parts.Config.MoE.Experts, bp.Pools)
	}
	p.partition = partition
	for i, where := range p.seats {
		r.pools = append(r.pools, p.actor(fmt.Sprintf("pool%d", i), trace.Experts, ownGoroutine, func() node {
			return &poolNode{index: i, groups: p.parts.Groups, seat: where, place: p.opt.Placement, owner: partition.Owner}
		}))
	}
	for i, g := range p.parts.Groups {
		r.merges = append(r.merges, p.actor(fmt.Sprintf("merge%d", i), trace.Merge, ownGoroutine, func() node { return newMergeNode() }))
		r.splits = append(r.splits, p.actor(fmt.Sprintf("split%d", i), trace.Split, ownGoroutine, func() node { return newSplitNode(partition, p.expertBytes) }))
		s := next()
		placed, err := placedOn(p.opt.Placement)
		if err != nil {
			return err
		}
		r.groups = append(r.groups, p.actor(fmt.Sprintf("group%d", i), trace.Group, crewMember, func() node {
			return &groupNode{index: i, group: g, stream: s, placed: placed, inline: p.inline, count: p.countWork, lost: p.lose}
		}))
		r.links = append(r.links, nil)
		if i > 0 {
			r.links[i] = p.actor(fmt.Sprintf("link%d", i), trace.Link, crewMember, func() node {
				return &linkNode{to: i, width: 4 * p.parts.Config.Hidden, bytes: &p.linkBytes}
			})
		}
	}
	embedStream := next()
	r.embed = p.actor("embed", trace.Embed, crewMember, func() node { return &embedNode{stage: p.parts.Embed, stream: embedStream} })
	return nil
}

// lanes is how many orders of steps the device runs at the same time: one for each
// micro-batch, where layers have room for so many and experts stay where they are.
func (p *Pipeline) lanes(dev device.Device) int {
	_, several := dev.(device.LaneStreamer)
	if !several || p.parts.Limits.Lanes < p.opt.Scheduler.Lanes || p.opt.Placement != nil && !p.opt.Placement.Steady() {
		return 1
	}
	return p.opt.Scheduler.Lanes
}

// batchStream is a stream for batches of a lane.
func (p *Pipeline) batchStream(dev device.Device, lane int) (device.Stream, error) {
	if p.lanes(dev) == 1 {
		return dev.NewStream()
	}
	return dev.(device.LaneStreamer).NewLaneStream(lane)
}

// Ahead reports whether a pipeline on dev runs a step ahead of what it knows: where the
// device chooses tokens and runs steps in order. It has twice as many batches in flight then.
func Ahead(dev device.Device) bool {
	l := device.LayoutOf(dev)
	return l != nil && l.DrawWords() > 0
}

// reserve gives a batch's stream the scratch memory that was planned.
func reserve(dev device.Device, s device.Stream, parts *load.Parts) error {
	if r, ok := s.(device.Submitter); ok {
		return r.Reserve(device.LayoutOf(dev).ScratchBytes(load.StepSizes(parts.Config, parts.Limits)))
	}
	return nil
}

// actor spawns one node.
func (p *Pipeline) actor(name string, kind trace.Kind, b berth, fresh func() node) address {
	return p.host.spawn(name, b, p.newShell(name, kind, p.trace.Device(p.deviceOf(kind)), fresh))
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

// Err is the fatal failure, or nil.
func (p *Pipeline) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Failed is closed when the pipeline has failed for good.
func (p *Pipeline) Failed() <-chan struct{} { return p.failed }

// lose ends the pipeline: its device is lost, and every batch to come would be.
func (p *Pipeline) lose(cause error) { p.fail(fmt.Errorf("%w: %w", errFatal, cause)) }

// fail ends every open request and refuses new ones.
func (p *Pipeline) fail(cause error) {
	p.mu.Lock()
	if p.failure != nil {
		p.mu.Unlock()
		return
	}
	p.failure = cause
	p.mu.Unlock()
	p.log.Error().Err(cause).Msg("pipeline failed")
	p.abort(cause)
	p.quitLetters()
	// What still can come to its end does so without computing.
	p.host.send(p.routes.schedule, &msg.Drain{Cancel: true})
	close(p.failed)
}

// abort ends the open requests; p.failure or p.closed keeps others from coming.
func (p *Pipeline) abort(cause error) {
	p.mu.Lock()
	open := p.outputs
	p.outputs = map[uint64]*output{}
	p.mu.Unlock()
	for _, o := range open {
		o.Abort(cause)
	}
}

// Drain refuses new requests and waits for the running ones. When ctx ends
// first they are cancelled.
func (p *Pipeline) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	p.host.send(p.routes.schedule, &msg.Drain{Done: done})
	select {
	case <-done:
		return p.Err() // a pipeline that has failed may still come to rest
	case <-p.failed:
		return p.Err()
	case <-p.halted:
		return nil
	case <-ctx.Done():
	}
	cancelled := make(chan struct{})
	p.host.send(p.routes.schedule, &msg.Drain{Cancel: true, Done: cancelled})
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	select {
	case <-cancelled:
	case <-p.failed:
	case <-p.halted:
	case <-grace.C:
		return errors.New("the pipeline did not come to rest")
	}
	if err := p.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// drainGrace is how long a step may take to return after its requests were
// cancelled.
const drainGrace = 30 * time.Second

// Close drains without waiting for answers and ends every actor. Further calls
// wait for the first and return what it returned.
func (p *Pipeline) Close() error {
	p.closing.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := p.Drain(ctx)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		p.closeError = errors.Join(err, p.halt())
	})
	return p.closeError
}

// quitLetters has steps end whose letters nobody may be left to answer.
func (p *Pipeline) quitLetters() {
	for _, l := range p.letters {
		l.Quit()
	}
}

// halt stops the actors and frees what the pipeline allocated.
func (p *Pipeline) halt() error {
	p.quitLetters()
	err := p.host.halt()
	p.abort(errClosed) // nothing is left here unless the pipeline did not come to rest
	close(p.halted)
	if err != nil {
		return err // an actor is stuck: its goroutine still holds what would be freed
	}
	for _, s := range p.streams {
		if c, ok := s.(interface{ Close() }); ok { // it has memory of its own
			c.Close()
		}
	}
	for _, s := range p.states {
		s.Close()
	}
	for _, m := range p.mirrors {
		m.Close()
	}
	for _, l := range p.letters {
		l.Close()
	}
	closeSeats(p.seats)
	return nil
}
