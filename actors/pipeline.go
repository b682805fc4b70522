// Package actors is the pipeline as it runs: one actor for every part a batch
// passes, messages between them, and nothing else. Stages compute, the
// scheduler decides, actors move.
package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
)

// Options of a pipeline.
type Options struct {
	Blueprint Blueprint
	Scheduler scheduler.Config // Blocks, BlockTokens, MaxSeqs, MaxBatchTokens and Depth are taken from the parts and the blueprint
	Log       zerolog.Logger
	// InlineBelow is the time of expert work, estimated, under which a group does
	// it itself instead of asking the pools. Negative: never.
	InlineBelow time.Duration
}

// traceEvents is how many events each actor's ring keeps: some seconds of decode.
const traceEvents = 4096

// Rates of the estimate behind InlineBelow, per core, on the low side of what
// current machines do: being off by two moves a threshold, nothing else.
const (
	inlineBytesPerSecond = 20e9
	inlineFlopsPerSecond = 40e9
)

// Pipeline is a live blueprint.
type Pipeline struct {
	opt    Options
	log    zerolog.Logger
	parts  *load.Parts
	trace  *trace.Registry
	meters *meters

	system     *actor.ActorSystem
	routes     routes
	supervisor *supervisor
	stop       []*actor.PID             // in the order they are stopped
	mailboxes  map[string]actor.Mailbox // by actor name; constant after Start
	hosts      []*resident
	wg         sync.WaitGroup

	states    []*stages.State
	linkBytes atomic.Uint64

	mu      sync.Mutex
	outputs map[uint64]*output // open requests
	lastID  uint64
	failure error
	closed  bool
	failed  chan struct{} // closed with the first fatal failure
}

// Start makes a blueprint live over the parts of a loaded model. The pipeline
// owns what it allocates, not the parts.
func Start(dev device.Device, parts *load.Parts, opt Options) (*Pipeline, error) {
	if err := opt.Blueprint.Check(parts.Config.Layers); err != nil {
		return nil, err
	}
	if len(opt.Blueprint.Groups) != len(parts.Groups) {
		return nil, fmt.Errorf("blueprint: %d groups, the model is loaded in %d", len(opt.Blueprint.Groups), len(parts.Groups))
	}
	lim := parts.Limits
	opt.Scheduler.Blocks, opt.Scheduler.BlockTokens = lim.Blocks, lim.BlockTokens
	opt.Scheduler.MaxSeqs, opt.Scheduler.MaxBatchTokens = lim.Seqs, lim.Tokens
	opt.Scheduler.Depth = opt.Blueprint.Depth
	p := &Pipeline{
		opt: opt, log: opt.Log, parts: parts, trace: trace.NewRegistry(traceEvents), meters: newMeters(lim.Blocks),
		outputs: map[uint64]*output{}, mailboxes: map[string]actor.Mailbox{}, failed: make(chan struct{}),
	}
	core, err := scheduler.New(opt.Scheduler)
	if err != nil {
		return nil, err
	}
	p.supervisor = newSupervisor(p)
	p.system = actor.NewActorSystem(actor.WithLoggerFactory(p.slogLogger))
	if err := p.spawn(dev, core); err != nil {
		p.halt()
		return nil, err
	}
	p.log.Info().Str("route", opt.Blueprint.String()).Msg("pipeline started")
	return p, nil
}

// slogLogger gives the actor library a logger whose lines come out as ours.
func (p *Pipeline) slogLogger(*actor.ActorSystem) *slog.Logger {
	return slog.New(&logBridge{log: p.log})
}

// spawn creates every actor, the receivers before their senders where that is
// possible; nobody sends before all addresses are known.
func (p *Pipeline) spawn(dev device.Device, core *scheduler.Core) error {
	lim, bp := p.parts.Limits, p.opt.Blueprint
	batches := make([]*msg.Batch, bp.Depth)
	for i := range batches {
		st, err := stages.NewState(dev, p.parts.Config, lim)
		if err != nil {
			return fmt.Errorf("batch %d of %d: %w", i+1, bp.Depth, err)
		}
		p.states = append(p.states, st)
		batches[i] = msg.NewBatch(st, bp.Pools)
	}
	var streams []device.Stream
	for range 3 + len(bp.Groups) + bp.Pools {
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	next := func() device.Stream {
		s := streams[0]
		streams = streams[1:]
		return s
	}
	r := &p.routes
	r.stream = p.actor("stream", trace.Stream, func() node { return streamNode{} })
	scheduleStream := next()
	r.schedule = p.actor("schedule", trace.Schedule, func() node {
		return newScheduleNode(core, scheduleStream, p.meters, p.system.Root, batches, lim.Seqs)
	})
	r.sample = p.actor("sample", trace.Sample, func() node { return sampleNode{} })
	headStream := next()
	r.head = p.actor("head", trace.Head, func() node { return &headNode{stage: p.parts.Head, stream: headStream} })
	for i := range bp.Pools {
		s := next()
		r.pools = append(r.pools, p.actor(fmt.Sprintf("pool%d", i), trace.Experts, func() node {
			return &poolNode{groups: p.parts.Groups, stream: s}
		}))
	}
	partition := expert.Even(p.parts.Config.MoE.Experts, bp.Pools)
	for i, g := range p.parts.Groups {
		r.merges = append(r.merges, p.actor(fmt.Sprintf("merge%d", i), trace.Merge, func() node { return newMergeNode() }))
		r.splits = append(r.splits, p.actor(fmt.Sprintf("split%d", i), trace.Split, func() node { return newSplitNode(partition) }))
		s := next()
		r.groups = append(r.groups, p.actor(fmt.Sprintf("group%d", i), trace.Group, func() node {
			return &groupNode{index: i, group: g, stream: s, inline: p.inline, count: p.countExperts}
		}))
		r.links = append(r.links, nil)
		if i > 0 {
			r.links[i] = p.actor(fmt.Sprintf("link%d", i), trace.Link, func() node {
				return &linkNode{to: i, width: 4 * p.parts.Config.Hidden, bytes: &p.linkBytes}
			})
		}
	}
	embedStream := next()
	r.embed = p.actor("embed", trace.Embed, func() node { return &embedNode{stage: p.parts.Embed, stream: embedStream} })
	return nil
}

// actor spawns one node under the supervisor, on a goroutine of its own.
func (p *Pipeline) actor(name string, kind trace.Kind, make func() node) *actor.PID {
	host := newResident(&p.wg)
	p.hosts = append(p.hosts, host)
	// Unbounded, since a full mailbox makes its sender spin: credits bound what is
	// in flight.
	mailbox := actor.Unbounded()()
	p.mailboxes[name] = mailbox
	props := actor.PropsFromProducer(p.newShell(name, kind, p.trace.Ring(name), make),
		actor.WithDispatcher(host), actor.WithMailbox(func() actor.Mailbox { return mailbox }))
	root := p.system.Root.Copy().WithGuardian(p.supervisor)
	pid, err := root.SpawnNamed(props, name)
	if err != nil {
		panic(err) // two actors of one name: a programmer error
	}
	p.stop = append(p.stop, pid)
	return pid
}

func (p *Pipeline) countExperts(n int) { p.meters.experts.Add(uint64(n)) }

// inline estimates whether a layer's experts are done sooner here than by
// asking others.
func (p *Pipeline) inline(rows int, work []device.ExpertRows) bool {
	if p.opt.InlineBelow < 0 {
		return false
	}
	c := p.parts.Config
	params := float64(3 * c.MoE.FF * c.Hidden)
	bytes := params * 2 * float64(len(work))
	flops := params * 2 * float64(rows*c.MoE.Router.TopK)
	seconds := max(bytes/inlineBytesPerSecond, flops/inlineFlopsPerSecond)
	return seconds < p.opt.InlineBelow.Seconds()
}

// Limits implements drive.Runner.
func (p *Pipeline) Limits() stages.Limits { return p.parts.Limits }

// Step implements drive.Runner: one batch that the caller made goes through all
// actors, outside the scheduler. The pipeline must have no requests.
func (p *Pipeline) Step(b *stages.Batch, probe stages.Probe, read func(*stages.State) error) error {
	raw := &msg.Raw{Batch: b, Probe: probe, Read: read, Reply: make(chan error, 1)}
	p.system.Root.Send(p.routes.schedule, raw)
	select {
	case err := <-raw.Reply:
		return err
	case <-p.failed:
		return p.Err()
	}
}

// queued notes how many messages wait for each actor.
func (p *Pipeline) queued(into map[string]int) {
	for name, m := range p.mailboxes {
		into[name] = m.UserMessageCount()
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

// fail ends every open request and refuses new ones.
func (p *Pipeline) fail(cause error) {
	p.mu.Lock()
	if p.failure != nil {
		p.mu.Unlock()
		return
	}
	p.failure = cause
	open := p.outputs
	p.outputs = map[uint64]*output{}
	p.mu.Unlock()
	p.log.Error().Err(cause).Msg("pipeline failed")
	for _, o := range open {
		o.abort(cause)
	}
	close(p.failed)
}

// Drain refuses new requests and waits for the running ones. When ctx ends
// first they are cancelled.
func (p *Pipeline) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	p.system.Root.Send(p.routes.schedule, &msg.Drain{Done: done})
	select {
	case <-done:
		return nil
	case <-p.failed:
		return p.Err()
	case <-ctx.Done():
	}
	cancelled := make(chan struct{})
	p.system.Root.Send(p.routes.schedule, &msg.Drain{Cancel: true, Done: cancelled})
	select {
	case <-cancelled:
	case <-p.failed:
	case <-time.After(drainGrace):
		return errors.New("the pipeline did not come to rest")
	}
	return ctx.Err()
}

// drainGrace is how long a step may take to return after its requests were
// cancelled.
const drainGrace = 30 * time.Second

// Close drains without waiting for answers and ends every actor. Nothing may be
// submitted afterwards.
func (p *Pipeline) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Drain(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if perr := p.halt(); err == nil {
		err = perr
	}
	return err
}

// halt stops the actors and frees what the pipeline allocated.
func (p *Pipeline) halt() error {
	var err error
	for _, pid := range p.stop {
		if e := p.system.Root.StopFuture(pid).Wait(); e != nil {
			err = fmt.Errorf("stopping %s: %w", pid.Id, e)
		}
	}
	for _, h := range p.hosts {
		h.close()
	}
	if err != nil {
		return err // an actor is stuck: its goroutine still holds what would be freed
	}
	p.wg.Wait()
	p.system.Shutdown()
	for _, s := range p.states {
		s.Close()
	}
	return nil
}
