// Package cache keeps the integer weights of a model in files: made once, mapped or
// copied at every later start.
//
// The routed experts have a file for each format and kind of device that they are wanted in,
// built layer by layer before the model is loaded (Open, Build):
// "experts_{cpu,gpu}_{format}.bin". Little endian:
//
//	header  a multiple of 4096 bytes: see header.go
//	layer   one for every layer with experts, in order: an expert after the other
//	expert  at a multiple of 4096 bytes, so that experts can be placed on NUMA
//	        nodes, none shares a page with another, and one copy brings a whole
//	        expert to a GPU. W13 (gate rows, then up rows; for a GPU they are
//	        joined): values, scales; then W2: values, scales; each at a multiple
//	        of 64 bytes
//
// All other matrices that are kept as integers share one file, filled while the
// model is loaded for the first time (OpenMatrices; its layout: index.go).
//
// All filling bytes are zero and covered by the checksums: a file has no byte
// that may change unnoticed.
package cache

import (
	"fmt"
	"math"

	"krater/kernels/tensor"
	"krater/stages/model"
)

const (
	page = 4096
	line = 64
)

// Method is how the integers were found, by rising quality. A file made by a
// better method than asked for is as welcome.
type Method uint8

const (
	Absmax   Method = 1 + iota // plain rounding
	Search                     // scales of least squared error
	Weighted                   // the same, weighted by what the inputs were on a text
	Feedback                   // calibrated error feedback
)

var methods = [...]string{Absmax: "absmax", Search: "search", Weighted: "weighted", Feedback: "feedback"}

func (m Method) String() string {
	if int(m) < len(methods) && methods[m] != "" {
		return methods[m]
	}
	return fmt.Sprintf("Method(%d)", uint8(m))
}

// Plan describes the contents that a file of experts must have.
type Plan struct {
	For     tensor.Kind // of device
	Format  tensor.Format
	Layers  []int // the layers with experts, rising
	Experts int   // of each layer
	Hidden  int
	FF      int // columns of W2; W13 has twice as many rows
	Method  Method
	Source  Fingerprint

	first bool // the plan of a file of version 1
}

// NewPlan returns the plan for a model's experts.
func NewPlan(cfg *model.Config, f tensor.Format, method Method, source Fingerprint) (Plan, error) {
	p := Plan{Experts: cfg.MoE.Experts, Hidden: cfg.Hidden, FF: cfg.MoE.FF, Format: f, Method: method, Source: source}
	for i := range cfg.Layers {
		if cfg.MoELayer(i) {
			p.Layers = append(p.Layers, i)
		}
	}
	_, err := p.layout()
	return p, err
}

// Limits of a plan. They are far above any model and keep the arithmetic of a
// foreign header within 63 bits.
const (
	maxLayers  = 1 << 12
	maxExperts = 1 << 16
	maxWidth   = 1 << 20
	maxBytes   = 1 << 50
)

// expert is where the four parts of an expert lie, in bytes from its start.
type expert struct {
	w13, w2                                  tensor.Layout
	w13Values, w13Scales, w2Values, w2Scales int
	size                                     int // a multiple of 4096
}

// place sets where the parts lie.
func (x *expert) place() {
	x.w13Scales = round(x.w13.ValueBytes(), line)
	x.w2Values = round(x.w13Scales+x.w13.ScaleBytes(), line)
	x.w2Scales = round(x.w2Values+x.w2.ValueBytes(), line)
	x.size = round(x.w2Scales+x.w2.ScaleBytes(), page)
}

// layout is where everything lies, in bytes.
type layout struct {
	expert
	header int64
	layer  int64
	file   int64
}

func round(n, to int) int { return (n + to - 1) / to * to }

// layout checks a plan and gives its arithmetic.
func (p *Plan) layout() (layout, error) {
	var l layout
	switch {
	case len(p.Layers) < 1 || len(p.Layers) > maxLayers:
		return l, fmt.Errorf("%w: %d layers with experts", ErrShape, len(p.Layers))
	case p.Experts < 1 || p.Experts > maxExperts:
		return l, fmt.Errorf("%w: %d experts", ErrShape, p.Experts)
	case p.Hidden < 1 || p.Hidden > maxWidth:
		return l, fmt.Errorf("%w: hidden_size %d", ErrShape, p.Hidden)
	case p.FF < 1 || p.FF > maxWidth || p.FF%tensor.TileRows != 0:
		return l, fmt.Errorf("%w: moe_intermediate_size %d, want a multiple of %d", ErrShape, p.FF, tensor.TileRows)
	case p.Method < Absmax || p.Method > Feedback:
		return l, fmt.Errorf("%w: %s", ErrShape, p.Method)
	}
	for i, n := range p.Layers {
		if n < 0 || n > math.MaxInt32 || i > 0 && n <= p.Layers[i-1] {
			return l, fmt.Errorf("%w: layers %.80v", ErrShape, fmt.Sprint(p.Layers))
		}
	}
	var err error
	if l.w13, l.w2, err = p.Format.Network(p.For, p.Hidden, p.FF); err != nil {
		return l, fmt.Errorf("%w: %w", ErrShape, err)
	}
	l.place()
	if float64(l.size)*float64(p.Experts)*float64(len(p.Layers)) > maxBytes {
		return l, fmt.Errorf("%w: over %d bytes", ErrShape, int64(maxBytes))
	}
	l.header = int64(round(p.fields().fixed+headerLayer*len(p.Layers), page))
	l.layer = int64(l.size) * int64(p.Experts)
	l.file = l.header + l.layer*int64(len(p.Layers))
	return l, nil
}

// at is where layer i (counted among those with experts) starts in the file.
func (l *layout) at(i int) int64 { return l.header + int64(i)*l.layer }

// Bytes returns the size of the file.
func (p *Plan) Bytes() (int64, error) {
	l, err := p.layout()
	return l.file, err
}

// FileName returns the name of the plan's file in its folder.
func (p *Plan) FileName() string { return fmt.Sprintf("experts_%s_%s.bin", p.For, p.Format) }

// fileNames are all names that the plan's file may have: files of version 1 have their bits in
// place of the format.
func (p *Plan) fileNames() []string {
	names := []string{p.FileName()}
	if e := p.Format.Encoding; e == tensor.INT4 || e == tensor.INT8 {
		group := "channel"
		if p.Format.Group != 0 {
			group = fmt.Sprintf("g%d", p.Format.Group)
		}
		names = append(names, fmt.Sprintf("experts_%s_%d_%s.bin", p.For, e.Bits(), group))
	}
	return names
}
