package direct_test

import (
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/oracle"
	"krater/stages/route"
)

// TestCounter holds the counts of a probe against the choices that the oracle makes in
// float64: of the trained model on a text, of models of the goldens on any ids.
func TestCounter(t *testing.T) {
	text := heldout(t)[:160]
	if raceEnabled {
		text = text[:40]
	}
	any := make([]int32, 40)
	for i := range any {
		any[i] = int32(7 + 11*i)
	}
	for dir, ids := range map[string][]int32{
		tiny: text, folder("deepseek_v2_lite"): any, folder("deepseek_v2"): any,
	} {
		lim := stages.Limits{Tokens: 64, Seqs: 1, Blocks: 16, BlockTokens: 16}
		m := open(t, processor(t, 2), dir, "config.json", load.Options{Limits: lim, KVType: tensor.F32})
		chosen, err := oracle.Choices(m.cfg, compare.Weights(m.set), ids)
		if err != nil {
			t.Fatal(err)
		}
		c := route.NewCounter(len(m.cfg.Layers), m.cfg.MoE.Experts)
		if err := drive.Run(m.model, []*drive.Sequence{{Prompt: ids}}, drive.Options{Chunk: 37, Probe: c}); err != nil || c.Err != nil {
			t.Fatal(err, c.Err)
		}
		for l := range m.cfg.Layers {
			want, tokens := make([]uint64, m.cfg.MoE.Experts), uint64(0)
			for _, list := range chosen[l] {
				tokens++
				for _, e := range list {
					want[e]++
				}
			}
			if moe := tokens == uint64(len(ids)); moe != m.cfg.MoELayer(l) {
				t.Errorf("%s: the oracle routed %d tokens in layer %d", dir, tokens, l)
			}
			if c.Tokens[l] != tokens || !slices.Equal(c.Counts[l], want) {
				t.Errorf("%s, layer %d: %d tokens %v, want %d %v", dir, l, c.Tokens[l], c.Counts[l], tokens, want)
			}
		}
	}
}

// TestCounterFaults: ids that no router gives end the count and are told.
func TestCounterFaults(t *testing.T) {
	dev := processor(t, 1)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		dt tensor.DType
		id int32
	}{"an expert too far": {tensor.I32, 4}, "a negative one": {tensor.I32, -1}, "no ids": {tensor.F32, 0}} {
		m, err := device.AllocMat(dev, x.dt, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if x.dt == tensor.I32 {
			m.I32s()[0] = x.id
		}
		c := route.NewCounter(1, 4)
		c.Observe(s, 0, "router_logits", m, nil)
		if c.Err != nil || c.Tokens[0] != 0 {
			t.Errorf("%s: another operator was counted", name)
		}
		c.Observe(s, 0, "router_ids", m, nil)
		if c.Err == nil {
			t.Errorf("%s was counted", name)
		}
		m.Buf.Free()
	}
}
