//go:build cuda

package actors

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/kernels/cuda"
	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/driver"
	"krater/stages"
	"krater/stages/load"
)

// The emulator has two GPUs here. It reads this when it is first used.
func init() {
	if os.Getenv("KR_EMU_DEVICES") == "" {
		os.Setenv("KR_EMU_DEVICES", "2")
	}
}

// onCards loads the model on GPUs: rank i is on the index[i]-th, and has a third of its memory.
func (l *loaded) onCards(t testing.TB, o setup, sizes, index []int) []load.Rank {
	t.Helper()
	if err := driver.Available(); errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	cuts, err := load.Divide(len(l.cfg.Layers), o.groups, sizes)
	if err != nil {
		t.Fatal(err)
	}
	var ranks []load.Rank
	for i, c := range cuts {
		dev, err := cuda.Open(cuda.Options{Index: index[i], Budget: 1 << 30, F32: true, Invariant: true})
		if err != nil && index[i] > 0 {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		parts, err := load.Model(dev, l.cfg, l.set, load.Options{Limits: o.limits, KVType: o.kv}.On(c))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			parts.Close()
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		ranks = append(ranks, load.Rank{Device: dev, Parts: parts})
	}
	return ranks
}

// few asks for three answers at once, and gives their tokens. The emulated GPU is slow.
func few(t *testing.T, gw *Gateway) (all [][]engine.Token) {
	t.Helper()
	var open []engine.Stream
	for i := range 3 {
		req := greedy([]int32{100, int32(101 + i), 102, 103, 104}[:3+i], 6)
		seed := uint64(i)
		req.Logprobs, req.Sampling.Seed, req.Sampling.Temperature = 2, &seed, float64(i%2)
		st, err := gw.Submit(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	for _, st := range open {
		all = append(all, tokens(t, st))
	}
	return all
}

// TestPiecesOfBatches: long lists are sent to a GPU in pieces. Prompts in two batches of one queue, which share memory within a layer, have the
// answers that they have in one.
func TestPiecesOfBatches(t *testing.T) {
	o := setup{dir: golden("mixtral"), groups: 1, limits: stages.Limits{Tokens: 24, Seqs: 4, Blocks: 24, BlockTokens: 8}, chunk: 8, share: 16, depth: 1}.defaults()
	l := loadModel(t, o)
	want := few(t, l.open(t, l.over(t, o, l.onCards(t, o, []int{len(l.cfg.Layers)}, []int{0}), nil)))
	o.depth = 2
	for range 4 {
		for i, got := range few(t, l.open(t, l.over(t, o, l.onCards(t, o, []int{len(l.cfg.Layers)}, []int{0}), nil))) {
			if !slices.EqualFunc(got, want[i], sameToken) {
				t.Errorf("answer %d is %v, want %v", i, got, want[i])
			}
		}
	}
}

// TestRanksOnCards: two ranks on two GPUs, or on one that is divided, give the bits of one rank, over
// links that copy between the GPUs and over links that copy through the host. Copies that do not come,
// or bring something else, are noticed at the start or in service. A step that they spoil is repeated.
func TestRanksOnCards(t *testing.T) {
	o := ranked()
	o.limits.Tokens, o.limits.Blocks = 12, 8
	l := loadModel(t, o)
	want := few(t, l.open(t, l.over(t, o, l.onCards(t, o, []int{3}, []int{0}), nil)))
	for _, c := range []struct {
		name, start, service string // faults
		links                []string
		faults               uint64
		index                []int
	}{
		{"two GPUs", "", "late", []string{"peer"}, 0, []int{0, 1}},
		{"one GPU", "", "", []string{"peer"}, 0, []int{0, 0}},
		{"zeros from the start", "zeros", "zeros", []string{"bounce"}, 0, []int{0, 1}},
		{"zeros", "", "zeros:3", []string{"peer", "bounce"}, 1, []int{0, 1}},
		{"no copies", "", "stale:2", []string{"peer", "bounce"}, 1, []int{0, 1}},
		{"copies that hang", "", "hang:3", []string{"peer", "bounce"}, 1, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.start != "" {
				cudatest.Peer(t, c.start)
			}
			p := l.over(t, o, l.onCards(t, o, []int{2, 1}, c.index), func(o *Options) { o.hopDeadline = time.Second / 5 })
			if c.service != "" {
				cudatest.Peer(t, c.service)
				defer cudatest.Peer(t, "") // ends copies that hang
			}
			gw := l.open(t, p)
			for i, got := range few(t, gw) {
				if !slices.EqualFunc(got, want[i], sameToken) {
					t.Errorf("answer %d is %v, want %v", i, got, want[i])
				}
			}
			var used []string
			faults := uint64(0)
			for _, link := range gw.Stats().Links {
				if faults += link.Faults; link.Hops == 0 {
					continue
				}
				if used = append(used, link.Kind); link.Bytes == 0 || link.Time == 0 {
					t.Errorf("%+v", link)
				}
			}
			if !slices.Equal(used, c.links) || (faults > 0) != (c.faults > 0) || faults > uint64(p.scheduler.Depth()) {
				t.Errorf("%d faults, links %+v", faults, gw.Stats().Links)
			}
		})
	}
}
