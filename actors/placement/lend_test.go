package placement_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/load"
)

// TestDecodeAfterPrompt: a prompt that streams the model through slots of the hot set leaves the
// hot set as it was. Decode finds as many experts on the device as with the hot set alone, and
// copies none; answers have the bits of the model on the CPU.
func TestDecodeAfterPrompt(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	lo := load.Options{Limits: limits}
	want := ask(t, plain(t, host, s.on(t, host, lo)), s.cfg.Vocab, 20, 12)
	expert := s.slotBytes(t, host, lo)
	layers := len(s.heat(3))
	run := func(prefill string, slots int64, async bool) (*placement.Placement, dispatch.Strategy) {
		t.Helper()
		d := simulated(t, hostsim.Options{CPU: host, Async: async})
		parts, p, err := placement.Load(d, host, s.cfg, s.set, lo, placement.Options{
			Prefill: strategy(t, prefill), Decode: strategy(t, "hot_cached_static"), Threshold: 9, Budget: slots * expert, Heat: s.heat(3),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(parts.Close)
		t.Cleanup(p.Close)
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		equal(t, want, ask(t, m, s.cfg.Vocab, 20, 12))
		if n, _ := p.Slots(); int64(n) != slots {
			t.Errorf("%s: %d slots of %d", prefill, n, slots)
		}
		return p, p.Strategy(dispatch.Prefill)
	}
	all := int64(s.cfg.MoE.Experts * layers)
	budgets := []int64{all / 4, all - 1, all / 3, all / 2}
	if testing.Short() {
		budgets = budgets[:2]
	}
	for _, slots := range budgets {
		alone, _ := run("hot_cached_static", slots, false)
		hot := alone.Stats(dispatch.Decode)
		for i, prefill := range []string{"layer_grouped", "layer_grouped:3", "layer_grouped:2:1", "chunked", "persistent"} {
			t.Run(fmt.Sprintf("%s, %d slots of %d", prefill, slots, all), func(t *testing.T) {
				p, settled := run(prefill, slots, i%2 == 1)
				got, copied := p.Stats(dispatch.Decode), p.Stats(dispatch.Prefill)
				if got.Hits != hot.Hits || got.Host != hot.Host || got.Misses != 0 || got.Copies != 0 {
					t.Errorf("%s: %+v, alone %+v", settled.Name(), got, hot)
				}
				if copied.Copies == 0 || copied.Host > 0 {
					t.Errorf("%s: prompts: %+v", settled.Name(), copied)
				}
			})
		}
	}
}

// TestPhasesTakeTurns: with requests that come and go no batch of generated tokens runs while a
// prompt has the lent slots.
func TestPhasesTakeTurns(t *testing.T) {
	for _, decode := range []string{"hot_cached_static", "learned"} {
		t.Run(decode, func(t *testing.T) { phasesTakeTurns(t, decode) })
	}
}

func phasesTakeTurns(t *testing.T, decode string) {
	host := processor(t)
	s := open(t, golden)
	lo := pipelined
	lo.Routed = host
	expert := s.slotBytes(t, host, pipelined)
	const threshold = 9
	var mu sync.Mutex
	var open, prompts, tokens, mixed int
	last := len(s.heat(1)) - 1
	seen := func(index int, work []dispatch.Rows) {
		rows := int32(0)
		for _, w := range work {
			rows += w.Rows
		}
		mu.Lock()
		defer mu.Unlock()
		switch prompt := int(rows) >= threshold*s.cfg.MoE.Router.TopK; {
		case !prompt && open > 0:
			mixed++
		case !prompt:
			tokens++
		case index == 0:
			open++
			prompts++
		case index == last:
			open--
		}
	}
	d := simulated(t, hostsim.Options{CPU: host})
	p := s.shared(t, d, host, placement.Options{
		Prefill: strategy(t, "layer_grouped"), Decode: strategy(t, decode), Threshold: threshold, Heat: s.heat(1), Budget: 24 * expert, Seen: seen,
	}, true, 0)
	gw := s.gateway(t, p)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for n := range 4 {
				prompt := slices.Repeat([]int32{int32(3 + i), int32(11 + n)}, 10+i)
				if _, err := generate(gw, prompt, 5+i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if mixed > 0 || prompts < 6 || tokens < 6 {
		t.Errorf("%d layers of generated tokens ran while a prompt had the slots; %d prompts, %d layers of tokens", mixed, prompts, tokens)
	}
}
