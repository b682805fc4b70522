package cache

import (
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

// mixtures is a model of which only the experts are known, in every layer.
func mixtures(layers, hidden, experts, ff int) *model.Config {
	cfg := &model.Config{Hidden: hidden}
	cfg.Stack(layers, model.Usual(), func(int) (model.Mixer, model.FFN) { return nil, model.MoE{Experts: experts, FF: ff} })
	return cfg
}

// TestFingerprintWithoutExperts: a set without any routed expert is told by its
// config; one that lacks some is an error.
func TestFingerprintWithoutExperts(t *testing.T) {
	cfg := mixtures(2, 0, 2, 0)
	set := func(names ...string) *weights.Set {
		var list []weights.Named
		for _, n := range names {
			list = append(list, weights.Named{Name: n, Tensor: weights.Tensor{DType: tensor.BF16, Shape: []int{1}, Data: []byte{1, 2}}})
		}
		return weights.Of(list, nil, nil)
	}
	a, err := FingerprintOf([]byte("seed 1"), cfg, set("model.norm.weight"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := FingerprintOf([]byte("seed 1"), cfg, set()); err != nil || a != b {
		t.Errorf("%s and %s: %v", a, b, err)
	}
	if b, err := FingerprintOf([]byte("seed 2"), cfg, set()); err != nil || a == b {
		t.Errorf("another config has %s too: %v", b, err)
	}
	if _, err := FingerprintOf([]byte("seed 1"), cfg, set(cfg.ExpertNames(1, 1).Up)); err == nil {
		t.Error("one tensor of all experts: no error")
	}
}
