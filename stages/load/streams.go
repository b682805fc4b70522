package load

import (
	"encoding/binary"
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/attention"
	"krater/stages/streams"
)

// block binds what surrounds a block: the norm, or the tensors whose roles begin with prefix.
func (r *roles) block(norm, prefix string) streams.Block {
	b := streams.Block{Streams: r.cfg.Streams, Eps: r.cfg.NormEps}
	if !b.Several() {
		b.Norm = r.Norm(norm)
		return b
	}
	if b.Mixed() {
		b.Norm, b.Fn.F = r.Norm(norm), r.Vector(prefix+"hc_fn")
		b.Base, b.Scale = r.Vector(prefix+"hc_base"), r.Vector(prefix+"hc_scale")
		return b
	}
	b.Norm, b.Up.F = r.Norm(prefix+"hc_norm"), r.Vector(prefix+"hc_up")
	if r.card != nil {
		width := r.cfg.StreamWidth()
		b.Joined.F = r.stacked(r.cfg.Streams.Scratch(r.cfg.Hidden).Joined(), width, r.spec.Name(prefix+"hc_down"), r.spec.Name(prefix+"hc_inject"))
		return b
	}
	b.Down.F, b.Inject.F = r.Vector(prefix+"hc_down"), r.Vector(prefix+"hc_inject")
	return b
}

// end binds what makes the streams the input of the head.
func (b *binder) end() streams.Block {
	list := b.cfg.Outer()
	x := streams.Block{Streams: b.cfg.Streams, Eps: b.cfg.NormEps, Norm: b.norm(list[0].Name, list[0].Shape[0])}
	switch f32 := func(i int) device.Mat { return b.as(b.dev, list[i].Name, tensor.F32) }; {
	case x.Mixed() && !x.MeanEnd:
		x.Fn.F, x.Base, x.Scale = f32(1), f32(2), f32(3)
	case x.Mixed():
	case x.Several():
		x.Down.F, x.Up.F = b.mat(list[1].Name), b.mat(list[2].Name)
	}
	return x
}

// table binds the layer's table of n-grams. The table stays where the file has it, if the device computes in
// memory of the host; an accelerator reads a copy in memory of the host.
func (r *roles) table() *streams.Table {
	g := r.spec.NGrams
	if g == nil {
		return nil
	}
	t := &streams.Table{
		Spec: g, NormKey: r.Norm("ngram_norm_key"), NormQuery: r.Norm("ngram_norm_query"), NormConv: r.Norm("ngram_norm_conv"),
		Conv: r.Made("ngram_conv", g.Taps, g.Width(r.cfg.Hidden), func(v []float32) []float32 { return attention.Transposed(v, g.Taps) }),
	}
	t.Key.F, t.Value.F = r.Vector("ngram_key"), r.Vector("ngram_value")
	names := make([]string, g.Shards)
	for i := range names {
		names[i] = r.spec.TableName(i)
	}
	if a := r.dev.Accelerator(); a != nil {
		t.Shards, t.Words = []device.Mat{r.stackedBy(a.AllocHost, g.Rows, g.Sizes.Dim, names...)}, r.words(g.Sizes.Words())
		return t
	}
	for _, name := range names {
		t.Shards = append(t.Shards, r.mat(name))
	}
	return t
}

// words returns a row of I32 on the device.
func (b *binder) words(list []int32) device.Mat {
	if b.err != nil {
		return device.Mat{}
	}
	data := make([]byte, 0, 4*len(list))
	for _, v := range list {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	buf, err := b.dev.Wrap(data)
	if err != nil {
		b.err = fmt.Errorf("load: sizes of a table: %w", err)
		return device.Mat{}
	}
	b.parts.bufs = append(b.parts.bufs, buf)
	return device.NewMat(buf, tensor.I32, 1, len(list))
}
