package attention

import (
	"math"
	"strings"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = Register(func(m model.DeltaNet, b Binder) Block {
	p := m.Sizes
	same := func(v []float32) []float32 { return v }
	w := &deltaBlock{
		spec: m, norm: b.Vector("delta_norm"), o: b.Weight("o"), bias: b.Made("dt_bias", 1, p.ValueHeads, same),
		conv: b.Made("conv", p.Taps, p.Channels(), func(v []float32) []float32 { return Transposed(v, p.Taps) }),
		decay: b.Made("a_log", 1, p.ValueHeads, func(v []float32) []float32 {
			for i, x := range v {
				v[i] = float32(-math.Exp(float64(x)))
			}
			return v
		}),
	}
	w.in = joined(b, m.Projections())
	for i := range w.in {
		w.read = append(w.read, &w.in[i].Weight)
	}
	return w
})

// projected is a weight whose products are the next cols columns of a row.
type projected struct {
	device.Weight
	cols int
}

// joined binds projections as the fewest weights: all as one, or those of each part as one, or each.
func joined(b Binder, list []model.Projection) (out []projected) {
	if len(list) == 1 {
		return []projected{{b.Weight(list[0].Role), list[0].Rows}}
	}
	roles, cols, first := make([]string, len(list)), 0, 0
	for i, x := range list {
		roles[i] = x.Role
		cols += x.Rows
		if x.Part == list[0].Part {
			first = i + 1
		}
	}
	if w, ok := b.Joint(strings.Join(roles, ""), roles...); ok {
		return []projected{{w, cols}}
	}
	if first == len(list) {
		first = 1
	}
	return append(joined(b, list[:first]), joined(b, list[first:])...)
}

// Transposed is v [n, width] as [width, n].
func Transposed(v []float32, width int) []float32 {
	out, n := make([]float32, len(v)), len(v)/width
	for i, x := range v {
		out[i%width*n+i/width] = x
	}
	return out
}

// deltaBlock is the weights of a layer with gated DeltaNet.
type deltaBlock struct {
	spec        model.DeltaNet
	in          []projected      // [width + 2*value heads, H] in all
	read        []*device.Weight // those of in
	o           device.Weight    // [H, values]
	conv        device.Mat       // [taps, channels] F32
	decay, bias device.Mat       // [1, value heads] F32: -exp(A_log), dt_bias
	norm        device.Mat       // [1, value dim]
}

// deltaNet runs gated DeltaNet (model.DeltaNet).
type deltaNet struct {
	sizes device.DeltaNet
	both  device.Mat   // [tokens, width + 2*value heads]: the projections
	conv  device.Mat   // [tokens, channels]
	out   stages.Input // [tokens, values]
	owned scratch
}

// New implements Block.
func (w *deltaBlock) New(dev device.Device, lim stages.Limits, _ Tables) (Stage, error) {
	p, d, out := w.spec.Sizes, &deltaNet{sizes: w.spec.Sizes}, device.Mat{}
	err := d.owned.alloc(dev, lim.LayerRows(), []piece{{&d.both, p.Width() + 2*p.ValueHeads}, {&d.conv, p.Channels()}, {&out, p.Values()}})
	if err != nil {
		return nil, err
	}
	d.out, err = d.owned.room(dev, out, &w.o)
	return d, err
}

// Close frees the scratch memory.
func (d *deltaNet) Close() { d.owned.free() }

// Run implements Stage. kept are the newest inputs of the convolution and the states of the heads.
func (d *deltaNet) Run(p *stages.Program, st *stages.State, b Block, kept []device.KV, layer int) {
	w, width := b.(*deltaBlock), d.sizes.Width()
	both, conv, out := d.both.RowRange(0, st.T), d.conv.RowRange(0, st.T), d.out.RowRange(st.T)
	in, ba := both.ColRange(0, width), both.ColRange(width, both.Cols)
	st.Input.Prepare(&p.List, w.read...)
	at := 0
	for i, x := range w.read {
		cols := w.in[i].cols
		st.Input.Mul(&p.List, both.ColRange(at, at+cols), x)
		at += cols
	}
	w.observe(p, both, layer)
	spans := [...]device.Spans{st.DecodeSpans(), st.PrefillSpans()}
	for _, x := range spans {
		if len(x.List) > 0 {
			p.Conv(conv, in, w.conv, kept[0], x, &d.sizes)
		}
	}
	p.Observe(layer, "delta_conv", conv)
	for _, x := range spans {
		if len(x.List) > 0 {
			p.Delta(out.X, conv, ba, w.decay, w.bias, kept[1], x, &d.sizes)
		}
	}
	p.Observe(layer, "delta_out", out.X)
	p.GatedNorm(out.X, in, w.norm, w.spec.NormEps, &d.sizes)
	p.Observe(layer, "attn", out.X)
	out.Prepare(&p.List, &w.o)
	out.Mul(&p.List, st.Delta, &w.o)
}

// observe tells what each projection of the files gives.
func (w *deltaBlock) observe(p *stages.Program, both device.Mat, layer int) {
	if !p.Probed() {
		return
	}
	at := 0
	for _, x := range w.spec.Projections() {
		p.Observe(layer, "in_proj_"+x.Role, both.ColRange(at, at+x.Rows))
		at += x.Rows
	}
}
