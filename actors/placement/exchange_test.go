package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/stages/arena"
	"krater/stages/load"
)

// exchanged is the load of a pipeline whose experts and KV blocks exchange memory.
func (s *source) exchanged(expert int64) (lo load.Options, slots int64) {
	lo = pipelined
	lo.Blocks = 36
	lo.Arena = &arena.Layout{Step: int(expert), Plain: 14, Blocks: lo.Blocks, Least: 12, Caches: load.CacheBlocks(s.cfg, &lo)}
	return lo, int64(lo.Arena.Plain + len(lo.Arena.Shared()))
}

// demand asks for answers of n tokens to a number of prompts at once. It returns the most KV blocks there were, and what was wrong.
func demand(gw func(ids []int32, n int) ([]int32, error), want map[string][]int32, place *placement.Placement, prompts, length, n int) (most int, faults []error) {
	done := make(chan error)
	for i := range prompts {
		go func() {
			ids := exchangedPrompt(i, length)
			got, err := gw(ids, n)
			if w := want[fmt.Sprint(ids)]; err == nil && (len(got) != n || !slices.Equal(got, w[:n])) {
				err = fmt.Errorf("prompt %d of %d: %v, want %v", i, length, got, w)
			}
			done <- err
		}()
	}
	for left := prompts; left > 0; {
		select {
		case err := <-done:
			if left--; err != nil {
				faults = append(faults, err)
			}
		case <-time.After(time.Millisecond):
		}
		most = max(most, place.Blocks())
	}
	return most, faults
}

func exchangedPrompt(i, length int) (ids []int32) {
	for j := range length {
		ids = append(ids, int32((5+29*i+13*j)%200))
	}
	return ids
}

// TestExchange has the demand for KV blocks rise and fall. Memory of experts goes to KV blocks and comes back, tokens equal the tokens of a model with
// everything on the device, no request is dropped, and the device's memory stays as it was after the load.
func TestExchange(t *testing.T) {
	const long, short, answer = 90, 5, 50
	host := processor(t)
	s := open(t, golden)
	expert := s.slotBytes(t, host, pipelined)
	plain := s.gateway(t, s.pipeline(t, simulated(t, hostsim.Options{CPU: host})))
	want := map[string][]int32{}
	for i := range 12 {
		for _, length := range []int{long, short} {
			ids := exchangedPrompt(i, length)
			out, err := generate(plain, ids, answer)
			if err != nil {
				t.Fatal(err)
			}
			want[fmt.Sprint(ids)] = out
		}
	}
	for _, x := range []struct {
		prefill       string
		async, refuse bool
	}{{"layer_grouped", false, false}, {"learned", true, false}, {"layer_grouped", true, false}, {"cpu_only", false, false}, {"layer_grouped", false, true}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			lo, slots := s.exchanged(expert)
			d := simulated(t, hostsim.Options{CPU: host, Async: x.async})
			if x.refuse {
				d.Fail(hostsim.Allocation, 1) // the arena
			}
			place, gw := s.exchanging(t, d, host, lo, x.prefill, slots*expert)
			ask := func(ids []int32, n int) ([]int32, error) { return generate(gw, ids, n) }
			if x.refuse {
				if place.Arena() != nil || place.Exchanges() {
					t.Fatal("an arena without memory")
				}
				if _, faults := demand(ask, want, place, 12, long, answer); faults != nil {
					t.Error(faults)
				}
				return
			}
			riseAndFall(t, d, lo.Arena, place, func(prompts, length, n int) (int, []error) { return demand(ask, want, place, prompts, length, n) })
		})
	}
}

// riseAndFall has the demand for KV blocks rise and fall twice.
func riseAndFall(t *testing.T, d *hostsim.Device, l *arena.Layout, place *placement.Placement, ask func(prompts, length, n int) (most int, faults []error)) {
	const long, short, answer = 90, 5, 50
	least, used := place.Blocks(), d.Memory().Used
	if least < l.Least || used < l.Bytes() {
		t.Fatalf("%d blocks, %d bytes in use, the arena has %d", least, used, l.Bytes())
	}
	for round := range 2 {
		most, faults := ask(12, long, answer)
		if faults != nil || most <= least {
			t.Errorf("round %d: %d blocks, then %d: %v", round, least, most, faults)
		}
		for tries := 0; place.Blocks() > least; tries++ {
			if tries == 200 {
				t.Fatalf("round %d: %d blocks are not given back, %d at first", round, place.Blocks(), least)
			}
			if _, faults := ask(1, short, 8); faults != nil {
				t.Fatal(faults)
			}
		}
	}
	if _, faults := ask(2, short, answer); faults != nil { // experts are in the slots again
		t.Error(faults)
	}
	if m := d.Memory().Used; m != used || d.Counters().HighWater > used {
		t.Errorf("%d bytes in use, %d at most, %d after the load", m, d.Counters().HighWater, used)
	}
}

// exchanging starts a pipeline whose experts and KV blocks exchange memory, if there is an arena.
func (s *source) exchanging(t *testing.T, d *hostsim.Device, host *cpu.Device, lo load.Options, prefill string, budget int64) (*placement.Placement, *actors.Gateway) {
	t.Helper()
	lo.Routed = host
	parts := s.on(t, d, lo)
	place, err := placement.New(d, host, parts, placement.Options{
		Prefill: strategy(t, prefill), Decode: strategy(t, "learned"), Threshold: 9, Heat: s.heat(1), Budget: budget,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Close)
	if parts.Arena == nil && parts.Limits.Blocks != lo.Arena.Least {
		t.Fatalf("%d blocks without an arena", parts.Limits.Blocks)
	}
	p, err := actors.Start([]load.Rank{{Device: d, Parts: parts}}, actors.Options{
		Blueprint: actors.Blueprint{Groups: []actors.GroupSpec{{First: 0, Last: 1}, {First: 1, Last: 3}}, Pools: 2, MicroBatches: 1},
		Policy:    actors.Policy{PrefillChunk: 32, PrefillShare: 32, MaxQueue: 100, Calm: 8},
		Log:       zerolog.Nop(), InlineBelow: -1, Placements: []*placement.Placement{place},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return place, s.gateway(t, p)
}
