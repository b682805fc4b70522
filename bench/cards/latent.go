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

// latentStore builds the work of latent attention between its projections and its products:
// rotation of queries and keys, norm of the latents and the store in the cache.
func latentStore(t int, dt tensor.DType, p device.MLA) *Case {
	const context = 4096
	width, qWidth := p.Rank+p.Rope, p.Heads*(p.Nope+p.Rope)
	c := &Case{
		Op:    "latent store",
		Shape: fmt.Sprintf("T=%d, %d heads of %d+%d, rank %d", t, p.Heads, p.Nope, p.Rope, p.Rank),
		DType: "cache " + dt.String(),
		// Only the part of the queries that is rotated.
		Bytes: float64(t * (2*2*p.Heads*p.Rope + 2*width + width*dt.Size())),
		Rel:   1.0 / 128, Abs: 1e-2,
	}
	c.Rotate = t * (2*qWidth + 2*width + width*dt.Size())
	qRope := device.Rope{Heads: p.Heads, HeadDim: p.Nope + p.Rope, Offset: p.Nope, Dim: p.Rope, Interleaved: true}
	kRope := device.Rope{Heads: 1, HeadDim: p.Rope, Dim: p.Rope, Interleaved: true}
	c.build = func(d *desk) *job {
		q, kv, norm := d.numbers(tensor.BF16, t, qWidth, unit), d.numbers(tensor.BF16, t, width, unit), d.numbers(tensor.BF16, 1, p.Rank, unit)
		cache := d.room(dt, t, width)
		positions := d.ints(t, 1, func(int) int32 { return int32(d.rng.IntN(context)) })
		order := d.rng.Perm(t)
		slots := d.ints(t, 1, func(i int) int32 { return int32(order[i]) })
		table := d.turns(context, p.Rope)
		return &job{
			run: func(b *ops.Builder, i int) {
				b.Latent(launch.KV{Mat: cache.of(i)}, q.of(i), kv.of(i), norm.of(i), eps, positions.of(i), slots.of(i), table.of(i), qRope, kRope)
			},
			outs: []data{cache},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					at := []int32{int32(positions.get(row, 0))}
					angles := floats(table, 0, context)
					query, keys := floats(q, row, 1), floats(kv, row, 1)
					ref.Rope(query, qWidth, at, angles, qRope)
					ref.RMSNorm(keys[:p.Rank], keys[:p.Rank], floats(norm, 0, 1), eps)
					ref.Rope(keys[p.Rank:], p.Rope, at, angles, kRope)
					slot := int(slots.get(row, 0))
					s = compareRow(s, read(q.RowRange(row, row+1)), query, tensor.BF16)
					s = compareRow(s, read(cache.RowRange(slot, slot+1)), keys, dt)
				}
				return s
			},
		}
	}
	return c
}

// compareRow adds samples for a row that was rounded to a type.
func compareRow(s []Sample, got []float64, want []float32, dt tensor.DType) []Sample {
	top := 0.0
	for _, w := range want {
		top = max(top, math.Abs(float64(w)))
	}
	for i, w := range want {
		v := math.Abs(float64(w))
		scale := 0.1 + v
		switch dt {
		case tensor.F8E4M3: // 3 bits and the implicit one: off by 1/16
			scale = 1 + 8*v
		case tensor.I8: // off by half a step of 1/127 of the largest
			scale = top / 2
		}
		s = append(s, Sample{got[i], float64(w), scale})
	}
	return s
}

// floats returns rows of the host's copy.
func floats(x data, row, rows int) []float32 {
	out := make([]float32, rows*x.Cols)
	for i := range out {
		out[i] = float32(x.get(row+i/x.Cols, i%x.Cols))
	}
	return out
}

// turns makes a table of (cos, sin) for a rotation of dim elements, without scaling.
func (d *desk) turns(positions, dim int) data {
	return d.mat(tensor.F32, positions, dim, func(b []byte) {
		for at := range positions {
			for i := range dim / 2 {
				sin, cos := math.Sincos(float64(at) * math.Pow(10000, -2*float64(i)/float64(dim)))
				put32(b[4*(at*dim+2*i):], cos)
				put32(b[4*(at*dim+2*i)+4:], sin)
			}
		}
	})
}
