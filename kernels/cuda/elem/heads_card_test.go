//go:build cuda

package elem

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func TestHeadNorm(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(17, 1))
	const rows, eps = 3, 1e-6
	for _, s := range []struct{ heads, dim, gap int }{{1, 16, 0}, {3, 32, 8}, {40, 64, 8}, {5, 128, 24}, {2, 256, 0}, {3, 24, 8}, {12, 33, 1}, {2, 128, 3}} {
		for i := range 4 {
			dt, wt, cols := types[i&1], types[i>>1], s.heads*s.dim
			x, w := values(rng, rows*cols), values(rng, s.dim)
			m, wm := put(c, dt, x, rows, cols, s.gap), put(c, wt, w, 1, s.dim, 0)
			c.Run(func(l *launch.List) { HeadNorm(l, m, s.heads, wm, eps) })
			want := rounded(dt, x)
			ref.HeadNorm(want, rounded(wt, w), eps)
			tol := within(dt, want, 4)
			if err := kerneltest.Compare(c.Floats(m), want, cols, func(i int) float64 { return tol(i) + 1e-6 }); err != nil {
				t.Errorf("%+v %s: %v", s, dt, err)
			}
			gapsKept(t, c, "x", m)
		}
	}
}

// headCase is a shape of heads, and the types of queries, of keys and values, of norms and of the cache.
type headCase struct {
	heads, kvHeads, dim, gap int
	part                     int // of a head is rotated; 0: all
	norms, interleaved       bool
	qt, kt, wt, cache        tensor.DType
}

// TestHeadStore: HeadStore has the bits of the operators that it replaces.
func TestHeadStore(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(19, 1))
	for n, s := range []headCase{
		{heads: 4, kvHeads: 2, dim: 128, gap: 8, norms: true}, {heads: 32, kvHeads: 4, dim: 64, norms: true},
		{heads: 3, kvHeads: 3, dim: 256, norms: true}, {heads: 2, kvHeads: 1, dim: 16, norms: true},
		{heads: 6, kvHeads: 2, dim: 32}, {heads: 8, kvHeads: 1, dim: 64, gap: 8, interleaved: true},
		{heads: 4, kvHeads: 20, dim: 256, norms: true}, // more keys than a block has at a time
		{heads: 12, kvHeads: 2, dim: 128, part: 64, norms: true}, {heads: 6, kvHeads: 2, dim: 128, part: 64, gap: 8},
		{heads: 5, kvHeads: 1, dim: 256, part: 64, norms: true}, {heads: 4, kvHeads: 2, dim: 32, part: 16, norms: true},
	} {
		for i, kind := range cacheTypes {
			s.qt, s.kt, s.wt, s.cache = types[i%2], types[(i+n)%2], types[(i/2+n)%2], kind
			s.check(t, c, rng)
		}
	}
}

func (s headCase) check(t *testing.T, c *cudatest.GPU, rng *rand.Rand) {
	t.Helper()
	slots, positions := []int32{3, -1, 0, 7, 5}, []int32{1, 4, 9, 2, 12} // the last has no angles, the fourth no slot
	rows, qCols, width := len(slots), s.heads*s.dim, 2*s.kvHeads*s.dim
	q, kv := values(rng, rows*qCols), values(rng, rows*width)
	turned := cmp.Or(s.part, s.dim)
	h := Heads{Eps: 1e-6, Angles: put(c, f32, angles(12, turned), 12, turned, 0), Positions: c.I32(positions, rows, 1), Slots: c.I32(slots, rows, 1),
		Rope: device.Rope{Heads: s.heads, HeadDim: s.dim, Dim: turned, Interleaved: s.interleaved}}
	h.KRope = h.Rope
	h.KRope.Heads = s.kvHeads
	if s.norms {
		h.QNorm, h.KNorm = put(c, s.wt, values(rng, s.dim), 1, s.dim, 0), put(c, s.wt, values(rng, s.dim), 1, s.dim, 0)
	}
	var sides [2]storeMats
	for i := range sides {
		sides[i] = storeMats{put(c, s.qt, q, rows, qCols, s.gap), put(c, s.kt, kv, rows, width, s.gap), newCache(c, s.cache, 7, width, s.dim, s.gap)}
	}
	one, apart := sides[0], sides[1]
	h.Q, h.KV = one.q, one.kv
	if !CanHeadStore(one.cache, &h) {
		t.Fatalf("%+v is refused", s)
	}
	c.Run(func(l *launch.List) {
		HeadStore(l, one.cache, &h)
		keys := apart.kv.ColRange(0, width/2)
		if s.norms {
			HeadNorm(l, apart.q, s.heads, h.QNorm, h.Eps)
			HeadNorm(l, keys, s.kvHeads, h.KNorm, h.Eps)
		}
		Rope(l, apart.q, h.Positions, h.Angles, h.Rope)
		Rope(l, keys, h.Positions, h.Angles, h.KRope)
		StoreRows(l, apart.cache, apart.kv, h.Slots)
	})
	name := fmt.Sprintf("%+v", s)
	sameStores(t, c, name, one, apart)
	marksRows(t, c, name, one, s.kt, kv, func(l *launch.List, kv launch.Mat, cache launch.KV) {
		h.KV = kv
		HeadStore(l, cache, &h)
	})
}

// What has no lanes or does not turn as a whole is left to the operators.
func TestCanHeadStore(t *testing.T) {
	m := func(dt tensor.DType, cols int) launch.Mat {
		return launch.Mat{At: 4096, DType: dt, Rows: 2, Cols: cols, Stride: cols}
	}
	whole := func() *Heads {
		p := device.Rope{Heads: 4, HeadDim: 64, Dim: 64}
		k := p
		k.Heads = 2
		return &Heads{Q: m(bf16, 256), KV: m(bf16, 256), QNorm: m(bf16, 64), KNorm: m(bf16, 64), Angles: m(f32, 64), Rope: p, KRope: k}
	}
	part := func(h *Heads, n int, pairs bool) {
		h.Rope.Dim, h.KRope.Dim, h.Rope.Interleaved, h.KRope.Interleaved = n, n, pairs, pairs
	}
	for name, spoil := range map[string]func(h *Heads){
		"":            func(*Heads) {},
		"pairs":       func(h *Heads) { h.QNorm, h.KNorm = launch.Mat{}, launch.Mat{}; part(h, 32, true) },
		"most":        func(h *Heads) { part(h, 48, false) },
		"a few":       func(h *Heads) { part(h, 8, false) },
		"24":          func(h *Heads) { part(h, 24, false) },
		"odd heads":   func(h *Heads) { h.Rope.HeadDim, h.Rope.Dim, h.KRope.HeadDim, h.KRope.Dim = 24, 24, 24, 24 },
		"neighbours":  func(h *Heads) { h.Rope.Interleaved, h.KRope.Interleaved = true, true },
		"other keys":  func(h *Heads) { h.KRope.Interleaved = true },
		"alignment":   func(h *Heads) { h.KV.At += 2 },
		"other types": func(h *Heads) { h.KNorm.DType = f32 },
	} {
		h := whole()
		if spoil(h); CanHeadStore(launch.KV{}, h) != (name == "") {
			t.Errorf("%q: wrong answer", name)
		}
	}
}
