package actors

import (
	"context"
	"fmt"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/stages/load"
)

// spread loads the model on several ranks, each on a device of its own: simulated ones, or the
// processor's.
func (l *loaded) spread(t testing.TB, o setup, sizes []int, simulated bool) []load.Rank {
	t.Helper()
	ranks, err := l.spreadOn(t, o, sizes, func(int) bool { return simulated })
	if err != nil {
		t.Fatal(err)
	}
	return ranks
}

// spreadOn is spread with simulated devices for some of the ranks. It returns the error of a load.
func (l *loaded) spreadOn(t testing.TB, o setup, sizes []int, simulated func(rank int) bool) (ranks []load.Rank, err error) {
	t.Helper()
	cuts, err := load.Divide(len(l.cfg.Layers), o.groups, sizes)
	if err != nil {
		return nil, err
	}
	for i, c := range cuts {
		processor, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		var dev load.Device = processor
		if simulated(i) {
			if dev, err = hostsim.New(hostsim.Options{CPU: processor, Name: fmt.Sprintf("hostsim:%d", i)}); err != nil {
				t.Fatal(err)
			}
		}
		opt := load.Options{Limits: o.limits, KVType: o.kv}.On(c)
		if o.remote {
			if opt.Ends = load.NoEnds; i == 0 {
				opt.Ends = load.BothEnds
			}
		}
		parts, err := load.Model(dev, l.cfg, l.set, opt)
		if err != nil {
			processor.Close()
			return nil, err
		}
		t.Cleanup(func() {
			parts.Close()
			processor.Close()
		})
		ranks = append(ranks, load.Rank{Device: dev, Parts: parts})
	}
	return ranks, nil
}

// over starts a pipeline over ranks.
func (l *loaded) over(t testing.TB, o setup, ranks []load.Rank, change func(*Options)) *Pipeline {
	t.Helper()
	opt := l.options(t, o)
	opt.Blueprint.Groups = nil
	if change != nil {
		change(&opt)
	}
	p, err := Start(ranks, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing the pipeline: %v", err)
		}
	})
	return p
}

// conversation asks for answers of all kinds: greedy and drawn ones at the same time, more of
// them than the cache has room for, others that begin like them, and one that asks alone and again.
// It gives their tokens. When the first six have been submitted it calls come.
func conversation(t *testing.T, gw *Gateway, come ...func(*Gateway)) (all [][]engine.Token) {
	t.Helper()
	for round, asked := range [][]int{{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {5}, {5}} {
		var open []engine.Stream
		for _, i := range asked {
			prompt := make([]int32, 20+7*i)
			for j := range prompt {
				prompt[j] = int32(100 + (j*j+3*(i%3)*j)%150)
			}
			if len(gw.opt.EOS) > 0 { // a turn ends within a block, and another follows
				prompt[len(prompt)-1] = gw.opt.EOS[0]
			}
			req := greedy(append(prompt, int32(50+round)), 24)
			seed := uint64(i)
			req.Logprobs, req.Sampling.Seed, req.Sampling.Temperature = 2, &seed, float64(i%2)
			st, err := gw.Submit(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, st)
		}
		if round == 0 {
			for _, f := range come {
				f(gw)
			}
		}
		for _, st := range open {
			all = append(all, tokens(t, st))
		}
	}
	return all
}

// hold keeps the first batch from ending until its requests have come, so that they share the
// cache whatever else the machine does.
type hold struct {
	requests int
	come     chan struct{}
}

func newHold(requests int) *hold { return &hold{requests, make(chan struct{})} }

// wrap holds the actor that chooses tokens.
func (h *hold) wrap(actor string, n node) node {
	if actor != "sample" {
		return n
	}
	return hook{n, func(*turn, any) { <-h.come }}
}

// release waits until the requests have come, or for 20 seconds.
func (h *hold) release(gw *Gateway) {
	end := time.Now().Add(20 * time.Second)
	for s := gw.Stats(); s.Running+s.Waiting < h.requests && time.Now().Before(end); s = gw.Stats() {
		time.Sleep(time.Millisecond)
	}
	close(h.come)
}
