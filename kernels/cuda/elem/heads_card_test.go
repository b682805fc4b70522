//go:build cuda

package elem

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
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

// TestHeadStore: one launch does to the bit what the operators do.
func TestHeadStore(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(19, 1))
	slots, positions := []int32{3, -1, 0, 7, 5}, []int32{1, 4, 9, 2, 12} // the last has no angles, the fourth no slot
	const eps = 1e-6
	for n, s := range []struct {
		heads, kvHeads, dim, gap int
		norms, interleaved       bool
	}{
		{4, 2, 128, 8, true, false}, {32, 4, 64, 0, true, false}, {3, 3, 256, 0, true, false}, {2, 1, 16, 0, true, false},
		{6, 2, 32, 0, false, false}, {8, 1, 64, 8, false, true}, {4, 20, 256, 0, true, false}, // more keys than a block has at a time
	} {
		for i, kind := range cacheTypes {
			p := device.Rope{Heads: s.heads, HeadDim: s.dim, Dim: s.dim, Interleaved: s.interleaved}
			key := p
			key.Heads = s.kvHeads
			qt, kt, wt := types[i%2], types[(i+n)%2], types[(i/2+n)%2]
			rows, qCols, width := len(slots), s.heads*s.dim, 2*s.kvHeads*s.dim
			q, kv := values(rng, rows*qCols), values(rng, rows*width)
			table := put(c, f32, angles(12, s.dim), 12, s.dim, 0)
			pos, sm := c.I32(positions, rows, 1), c.I32(slots, rows, 1)
			var qNorm, kNorm launch.Mat
			if s.norms {
				qNorm, kNorm = put(c, wt, values(rng, s.dim), 1, s.dim, 0), put(c, wt, values(rng, s.dim), 1, s.dim, 0)
			}
			var h [2]Heads
			var caches [2]launch.KV
			for j := range 2 {
				h[j] = Heads{Q: put(c, qt, q, rows, qCols, s.gap), KV: put(c, kt, kv, rows, width, s.gap), QNorm: qNorm, KNorm: kNorm, Eps: eps,
					Positions: pos, Slots: sm, Angles: table, Rope: p, KRope: key}
				caches[j] = newCache(c, kind, 7, width, s.dim, s.gap)
			}
			if !CanHeadStore(caches[0], &h[0]) {
				t.Fatalf("%+v is refused", s)
			}
			c.Run(func(l *launch.List) {
				HeadStore(l, caches[0], &h[0])
				keys := h[1].KV.ColRange(0, width/2)
				if s.norms {
					HeadNorm(l, h[1].Q, s.heads, qNorm, eps)
					HeadNorm(l, keys, s.kvHeads, kNorm, eps)
				}
				Rope(l, h[1].Q, pos, table, p)
				Rope(l, keys, pos, table, key)
				StoreRows(l, caches[1], h[1].KV, sm)
			})
			if err := kerneltest.SameBits(c.Floats(h[0].Q), c.Floats(h[1].Q)); err != nil {
				t.Errorf("%s %+v: queries: %v", kind, s, err)
			}
			if err := kerneltest.SameBits(c.Floats(h[0].KV), c.Floats(h[1].KV)); err != nil {
				t.Errorf("%s %+v: keys and values: %v", kind, s, err)
			}
			cached := content(c, caches[0])
			if !bytes.Equal(cached, content(c, caches[1])) {
				t.Errorf("%s %+v: the caches differ", kind, s)
			}
			if !slices.Contains(cached, 0xff) || bytes.Count(cached, []byte{0xff}) == len(cached) {
				t.Errorf("%s %+v: nothing or everything was stored", kind, s)
			}
			gapsKept(t, c, "q", h[0].Q)
			gapsKept(t, c, "kv", h[0].KV)
			// Rows that are not finite: in a value, in a key, and where nothing is stored.
			kv[3*width-1], kv[4*width], kv[2*width-1] = float32(math.NaN()), float32(math.Inf(1)), float32(math.NaN())
			h[0].KV = put(c, kt, kv, rows, width, s.gap)
			caches[0].Marks, caches[0].Mark = c.I32([]int32{0, 0, 0, 0, 3}, rows, 1), 5
			c.Run(func(l *launch.List) { HeadStore(l, caches[0], &h[0]) })
			if got := cudatest.Download[int32](c, caches[0].Marks.At, rows); !slices.Equal(got, []int32{0, 0, 5, 0, 3}) {
				t.Errorf("%s %+v: marks %v, want the third row's and that of the fifth, which was there", kind, s, got)
			}
		}
	}
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
	for name, spoil := range map[string]func(h *Heads){
		"":            func(*Heads) {},
		"part":        func(h *Heads) { h.Rope.Dim = 32; h.KRope.Dim = 32 },
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
