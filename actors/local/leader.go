package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"krater/actors"
	"krater/actors/cluster"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/scheduler/planner"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/source"
)

// Leader is the engine of a cluster's leader: it has the embedding, the first layers and the head of a model, and
// workers have the other layers. It implements cluster.Engine.
type Leader struct {
	c     Config
	made  source.Synthetic // of a model with random weights
	given []int            // layers of each member, as --pp-partition says; nil: by memory and speed
	cfg   *model.Config
	print string
	room  cluster.Offer // of this process
	ready func(*actors.Gateway, *actors.Pipeline)

	own          config.Part // of the last plan
	accelerators bool        // a worker of it computes on one
	held         held
	pipeline     *actors.Pipeline
	gateway      *actors.Gateway // nil until the first start
	kept         []*actors.Suspended
}

// shared is sent to workers: all members have it in common.
type shared struct {
	Options   config.Options   `json:"options"`
	Synthetic source.Synthetic `json:"synthetic"`
}

// sizes is a cluster.Part's.
type sizes struct {
	Limits       stages.Limits `json:"limits"`
	MicroBatches int           `json:"micro_batches"`
}

// NewLeader makes the engine of a leader for a model, which is loaded later. made are the options of a model with random
// weights. ready is called when the first pipeline serves.
func NewLeader(c Config, made source.Synthetic, rate float64, ready func(*actors.Gateway, *actors.Pipeline)) (*Leader, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	cfg, _, err := c.Source.Config()
	if err != nil {
		return nil, err
	}
	print, err := c.Source.Fingerprint()
	if err != nil {
		return nil, err
	}
	f := &c.Options
	given, err := f.Sizes()
	if err != nil {
		return nil, err
	}
	*f = f.Beside(f.DeviceOptions, f.RankOptions, f.CacheOptions)
	room, options, err := offer(&c, rate)
	if err != nil {
		return nil, err
	}
	c.Options = options
	c.Options.MicroBatches = options.MicroBatchCount()
	// The memory that is free now is planned with, whatever of it the leader has taken later.
	return &Leader{c: c, made: made, cfg: cfg, print: print, room: room, ready: ready, given: given}, nil
}

// Model implements cluster.Engine.
func (l *Leader) Model() cluster.Model {
	options, err := json.Marshal(shared{l.c.Options, l.made})
	if err != nil {
		panic(err) // they are plain values
	}
	return cluster.Model{Name: l.c.Source.Name, Path: l.c.Source.Dir, Fingerprint: l.print, Options: options}
}

// Plan implements cluster.Engine.
func (l *Leader) Plan(offers []cluster.Offer) ([]cluster.Part, error) {
	layers := len(l.cfg.Layers)
	if len(offers) >= layers {
		return nil, fmt.Errorf("--ranks %d: the model has %d layers", len(offers)+1, layers)
	}
	// Every member has one in work. After a loss there are as many as before: a model that is loaded has memory for them.
	l.c.Options.MicroBatches = max(l.c.Options.MicroBatches, len(offers)+1)
	all, err := l.plan(config.Part{Layers: layers, Ends: load.BothEnds})
	if err != nil {
		return nil, err
	}
	m, err := measure(l.cfg, all)
	if err != nil {
		return nil, err
	}
	cut, err := l.cut(offers, m, all.Load.BlockTokens)
	if err != nil {
		return nil, err
	}
	l.own = config.Part{Layers: cut[0], Ends: load.BothEnds}
	own, err := l.plan(l.own)
	if err == nil {
		err = own.Refusal()
	}
	if err != nil {
		return nil, fmt.Errorf("layers 0 to %d on the leader: %w", cut[0]-1, err)
	}
	l.own.Limits = own.Load.Limits
	at := cut[0]
	l.accelerators = false
	for i, o := range offers {
		l.accelerators = l.accelerators || o.Device != string(config.CPU)
		n, err := m.blocks(o.Memory, at, cut[i+1])
		if err != nil {
			return nil, fmt.Errorf("layers %d to %d on worker %s: %w", at, at+cut[i+1]-1, o.Worker, err)
		}
		l.own.Limits.Blocks = min(l.own.Limits.Blocks, n)
		at += cut[i+1]
	}
	return l.parts(cut)
}

// parts are the workers' parts of a division.
func (l *Leader) parts(cut []int) (list []cluster.Part, err error) {
	text, err := json.Marshal(sizes{l.own.Limits, l.c.Options.MicroBatches})
	if err != nil {
		return nil, err
	}
	at := cut[0]
	for _, n := range cut[1:] {
		list = append(list, cluster.Part{First: at, Last: at + n, Sizes: text})
		at += n
	}
	return list, nil
}

// plan plans a part for this process.
func (l *Leader) plan(p config.Part) (*plan.Plan, error) {
	of := l.c.Case
	of.Part = &p
	return plan.New(l.cfg, l.c.Source.TokenizerSize(), l.c.Options, of, l.c.Machine)
}

// cut divides the layers among the leader and workers: as --pp-partition says if it names all of them, else by memory and
// speed.
func (l *Leader) cut(offers []cluster.Offer, m measured, blockTokens int) ([]int, error) {
	if len(l.given) == len(offers)+1 {
		return l.given, nil
	}
	ranks := []planner.Stage{{Room: m.room(l.room.Memory) - m.Ends, Rate: l.room.Rate / m.Active}}
	if l.room.Rate > 0 {
		ranks[0].Before = float64(m.Head) / l.room.Rate
	}
	for _, o := range offers {
		ranks = append(ranks, planner.Stage{Room: m.room(o.Memory), Rate: o.Rate / m.Active})
	}
	return planner.Cut(m.layers(blockTokens), ranks)
}

// FrameBytes implements cluster.Engine.
func (l *Leader) FrameBytes() int {
	lim := &l.own.Limits
	selected, _ := l.cfg.Selection()
	row := 4 * (l.cfg.StreamWidth() + 1 + selected)
	// The rest is the step: tokens, spans, and block tables of at most all blocks for each sequence.
	return lim.Tokens*(row+16) + lim.Seqs*(lim.Blocks+lim.WindowBlocks+64)*5 + 1<<20
}

// Load implements cluster.Engine.
func (l *Leader) Load(ctx context.Context) error {
	c := l.c
	c.Served = true
	return l.held.load(ctx, c, l.own)
}

// Start implements cluster.Engine.
func (l *Leader) Start(h *cluster.Hops) (cluster.Running, error) {
	ranks, o := l.held.model.pipeline(l.c.Log)
	o.Before, o.Replay = l.pipeline, true
	if h != nil {
		o.Remote = &actors.Remote{Out: h.Out, In: h.In, Sides: h.Sides, Accelerators: l.accelerators}
		for _, w := range h.Peers {
			o.Remote.Workers = append(o.Remote.Workers, actors.Worker(w))
		}
	}
	p, err := actors.Start(ranks, o)
	if err != nil {
		return nil, err
	}
	if l.gateway == nil {
		if l.gateway, err = l.held.model.Gateway(p, l.c.Name); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	p.Adopt(l.kept)
	first := l.pipeline == nil
	l.pipeline, l.kept = p, nil
	if first {
		l.ready(l.gateway, p)
	}
	return p, nil
}

// Suspend implements cluster.Engine.
func (l *Leader) Suspend(lost bool) {
	if l.pipeline != nil && l.kept == nil {
		if lost {
			l.pipeline.CountLoss()
		}
		l.kept = l.pipeline.Suspend()
	}
}

// Abandon implements cluster.Engine.
func (l *Leader) Abandon(cause error) {
	if l.pipeline != nil {
		l.pipeline.Abandon(cause)
		l.kept = nil
	}
}

// Idle implements cluster.Engine.
func (l *Leader) Idle() bool {
	return l.pipeline == nil || l.pipeline.Idle()
}

// Close ends what is open.
func (l *Leader) Close() {
	if l.pipeline != nil {
		l.pipeline.Abandon(errors.New("the server ends"))
	}
	l.held.unload()
}

// cacheTokens is the KV cache that a division of layers by memory leaves room for at least.
const cacheTokens = 8192

// memoryShare is the part of a member's memory that layers and KV cache may have.
const memoryShare = 0.9

// measured is the sizes of a model's layers for a division among members.
type measured struct{ *plan.Sizes }

// measure finds the sizes of layers by a plan of all of them.
func measure(cfg *model.Config, all *plan.Plan) (measured, error) {
	base, use := all.Each()[0].Load, load.Use{States: all.Options.States(), Streams: 1, Threads: all.Options.ThreadCount()}
	s, err := plan.SizesOf(cfg, 0, len(cfg.Layers), use, func(cut load.Cut) (load.Options, error) {
		o := base.On(cut)
		if o.Ends = load.NoEnds; cut.First == 0 {
			o.Ends = load.BothEnds
		}
		return o, nil
	})
	return measured{s}, err
}

// layers returns the bytes of layers, each with cacheTokens of KV cache.
func (m measured) layers(blockTokens int) (list []int64) {
	for _, l := range m.Layers {
		list = append(list, planner.Add(planner.Add(l.Weights, l.States), l.Block*int64(cacheTokens/blockTokens)))
	}
	return list
}

// room returns the memory for layers where a member has that much.
func (m measured) room(memory int64) int64 { return int64(memoryShare*float64(memory)) - m.Fixed }

// blocks returns the number of KV blocks for which a member has room beside n layers from first on.
func (m measured) blocks(memory int64, first, n int) (int, error) {
	room, block := m.room(memory), int64(0)
	for _, l := range m.Layers[first : first+n] {
		room -= l.Weights + l.States
		block += l.Block
	}
	if room < 2*block {
		return 0, fmt.Errorf("they need %s more", planner.Size(2*block-room))
	}
	if block == 0 {
		return 1 << 30, nil
	}
	return int(min(room/block, 1<<30)), nil
}
