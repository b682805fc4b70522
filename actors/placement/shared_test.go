package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/stages/compare"
	"krater/stages/load"
	"krater/stages/offload"
)

// shared starts the actors over the golden's model on d, its experts placed.
func (s *source) shared(t testing.TB, d load.Device, host offload.Host, o placement.Options, inline bool, window int) *actors.Pipeline {
	t.Helper()
	lo := pipelined
	lo.Window = window
	lo.Routed = host
	parts := s.on(t, d, lo)
	place, err := placement.New(d, host, parts, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Close)
	opt := actors.Options{
		Blueprint: actors.Blueprint{Groups: []actors.GroupSpec{{First: 0, Last: 1}, {First: 1, Last: 3}}, Pools: 2, MicroBatches: 2},
		Policy:    actors.Policy{PrefillChunk: 32, PrefillShare: 16, MaxQueue: 100},
		Log:       zerolog.Nop(), InlineBelow: -1, Placements: []*placement.Placement{place},
	}
	if inline {
		opt.InlineBelow = 1 << 40
	}
	p, err := actors.Start([]load.Rank{{Device: d, Parts: parts}}, opt)
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

// pair is a way to run a model on a device and a host.
type pair struct {
	prefill, decode string
	slots           int64 // that the budget holds; 0: without a bound
	async, inline   bool
	nodes           bool // of the host: two
	window          int  // rows that layers see at once; 0: all
}

// TestPipelineOnTwoDevices: attention on the device and experts where a strategy
// puts them, through the actors: the bits of the model on the CPU, the golden, and
// the golden's tokens for requests with several batches in flight.
func TestPipelineOnTwoDevices(t *testing.T) {
	host := processor(t)
	nodes, err := cpu.New(cpu.Options{Nodes: []cpu.Node{{ID: 0, CPUs: []int{0}, Fake: true}, {ID: 1, CPUs: []int{1}, Fake: true}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes.Close() })
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := ask(t, plain(t, host, s.on(t, host, pipelined)), s.cfg.Vocab, 5, 12)
	expert := s.slotBytes(t, host, pipelined)
	for _, x := range []pair{
		{prefill: "cpu_only", decode: "cpu_only"},
		{prefill: "cpu_only", decode: "cpu_only", async: true, inline: true, window: 9},
		{prefill: "persistent", decode: "persistent"},
		{prefill: "hot_cached_static", decode: "hot_cached_static", slots: 9},
		{prefill: "hot_cached_static", decode: "cpu_only", slots: 9, async: true, window: 13},
		{prefill: "hot_cached_static", decode: "hot_cached_static", slots: 9, inline: true, window: 10},
		{prefill: "cpu_only", decode: "cpu_only", nodes: true},
		{prefill: "hot_cached_static", decode: "hot_cached_static", slots: 9, async: true, nodes: true},
		{prefill: "chunked", decode: "chunked", slots: 5, window: 7},
		{prefill: "active_only", decode: "lru", slots: 12, async: true},
		{prefill: "layer_grouped:2:1", decode: "hot_cached_static", slots: 24, nodes: true, window: 9},
		{prefill: "layer_grouped", decode: "static_pin", slots: 40, async: true, inline: true, window: 11},
		{prefill: "lru", decode: "weighted_pin", slots: 9, window: 20},
	} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			host := host
			if x.nodes {
				host = nodes
			}
			d := simulated(t, hostsim.Options{CPU: host, Async: x.async})
			p := s.shared(t, d, host, placement.Options{
				Prefill: strategy(t, x.prefill), Decode: strategy(t, x.decode), Threshold: 9, Heat: s.heat(1),
				Budget: x.slots * expert, PrefillBudget: x.slots * expert * 2 / 3,
			}, x.inline, x.window)
			equal(t, want, ask(t, p, s.cfg.Vocab, 5, 12))
			if x.window == 0 && (!testing.Short() || x.slots == 0) { // a comparison looks at whole batches
				r, err := compare.Run(p, s.cfg, g, compare.Weights(s.set), compare.Options{Chunk: 7, Batch: 3})
				if err != nil || !r.OK() {
					t.Errorf("%d passed, %d failed: %v", r.Passed, r.Failed, err)
				}
			}
			gw := s.gateway(t, p)
			checkGreedy(t, gw, g, 3)
			checkCounts(t, gw.Stats(), d.Name(), x)
		})
	}
}

// checkGreedy generates copies of all of the golden's answers at once and checks their tokens.
func checkGreedy(t *testing.T, gw *actors.Gateway, g *compare.Golden, copies int) {
	t.Helper()
	faults := make(chan error)
	for range copies {
		for _, q := range g.Prompts {
			go func() {
				ids, err := generate(gw, q.IDs, len(q.Greedy))
				if err == nil && !slices.Equal(ids, q.Greedy) {
					err = fmt.Errorf("%s: %v, want %v", q.Name, ids, q.Greedy)
				}
				faults <- err
			}()
		}
	}
	for range copies * len(g.Prompts) {
		if err := <-faults; err != nil {
			t.Error(err)
		}
	}
}

// checkCounts checks that each strategy is counted once, that experts were copied only if the strategy
// copies and not all fit, and that a device computed experts only if a strategy puts some there.
func checkCounts(t *testing.T, st engine.Stats, device string, x pair) {
	t.Helper()
	on := map[string]engine.ExpertCache{}
	for _, c := range st.ExpertCaches {
		if _, twice := on[c.Strategy]; twice || c.Rank != device {
			t.Errorf("%+v", st.ExpertCaches)
		}
		on[c.Strategy] = c
	}
	copies := !slices.Contains([]string{"cpu_only", "persistent", "hot_cached_static"}, x.decode) && x.slots < 32
	if c, ok := on[x.decode]; !ok || copies != (c.CopiedBytes > 0) || copies != (c.Misses > 0) {
		t.Errorf("%+v of %+v", c, st.ExpertCaches)
	}
	all := x.prefill == "cpu_only" && x.decode == "cpu_only"
	if all != (st.ExpertsComputed[device] == 0) || all && st.ExpertsComputed["cpu"] == 0 {
		t.Errorf("%v", st.ExpertsComputed)
	}
}

// TestPipelineOnTwoDevicesAfterFault: whichever device call fails, requests end.
func TestPipelineOnTwoDevicesAfterFault(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	some := 9 * s.slotBytes(t, host, pipelined)
	for _, nth := range []int64{1, 2, 5, 17, 40} {
		for _, kind := range []hostsim.Kind{hostsim.Operator, hostsim.Copy} {
			d := simulated(t, hostsim.Options{CPU: host})
			p := s.shared(t, d, host, placement.Options{Prefill: strategy(t, "hot_cached_static"), Decode: strategy(t, "hot_cached_static"), Budget: some}, false, 0)
			gw := s.gateway(t, p)
			d.Fail(kind, nth)
			if ids, err := generate(gw, []int32{1, 2, 3}, 50); err == nil {
				t.Errorf("%d tokens from a broken device", len(ids))
			}
			for p.Err() == nil {
				if _, err := generate(gw, []int32{1}, 1); err == nil {
					t.Fatalf("fault %d of kind %d: an answer from a broken device", nth, kind)
				}
			}
		}
	}
}
