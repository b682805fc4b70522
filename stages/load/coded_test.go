package load_test

import (
	"errors"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

var errRead = errors.New("a bad block")

// blocks is a tensor's values as a code; fails: none can be read.
type blocks struct {
	weights.Tensor
	fails bool
}

func (blocks) Encoding() string         { return "blocks" }
func (b blocks) Blocks() ([]byte, bool) { return b.Data, true }
func (b blocks) Stored() [][]byte       { return b.Tensor.Stored() }
func (b blocks) Floats(dst []float32, firstRow int) error {
	if b.fails {
		return errRead
	}
	return b.Tensor.Floats(dst, firstRow)
}

// TestCodedWeights: loading a model whose projections are encoded, except for the experts of a
// layer, takes as much memory as planned. A code that cannot be read is named.
func TestCodedWeights(t *testing.T) {
	for _, x := range []struct {
		o    load.Options
		part model.Part // types[part] is F32
	}{
		{load.Options{Limits: limits}, model.Attention},
		{load.Options{Limits: limits, Precision: load.Precision{Attention: tensor.INT8.By(64), Head: tensor.INT8.By(64)}}, model.Head},
	} {
		cfg, ws := config(t), set(t)
		fails := ""
		coded := func() *weights.Set {
			var list []weights.Named
			for name, x := range ws.All() {
				if strings.Contains(name, "_proj") && !strings.Contains(name, "layers.1.mlp.experts") || strings.HasPrefix(name, "lm_head") {
					x.Coded, x.DType, x.Data = blocks{x, name == fails}, tensor.F32, nil
				}
				list = append(list, weights.Named{Name: name, Tensor: x})
			}
			return weights.Of(list, nil, nil)
		}
		if types := load.Types(cfg, ws); types != nil {
			t.Errorf("plain numbers have the types %v", types)
		}
		cfg.Types = load.Types(cfg, coded())
		if cfg.Types[x.part] != tensor.F32 || cfg.Types[model.Experts] != tensor.F32 || cfg.Types[model.Embedding] != tensor.BF16 {
			t.Errorf("types %v", cfg.Types)
		}
		needs, err := load.Plan(cfg, x.o, load.Use{})
		if err != nil {
			t.Fatal(err)
		}
		planned := int64(0)
		for _, n := range needs {
			if n.Part.Weight() {
				planned += n.Bytes
			}
		}
		// Experts of layer 1 stay BF16 where each has memory of its own.
		planned -= int64(cfg.MoE.Experts * 3 * cfg.MoE.FF * cfg.Hidden * 2)
		dev := processor(t, 0)
		p, err := load.Model(dev, cfg, coded(), x.o)
		if err != nil {
			t.Fatal(err)
		}
		if !near(planned, p.WeightBytes, 0.01) {
			t.Errorf("%d bytes planned, %d bound", planned, p.WeightBytes)
		}
		p.Close()
		for _, fails = range []string{"model.layers.0.self_attn.o_proj.weight", "model.layers.2.mlp.experts.3.up_proj.weight", "lm_head.weight"} {
			if _, err := load.Model(dev, cfg, coded(), x.o); !errors.Is(err, errRead) || !strings.Contains(err.Error(), fails) {
				t.Errorf("%s fails: %v", fails, err)
			}
		}
		if used := dev.Memory().Used; used != 0 {
			t.Errorf("%d bytes left", used)
		}
	}
}
