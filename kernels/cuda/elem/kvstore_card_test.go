//go:build cuda

package elem

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// angles is a table [positions, dim] of (cos, sin).
func angles(positions, dim int) []float32 {
	t := make([]float32, positions*dim)
	for p := range positions {
		for i := range dim / 2 {
			s, c := math.Sincos(float64(p) * math.Pow(100, -float64(2*i)/float64(dim)))
			t[p*dim+2*i], t[p*dim+2*i+1] = float32(c), float32(s)
		}
	}
	return t
}

func TestRope(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 1))
	const rows = 4
	for _, p := range []device.Rope{
		{Heads: 1, HeadDim: 2, Dim: 2},
		{Heads: 3, HeadDim: 24, Offset: 16, Dim: 8},
		{Heads: 2, HeadDim: 48, Offset: 16, Dim: 32},
		{Heads: 5, HeadDim: 16, Dim: 16},
		{Heads: 2, HeadDim: 70, Offset: 8, Dim: 16},
		{Heads: 40, HeadDim: 32, Offset: 16, Dim: 16},
	} {
		for i := range 8 {
			p.Interleaved = i&1 == 1
			dt, gap := types[i>>1&1], 8-(i>>2&1)
			cols := p.Heads*p.HeadDim + 8
			x, table, positions := values(rng, rows*cols), angles(11, p.Dim), []int32{3, 0, 10, 7}
			m, tm, pm := put(c, dt, x, rows, cols, gap), put(c, f32, table, 11, p.Dim, 4), c.I32(positions, rows, 1)
			c.Run(func(l *launch.List) { Rope(l, m, pm, tm, p) })
			want := slices.Clone(x)
			ref.Rope(want, cols, positions, table, p)
			tol := within(dt, want, 4)
			if err := kerneltest.Compare(c.Floats(m), want, cols, func(i int) float64 { return tol(i) + 1e-6*kerneltest.MaxAbs(x) }); err != nil {
				t.Fatalf("%+v %s: %v", p, dt, err)
			}
			gapsKept(t, c, "rope", m)
			// Positions that the table lacks.
			m, pm = put(c, dt, x, rows, cols, gap), c.I32([]int32{-1, 11, -5, 1 << 30}, rows, 1)
			c.Run(func(l *launch.List) { Rope(l, m, pm, tm, p) })
			if err := kerneltest.SameBits(c.Floats(m), x); err != nil {
				t.Fatalf("%+v: a row without a position turned: %v", p, err)
			}
		}
	}
}

var cacheTypes = []tensor.DType{f32, bf16, tensor.F8E4M3, tensor.I8}

// newCache is a poisoned cache.
func newCache(c *cudatest.GPU, dt tensor.DType, slots, width, group, gap int) launch.KV {
	kv := launch.KV{Mat: c.Strided(dt, slots, width, width+gap)}
	if dt == tensor.I8 {
		kv.Scales, kv.Group = c.Strided(f32, slots, width/group, width/group+gap), group
	}
	return kv
}

// content is all of a cache's memory.
func content(c *cudatest.GPU, kv launch.KV) []byte {
	b := cudatest.Download[byte](c, kv.At, kv.Rows*kv.Stride*kv.DType.Size())
	if !kv.Scales.Zero() {
		b = append(b, cudatest.Download[byte](c, kv.Scales.At, 4*kv.Scales.Rows*kv.Scales.Stride)...)
	}
	return b
}

// stored returns the expected bytes of a cache: the rows of src, and poison everywhere else.
func stored(kv launch.KV, src []float32, slots []int32, width int) []byte {
	rows := bytes.Repeat([]byte{cudatest.Poison}, kv.Rows*kv.Stride*kv.DType.Size())
	scales := bytes.Repeat([]byte{cudatest.Poison}, 4*kv.Scales.Rows*kv.Scales.Stride)
	for i, slot := range slots {
		if slot < 0 || int(slot) >= kv.Rows {
			continue
		}
		x := src[i*width : (i+1)*width]
		row := rows[int(slot)*kv.Stride*kv.DType.Size():]
		switch kv.DType {
		case f32:
			copy(row, kerneltest.Bytes(x))
		case bf16:
			half, _ := kerneltest.BF16(x)
			copy(row, kerneltest.Bytes(half))
		case tensor.F8E4M3:
			ref.StoreRowsF8(row, x, []int32{0}, width)
		case tensor.I8:
			q, s := make([]int8, width), make([]float32, width/kv.Group)
			ref.StoreRowsI8(q, s, x, []int32{0}, width, kv.Group)
			copy(row, kerneltest.Bytes(q))
			copy(scales[4*int(slot)*kv.Scales.Stride:], kerneltest.Bytes(s))
		}
	}
	return append(rows, scales...)
}

// marked are the marks of rows that were stored and are not finite.
func marked(x []float32, slots []int32, kv launch.KV, width int) []int32 {
	marks := make([]int32, len(slots))
	for i, v := range x {
		if row := i / width; v-v != 0 && slots[row] >= 0 && int(slots[row]) < kv.Rows {
			marks[row] = int32(kv.Mark)
		}
	}
	return marks
}

func TestStoreRows(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(8, 1))
	slots := []int32{4, -1, 0, 9, 2}
	for _, s := range []struct{ width, group, gap int }{{40, 8, 0}, {64, 64, 16}, {33, 11, 1}, {576, 64, 0}, {100, 50, 4}} {
		for _, kind := range cacheTypes {
			for _, dt := range types {
				x := values(rng, len(slots)*s.width)
				// What 8 bits cannot hold: saturated, and NaN is zero.
				if kind != bf16 && kind != f32 {
					x[0], x[1], x[2], x[s.width-1] = float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0x1p-120
				}
				x[3*s.width+1] = float32(math.NaN()) // of a slot that is not there
				x[4*s.width+s.width/2] = float32(math.Inf(-1))
				for i := range s.group { // a group of nothing
					x[2*s.width+i] = 0
				}
				x[3] = 0x1p-7 * 1.0625
				kv := newCache(c, kind, 9, s.width, s.group, s.gap)
				src, sm := put(c, dt, x, len(slots), s.width, s.gap), c.I32(slots, len(slots), 1)
				kv.Marks, kv.Mark = c.I32(make([]int32, len(slots)), len(slots), 1), 5
				c.Run(func(l *launch.List) { StoreRows(l, kv, src, sm) })
				if got, want := cudatest.Download[int32](c, kv.Marks.At, len(slots)), marked(x, slots, kv, s.width); !slices.Equal(got, want) {
					t.Errorf("%s from %s, %+v: marks %v, want %v", kind, dt, s, got, want)
				}
				if !bytes.Equal(content(c, kv), stored(kv, rounded(dt, x), slots, s.width)) {
					t.Errorf("%s from %s, %+v: other bytes than the reference", kind, dt, s)
				}
			}
		}
	}
}

// TestE4M3 stores every bfloat16, and as many float32 near those that float8 has, as a
// float8.
func TestE4M3(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(10, 1))
	x := make([]float32, 1<<17)
	for i := range x {
		x[i] = tensor.BF16ToF32(uint16(i))
		if i>>16 == 1 { // around what lies halfway between two of them
			lo, hi := tensor.F8E4M3ToF32(uint8(i)&0x7e), tensor.F8E4M3ToF32(uint8(i)&0x7e|1)
			x[i] = math.Float32frombits(math.Float32bits((lo+hi)/2) + uint32(rng.IntN(5)) - 2)
		}
	}
	for _, cols := range []int{1 << 10, 1<<10 - 1} { // by chunks and one by one
		rows := len(x) / cols
		slots := make([]int32, rows)
		for i := range slots {
			slots[i] = int32(i)
		}
		src, sm, kv := put(c, f32, x, rows, cols, 0), c.I32(slots, rows, 1), newCache(c, tensor.F8E4M3, rows, cols, 0, 0)
		c.Run(func(l *launch.List) { StoreRows(l, kv, src, sm) })
		for i, v := range content(c, kv) {
			if want := ref.F8E4M3(x[i]); v != want && !(x[i] != x[i] && v == 0) {
				t.Fatalf("%v is stored as %#02x, want %#02x", x[i], v, want)
			}
		}
	}
}

// TestLatentStore: one launch does to the bit what the operators do.
func TestLatentStore(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(9, 1))
	slots, positions := []int32{3, -1, 0, 7, 5}, []int32{1, 4, 9, 2, 12} // the last has no angles, the fourth no slot
	const eps = 1e-6
	for n, s := range []struct{ heads, nope, dim, rank, group, gap int }{
		{4, 16, 16, 64, 16, 0},   // all by chunks
		{2, 16, 8, 32, 8, 8},     // the goldens' heads: keys turn one by one
		{3, 5, 6, 21, 3, 1},      // nothing aligned
		{16, 16, 32, 512, 32, 0}, // two warps norm
		{2, 8, 16, 40, 8, 3},     // gaps
	} {
		for i, kind := range cacheTypes {
			p := device.Rope{Heads: s.heads, HeadDim: s.nope + s.dim, Offset: s.nope, Dim: s.dim, Interleaved: (i+n)%2 == 0}
			key := device.Rope{Heads: 1, HeadDim: s.dim, Dim: s.dim, Interleaved: p.Interleaved}
			qt, kt, wt := types[i%2], types[(i+n)%2], types[(i/2+n)%2]
			rows, qCols, width := len(slots), s.heads*p.HeadDim, s.rank+s.dim
			q, kv, w := values(rng, rows*qCols), values(rng, rows*width), values(rng, s.rank)
			table := put(c, f32, angles(12, s.dim), 12, s.dim, 0)
			norm, pos, sm := put(c, wt, w, 1, s.rank, 0), c.I32(positions, rows, 1), c.I32(slots, rows, 1)
			var sides [2]storeMats
			for j := range sides {
				sides[j] = storeMats{put(c, qt, q, rows, qCols, s.gap), put(c, kt, kv, rows, width, s.gap), newCache(c, kind, 7, width, s.group, s.gap)}
			}
			one, apart := sides[0], sides[1]
			c.Run(func(l *launch.List) {
				LatentStore(l, one.cache, one.q, one.kv, norm, eps, pos, sm, table, p, key)
				latent := apart.kv.ColRange(0, s.rank)
				RMSNorm(l, latent, latent, norm, eps)
				Rope(l, apart.kv.ColRange(s.rank, width), pos, table, key)
				Rope(l, apart.q, pos, table, p)
				StoreRows(l, apart.cache, apart.kv, sm)
			})
			name := fmt.Sprintf("%s %+v", kind, s)
			sameStores(t, c, name, one, apart)
			marksRows(t, c, name, one, kt, kv, func(l *launch.List, kv launch.Mat, cache launch.KV) {
				LatentStore(l, cache, one.q, kv, norm, eps, pos, sm, table, p, key)
			})
		}
	}
}

// storeMats is the operands of a store: queries, keys and values (or latents), and the cache.
type storeMats struct {
	q, kv launch.Mat
	cache launch.KV
}

// sameStores checks that one launch has the bits of operators apart, stores some rows but not all, and
// leaves gaps as they are.
func sameStores(t *testing.T, c *cudatest.GPU, name string, one, apart storeMats) {
	t.Helper()
	if err := kerneltest.SameBits(c.Floats(one.q), c.Floats(apart.q)); err != nil {
		t.Errorf("%s: queries: %v", name, err)
	}
	if err := kerneltest.SameBits(c.Floats(one.kv), c.Floats(apart.kv)); err != nil {
		t.Errorf("%s: keys and values: %v", name, err)
	}
	cached := content(c, one.cache)
	if !bytes.Equal(cached, content(c, apart.cache)) {
		t.Errorf("%s: the caches differ", name)
	}
	if !slices.Contains(cached, 0xff) || bytes.Count(cached, []byte{0xff}) == len(cached) {
		t.Errorf("%s: nothing or everything was stored", name)
	}
	gapsKept(t, c, "q", one.q)
	gapsKept(t, c, "kv", one.kv)
}

// marksRows checks that a store marks rows that are not finite, of the five rows kv: a key, a value, and
// a row that is not stored.
func marksRows(t *testing.T, c *cudatest.GPU, name string, s storeMats, dt tensor.DType, kv []float32, store func(*launch.List, launch.Mat, launch.KV)) {
	t.Helper()
	rows, width := s.kv.Rows, s.kv.Cols
	kv[3*width-1], kv[4*width], kv[2*width-1] = float32(math.NaN()), float32(math.Inf(1)), float32(math.NaN())
	spoiled := put(c, dt, kv, rows, width, s.kv.Stride-width)
	s.cache.Marks, s.cache.Mark = c.I32([]int32{0, 0, 0, 0, 3}, rows, 1), 5
	c.Run(func(l *launch.List) { store(l, spoiled, s.cache) })
	if got := cudatest.Download[int32](c, s.cache.Marks.At, rows); !slices.Equal(got, []int32{0, 0, 5, 0, 3}) {
		t.Errorf("%s: marks %v, want the third row's and that of the fifth, which was there", name, got)
	}
}

// TestMoveBlocks: blocks of every size go where the list says, both ways, and nothing else changes.
func TestMoveBlocks(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 9))
	const blocks, places = 7, 5
	for _, sizes := range [][]int{{16}, {1}, {4, 48, 4096}, {18432, 7, 64, 12}, {20000, 20000}} {
		for _, save := range []bool{true, false} {
			from, to := []int32{3, 0, 4}, []int32{1, 2, 4}
			var parts []BlockPart
			var want, got [][]byte
			var at []launch.Ptr
			for _, n := range sizes {
				cache, host := make([]byte, blocks*n), make([]byte, places*n)
				for _, b := range [][]byte{cache, host} {
					for i := range b {
						b[i] = byte(rng.Uint32())
					}
				}
				parts = append(parts, BlockPart{Cache: cudatest.Upload(c, cache), Host: cudatest.Upload(c, host), Bytes: n})
				dst, src := cache, host
				if save {
					dst, src = host, cache
				}
				for i := range from {
					copy(dst[int(to[i])*n:][:n], src[int(from[i])*n:][:n])
				}
				want = append(want, cache, host)
				at = append(at, parts[len(parts)-1].Cache, parts[len(parts)-1].Host)
			}
			table := cudatest.Upload(c, BlockTable(nil, parts, from, to))
			c.Run(func(l *launch.List) { MoveBlocks(l, table, len(parts), len(from), save) })
			for i, p := range at {
				got = append(got, cudatest.Download[byte](c, p, len(want[i])))
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("blocks of %v, save %v: side %d differs", sizes, save, i)
				}
			}
		}
	}
}

// TestStageBlocks: the blocks of one prompt lie one behind the other, and the table made of them is the one
// that the host would make of that prompt alone.
func TestStageBlocks(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 10))
	const slots, tokens = 9, 4
	prompts := []device.Span{
		{Row: 1, Len: 3, Pos: 0, Slot: 2, Blocks: []int32{5}},
		{Row: 4, Len: 5, Pos: 6, Slot: 0, Blocks: []int32{8, 0, 3}},
		{Row: 9, Len: 200, Pos: 2, Slot: 4, Blocks: slices.Repeat([]int32{1, 7, 2}, 17)},
	}
	decode := []device.Span{{Row: 0, Len: 1, Pos: 7, Blocks: []int32{4, 6}}}
	words := make([]int32, spans.Words(4, 57))
	table := c.I32(words[:spans.Put(words, prompts, decode)], 1, len(words))
	for _, row := range []int{1, 4, 48, 1152} {
		cache := make([]byte, slots*tokens*row)
		for i := range cache {
			cache[i] = byte(rng.Uint32())
		}
		far := cudatest.Upload(c, cache)
		for i, p := range prompts {
			n := len(p.Blocks)
			p.Blocks = slices.Clone(p.Blocks)
			own := make([]int32, spans.Words(1, n))
			near, to := cudatest.Upload(c, make([]byte, n*tokens*row)), cudatest.Upload(c, own)
			c.Run(func(l *launch.List) { StageBlocks(l, to, table.At, i, near, far, tokens*row, n) })
			var want []byte
			for b, block := range p.Blocks {
				want = append(want, cache[int(block)*tokens*row:][:tokens*row]...)
				p.Blocks[b] = int32(b)
			}
			if got := cudatest.Download[byte](c, near, len(want)); !bytes.Equal(got, want) {
				t.Fatalf("prompt %d, rows of %d bytes: other rows", i, row)
			}
			spans.Put(own, []device.Span{p}, nil)
			if got := cudatest.Download[int32](c, to, len(own)); !slices.Equal(got, own) {
				t.Fatalf("prompt %d: table %v, want %v", i, got, own)
			}
		}
	}
}
