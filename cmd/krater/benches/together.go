package benches

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
	"krater/kernels/hostsim"
	"krater/stages/load"
)

// strategyParts is the result of several streams that run together, with the given number of
// micro-batches.
type strategyParts struct {
	Streams      int            `json:"streams"`
	MicroBatches int            `json:"micro_batches"`
	Tokens       int            `json:"tokens,omitempty"`     // on a GPU: tokens in the period in which all streams generated
	TokensPerS   float64        `json:"tokens_per_second"`    // over all streams
	RankBusy     float64        `json:"rank_busy"`            // share of the time in which it computes
	HostBusy     float64        `json:"host_busy"`            // share of the time in which the host computes experts
	HostCalls    *hostCallTimes `json:"host_calls,omitempty"` // time the host spends on a GPU's host calls
}

// ramp is the number of tokens after which all streams generate.
const ramp = 4

// together measures streams through the actors.
func (b *strategiesBench) together(p *placement.Placement, parts int, of *strategyResult) (strategyParts, error) {
	if b.sim == nil {
		return b.real(p, parts, of)
	}
	// The virtual time of the additional tokens.
	var took, rank, host [2]time.Duration
	for i, tokens := range []int{ramp, ramp + b.c.Decode} {
		var err error
		if took[i], rank[i], host[i], err = b.virtual(p, parts, tokens); err != nil {
			return strategyParts{}, err
		}
	}
	t := (took[1] - took[0]).Seconds()
	return strategyParts{
		Streams: b.c.Streams, MicroBatches: parts, TokensPerS: float64(b.c.Streams*b.c.Decode) / t,
		RankBusy: (rank[1] - rank[0]).Seconds() / t, HostBusy: (host[1] - host[0]).Seconds() / t,
	}, nil
}

// virtual runs the streams in virtual time.
func (b *strategiesBench) virtual(p *placement.Placement, parts, tokens int) (took, rank, host time.Duration, err error) {
	sim := b.s.Rank().Device.(*hostsim.Device)
	before, busy, from := sim.Counters().Compute, b.sim.Busy(), b.now()
	o, err := b.pipeline(p, parts)
	if err != nil {
		return 0, 0, 0, err
	}
	v, err := actors.StartVirtual([]load.Rank{{Device: sim, Parts: b.s.Parts}}, o, sim.Clock())
	if err != nil {
		return 0, 0, 0, err
	}
	err = b.answer(v.Pipeline, tokens, v.Run)
	return b.now() - from, sim.Counters().Compute - before, b.sim.Busy() - busy, errors.Join(err, v.Close())
}

// answerMost returns the maximum length of answers on a GPU: the first stream continues while the
// other prompts are computed.
func (c *strategiesCmd) answerMost() int { return 2*c.Decode + chainWarm + c.Streams }

// real runs the streams on a GPU, and looks at the period in which all of them generate. How busy
// the GPU is remains unknown.
func (b *strategiesBench) real(p *placement.Placement, parts int, of *strategyResult) (x strategyParts, err error) {
	o, err := b.pipeline(p, parts)
	if err != nil {
		return x, err
	}
	live, err := actors.Start([]load.Rank{{Device: b.s.Rank().Device, Parts: b.s.Parts}}, o)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, live.Close()) }()
	defer live.Trace().Watch()() // record every step instead of a sample
	g, err := b.gateway(live)
	if err != nil {
		return x, err
	}
	one := &bench{c: &engineCmd{Decode: b.c.Decode}, s: b.s, p: live, g: g}
	w, err := one.answers(b.c.Streams, benchPrompt, b.c.answerMost())
	if err != nil {
		return x, err
	}
	x = strategyParts{Streams: b.c.Streams, MicroBatches: parts, Tokens: w.tokens, TokensPerS: float64(w.tokens) / w.end.Sub(w.begin).Seconds()}
	did := tracksWithin(live.Trace(), w.begin, w.end)
	x.HostBusy, x.HostCalls = hostCallsOf(did, w.end.Sub(w.begin), b.s.Plan.Pools)
	if b.c.Trace != "" {
		err = keepTrace(b.c.Trace, fmt.Sprintf("%s-%d-%d", of.Strategy, of.Budget>>20, parts), did, live.Trace().Devices())
	}
	return x, err
}

// pipeline holds the options of the actors.
func (b *strategiesBench) pipeline(p *placement.Placement, parts int) (actors.Options, error) {
	groups, err := actors.Cut(len(b.s.Config.Layers), b.c.LayerGroups)
	lim := b.s.Parts.Limits
	rows := lim.Tokens - lim.Seqs
	return actors.Options{
		Blueprint: actors.Blueprint{Groups: groups, Pools: b.s.Plan.Pools, MicroBatches: parts},
		Policy:    actors.Policy{PrefillChunk: rows, PrefillShare: rows, MaxQueue: b.c.Streams, NoReuse: true},
		Log:       zerolog.Nop(), InlineBelow: -1, Placements: []*placement.Placement{p}, HeatSample: -1,
	}, err
}

func (b *strategiesBench) gateway(p *actors.Pipeline) (*actors.Gateway, error) {
	tok, _, err := b.s.Source.Tokenizer()
	if err != nil {
		return nil, err
	}
	return actors.NewGateway(p, actors.GatewayOptions{ID: "bench", Tokenizer: tok, Vocab: b.s.Config.Vocab}), nil
}

// answer runs the streams through a pipeline to their ends; run drives it. It does not ask for
// log-probabilities, because the host would have to choose the tokens then.
func (b *strategiesBench) answer(p *actors.Pipeline, tokens int, run func() error) error {
	g, err := b.gateway(p)
	if err != nil {
		return err
	}
	var open []engine.Stream
	for i := range b.c.Streams {
		a, err := g.Submit(context.Background(), &engine.Request{
			Prompt: engine.Prompt{IDs: b.prompt(benchPrompt, 20+i)}, MaxTokens: tokens, IgnoreEOS: true, Logprobs: -1,
			Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
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

// whole reads a finished answer. It returns an error if the answer was cut.
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
