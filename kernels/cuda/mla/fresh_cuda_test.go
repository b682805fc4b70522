//go:build cuda

package mla

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// copied makes another matrix with the same bytes.
func copied(c *cudatest.GPU, m launch.Mat) launch.Mat {
	if !m.Zero() {
		m.At = c.Bytes(cudatest.Download[byte](c, m.At, m.Rows*m.Stride*m.DType.Size()))
	}
	return m
}

// TestDecodeNew: the result and the cache have the same bits as after LatentStore and Decode. There
// are more rows than blocks to store them, and a row whose position has no angles.
func TestDecodeNew(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(4, 4))
	for i, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3, tensor.I8} {
		for _, seqs := range [][]seq{contexts(70), contexts(1, 140, 3, 64, 5), contexts(9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 17)} {
			p := lite
			p.Heads = 1 + len(seqs)%4
			b := newProblem(c, uint64(i), p, tensor.BF16, dt, tensor.BF16, seqs)
			positions, slots := make([]int32, b.rows), make([]int32, b.rows)
			for _, s := range b.decode {
				positions[s.Row] = int32(s.Pos)
				slots[s.Row] = s.Blocks[s.Pos/p.BlockTokens]*int32(p.BlockTokens) + int32(s.Pos%p.BlockTokens)
			}
			f := Fresh{Norm: c.F32(cudatest.Normal(rng, rank), 1, rank), Eps: 1e-6,
				Positions: c.I32(positions, b.rows, 1), Slots: c.I32(slots, b.rows, 1),
				Angles: c.F32(cudatest.Normal(rng, 139*rope), 139, rope), Interleaved: i != 1}
			if i == 2 {
				f.Norm = c.BF16(cudatest.Normal(rng, rank), 1, rank)
			}
			// as a joint projection leaves them
			values := cudatest.Normal(rng, b.rows*(b.q.Cols+width))
			both := c.BF16(values, b.rows, b.q.Cols+width)
			run := func(fresh bool) ([]float32, launch.KV) {
				in, kv := copied(c, both), b.kv
				kv.Mat, kv.Scales = copied(c, kv.Mat), copied(c, kv.Scales)
				q, x, out, f := in.ColRange(0, b.q.Cols), in.ColRange(b.q.Cols, in.Cols), b.out(tensor.BF16), f
				f.KV = x
				scratch := c.Alloc(DecodeScratch(b.rows, b.items(), p))
				if fresh {
					if !CanDecodeNew(c.Info(), q, kv, b.kvb, b.p, &f) {
						t.Fatal("cannot")
					}
					c.Run(func(l *launch.List) {
						DecodeNew(l, c.Info(), out, q, kv, b.kvb, b.table, b.rows, b.items(), scratch, b.p, &f)
					})
				} else {
					turn := device.Rope{Heads: p.Heads, HeadDim: nope + rope, Offset: nope, Dim: rope, Interleaved: f.Interleaved}
					key := device.Rope{Heads: 1, HeadDim: rope, Dim: rope, Interleaved: f.Interleaved}
					c.Run(func(l *launch.List) {
						elem.LatentStore(l, kv, q, x, f.Norm, f.Eps, f.Positions, f.Slots, f.Angles, turn, key)
						Decode(l, c.Info(), out, q, kv, b.kvb, b.table, b.rows, b.items(), scratch, b.p)
					})
				}
				return c.Floats(out), kv
			}
			want, kept := run(false)
			got, keptToo := run(true)
			sameBits(t, dt.String(), got, want)
			for _, m := range [][2]launch.Mat{{kept.Mat, keptToo.Mat}, {kept.Scales, keptToo.Scales}} {
				if n := m[0].Rows * m[0].Stride * m[0].DType.Size(); !m[0].Zero() && !bytes.Equal(cudatest.Download[byte](c, m[0].At, n), cudatest.Download[byte](c, m[1].At, n)) {
					t.Errorf("%s, %d rows: the caches differ", dt, b.rows)
				}
			}
			// A row that is not finite is marked, for either part of the latent.
			at := len(values) - 1 - i%2*rope
			values[at] = float32(math.NaN())
			both = c.BF16(values, b.rows, b.q.Cols+width)
			wantMarks := make([]int32, b.rows)
			wantMarks[b.rows-1] = 9
			for _, fresh := range []bool{true, false} {
				b.kv.Marks, b.kv.Mark = c.I32(make([]int32, b.rows), b.rows, 1), 9
				run(fresh)
				if got := cudatest.Download[int32](c, b.kv.Marks.At, b.rows); !slices.Equal(got, wantMarks) {
					t.Errorf("%s, %d rows: marks %v, want %v", dt, b.rows, got, wantMarks)
				}
			}
		}
	}
}
