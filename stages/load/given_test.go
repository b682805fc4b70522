package load_test

import (
	"errors"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

// without is a set without the tensors whose names contain part.
func without(ws *weights.Set, part string) *weights.Set {
	var list []weights.Named
	for name, t := range ws.All() {
		if !strings.Contains(name, part) {
			list = append(list, weights.Named{Name: name, Tensor: t})
		}
	}
	return weights.Of(list, nil, nil)
}

// TestGivenExperts: experts that come as integers need not be in the files; all
// else does.
func TestGivenExperts(t *testing.T) {
	cfg, ws := config(t), set(t)
	asked := 0
	o := load.Options{Limits: limits, Precision: load.Precision{Experts: tensor.INT8.By(32)}}
	f8 := func(rows, cols int) device.QMat {
		q := device.QMat{}
		q.Rows, q.Cols, q.Format = rows, cols, tensor.INT8.By(32)
		return q
	}
	o.Experts = func(int) []device.QExpert {
		asked++
		list := make([]device.QExpert, cfg.MoE.Experts)
		for i := range list {
			list[i] = device.QExpert{W13: f8(2*cfg.MoE.FF, cfg.Hidden), W2: f8(cfg.Hidden, cfg.MoE.FF)}
		}
		return list
	}
	p, err := load.Model(processor(t, 0), cfg, without(ws, ".mlp.experts."), o)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if asked != 2 {
		t.Errorf("%d layers asked for their experts", asked)
	}
	if _, err := load.Model(processor(t, 0), cfg, without(ws, ".mlp."), o); !errors.Is(err, model.ErrTensorMissing) || !strings.Contains(err.Error(), "mlp.gate.weight") {
		t.Errorf("no router: got %v", err)
	}
	o.Precision = load.Precision{}
	if _, err := load.Model(processor(t, 0), cfg, without(ws, ".mlp.experts."), o); !errors.Is(err, model.ErrTensorMissing) || !strings.Contains(err.Error(), "mlp.experts.0") {
		t.Errorf("no experts at all: got %v", err)
	}
}

// TestIntegers: which tensors a precision turns into integers.
func TestIntegers(t *testing.T) {
	cfg := config(t)
	for _, x := range []struct {
		p    load.Precision
		part string
	}{
		{load.Precision{}, ""},
		{load.Precision{Attention: tensor.INT8.By(0)}, "_proj"},
		{load.Precision{KVB: tensor.INT8.By(0)}, ".kv_b_proj."},
		{load.Precision{Experts: tensor.INT4.By(0)}, ".mlp.experts."},
		{load.Precision{Shared: tensor.INT4.By(0)}, ".shared_experts."},
		{load.Precision{Head: tensor.INT4.By(0)}, "lm_head"},
	} {
		for _, s := range cfg.Expected() {
			want := x.part != "" && strings.Contains(s.Name, x.part)
			if !x.p.Attention.Zero() {
				want = want && strings.Contains(s.Name, ".self_attn.") && !strings.Contains(s.Name, "kv_b")
			}
			if got := x.p.Integers(s); got != want {
				t.Errorf("%+v: %s: %v", x.p, s.Name, got)
			}
		}
	}
}

// TestKey: the names of files that were made when a precision had bits and one group stay.
func TestKey(t *testing.T) {
	for want, p := range map[string]load.Precision{
		"{Experts:0 Attention:8 KVB:0 Shared:4 Dense:8 Head:8 tiles:false Group:128}": {
			Attention: tensor.INT8.By(128), Shared: tensor.INT4.By(128), Dense: tensor.INT8.By(128), Head: tensor.INT8.By(128),
		},
		"{Experts:0 Attention:0 KVB:4 Shared:0 Dense:0 Head:0 tiles:false Group:0}":     {KVB: tensor.INT4.By(0)},
		"{Experts:0 Attention:0 KVB:0 Shared:0 Dense:0 Head:q8_0 tiles:false Group:32}": {Head: tensor.Q8_0.By(32)},
	} {
		if got := p.Key(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestOneGroup: parts with groups of their own are refused on a processor, and on an accelerator
// an encoding without kernels there.
func TestOneGroup(t *testing.T) {
	cfg := config(t)
	o := load.Options{Limits: limits, Precision: load.Precision{Attention: tensor.Q8_0.By(32), Head: tensor.INT8.By(128)}}
	if _, err := o.LimitsFor(cfg); err == nil || !strings.Contains(err.Error(), "lm_head as int8_g128 beside q8_0") {
		t.Errorf("got %v", err)
	}
	o.Layout = struct{ device.Layout }{} // asked for nothing
	if _, err := o.LimitsFor(cfg); err == nil || !strings.Contains(err.Error(), "attention as q8_0: a GPU multiplies only routed experts") {
		t.Errorf("on a GPU: got %v", err)
	}
}
