package cards

import (
	"fmt"
	"math"
	"slices"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

const eps = 1e-6

// addNorm builds x += delta; out = RMSNorm(x). x is F32, the rest BF16.
func addNorm(t, n int) *Case {
	c := &Case{
		Op:    "add+norm",
		Shape: fmt.Sprintf("T=%d H=%d", t, n),
		DType: "F32 + BF16",
		Bytes: float64(t * n * (4 + 4 + 2 + 2)),
		Rel:   relBF16, Abs: 1e-3,
	}
	c.Rotate = t * n * 8
	c.build = func(d *desk) *job {
		x, delta, out := d.numbers(tensor.F32, t, n, unit), d.numbers(tensor.BF16, t, n, unit), d.room(tensor.BF16, t, n)
		w := d.numbers(tensor.BF16, 1, n, unit)
		return &job{
			run:  func(b *ops.Builder, i int) { b.AddRMSNorm(out.of(i), x.of(i), delta.of(i), w.of(i), eps) },
			outs: []data{out},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					sum := 0.0
					for i := range n {
						v := x.get(row, i) + delta.get(row, i)
						sum += v * v
					}
					norm := 1 / math.Sqrt(sum/float64(n)+eps)
					got, kept := read(out.RowRange(row, row+1)), read(x.RowRange(row, row+1))
					for i := range n {
						v := x.get(row, i) + delta.get(row, i)
						s = append(s, Sample{got[i], v * norm * w.get(0, i), 1}, Sample{kept[i], v, 1e-3})
					}
				}
				return s
			},
		}
	}
	return c
}

// weightedSum builds the sum of the rows of a token's experts.
func weightedSum(t, k, n int) *Case {
	c := &Case{
		Op:    "weighted sum",
		Shape: fmt.Sprintf("T=%d K=%d H=%d", t, k, n),
		DType: "BF16",
		Bytes: float64(t * n * 2 * (k + 2)),
		Rel:   relBF16, Abs: 1e-3,
	}
	c.Rotate = t * n * 2 * (k + 2)
	c.build = func(d *desk) *job {
		y, base, out := d.numbers(tensor.BF16, t*k, n, unit), d.numbers(tensor.BF16, t, n, unit), d.room(tensor.BF16, t, n)
		share := d.numbers(tensor.F32, t, k, small)
		return &job{
			run:  func(b *ops.Builder, i int) { b.WeightedSum(out.of(i), y.of(i), share.of(i), base.of(i)) },
			outs: []data{out},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					got, factors, terms := read(out.RowRange(row, row+1)), share.row(row), make([]float64, k)
					for i := range n {
						for j := range terms {
							terms[j] = y.get(row*k+j, i)
						}
						want, scale := dot(terms, factors)
						s = append(s, Sample{got[i], want + base.get(row, i), 1 + scale})
					}
				}
				return s
			},
		}
	}
	return c
}

// gather builds the read of rows of an embedding table.
func gather(t, vocab, n int) *Case {
	c := &Case{
		Op:    "gather",
		Shape: fmt.Sprintf("T=%d V=%d H=%d", t, vocab, n),
		DType: "BF16 to F32",
		Bytes: float64(t * n * (2 + 4)),
	}
	c.Rotate, c.Size = t*n*(2+4), n*(2*vocab+4*t)
	c.build = func(d *desk) *job {
		table, out := d.numbers(tensor.BF16, vocab, n, unit), d.room(tensor.F32, t, n)
		ids := d.ints(t, 1, func(int) int32 { return int32(d.rng.IntN(vocab)) })
		return &job{
			run:  func(b *ops.Builder, i int) { b.GatherRows(out.of(i), table.of(i), ids.of(i)) },
			outs: []data{out},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					for i, got := range read(out.RowRange(row, row+1)) {
						s = append(s, Sample{got, table.get(int(ids.get(row, 0)), i), 1})
					}
				}
				return s
			},
		}
	}
	return c
}

// router builds logits and the choice of experts by softmax. A check compares the probabilities
// of the chosen experts with the largest ones, because experts with nearly equal probabilities
// may change places.
func router(t, hidden int, p device.Router) *Case {
	c := &Case{
		Op:    "route",
		Shape: fmt.Sprintf("T=%d H=%d E=%d K=%d", t, hidden, p.Experts, p.TopK),
		DType: "F32",
		Bytes: float64(p.Experts*hidden*4 + t*(hidden*2+p.Experts*4+p.TopK*8)),
		Flops: 2 * float64(t) * float64(p.Experts) * float64(hidden),
		Rel:   1e-4, Abs: 1e-5,
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		x, gate := d.numbers(tensor.BF16, t, hidden, unit), d.numbers(tensor.F32, p.Experts, hidden, small)
		logits, ids, share := d.room(tensor.F32, t, p.Experts), d.room(tensor.I32, t, p.TopK), d.room(tensor.F32, t, p.TopK)
		return &job{
			run: func(b *ops.Builder, i int) {
				b.Route(ids.of(i), share.of(i), logits.of(i), x.of(i), launch.Weight{F: gate.of(i)}, launch.Mat{}, p)
			},
			outs: []data{logits, ids, share},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 20) {
					s = append(s, chosen(x.row(row), &gate, p, read(ids.RowRange(row, row+1)), read(share.RowRange(row, row+1)))...)
				}
				return s
			},
		}
	}
	return c
}

// chosen returns samples of a softmax router's choice for a row.
func chosen(x []float64, gate *data, p device.Router, ids, share []float64) []Sample {
	var s []Sample
	likely, sum := make([]float64, p.Experts), 0.
	for e := range likely {
		v, _ := dot(x, gate.row(e))
		likely[e] = math.Exp(v)
		sum += likely[e]
	}
	best := slices.Sorted(slices.Values(likely))
	for k, got := range share {
		mine := math.NaN() // no expert
		if id := int(ids[k]); id >= 0 && id < p.Experts {
			mine = likely[id] / sum
		}
		s = append(s, Sample{got, mine, 1}, Sample{got, best[p.Experts-1-k] / sum, 1})
	}
	return s
}

// topK builds the choice of experts from logits.
func topK(t int, p device.Router) *Case {
	c := &Case{
		Op:    "top-k",
		Shape: fmt.Sprintf("T=%d E=%d K=%d", t, p.Experts, p.TopK),
		DType: "F32",
		Bytes: float64(t * (p.Experts*4 + p.TopK*8)),
		Rel:   1e-5, Abs: 1e-6,
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		logits, ids, share := d.numbers(tensor.F32, t, p.Experts, unit), d.room(tensor.I32, t, p.TopK), d.room(tensor.F32, t, p.TopK)
		return &job{
			run:  func(b *ops.Builder, i int) { b.TopK(ids.of(i), share.of(i), logits.of(i), launch.Mat{}, p) },
			outs: []data{ids, share},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 20) {
					in := make([]float32, p.Experts)
					for i := range in {
						in[i] = float32(logits.get(row, i))
					}
					wantIDs, want := make([]int32, p.TopK), make([]float32, p.TopK)
					ref.RouteTopK(wantIDs, want, in, nil, nil, p)
					gotIDs, got := read(ids.RowRange(row, row+1)), read(share.RowRange(row, row+1))
					for k := range want {
						s = append(s, Sample{gotIDs[k], float64(wantIDs[k]), 0}, Sample{got[k], float64(want[k]), 1})
					}
				}
				return s
			},
		}
	}
	return c
}
