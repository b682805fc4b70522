package benches

import (
	"context"
	"fmt"
	"time"

	"krater/actors/engine"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/sample"
)

// promptIDs returns a prompt of n tokens that differs for each stream. Streams with equal text
// would use the same experts.
func (b *bench) promptIDs(stream, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*7919 + stream*104729 + 13) % b.s.Config.Vocab)
	}
	return ids
}

// request asks for exactly n greedy tokens.
func (b *bench) request(stream, prompt, n int) *engine.Request {
	return &engine.Request{
		ID: "bench", Prompt: engine.Prompt{IDs: b.promptIDs(stream, prompt)}, MaxTokens: n, IgnoreEOS: true, Logprobs: -1,
		Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
	}
}

// finish reads a stream to its end and returns the arrival times of its first and last token.
func finish(s engine.Stream) (first, last time.Time, tokens int, err error) {
	defer s.Close()
	for {
		ev, err := s.Next(context.Background())
		if err != nil {
			return first, last, tokens, err
		}
		now := time.Now()
		switch ev.Kind {
		case engine.Tokens:
			if first.IsZero() {
				first = now
			}
		case engine.Failed:
			return first, last, tokens, ev.Err
		case engine.Done:
			return first, now, ev.Usage.Completion, nil
		}
	}
}

// benchPrompt is the length of the prompts before measured decode steps.
const benchPrompt = 16

// streams measures n concurrent answers, in generated tokens per second.
func (b *bench) streams(n int) (float64, error) {
	type result struct {
		first, last time.Time
		tokens      int
		err         error
	}
	results := make(chan result, n)
	for i := range n {
		s, err := b.g.Submit(context.Background(), b.request(i, benchPrompt, b.c.Decode))
		if err != nil {
			return 0, err
		}
		go func() {
			var r result
			r.first, r.last, r.tokens, r.err = finish(s)
			results <- r
		}()
	}
	var begin, end time.Time
	total := 0
	for range n {
		r := <-results
		if r.err != nil {
			return 0, r.err
		}
		if begin.IsZero() || r.first.Before(begin) {
			begin = r.first
		}
		if r.last.After(end) {
			end = r.last
		}
		total += r.tokens - 1
	}
	return float64(total) / end.Sub(begin).Seconds(), nil
}

// firstToken measures the time to the first token of a prompt, in milliseconds.
func (b *bench) firstToken(n int) (float64, error) {
	start := time.Now()
	s, err := b.g.Submit(context.Background(), b.request(0, n, 1))
	if err != nil {
		return 0, err
	}
	_, last, _, err := finish(s)
	return microseconds(last.Sub(start)) / 1e3, err
}

// pair measures one greedy answer through the actors and the same steps as plain calls, in
// microseconds per token. The order alternates from round to round, so that neither benefits from
// the caches that the other leaves.
func (b *bench) pair(d *direct.Model, directFirst bool) (directUS, actorUS float64, err error) {
	var ids []int32
	var tokens int
	actors := func() error {
		actorUS, tokens, err = b.actorAnswer()
		return err
	}
	plain := func() error {
		ids, directUS, err = b.directAnswer(d)
		return err
	}
	order := []func() error{actors, plain}
	if directFirst {
		order[0], order[1] = plain, actors
	}
	for _, run := range order {
		if err := run(); err != nil {
			return 0, 0, err
		}
	}
	if tokens != len(ids) {
		return 0, 0, fmt.Errorf("bench: %d tokens through the actors, %d direct", tokens, len(ids))
	}
	return directUS, actorUS, nil
}

// actorAnswer runs the request through the pipeline. It returns the time of a decode step and the
// number of tokens.
func (b *bench) actorAnswer() (float64, int, error) {
	s, err := b.g.Submit(context.Background(), b.request(0, benchPrompt, b.c.Decode))
	if err != nil {
		return 0, 0, err
	}
	first, last, n, err := finish(s)
	return microseconds(last.Sub(first)) / float64(n-1), n, err
}

// directAnswer runs the request by calling the stages: prefill, then one step per token, with the
// pipeline's sampler. It returns the ids and the time of a decode step.
func (b *bench) directAnswer(d *direct.Model) ([]int32, float64, error) {
	prompt := b.promptIDs(0, benchPrompt)
	seq, err := sample.New(sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1, IgnoreEOS: true}, prompt, b.s.Config.Vocab)
	if err != nil {
		return nil, 0, err
	}
	var ids []int32
	read := func(st *stages.State) error {
		r, err := seq.Next(st.LogitRow(0))
		ids = append(ids, r.ID)
		return err
	}
	lim := d.Limits()
	blocks := make([]int32, (benchPrompt+b.c.Decode+lim.BlockTokens-1)/lim.BlockTokens)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	span := stages.Span{Span: device.Span{Len: len(prompt), Blocks: blocks}, Want: true}
	batch := stages.Step{Tokens: prompt, Spans: []stages.Span{span}}
	if err := d.Step(&batch, nil, read); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	for n := 1; n < b.c.Decode; n++ {
		sp := &batch.Spans[0]
		sp.Pos, sp.Len, sp.Decode = len(prompt)+n-1, 1, true
		batch.Tokens = ids[n-1 : n]
		if err := d.Step(&batch, nil, read); err != nil {
			return nil, 0, err
		}
	}
	return ids, microseconds(time.Since(start)) / float64(b.c.Decode-1), nil
}
