package model

import (
	"fmt"
	"slices"
)

// Expected lists every tensor of the model in the order of use.
func (c *Config) Expected() []TensorSpec {
	top := c.Names()
	specs := []TensorSpec{{Name: top.Embed, Shape: []int{c.Vocab, c.Hidden}, Role: "embed", Part: Embedding}}
	if c.Joined {
		specs = append(specs, c.joinTensors()...)
	}
	specs = append(specs, c.perLayer()...)
	for i := range c.Layers {
		specs = append(specs, c.Layers[i].Tensors(c.Hidden)...)
	}
	specs = append(specs, c.Outer()...)
	if !c.TieEmbed {
		specs = append(specs, TensorSpec{Name: top.Head, Shape: []int{c.Vocab, c.Hidden}, Role: "head", Part: Head})
	}
	for i := range specs {
		specs[i].F32 = specs[i].F32 || specs[i].Norm && c.CentredNorms
	}
	return specs
}

// perLayer lists the tensors outside the layers that make the rows for single layers.
func (c *Config) perLayer() []TensorSpec {
	if c.PerLayer == 0 {
		return nil
	}
	top, all := c.Names(), len(c.Layers)*c.PerLayer
	return []TensorSpec{
		{Name: top.PerLayer, Shape: []int{c.Vocab, all}, Role: "per_layer_embed", Part: Embedding},
		{Name: top.PerLayerProj, Shape: []int{all, c.Hidden}, Role: "per_layer_model_proj", Part: Embedding},
		{Name: top.PerLayerNorm, Shape: []int{c.PerLayer}, Role: "per_layer_model_norm", Part: Embedding, Norm: true},
	}
}

// CheckTensors compares the tensors of the weight files with those that the
// model needs. names lists all tensors of the files, and shape returns the shape
// of one. The error names every missing tensor, wrong shape and stray tensor, up
// to a bound.
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
