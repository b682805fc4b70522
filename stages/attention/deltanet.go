package attention

import (
	"math"
	"slices"
	"strings"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/model"
)

var _ = Register(func(m model.DeltaNet, b Binder) Block {
	p, taps := m.Sizes, []string(nil)
	for _, x := range m.Convolutions() {
		taps = append(taps, x.Role)
	}
	same := func(v []float32) []float32 { return v }
	w := &deltaBlock{
		spec: m, norm: b.Vector("delta_norm"), o: b.Weight("o"), bias: b.Made("dt_bias", 1, p.ValueHeads*p.Rates(), same),
		conv: b.Made(taps[0], p.Taps, p.Channels(), func(v []float32) []float32 { return Transposed(v, p.Taps) }, taps[1:]...),
		decay: b.Made("a_log", 1, p.ValueHeads, func(v []float32) []float32 {
			for i, x := range v {
				v[i] = float32(-math.Exp(float64(x)))
			}
			return v
		}),
	}
	w.in = projections(b, m.Projections())
	for i := range w.in {
		if x := &w.in[i]; x.low.Zero() {
			w.read = append(w.read, &x.Weight)
		} else {
			w.read = append(w.read, &x.low)
		}
	}
	return w
})

// projected is a weight whose products are the next cols columns of a row. With low it multiplies the product with low.
type projected struct {
	device.Weight
	cols int
	low  device.Weight
}

// projections binds projections; those that follow each other are joined where they can be, but for those with a matrix before them.
func projections(b Binder, list []model.Projection) (out []projected) {
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(x model.Projection) bool { return x.Low > 0 })
		switch n {
		case 0:
			x := list[0]
			out, list = append(out, projected{b.Weight(x.Role), x.Rows, b.Weight(x.LowRole())}), list[1:]
			continue
		case -1:
			n = len(list)
		}
		out, list = append(out, joined(b, list[:n])...), list[n:]
	}
	return out
}

// joined binds projections as the fewest weights: all as one, or those of each part as one, or each.
func joined(b Binder, list []model.Projection) (out []projected) {
	if len(list) == 1 {
		return []projected{{Weight: b.Weight(list[0].Role), cols: list[0].Rows}}
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
		return []projected{{Weight: w, cols: cols}}
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
	in          []projected      // [width + numbers, H] in all
	read        []*device.Weight // those of in that read a layer's input
	o           device.Weight    // [H, values]
	conv        device.Mat       // [taps, channels] F32
	decay, bias device.Mat       // -exp(A_log) [1, value heads] and dt_bias [1, value heads * rates] F32
	norm        device.Mat       // [1, value dim]
}

// deltaNet runs gated DeltaNet (model.DeltaNet).
type deltaNet struct {
	sizes device.DeltaNet
	both  device.Mat   // [tokens, width + numbers]: the projections
	low   device.Mat   // [tokens, key dim of each], of those with a matrix before them; absent without
	conv  device.Mat   // [tokens, channels]
	out   stages.Input // [tokens, values]
	owned scratch
}

// New implements Block.
func (w *deltaBlock) New(dev device.Device, lim stages.Limits, _ Tables) (Stage, error) {
	p, d, out := w.spec.Sizes, &deltaNet{sizes: w.spec.Sizes}, device.Mat{}
	low := 0
	for i := range w.in {
		if !w.in[i].low.Zero() {
			low += p.KeyDim
		}
	}
	err := d.owned.alloc(dev, lim.LayerRows(), []piece{{&d.both, p.Width() + p.Numbers()}, {&d.low, low}, {&d.conv, p.Channels()}, {&out, p.Values()}})
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
	// All that reads the layer's input, then what reads the products of matrices before: a device may compute products that
	// follow each other as one.
	for _, second := range [...]bool{false, true} {
		at, low := 0, d.low.RowRange(0, st.T)
		for i := range w.in {
			x := &w.in[i]
			to := both.ColRange(at, at+x.cols)
			at += x.cols
			if x.low.Zero() {
				if !second {
					st.Input.Mul(&p.List, to, &x.Weight)
				}
				continue
			}
			mine := low.ColRange(0, d.sizes.KeyDim)
			low = low.ColRange(d.sizes.KeyDim, low.Cols)
			if second {
				p.MatMul(to, mine, device.QRows{}, &x.Weight)
			} else {
				st.Input.Mul(&p.List, mine, &x.low)
			}
		}
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
	if w.spec.KDA() { // whose channels are joined here
		p.Observe(layer, "in_proj_qkv", both.ColRange(0, w.spec.Sizes.Channels()))
	}
}
