package cards

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// secondHalf returns a case of the operators that follow attention in a layer, as one sequence: x += o of
// the heads, norm, router, experts and the shared network, added to x again, and the norm of the next
// layer, unless a product there norms the few rows itself. Only a sequence of kernels shows what one
// kernel costs the next.
func secondHalf(m moe, routed, shared format, t, heads int, p device.Router) *Case {
	hit := float64(m.experts) * (1 - math.Pow(1-float64(m.topK)/float64(m.experts), float64(t))) // about, of random choices
	expert := routed.bytes(2*m.width, m.hidden) + routed.bytes(m.hidden, m.width)
	rest := shared.bytes(m.hidden, heads) + 2*m.hidden*m.experts + t*m.hidden*10
	if m.shared > 0 {
		rest += shared.bytes(2*m.shared, m.hidden) + shared.bytes(m.hidden, m.shared)
	}
	c := &Case{
		Op:    "o+route+mix",
		Shape: fmt.Sprintf("T=%d H=%d E=%d K=%d F=%d+%d", t, m.hidden, m.experts, m.topK, m.width, m.shared),
		DType: routed.String() + ", rest " + shared.String(),
		Bytes: hit*float64(expert) + float64(rest),
		Flops: float64(t*m.hidden) * float64(6*(m.topK*m.width+m.shared)+2*(heads+m.experts)),
		Size:  expert*m.experts + rest,
		Rel:   relFFN, Abs: absFFN,
	}
	if t > ops.NormRows {
		c.Op += "+norm"
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job { return newSecond(d, m, routed, shared, t, heads, p).job() }
	return c
}

// second is the data of a second half.
type second struct {
	*desk
	moe
	p             device.Router
	rows          int
	x, in         data // the residual stream and the heads
	w             weights
	norm, gate    data
	normed, delta data
	next          data // normed for the next layer
	y, z          data
	logits        data
	ids, share    data
	w13, w2       weights
	common        [2]weights // w13 and w2 of the shared network, if there is one
}

func newSecond(d *desk, m moe, routed, shared format, t, heads int, p device.Router) *second {
	s := &second{desk: d, moe: m, p: p, rows: t}
	s.x, s.in, s.w = d.numbers(tensor.F32, t, m.hidden, unit), d.numbers(tensor.BF16, t, heads, unit), d.weights(shared, 1, m.hidden, heads, false)
	s.norm, s.gate = d.numbers(tensor.BF16, 1, m.hidden, unit), d.numbers(tensor.BF16, m.experts, m.hidden, small)
	s.normed, s.delta = d.room(tensor.BF16, t, m.hidden), d.room(tensor.BF16, t, m.hidden)
	if t > ops.NormRows {
		s.next = d.room(tensor.BF16, t, m.hidden)
	}
	s.y, s.z = d.room(tensor.BF16, t*m.topK, m.hidden), d.room(tensor.BF16, t, m.hidden)
	s.logits, s.ids, s.share = d.room(tensor.F32, t, m.experts), d.room(tensor.I32, t, m.topK), d.room(tensor.F32, t, m.topK)
	s.w13, s.w2 = d.weights(routed, m.experts, 2*m.width, m.hidden, !routed.packed.Zero()), d.weights(routed, m.experts, m.hidden, m.width, false)
	if m.shared > 0 {
		s.common = [2]weights{d.weights(shared, 1, 2*m.shared, m.hidden, !shared.packed.Zero()), d.weights(shared, 1, m.hidden, m.shared, false)}
	}
	return s
}

func (s *second) job() *job {
	outs := []data{s.normed, s.logits, s.ids, s.share}
	if s.rows > ops.NormRows {
		outs = append(outs, s.next)
	}
	return &job{run: s.run, outs: outs, check: func(read reader) (list []Sample) {
		for _, row := range s.spread(s.rows, 2) {
			list = append(list, s.check(read, row)...)
		}
		return list
	}}
}

func (s *second) run(b *ops.Builder, i int) {
	bank := launch.Bank{Experts: s.experts, W13: s.w13.of(i), W2: s.w2.of(i),
		Step: s.w13.next, ScaleStep: s.w13.nextScale, Step2: s.w2.next, ScaleStep2: s.w2.nextScale}
	var n ops.Network
	if s.shared > 0 {
		n = ops.Network{W13: s.common[0].of(i), W2: s.common[1].of(i)}
	}
	b.AddMatMul(s.x.of(i), s.delta.of(i), s.in.of(i), s.w.of(i))
	b.NormRoute(s.ids.of(i), s.share.of(i), s.logits.of(i), s.normed.of(i), s.x.of(i), s.norm.of(i), eps, launch.Weight{F: s.gate.of(i)}, launch.Mat{}, s.p)
	b.AddMix(s.x.of(i), s.delta.of(i), s.y.of(i), s.z.of(i), s.normed.of(i), bank, n, s.ids.of(i), s.share.of(i))
	if s.rows > ops.NormRows {
		b.RMSNorm(s.next.of(i), s.x.of(i), s.norm.of(i), eps)
	}
}

// check samples a row: first the product and the norm, then the rest, from the norm that the GPU has.
func (s *second) check(read reader, row int) (list []Sample) {
	sums, hidden, scales := make([]float64, s.hidden), s.x.row(row), s.norm.row(0)
	heads := s.in.row(row)
	parallel(s.hidden, func(i int) {
		v, _ := dot(heads, s.w.row(0, i))
		sums[i] = hidden[i] + v
	})
	squares, _ := dot(sums, sums)
	factor := 1 / math.Sqrt(squares/float64(s.hidden)+eps)
	normed := read(s.normed.RowRange(row, row+1))
	for i, v := range normed {
		list = append(list, Sample{v, sums[i] * factor * scales[i], 1})
	}
	ids, share := read(s.ids.RowRange(row, row+1)), read(s.share.RowRange(row, row+1))
	list = append(list, chosen(normed, &s.gate, s.p, ids, share)...)
	x := read(s.x.RowRange(row, row+1))
	if s.rows > ops.NormRows {
		squares, _ := dot(x, x)
		factor := 1 / math.Sqrt(squares/float64(s.hidden)+eps)
		for i, v := range read(s.next.RowRange(row, row+1)) {
			list = append(list, Sample{v, x[i] * factor * scales[i], 1})
		}
	}
	return append(list, s.checkMix(x, sums, normed, ids, share)...)
}

// checkMix samples x after the experts and the shared network. sums has its values from before.
func (s *second) checkMix(got, sums, normed, ids, share []float64) (list []Sample) {
	var common []float64
	if s.shared > 0 {
		common = hiddenOf(normed, &s.common[0], 0, s.shared)
	}
	var parts [][]float64
	for _, id := range ids {
		if id < 0 || int(id) >= s.experts {
			return []Sample{{id, math.NaN(), 1}}
		}
		parts = append(parts, hiddenOf(normed, &s.w13, int(id), s.width))
	}
	for _, col := range s.spread(s.hidden, 40) {
		want, scale := 0.0, 0.0
		if s.shared > 0 {
			want, scale = dot(common, s.common[1].row(0, col))
			scale *= scale
		}
		for k, h := range parts {
			v, size := dot(h, s.w2.row(int(ids[k]), col))
			want, scale = want+share[k]*v, scale+share[k]*size*share[k]*size
		}
		list = append(list, Sample{got[col], sums[col] + want, 1 + math.Sqrt(scale)})
	}
	return list
}
