package cards

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// secondHalf is what follows attention in a layer, as one sequence: x += o of the heads,
// norm, router, experts and the shared network, added to x again. What one kernel leaves to
// the next one is seen here alone.
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
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		x, in, w := d.numbers(tensor.F32, t, m.hidden, unit), d.numbers(tensor.BF16, t, heads, unit), d.weights(shared, 1, m.hidden, heads, false)
		norm, gate := d.numbers(tensor.BF16, 1, m.hidden, unit), d.numbers(tensor.BF16, m.experts, m.hidden, small)
		rows, delta := d.room(tensor.BF16, t, m.hidden), d.room(tensor.BF16, t, m.hidden)
		y, z := d.room(tensor.BF16, t*m.topK, m.hidden), d.room(tensor.BF16, t, m.hidden)
		logits, ids, share := d.room(tensor.F32, t, m.experts), d.room(tensor.I32, t, m.topK), d.room(tensor.F32, t, m.topK)
		w13, w2 := d.weights(routed, m.experts, 2*m.width, m.hidden, !routed.packed.Zero()), d.weights(routed, m.experts, m.hidden, m.width, false)
		var s13, s2 weights
		if m.shared > 0 {
			s13, s2 = d.weights(shared, 1, 2*m.shared, m.hidden, !shared.packed.Zero()), d.weights(shared, 1, m.hidden, m.shared, false)
		}
		return &job{
			run: func(b *ops.Builder, i int) {
				bank := launch.Bank{Experts: m.experts, W13: w13.of(i), W2: w2.of(i),
					Step: w13.next, ScaleStep: w13.nextScale, Step2: w2.next, ScaleStep2: w2.nextScale}
				var n ops.Network
				if m.shared > 0 {
					n = ops.Network{W13: s13.of(i), W2: s2.of(i)}
				}
				b.AddMatMul(x.of(i), delta.of(i), in.of(i), w.of(i))
				b.NormRoute(ids.of(i), share.of(i), logits.of(i), rows.of(i), x.of(i), norm.of(i), eps, gate.of(i), launch.Mat{}, p)
				b.AddMix(x.of(i), delta.of(i), y.of(i), z.of(i), rows.of(i), bank, n, ids.of(i), share.of(i))
			},
			outs: []data{rows, logits, ids, share},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 2) {
					// the product and the norm, then all else of the rows that the card has
					sums, hidden, scales := make([]float64, m.hidden), x.row(row), norm.row(0)
					heads := in.row(row)
					parallel(m.hidden, func(i int) {
						v, _ := dot(heads, w.row(0, i))
						sums[i] = hidden[i] + v
					})
					squares, _ := dot(sums, sums)
					factor := 1 / math.Sqrt(squares/float64(m.hidden)+eps)
					normed := read(rows.RowRange(row, row+1))
					for i, v := range normed {
						s = append(s, Sample{v, sums[i] * factor * scales[i], 1})
					}
					s = append(s, chosen(normed, &gate, p, read(ids.RowRange(row, row+1)), read(share.RowRange(row, row+1)))...)
					got, e, factors := read(x.RowRange(row, row+1)), read(ids.RowRange(row, row+1)), read(share.RowRange(row, row+1))
					var common []float64
					if m.shared > 0 {
						common = hiddenOf(normed, &s13, 0, m.shared)
					}
					var parts [][]float64
					for _, id := range e {
						if id < 0 || int(id) >= m.experts {
							return append(s, Sample{id, math.NaN(), 1})
						}
						parts = append(parts, hiddenOf(normed, &w13, int(id), m.width))
					}
					for _, col := range d.spread(m.hidden, 40) {
						want, scale := 0.0, 0.0
						if m.shared > 0 {
							want, scale = dot(common, s2.row(0, col))
							scale *= scale
						}
						for k, h := range parts {
							v, size := dot(h, w2.row(int(e[k]), col))
							want, scale = want+factors[k]*v, scale+factors[k]*size*factors[k]*size
						}
						s = append(s, Sample{got[col], sums[col] + want, 1 + math.Sqrt(scale)})
					}
				}
				return s
			},
		}
	}
	return c
}
