package ops

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/streams"
	"krater/kernels/device"
)

// Sigmoid computes x = p.Out * f(p.In * x) and, unless it is absent, more by q.
func (b *Builder) Sigmoid(x launch.Mat, p device.Sigmoid, more launch.Mat, q device.Sigmoid) {
	streams.Sigmoid(b.List, x, p, more, q)
}

// Collapse computes out = the sum of the streams of x, weighed by weights.
func (b *Builder) Collapse(out, x, weights launch.Mat) { streams.Collapse(b.List, out, x, weights) }

// Spread computes out = x times weights for each stream, plus base.
func (b *Builder) Spread(out, x, weights, base launch.Mat) {
	streams.Spread(b.List, out, x, weights, base)
}

// StreamNorms computes the norms of n streams of x, by their parts of w. With y the streams grow by y times weights before.
func (b *Builder) StreamNorms(out, x, w launch.Mat, n int, eps float32, y, weights launch.Mat) {
	streams.Norms(b.List, out, x, w, n, eps, y, weights)
}

// StreamGates computes the signed roots of products of streams.
func (b *Builder) StreamGates(out, x, y launch.Mat) { streams.Gates(b.List, out, x, y) }

// MixLow computes out = x * w^T; then the columns of low by p, and those of more, unless it is absent, by q. Both are columns of out,
// more those behind low.
func (b *Builder) MixLow(out, x launch.Mat, w launch.Weight, low launch.Mat, p device.Sigmoid, more launch.Mat, q device.Sigmoid) {
	if b.fewStreams() && streams.CanMixLow(out, x, &w) {
		streams.MixLow(b.List, out, x, w, low.Cols, p, q)
		return
	}
	b.MatMul(out, x, w)
	b.Sigmoid(low, p, more, q)
}

// MixIn computes out = the sum of the streams of x, weighed by p of low * w^T. weights is room for these products.
func (b *Builder) MixIn(out, x, weights, low launch.Mat, w launch.Weight, p device.Sigmoid) {
	if b.fewStreams() && streams.CanMixIn(out, x, low, &w) {
		streams.MixIn(b.List, out, x, low, w, p)
		return
	}
	b.MatMul(weights, low, w)
	streams.CollapseBy(b.List, out, x, weights, p)
}

// fewStreams reports whether the number of rows may choose kernels whose sums have another order.
func (b *Builder) fewStreams() bool { return !b.Plain && !b.Invariant }

// NGrams copies rows of a table for the spans of list, whose table is at spans.
func (b *Builder) NGrams(out, rows, ids, from, words launch.Mat, tail launch.KV, list []device.Span, spans launch.Mat, decode bool, p *device.NGrams) {
	streams.NGrams(b.List, out, rows, ids, from, words, tail.Mat, list, spans, decode, p)
}

// TapConv computes the convolution over what a table of n-grams gives, for the spans of list, whose table is at spans.
func (b *Builder) TapConv(out, x, w launch.Mat, tail launch.KV, list []device.Span, spans launch.Mat, decode bool, p device.TapConv) {
	streams.TapConv(b.List, out, x, w, tail.Mat, list, spans, decode, p)
}
