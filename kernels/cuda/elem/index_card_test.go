//go:build cuda

package elem

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// TestIndexStore: IndexStore has the bits of the operators that it replaces.
func TestIndexStore(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(23, 1))
	slots, positions := []int32{3, -1, 0, 7, 5}, []int32{1, 4, 9, 2, 12} // the last has no angles, the fourth no slot
	rows := len(slots)
	for n, s := range []struct {
		heads, dim, part, gap int
		keyNorm, interleaved  bool
	}{
		{4, 128, 64, 0, true, false}, {4, 128, 64, 8, false, false}, {1, 16, 16, 8, true, true}, {31, 32, 6, 0, true, false}, {2, 256, 0, 8, true, true},
	} {
		for i, kind := range cacheTypes {
			dt, wt := types[i%2], types[(i/2+n)%2]
			q, key := values(rng, rows*s.heads*s.dim), values(rng, rows*s.dim)
			x := Index{Eps: 1e-6, Angles: put(c, f32, angles(12, max(1, s.part)), 12, max(1, s.part), 0), Positions: c.I32(positions, rows, 1), Slots: c.I32(slots, rows, 1),
				QNorm: put(c, wt, values(rng, s.dim), 1, s.dim, 0), Rope: device.Rope{Heads: s.heads, HeadDim: s.dim, Dim: s.part, Interleaved: s.interleaved}}
			x.Angles.Cols = s.part
			if s.keyNorm {
				x.KNorm = put(c, wt, values(rng, s.dim), 1, s.dim, 0)
			}
			var sides [2]storeMats
			for i := range sides {
				sides[i] = storeMats{put(c, dt, q, rows, s.heads*s.dim, s.gap), put(c, dt, key, rows, s.dim, s.gap), newCache(c, kind, 7, s.dim, s.dim, s.gap)}
			}
			one, apart := sides[0], sides[1]
			x.Q, x.Key = one.q, one.kv
			if !CanIndexStore(&x) {
				t.Fatalf("%+v is refused", s)
			}
			c.Run(func(l *launch.List) {
				IndexStore(l, one.cache, &x)
				HeadNorm(l, apart.q, s.heads, x.QNorm, x.Eps)
				Rope(l, apart.q, x.Positions, x.Angles, x.Rope)
				if s.keyNorm {
					keys := x.Rope
					keys.Heads = 1
					HeadNorm(l, apart.kv, 1, x.KNorm, x.Eps)
					Rope(l, apart.kv, x.Positions, x.Angles, keys)
				}
				StoreRows(l, apart.cache, apart.kv, x.Slots)
			})
			name := fmt.Sprintf("%+v %s, cache %s", s, dt, kind)
			sameStores(t, c, name, one, apart)
			marksRows(t, c, name, one, dt, key, func(l *launch.List, kv launch.Mat, cache launch.KV) {
				x.Key = kv
				IndexStore(l, cache, &x)
			})
		}
	}
	var wrong Index
	wrong.Rope = device.Rope{Heads: 32, HeadDim: 64}
	if wrong.Q.DType = tensor.BF16; CanIndexStore(&wrong) {
		t.Error("32 heads")
	}
}
