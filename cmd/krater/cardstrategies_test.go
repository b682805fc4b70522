//go:build cuda

package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/synth"
)

// placedOnCard is latentModel on a GPU, its experts as strategies say.
type placedOnCard struct {
	*placement.Model
	place *placement.Placement
	slot  int64
}

// besideCard loads latentModel once and gives a function that places its experts.
func besideCard(t *testing.T, p load.Precision, window int, o cuda.Options) func(t *testing.T, po placement.Options) placedOnCard {
	t.Helper()
	return besideCardOf(t, latentModel(t), p, window, 0, o)
}

// besideCardOf is besideCard of a model with the given number of window blocks.
func besideCardOf(t *testing.T, m *synth.Model, p load.Precision, window, windows int, o cuda.Options) func(t *testing.T, po placement.Options) placedOnCard {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	c := cardFor(t, o)
	l, err := m.LoadCard(c, host, load.Options{
		Limits: stages.Limits{Tokens: 257, Window: window, Seqs: 9, LogitRows: 66, Blocks: 64, BlockTokens: 16, WindowBlocks: windows}, KVType: tensor.BF16, Precision: p, Routed: host,
	}, p.Experts, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return func(t *testing.T, po placement.Options) placedOnCard {
		t.Helper()
		place, err := placement.New(c, host, l.Parts, po)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(place.Close)
		m, err := placement.NewModel(c, host, l.Parts, place)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return placedOnCard{m, place, int64(l.Parts.Slots.Step)}
	}
}

// chosen finds a strategy.
func chosen(t *testing.T, name string) dispatch.Strategy {
	t.Helper()
	s, err := dispatch.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sharing are the strategies that leave experts to the processor.
var sharing = map[string]bool{"cpu_only": true, "hot_cached_static": true, "learned": true}

// TestStrategiesOnCard: every strategy with budgets from nothing to everything answers as the model
// with all experts on the GPU does: in float32 with the same bits, where the GPU computes all of
// them; else by as little as the processor's arithmetic differs.
func TestStrategiesOnCard(t *testing.T) {
	const experts = 2 * 8 // layers with experts, of the three
	for name, c := range map[string]struct {
		p    load.Precision
		o    cuda.Options
		most float64 // of a relative difference of logits
	}{
		"float32":  {load.Precision{}, cuda.Options{F32: true}, 1e-4},
		"bfloat16": {load.Precision{}, cuda.Options{}, 0.02},
		"int4":     {cardPrecisions["int4 g128"], cuda.Options{}, 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			prompt, window, threshold := randomTokens(90, 1), 40, 30
			switch {
			case testing.Short() && name == "float32": // plain kernels, the same for any number of rows
				prompt, window, threshold = prompt[:16], 12, 9
			case testing.Short():
				prompt = prompt[:44] // still two pieces
			}
			place := besideCard(t, c.p, window, c.o)
			var want answered
			var slot int64
			t.Run("all of them", func(t *testing.T) {
				whole := place(t, placement.Options{Prefill: chosen(t, "persistent"), Decode: chosen(t, "persistent"), Threshold: threshold})
				want, slot = runOn(t, whole.Model, prompt, 4, 0), whole.slot
			})
			budgets := []int64{experts, 0, 1, 5, 11}
			strategies := append(dispatch.All(), chosen(t, "layer_grouped:2:1"))
			switch {
			case testing.Short() && name == "float32":
				budgets = []int64{5}
			case testing.Short(): // other kernels, the same paths
				budgets, strategies = []int64{map[string]int64{"int4": 0, "bfloat16": 5}[name]}, []dispatch.Strategy{chosen(t, "hot_cached_static")}
			}
			for _, slots := range budgets {
				for _, s := range strategies {
					t.Run(fmt.Sprintf("%s, %d slots", s.Name(), slots), func(t *testing.T) {
						m := place(t, placement.Options{Prefill: s, Decode: s, Threshold: threshold, Budget: max(1, slots*slot)})
						got := runOn(t, m.Model, prompt, 4, 0)
						runs := m.place.Strategy(dispatch.Prefill).Name()
						for i := range want.rows {
							if !slices.Equal(got.ids[:i], want.ids[:i]) {
								t.Logf("%s: token %d is another: they answer different questions from there on", runs, i-1)
								break
							}
							e := apart(got.rows[i], want.rows[i])
							if exact := c.o.F32 && !sharing[runs]; exact && e != 0 || !(e <= c.most) {
								t.Errorf("%s: token %d: logits are %g apart", runs, i, e)
							}
						}
						if c.o.F32 && !slices.Equal(got.ids, want.ids) {
							t.Errorf("%s: %v, want %v", runs, got.ids, want.ids)
						}
					})
				}
			}
		})
	}
}

// TestHostCallsOnCard: several sequences at once, steps repeated as graphs, with experts on both
// sides: what each sequence gets alone, and the same every time.
func TestHostCallsOnCard(t *testing.T) {
	place := besideCard(t, cardPrecisions["int4 g128"], 0, cuda.Options{})
	for _, slots := range []int64{0, 6} {
		if testing.Short() && slots == 0 {
			continue // TestStrategiesOnCard has no slots, too
		}
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) { calls(t, place, slots) })
	}
}

func calls(t *testing.T, place func(*testing.T, placement.Options) placedOnCard, slots int64) {
	const slot = 3 * 64 * 256 // more than an expert in four bits takes
	m := place(t, placement.Options{Prefill: chosen(t, "hot_cached_static"), Decode: chosen(t, "hot_cached_static"), Budget: max(1, slots*slot)})
	var seqs []*drive.Sequence
	var want [][]int32
	sequences, n := 5, 8
	if testing.Short() {
		sequences, n = 3, 5
	}
	for i := range sequences {
		prompt := randomTokens(5+9*i, i)
		want = append(want, runOn(t, m.Model, prompt, n, 0).ids)
		seqs = append(seqs, &drive.Sequence{Prompt: prompt, New: n})
	}
	if err := drive.Run(m.Model, seqs, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	for i, s := range seqs {
		if !slices.Equal(s.Out, want[i]) {
			t.Errorf("%d slots, sequence %d: %v, alone %v", slots, i, s.Out, want[i])
		}
	}
}

// TestWholeSumsOnCard: where a norm lies behind the sum of a layer's experts, or several residual streams take it, what the processor
// computes of them is in that sum, for prompts and for tokens.
func TestWholeSumsOnCard(t *testing.T) {
	const threshold = 12
	for name, c := range map[string]struct {
		of      func(*testing.T) *synth.Model
		p       load.Precision
		o       cuda.Options
		windows int
		most    float64 // of a relative difference of logits
	}{
		"norms":         {twoHeadsModel, load.Precision{}, cuda.Options{F32: true}, 40, 1e-4},
		"norms, int4":   {twoHeadsModel, cardPrecisions["int4 g32"], cuda.Options{}, 40, 0.03},
		"streams":       {pooledModel, load.Precision{}, cuda.Options{F32: true}, 0, 1e-4},
		"streams, int4": {pooledModel, cardPrecisions["int4 g32"], cuda.Options{}, 0, 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && (name == "norms, int4" || name == "streams") {
				t.Skip("the other two take the same paths")
			}
			place := besideCardOf(t, c.of(t), c.p, 0, c.windows, c.o)
			prompt, n := randomTokens(14, 1), 2
			var want answered
			var slot int64
			t.Run("all of them", func(t *testing.T) {
				all := place(t, placement.Options{Prefill: chosen(t, "persistent"), Decode: chosen(t, "persistent"), Threshold: threshold})
				want, slot = runOn(t, all.Model, prompt, n, 0), all.slot
			})
			for _, slots := range []int64{0, 3} {
				t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
					m := place(t, placement.Options{Prefill: chosen(t, "hot_cached_static"), Decode: chosen(t, "hot_cached_static"), Threshold: threshold, Budget: max(1, slots*slot)})
					if !m.place.Asks(1, false) {
						t.Error("the layers of a token wait for the processor")
					}
					got := runOn(t, m.Model, prompt, n, 0)
					for i := range want.rows {
						if e := apart(got.rows[i], want.rows[i]); !(e <= c.most) {
							t.Errorf("token %d: logits are %g apart", i, e)
						}
					}
				})
			}
		})
	}
}

// TestStepsAsResidentOnCard: only where no experts are copied in the middle of a step, and the host computes none, does a step count as
// one of layers that hold their experts. A copy submits what was enqueued before it, so the next step must wait: else it may
// take a token that is not chosen yet.
func TestStepsAsResidentOnCard(t *testing.T) {
	place := besideCard(t, load.Precision{}, 0, cuda.Options{F32: true})
	var slot int64
	for _, c := range []struct {
		prefill, decode string
		slots           int64 // of 16 experts; 0: as many as they need
		want            [dispatch.Phases]bool
	}{
		{"persistent", "persistent", 0, [dispatch.Phases]bool{true, true}},
		{"layer_grouped:2:1", "hot_cached_static", 12, [dispatch.Phases]bool{false, false}},
		{"cpu_only", "lru", 12, [dispatch.Phases]bool{false, false}},
	} {
		m := place(t, placement.Options{Prefill: chosen(t, c.prefill), Decode: chosen(t, c.decode), Threshold: 9, Budget: c.slots * slot})
		slot = m.slot
		for phase, rows := range [dispatch.Phases]int{dispatch.Prefill: 9, dispatch.Decode: 1} {
			if got := m.place.AsResident(rows); got != c.want[phase] {
				t.Errorf("%s, %s, %d rows: %t, want %t", c.prefill, c.decode, rows, got, c.want[phase])
			}
		}
	}
}

// TestMixedStrategiesOnCard: where experts come and go for prompts and for generated tokens, but by two strategies, a prompt finds
// some of its experts in the slots of the other.
func TestMixedStrategiesOnCard(t *testing.T) {
	place := besideCard(t, load.Precision{}, 0, cuda.Options{F32: true})
	all := place(t, placement.Options{Prefill: chosen(t, "persistent"), Decode: chosen(t, "persistent"), Threshold: 2})
	mixed := place(t, placement.Options{Prefill: chosen(t, "layer_grouped:2:1"), Decode: chosen(t, "lru"), Threshold: 2, Budget: 13 * all.slot})
	for i := range 3 {
		prompt := randomTokens(9, i)
		want, got := runOn(t, all.Model, prompt, 3, 0), runOn(t, mixed.Model, prompt, 3, 0)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("prompt %d: other logits; tokens %d, want %d", i, got.ids, want.ids)
		}
	}
}
