package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/placement"
	"krater/scheduler"
)

// strategyParts is several streams answered together, in so many micro-batches.
type strategyParts struct {
	Streams      int     `json:"streams"`
	MicroBatches int     `json:"micro_batches"`
	TokensPerS   float64 `json:"tokens_per_second"` // of all streams
	RankBusy     float64 `json:"rank_busy"`         // share of the time for which it computes
	HostBusy     float64 `json:"host_busy"`         // the same of the host, with experts
}

// ramp is the tokens after which all streams generate.
const ramp = 4

// together measures streams through the actors: what more tokens take.
func (b *strategiesBench) together(p *placement.Placement, parts int) (strategyParts, error) {
	var took, rank, host [2]time.Duration
	for i, tokens := range []int{ramp, ramp + b.c.Decode} {
		run := b.virtual
		if b.sim == nil {
			run = b.real
		}
		var err error
		if took[i], rank[i], host[i], err = run(p, parts, tokens); err != nil {
			return strategyParts{}, err
		}
	}
	t := (took[1] - took[0]).Seconds()
	return strategyParts{
		Streams: b.c.Streams, MicroBatches: parts, TokensPerS: float64(b.c.Streams*b.c.Decode) / t,
		RankBusy: (rank[1] - rank[0]).Seconds() / t, HostBusy: (host[1] - host[0]).Seconds() / t,
	}, nil
}

// virtual answers the streams in virtual time.
func (b *strategiesBench) virtual(p *placement.Placement, parts, tokens int) (took, rank, host time.Duration, err error) {
	before, busy, from := b.s.sim.Counters().Compute, b.sim.Busy(), b.now()
	o, err := b.pipeline(p, parts)
	if err != nil {
		return 0, 0, 0, err
	}
	v, err := actors.StartVirtual(b.s.sim, b.s.parts, o, b.s.sim.Clock())
	if err != nil {
		return 0, 0, 0, err
	}
	err = b.answer(v.Pipeline, tokens, v.Run)
	return b.now() - from, b.s.sim.Counters().Compute - before, b.sim.Busy() - busy, errors.Join(err, v.Close())
}

// real answers the streams on a card; how busy that is nobody tells.
func (b *strategiesBench) real(p *placement.Placement, parts, tokens int) (took, rank, host time.Duration, err error) {
	o, err := b.pipeline(p, parts)
	if err != nil {
		return 0, 0, 0, err
	}
	live, err := actors.Start(b.s.rank(), b.s.parts, o)
	if err != nil {
		return 0, 0, 0, err
	}
	from := b.now()
	err = b.answer(live, tokens, func() error { return nil })
	took = b.now() - from
	for pool := range b.s.look.pools {
		host += live.Trace().Ring(fmt.Sprintf("pool%d", pool)).Totals().Run / time.Duration(b.s.look.pools)
	}
	return took, 0, host, errors.Join(err, live.Close())
}

// pipeline is how the actors are run.
func (b *strategiesBench) pipeline(p *placement.Placement, parts int) (actors.Options, error) {
	groups, err := actors.Cut(b.s.cfg.Layers, b.c.LayerGroups)
	lim := b.s.parts.Limits
	rows := lim.Tokens - lim.Seqs
	return actors.Options{
		Blueprint: actors.Blueprint{Groups: groups, Pools: b.s.look.pools, MicroBatches: parts},
		Scheduler: scheduler.Config{PrefillChunk: rows, PrefillShare: rows, MaxQueue: b.c.Streams, NoReuse: true},
		Log:       zerolog.Nop(), InlineBelow: -1, Placement: p, HeatSample: -1,
	}, err
}

// answer has a pipeline answer the streams to their ends; run has it go on.
func (b *strategiesBench) answer(p *actors.Pipeline, tokens int, run func() error) error {
	tok, _, err := b.s.src.tokenizer()
	if err != nil {
		return err
	}
	g := actors.NewGateway(p, actors.GatewayOptions{ID: "bench", Tokenizer: tok, Vocab: b.s.cfg.Vocab})
	var open []engine.Stream
	for i := range b.c.Streams {
		a, err := g.Submit(context.Background(), &engine.Request{
			Prompt: engine.Prompt{IDs: b.prompt(benchPrompt, 20+i)}, MaxTokens: tokens, IgnoreEOS: true, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
		})
		if err != nil {
			return err
		}
		open = append(open, a)
	}
	if err := run(); err != nil {
		return err
	}
	for _, a := range open {
		err = errors.Join(err, whole(a))
	}
	return err
}

// whole reads an answer that is there, and is an error where it did not come to its end.
func whole(a engine.Stream) error {
	defer a.Close()
	for {
		e, err := a.Next(context.Background())
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case e.Kind == engine.Failed:
			return e.Err
		}
	}
}
