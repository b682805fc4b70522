package synth

import (
	"fmt"
	"math"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/weights/cache"
)

// expert is the recipes of one routed expert and where its parts lie in memory, each
// at a multiple of 64 bytes, experts at multiples of a page.
type expert struct {
	w13, w2                                  integers
	w13Values, w13Scales, w2Values, w2Scales int
	size                                     int
}

const page = 4096

// expert finds the recipe of an expert in a format.
func (m *Model) expert(layer, e int, f tensor.Format) (expert, error) {
	h, ff := m.Config.Hidden, m.Config.MoE.FF
	w13, w2, err := f.Network(tensor.CPU, h, ff)
	if err != nil {
		return expert{}, err
	}
	name := fmt.Sprintf("experts.%d.%d", layer, e)
	x := expert{
		w13: m.integers(name+".w13", w13, 1/math.Sqrt(float64(h))),
		w2:  m.integers(name+".w2", w2, m.outGain()/math.Sqrt(float64(ff))),
	}
	x.w13Scales = round(w13.ValueBytes(), line)
	x.w2Values = round(x.w13Scales+w13.ScaleBytes(), line)
	x.w2Scales = round(x.w2Values+w2.ValueBytes(), line)
	x.size = round(x.w2Scales+w2.ScaleBytes(), page)
	return x, nil
}

func round(n, to int) int { return (n + to - 1) / to * to }

// fill writes the expert at b.
func (x *expert) fill(b []byte) {
	x.w13.fill(b[x.w13Values:], b[x.w13Scales:], 1)
	x.w2.fill(b[x.w2Values:], b[x.w2Scales:], 1)
}

// view returns the expert at a place of a buffer.
func (x *expert) view(buf device.Buffer, at int) device.QExpert {
	mat := func(f tensor.Layout, values, scales int) device.QMat {
		return device.QMat{Layout: f, Values: buf, ValueAt: at + values, Scales: buf, ScaleAt: at + scales}
	}
	return device.QExpert{W13: mat(x.w13.Layout, x.w13Values, x.w13Scales), W2: mat(x.w2.Layout, x.w2Values, x.w2Scales)}
}

// Experts is the packed experts of a model, a cache.Source and cache.Packer of
// the same. One goroutine at a time.
type Experts struct {
	Model   *Model
	Format  tensor.Format
	Threads int // 0: all cores

	packed []byte
}

// Expert returns W13 [2F, H] and W2 [H, F].
func (s *Experts) Expert(layer, e int) (w13, w2 *tensor.Matrix, err error) {
	x, err := s.Model.expert(layer, e, s.Format)
	if err != nil {
		return nil, nil, err
	}
	if s.packed == nil {
		s.packed = make([]byte, x.size)
	}
	return x.w13.matrix(s.packed, s.Threads), x.w2.matrix(s.packed, s.Threads), nil
}

// Pack writes them packed.
func (s *Experts) Pack(layer, e int, w13, w2 cache.Packed) error {
	x, err := s.Model.expert(layer, e, s.Format)
	if err != nil {
		return err
	}
	if x.w13.Layout != w13.Layout || x.w2.Layout != w2.Layout {
		return fmt.Errorf("synth: experts of %s and %s, asked for %s and %s", x.w13.Layout, x.w2.Layout, w13.Layout, w2.Layout)
	}
	x.w13.fill(w13.Values, w13.Scales, s.Threads)
	x.w2.fill(w2.Values, w2.Scales, s.Threads)
	return nil
}
