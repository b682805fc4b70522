package cards

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// grouped builds grouped-query attention of a batch of generated rows (one per sequence) or of
// prompts, perhaps in a window and with a sink for each head.
func grouped(decode bool, h history, dt tensor.DType, p device.GQA, sinks bool) *Case {
	t, width := h.seqs*h.rows, p.Heads*p.HeadDim
	row := p.Width() * dt.Size()
	if dt == tensor.I8 {
		row += 4 * p.Width() / p.HeadDim
	}
	// The number of keys that each row sees, summed over the rows of a sequence, and of keys that any sees.
	seen, keys := 0, h.context()-windowStart(h.past+1, p)
	for i := range h.rows {
		ctx := h.past + i + 1
		seen += ctx - windowStart(ctx, p)
	}
	c := &Case{
		Op:    map[bool]string{false: "gqa prefill", true: "gqa decode"}[decode],
		Shape: fmt.Sprintf("%d x %d rows after %d, %d heads of %d, %d of keys", h.seqs, h.rows, h.past, p.Heads, p.HeadDim, p.KVHeads),
		DType: "cache " + dt.String(),
		Bytes: float64(h.seqs*keys)*float64(row) + float64(2*2*t*width),
		Flops: 4 * float64(h.seqs*width) * float64(seen),
		Rel:   relMLA, Abs: absMLA,
	}
	if p.Window > 0 {
		c.Shape += fmt.Sprintf(", window %d", p.Window)
	}
	if sinks {
		c.Shape += ", sinks"
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		q, out := d.numbers(tensor.BF16, t, width, unit), d.room(tensor.BF16, t, width)
		in := d.cached(h, dt, p.Width(), p.HeadDim, p.BlockTokens, decode)
		in.rounded = !decode && !d.plain
		var scores data
		if sinks {
			scores = d.numbers(tensor.F32, 1, p.Heads, unit)
		}
		sink := func(i int) (m launch.Mat) {
			if sinks {
				m = scores.of(i)
			}
			return m
		}
		return &job{
			run: func(b *ops.Builder, i int) {
				b.GQA(out.of(i), q.of(i), in.of(i), sink(i), in.list, in.table.of(i), decode, p)
			},
			outs: []data{out},
			check: func(read reader) []Sample {
				rows, heads := d.spread(t, 4), d.spread(p.Heads, 4)
				var got [][]float64
				for _, row := range rows {
					got = append(got, read(out.RowRange(row, row+1)))
				}
				s := make([]Sample, len(rows)*len(heads)*p.HeadDim)
				parallel(len(rows)*len(heads), func(i int) {
					row, head := i/len(heads), heads[i%len(heads)]
					score := math.Inf(-1)
					if sinks {
						score = scores.get(0, head)
					}
					want, scale := attendedBy(in, q, rows[row], head, h, p, score)
					for v := range want {
						s[i*p.HeadDim+v] = Sample{got[row][head*p.HeadDim+v], want[v], scale}
					}
				})
				return s
			},
		}
	}
	return c
}

// windowStart returns the first key that the row at position ctx-1 sees.
func windowStart(ctx int, p device.GQA) int {
	if p.Window == 0 {
		return 0
	}
	return max(0, ctx-p.Window)
}

// attendedBy computes one head of a row, and the size of the terms of its sums. sink is the head's; none: minus infinity.
func attendedBy(in *cached, q data, row, head int, h history, p device.GQA, sink float64) (out []float64, scale float64) {
	seq, ctx, d := row/h.rows, h.past+row%h.rows+1, p.HeadDim
	kv := head / (p.Heads / p.KVHeads)
	query := q.row(row)[head*d:][:d]
	first := windowStart(ctx, p)
	prob, top := make([]float64, ctx-first), sink
	for i := range prob {
		prob[i], _ = dot(query, in.values(in.slot(seq, first+i), kv*d, d))
		prob[i] *= float64(p.Scale)
		top = max(top, prob[i])
	}
	sum := math.Exp(sink - top)
	for i := range prob {
		prob[i] = math.Exp(prob[i] - top)
		sum += prob[i]
	}
	out = make([]float64, d)
	squares := make([]float64, d)
	for at := range prob {
		for i, v := range in.values(in.slot(seq, first+at), (p.KVHeads+kv)*d, d) {
			v *= prob[at] / sum
			out[i] += v
			squares[i] += v * v
		}
	}
	for _, v := range squares {
		scale = max(scale, math.Sqrt(v))
	}
	return out, scale
}

// headStore builds the work of grouped-query attention between its projections and its products:
// norm of the heads, rotation and the store in the cache.
func headStore(t int, dt tensor.DType, p device.GQA) *Case {
	const context = 4096
	width, kvWidth := p.Heads*p.HeadDim, p.Width()
	c := &Case{
		Op:    "head store",
		Shape: fmt.Sprintf("T=%d, %d heads of %d, %d of keys", t, p.Heads, p.HeadDim, p.KVHeads),
		DType: "cache " + dt.String(),
		// Values are read and stored; everything else is also written back.
		Bytes: float64(t * (2*2*width + 3*kvWidth + kvWidth*dt.Size())),
		Rel:   1.0 / 128, Abs: 1e-2,
	}
	c.Rotate = int(c.Bytes)
	qRope := device.Rope{Heads: p.Heads, HeadDim: p.HeadDim, Dim: p.HeadDim}
	kRope := qRope
	kRope.Heads = p.KVHeads
	c.build = func(d *desk) *job {
		q, kv := d.numbers(tensor.BF16, t, width, unit), d.numbers(tensor.BF16, t, kvWidth, unit)
		qNorm, kNorm := d.numbers(tensor.BF16, 1, p.HeadDim, unit), d.numbers(tensor.BF16, 1, p.HeadDim, unit)
		cache := d.room(dt, t, kvWidth)
		var scales data
		if dt == tensor.I8 {
			scales = d.room(tensor.F32, t, kvWidth/p.HeadDim)
		}
		positions := d.ints(t, 1, func(int) int32 { return int32(d.rng.IntN(context)) })
		order := d.rng.Perm(t)
		slots := d.ints(t, 1, func(i int) int32 { return int32(order[i]) })
		table := d.turns(context, p.HeadDim)
		return &job{
			run: func(b *ops.Builder, i int) {
				to := launch.KV{Mat: cache.of(i)}
				if dt == tensor.I8 {
					to.Scales, to.Group = scales.of(i), p.HeadDim
				}
				b.HeadStore(to, q.of(i), kv.of(i), qNorm.of(i), kNorm.of(i), eps, positions.of(i), slots.of(i), table.of(i), qRope, kRope)
			},
			outs: []data{cache},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					at := []int32{int32(positions.get(row, 0))}
					angles := floats(table, 0, context)
					query, rows := floats(q, row, 1), floats(kv, row, 1)
					ref.HeadNorm(query, floats(qNorm, 0, 1), eps)
					ref.HeadNorm(rows[:kvWidth/2], floats(kNorm, 0, 1), eps)
					queryOff, rowsOff := roundNorms(query), roundNorms(rows)
					ref.Rope(query, width, at, angles, qRope)
					ref.Rope(rows[:kvWidth/2], kvWidth/2, at, angles, kRope)
					slot := int(slots.get(row, 0))
					s = append(s, allowTies(compareRow(nil, read(q.RowRange(row, row+1)), query, tensor.BF16), queryOff, p.HeadDim, c.Abs)...)
					keys := compareRow(nil, readCached(read, cache, scales, slot), rows, dt)
					allowTies(keys[:kvWidth/2], rowsOff, p.HeadDim, c.Abs)
					s = append(s, keys...)
				}
				return s
			},
		}
	}
	return c
}

// roundNorms rounds x to BF16, as norms are before their rotation. It returns the step of BF16 of
// each number that lies so near the middle of two that float32 may round it the other way, and 0
// for all others.
func roundNorms(x []float32) []float64 {
	off := make([]float64, len(x))
	for i, v := range x {
		if v != 0 {
			step := math.Ldexp(1, math.Ilogb(float64(v))-7)
			if math.Abs(math.Remainder(float64(v)-step/2, step)) < math.Ldexp(math.Abs(float64(v)), -17) {
				off[i] = step
			}
		}
		x[i] = tensor.BF16ToF32(tensor.F32ToBF16(v))
	}
	return off
}

// allowTies returns s, whole heads after a rotation. A number of a pair with a norm that may round
// the other way may differ by that step, on top of the case's tolerance, abs of its scale.
func allowTies(s []Sample, off []float64, dim int, abs float64) []Sample {
	for i := range s {
		pair := i + dim/2
		if i%dim >= dim/2 {
			pair = i - dim/2
		}
		s[i].Scale += (off[i] + off[pair]) / abs
	}
	return s
}

// readCached returns a row of a cache; integers are multiplied by their scales.
func readCached(read reader, cache, scales data, slot int) []float64 {
	row := read(cache.RowRange(slot, slot+1))
	if cache.DType == tensor.I8 {
		s := read(scales.RowRange(slot, slot+1))
		for i := range row {
			row[i] *= s[i*len(s)/len(row)]
		}
	}
	return row
}
