package model

import (
	"fmt"
	"slices"
)

// TensorSpec is a tensor the model needs.
type TensorSpec struct {
	Name  string
	Shape []int
}

// Expected lists every tensor of the model in the order of use.
func (c *Config) Expected() []TensorSpec {
	top := c.Names()
	specs := make([]TensorSpec, 0, 3+c.Layers*(12+3*c.MoE.Experts))
	specs = append(specs, TensorSpec{top.Embed, []int{c.Vocab, c.Hidden}})
	for i := range c.Layers {
		specs = c.appendLayer(specs, i)
	}
	specs = append(specs, TensorSpec{top.Norm, []int{c.Hidden}})
	if !c.TieEmbed {
		specs = append(specs, TensorSpec{top.Head, []int{c.Vocab, c.Hidden}})
	}
	return specs
}

func (c *Config) appendLayer(specs []TensorSpec, i int) []TensorSpec {
	n, a, h := c.LayerNames(i), c.Attention, c.Hidden
	add := func(name string, shape ...int) {
		if name != "" {
			specs = append(specs, TensorSpec{name, shape})
		}
	}
	ffn := func(n FFNNames, width int) {
		add(n.Gate, width, h)
		add(n.Up, width, h)
		add(n.Down, h, width)
	}
	add(n.InputNorm, h)
	add(n.Q, a.Heads*a.QKDim(), h)
	add(n.QBias, a.Heads*a.HeadDim)
	add(n.K, a.KVHeads*a.HeadDim, h)
	add(n.KBias, a.KVHeads*a.HeadDim)
	add(n.V, a.KVHeads*a.HeadDim, h)
	add(n.VBias, a.KVHeads*a.HeadDim)
	add(n.QA, a.QRank, h)
	add(n.QANorm, a.QRank)
	add(n.QB, a.Heads*a.QKDim(), a.QRank)
	add(n.KVA, a.KVWidth(), h)
	add(n.KVNorm, a.KVRank)
	add(n.KVB, a.Heads*(a.Nope+a.VDim), a.KVRank)
	add(n.O, h, a.OutDim())
	add(n.PostNorm, h)
	ffn(n.Dense, c.DenseFF)
	if c.MoELayer(i) {
		add(n.Router, c.MoE.Experts, h)
		for e := range c.MoE.Experts {
			ffn(c.ExpertNames(i, e), c.MoE.FF)
		}
		ffn(n.Shared, c.MoE.Shared*c.MoE.FF)
	}
	return specs
}

// CheckTensors compares what the weight files hold with what the model needs.
// names are all tensors of the files, shape gives the shape of one. Every
// missing tensor, wrong shape and stray tensor is named, up to a bound.
func (c *Config) CheckTensors(names []string, shape func(name string) []int) error {
	have := make(map[string]bool, len(names))
	for _, n := range names {
		have[n] = true
	}
	var errs []error
	more := 0
	note := func(err error, format string, args ...any) {
		if len(errs) == maxErrors {
			more++
			return
		}
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{err}, args...)...))
	}
	for _, want := range c.Expected() {
		if !have[want.Name] {
			note(ErrTensorMissing, "%s %v", want.Name, want.Shape)
			continue
		}
		delete(have, want.Name)
		if got := shape(want.Name); !slices.Equal(got, want.Shape) {
			note(ErrTensorShape, "%s is %v, the config implies %v", want.Name, got, want.Shape)
		}
	}
	for _, n := range names { // in the files' order, so that the message is stable
		if have[n] && !c.ignored(n) {
			note(ErrTensorStray, "%s", clip(n))
		}
	}
	return joinErrors(errs, more)
}
