package placement_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/models"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/load"
	"krater/stages/text/tokenizer"
)

// pipeline starts the actors over the golden's model, the whole of it on d.
func (s *source) pipeline(t testing.TB, d *hostsim.Device) *actors.Pipeline {
	t.Helper()
	parts := s.on(t, d, pipelined)
	p, err := actors.Start([]load.Rank{{Device: d, Parts: parts}}, actors.Options{
		Blueprint: actors.Blueprint{Groups: []actors.GroupSpec{{First: 0, Last: 1}, {First: 1, Last: 3}}, Pools: 2, MicroBatches: 2},
		Policy:    actors.Policy{PrefillChunk: 32, PrefillShare: 16, MaxQueue: 100},
		Log:       zerolog.Nop(), InlineBelow: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && p.Err() == nil {
			t.Error(err)
		}
	})
	return p
}

// pipelined are the sizes of the pipelines.
var pipelined = load.Options{
	Limits: stages.Limits{Tokens: 128, Seqs: 8, LogitRows: 128, Blocks: 80, BlockTokens: 16}, KVType: tensor.F32, Partition: []int{1, 2},
}

// readTokenizer reads krater-tiny's tokenizer: the golden models have none.
var readTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	files, err := models.Default()
	if err != nil {
		return nil, err
	}
	return tokenizer.Load(files)
})

// gateway opens a pipeline to requests of ids.
func (s *source) gateway(t testing.TB, p *actors.Pipeline) *actors.Gateway {
	t.Helper()
	tok, err := readTokenizer()
	if errors.Is(err, models.ErrNoModel) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return actors.NewGateway(p, actors.GatewayOptions{ID: "test", EOS: s.cfg.EOS, Vocab: s.cfg.Vocab, Tokenizer: tok})
}

// generate asks for n tokens after ids.
func generate(g *actors.Gateway, ids []int32, n int) (out []int32, err error) {
	s, err := g.Submit(context.Background(), &engine.Request{
		ID: "test", Prompt: engine.Prompt{IDs: ids}, MaxTokens: n, IgnoreEOS: true,
		Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
	})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var last engine.Event
	for {
		e, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
		for _, tok := range e.Tokens {
			out = append(out, tok.ID)
		}
		last = e
	}
	if last.Kind != engine.Done {
		return out, fmt.Errorf("ended with %+v", last)
	}
	return out, nil
}

// TestRequestsOnDevice: requests through the scheduler, several batches in flight.
func TestRequestsOnDevice(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	for _, async := range []bool{false, true} {
		gw := s.gateway(t, s.pipeline(t, simulated(t, hostsim.Options{CPU: host, Async: async})))
		const copies = 4
		faults := make(chan error)
		for range copies {
			for _, p := range g.Prompts {
				go func() {
					ids, err := generate(gw, p.IDs, len(p.Greedy))
					if err == nil && !slices.Equal(ids, p.Greedy) {
						err = fmt.Errorf("%s: %v, want %v", p.Name, ids, p.Greedy)
					}
					faults <- err
				}()
			}
		}
		for range copies * len(g.Prompts) {
			if err := <-faults; err != nil {
				t.Errorf("async %v: %v", async, err)
			}
		}
	}
}

// TestPipelineAfterDeviceFault: a broken device ends requests and the pipeline, with
// its own words, and nobody waits for ever.
func TestPipelineAfterDeviceFault(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	for _, nth := range []int64{1, 2, 17, 40, 133} {
		for _, kind := range []hostsim.Kind{hostsim.Operator, hostsim.Copy} {
			d := simulated(t, hostsim.Options{CPU: host})
			p := s.pipeline(t, d)
			gw := s.gateway(t, p)
			d.Fail(kind, nth)
			if ids, err := generate(gw, []int32{1, 2, 3}, 100); err == nil {
				t.Errorf("%d tokens from a broken device", len(ids))
			}
			// Further requests fail, until the pipeline gives up.
			for p.Err() == nil {
				if _, err := generate(gw, []int32{1}, 1); err == nil {
					t.Fatalf("fault %d of kind %d: an answer from a broken device", nth, kind)
				}
			}
		}
	}
}

// TestPipelineOnDevice: the actors over a model that is on the device as a whole,
// as persistent with all experts has it: the golden, and the bits of the model on
// the CPU, with streams that run by themselves and streams that do not.
func TestPipelineOnDevice(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := ask(t, plain(t, host, s.on(t, host, pipelined)), s.cfg.Vocab, 5, 12)
	for _, async := range []bool{false, true} {
		d := simulated(t, hostsim.Options{CPU: host, Async: async})
		p := s.pipeline(t, d)
		equal(t, want, ask(t, p, s.cfg.Vocab, 5, 12))
		r, err := compare.Run(p, s.cfg, g, compare.Weights(s.set), compare.Options{Chunk: 7, Batch: 3})
		if err != nil || !r.OK() {
			t.Errorf("async %v: %+v, %v", async, r, err)
		}
		before := d.Counters()
		step(t, p, 3, 0)
		if c := d.Counters().Since(before); c.BytesUp != 5*4*3 || c.Allocations != 0 {
			t.Errorf("async %v: a step copied %d bytes up, want %d", async, c.BytesUp, 5*4*3)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := p.Drain(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
}
