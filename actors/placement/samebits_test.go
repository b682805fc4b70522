//go:build !race

// It computes much on one goroutine at a time; other tests drive the same actors under the race detector.

package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/stages/load"
)

// TestSameBits: whatever the strategy, precision, model and device, answers have
// the bits of the model on the CPU.
func TestSameBits(t *testing.T) {
	host := processor(t)
	for name, dir := range map[string]string{"krater-tiny": "", "deepseek_v2_lite": golden} {
		s := open(t, dir)
		for _, p := range []load.Precision{{}, {Experts: tensor.INT4.By(32)}, {Experts: tensor.INT8.By(32), Attention: tensor.INT8.By(32), Shared: tensor.INT8.By(32), Dense: tensor.INT8.By(32), Head: tensor.INT8.By(32)}} {
			o := load.Options{Limits: limits, Partition: load.Even(len(s.cfg.Layers), 2), KVType: tensor.BF16, Precision: p}
			if !p.Experts.Zero() {
				o.Experts = s.quantised(t, host, p.Experts)
			}
			if testing.Short() && dir == "" && p.Experts.Encoding == tensor.INT4 {
				continue
			}
			want := ask(t, plain(t, host, s.on(t, host, o)), s.cfg.Vocab, 5, 6)
			for i, x := range []struct {
				prefill, decode string
				slots           int64 // that the budget holds; 0: without a bound
				async           bool
			}{
				{"cpu_only", "cpu_only", 0, false}, {"persistent", "persistent", 0, false}, {"persistent", "cpu_only", 0, false},
				{"cpu_only", "hot_cached_static", 9, true}, {"hot_cached_static", "hot_cached_static", 20, false},
				{"chunked", "lru", 5, true}, {"layer_grouped", "active_only", 40, false}, {"layer_grouped:3:1", "static_pin", 50, true},
				{"active_only", "weighted_pin", 13, false}, {"layer_grouped", "learned", 70, false}, {"learned", "learned", 20, true}, {"lru", "learned", 30, false},
				{"lru", "layer_grouped", 70, true},
			} {
				if testing.Short() && dir == "" && p.Experts.Encoding == tensor.INT8 && i%3 != 1 {
					continue // every load makes the matrices' integers anew
				}
				if testing.Short() && dir != "" && !p.Experts.Zero() && (p.Experts.Encoding == tensor.INT4) == (i%2 > 0) {
					continue // INT4 has every second pair, INT8 the others
				}
				t.Run(fmt.Sprintf("%s, experts as %s, %+v", name, p.Experts, x), func(t *testing.T) {
					d := simulated(t, hostsim.Options{CPU: host, Async: x.async})
					po := placement.Options{Prefill: strategy(t, x.prefill), Decode: strategy(t, x.decode), Threshold: 9, Heat: s.heat(3)}
					done, all := int64(0), int64(0)
					po.Progress = func(now, of int64) {
						if now <= done || all != 0 && of != all {
							t.Errorf("%d of %d after %d of %d", now, of, done, all)
						}
						done, all = now, of
					}
					defer func() {
						if done != all || all == 0 && (x.prefill == "persistent" || x.decode == "hot_cached_static") {
							t.Errorf("progress ended at %d of %d", done, all)
						}
					}()
					if x.slots > 0 {
						po.Budget = x.slots * s.slotBytes(t, host, o)
						po.PrefillBudget = po.Budget * 2 / 3
					}
					equal(t, want, ask(t, s.placed(t, d, host, o, po), s.cfg.Vocab, 5, 6))
				})
			}
		}
	}
}

// TestMicroBatchesBits: into how many parts streams are divided changes no token, under any
// strategy, with prompts that come while others are answered.
func TestMicroBatchesBits(t *testing.T) {
	processor := processor(t)
	s := open(t, golden)
	expert := s.slotBytes(t, processor, load.Options{Limits: limits})
	w := workload{
		Options: placement.Options{Prefill: strategy(t, "cpu_only"), Decode: strategy(t, "cpu_only"), Threshold: 20},
		lanes:   1, streams: 7, prompt: 40, tokens: 9, chunk: 64, device: hostsim.Rates{Flops: 1e9, Launch: 1000}, host: hostsim.Rates{Flops: 1e9},
	}
	want := s.serve(t, processor, w).tokens
	for i, x := range strategies(t) {
		for lanes := 1; lanes <= 4; lanes++ {
			w.Options = placement.Options{Prefill: x, Decode: x, Threshold: 20, Heat: s.heat(i), Budget: int64(9+i%3) * expert}
			w.lanes = lanes
			if got := s.serve(t, processor, w).tokens; !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s, %d micro-batches: %v, want %v", x.Name(), lanes, got, want)
			}
		}
	}
}
