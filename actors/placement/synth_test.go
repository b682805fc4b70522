package placement_test

import (
	"os"
	"testing"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/offload"
	"krater/stages/synth"
)

// TestSyntheticModel: a model of random weights, made with its experts on the host, has the
// bits of the same model on the processor, with the parts kept in integers as well.
func TestSyntheticModel(t *testing.T) {
	host := processor(t)
	config, err := os.ReadFile(golden + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := synth.FromConfig("small", config, synth.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []load.Precision{{}, {Experts: tensor.INT4.By(32), Attention: tensor.INT8.By(32), Shared: tensor.INT8.By(32), Dense: tensor.INT8.By(32), Head: tensor.INT8.By(32)}} {
		o := load.Options{Limits: limits, Precision: p}
		on, err := m.Load(host, o, 2)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(on.Close)
		want := ask(t, plain(t, host, on.Parts), m.Config.Vocab, 20, 6)
		d := simulated(t, hostsim.Options{CPU: host})
		beside, err := m.LoadBeside(d, host, o, 2)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(beside.Close)
		expert, err := offload.SlotBytes(m.Config, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		place, err := placement.New(d, host, beside.Parts, placement.Options{
			Prefill: strategy(t, "layer_grouped:2:1"), Decode: strategy(t, "hot_cached_static"), Threshold: 9,
			Budget: 20 * expert, PrefillBudget: 16 * expert,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(place.Close)
		if n, _ := place.Slots(); n != 20 || len(place.Falls()) > 0 {
			t.Errorf("%d slots, %v", n, place.Falls())
		}
		r, err := placement.NewModel(d, host, beside.Parts, place)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		equal(t, want, ask(t, r, m.Config.Vocab, 20, 6))
	}
}
