package mla

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var h100 = launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}

// args are matching matrices of t rows for V2-Lite that only have addresses.
type args struct {
	out, q, table launch.Mat
	cache         launch.KV
	kvb           launch.Weight
	p             device.MLA
}

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func newArgs(t, heads int) args {
	return args{out: mat(tensor.BF16, t, heads*vDim), q: mat(tensor.BF16, t, heads*(nope+rope)), table: mat(tensor.I32, 1, 100),
		cache: launch.KV{Mat: mat(tensor.F8E4M3, 4096, width)}, kvb: launch.Weight{F: mat(tensor.BF16, heads*(nope+vDim), rank)},
		p: device.MLA{Heads: heads, Nope: nope, Rope: rope, V: vDim, Rank: rank, Scale: 0.1, BlockTokens: 64}}
}

func (a *args) decode(l *launch.List, rows, items int) {
	Decode(l, h100, a.out, a.q, a.cache, a.kvb, a.table, rows, items, 1<<20, a.p)
}

func refused(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		var e *device.ShapeError
		if err, ok := recover().(error); !ok || !errors.As(err, &e) {
			t.Errorf("%s: no ShapeError", what)
		}
	}()
	f()
}

func TestDecodeLaunches(t *testing.T) {
	for _, x := range []struct {
		heads, rows, context  int
		absorb, attend, merge launch.Dim
		kernels               []string
	}{
		{16, 1, 2048, launch.Dim{X: 4, Y: 16, Z: 1}, launch.Dim{X: 1, Y: 32}, launch.Dim{X: 64, Y: 1}, []string{"kr_mla_merge"}},
		{16, 1, 32768, launch.Dim{X: 4, Y: 16, Z: 1}, launch.Dim{X: 1, Y: 128}, launch.Dim{X: 64, Y: 1}, []string{"kr_mla_join", "kr_mla_merge"}},
		{16, 8, 2048, launch.Dim{X: 4, Y: 16, Z: 1}, launch.Dim{X: 1, Y: 132}, launch.Dim{X: 64, Y: 1}, []string{"kr_mla_join", "kr_mla_merge"}},
		{16, 9, 2048, launch.Dim{X: 4, Y: 16, Z: 1}, launch.Dim{X: 1, Y: 132}, launch.Dim{X: 16, Y: 5}, []string{"kr_mla_join_merge"}},
		{16, 32, 2048, launch.Dim{X: 4, Y: 16, Z: 2}, launch.Dim{X: 1, Y: 132}, launch.Dim{X: 16, Y: 8}, []string{"kr_mla_join_merge"}},
		{128, 65, 100, launch.Dim{X: 4, Y: 128, Z: 2}, launch.Dim{X: 8, Y: 16}, launch.Dim{X: 128, Y: 17}, []string{"kr_mla_join_merge"}},
	} {
		a := newArgs(x.rows, x.heads)
		var l launch.List
		a.decode(&l, x.rows, DecodeItems(x.rows, x.context))
		type kernel struct {
			name string
			grid launch.Dim
			args int
		}
		want := []kernel{{"kr_mla_absorb", x.absorb, 9}, {"kr_mla_decode_e4m3", x.attend, 14}}
		for i, name := range x.kernels {
			k := kernel{name, x.merge, 12}
			if i < len(x.kernels)-1 {
				k = kernel{name, launch.Dim{X: uint32(8 * x.heads), Y: uint32(x.rows)}, 8}
			}
			want = append(want, k)
		}
		if len(l.Ops) != len(want) {
			t.Fatalf("%d launches", len(l.Ops))
		}
		for i, want := range want {
			o := l.Ops[i]
			if o.Kernel.String() != want.name || o.Config.Grid != want.grid || o.Count != want.args || !o.Config.PDL {
				t.Errorf("%+v: %s %+v with %d arguments, want %+v", x, o.Kernel, o.Config, o.Count, want)
			}
		}
	}
	a := newArgs(3, 16)
	var l launch.List
	if a.decode(&l, 0, 0); len(l.Ops) != 0 {
		t.Errorf("%d launches for no rows", len(l.Ops))
	}
}

// Every head has a block even on a small GPU, and a block keeps sums only if it has room for
// them.
func TestAttendShape(t *testing.T) {
	for _, x := range []struct {
		gpu          launch.GPU
		items, heads int
		grid         launch.Dim
		folds        bool
	}{
		{h100, 5, 16, launch.Dim{X: 1, Y: 5}, true},
		{h100, 500, 20, launch.Dim{X: 2, Y: 66}, true},
		{launch.GPU{SMs: 4, SharedMax: 232448}, 500, 128, launch.Dim{X: 8, Y: 1}, true},
		{launch.GPU{SMs: 108, SharedMax: 166912}, 500, 16, launch.Dim{X: 1, Y: 108}, false},
	} {
		grid, folds, shared := attendShape(x.gpu, x.items, x.heads)
		if grid != x.grid || folds != x.folds || int(shared) > x.gpu.SharedMax {
			t.Errorf("%+v: %+v, folds %v, %d bytes", x, grid, folds, shared)
		}
	}
}

// Steps with different lengths have the same graph.
func TestDecodeRepeats(t *testing.T) {
	a := newArgs(4, 16)
	var one, two launch.List
	a.decode(&one, 4, DecodeItems(4, 4096))
	a.decode(&two, 4, DecodeItems(4, 4096))
	if !one.Same(&two) {
		t.Error("lists differ")
	}
	if allocs := testing.AllocsPerRun(10, func() { one.Reset(); a.decode(&one, 4, DecodeItems(4, 4096)) }); allocs > 0 {
		t.Errorf("%v allocations a call", allocs)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*args){
		"a float32 query": func(a *args) { a.q.DType = tensor.F32 },
		"other sizes":     func(a *args) { a.p.Nope, a.p.Rope = 64, 128 },
		"float32 cache":   func(a *args) { a.cache.DType = tensor.F32 },
		"odd groups":      func(a *args) { a.cache.DType, a.cache.Scales, a.cache.Group = tensor.I8, mat(tensor.F32, 4096, 96), 6 },
		"misaligned":      func(a *args) { a.q.At += 8 },
		"kv_b of float32": func(a *args) { a.kvb.F.DType = tensor.F32 },
	} {
		a := newArgs(4, 16)
		spoil(&a)
		if CanDecode(h100, a.q, a.cache, a.kvb, a.p) {
			t.Errorf("%s: CanDecode", name)
		}
		refused(t, name, func() { a.decode(new(launch.List), 4, 100) })
	}
	a := newArgs(4, 16)
	if !CanDecode(h100, a.q, a.cache, a.kvb, a.p) || CanDecode(launch.GPU{SMs: 80, SharedMax: 101376}, a.q, a.cache, a.kvb, a.p) {
		t.Error("CanDecode is wrong about shared memory")
	}
	refused(t, "more rows than q", func() { a.decode(new(launch.List), 5, 100) })
	refused(t, "too few items", func() { a.decode(new(launch.List), 4, 3) })
	refused(t, "no scales", func() { a := a; a.cache.DType = tensor.I8; a.decode(new(launch.List), 4, 100) })
	refused(t, "table", func() { a := a; a.table = a.q; a.decode(new(launch.List), 4, 100) })
	refused(t, "cache of another width", func() { a := a; a.cache.Cols--; a.decode(new(launch.List), 4, 100) })
}

func TestDecodeScratch(t *testing.T) {
	p := newArgs(1, 16).p
	if n, want := DecodeScratch(32, 512, p), 32*16*576*2+512*16*512*4+512*16*8; n != want {
		t.Errorf("%d bytes, want %d", n, want)
	}
}

func TestPrefillLaunches(t *testing.T) {
	list := []device.Span{{Row: 0, Len: 300, Pos: 100}, {Row: 300, Len: 20, Pos: 0}}
	a := newArgs(320, 16)
	var l launch.List
	products := 0
	expand := func(out, x launch.Mat, w launch.Weight) {
		products++
		if out.Rows != x.Rows || out.Cols != 16*256 || x.Cols != rank {
			t.Errorf("out %v, x %v", out, x)
		}
	}
	Prefill(&l, launch.GPU{SharedMax: 101376}, a.out, a.q, a.cache, a.kvb, list, a.table, 384, 1<<20, expand, a.p)
	// 512 + 128 keys in pieces of 384; 3 + 1 tiles of rows
	if len(l.Ops) != 4 || products != 2 {
		t.Fatalf("%d launches, %d products", len(l.Ops), products)
	}
	for i, want := range []struct {
		name string
		grid launch.Dim
		args int
	}{{"kr_mla_gather", launch.Dim{X: 48}, 11}, {"kr_mla_prefill", launch.Dim{X: 16, Y: 4}, 12},
		{"kr_mla_gather", launch.Dim{X: 32}, 11}, {"kr_mla_prefill", launch.Dim{X: 16, Y: 4}, 12}} {
		o := l.Ops[i]
		if o.Kernel.String() != want.name || o.Config.Grid != want.grid || o.Count != want.args {
			t.Errorf("launch %d: %s %+v with %d arguments, want %+v", i, o.Kernel, o.Config, o.Count, want)
		}
	}
	// a piece: 256 columns of 16 heads, the latents, the rotated part, all BF16
	piece := 384 * (16*256 + 512 + 64) * 2
	if n, want := PrefillScratch(4, 640, 384, a.p), piece+4*16*68*256*4; n != want {
		t.Errorf("%d bytes, want %d", n, want)
	}
	if n, want := PrefillScratch(4, 384, 384, a.p), piece; n != want {
		t.Errorf("%d bytes in one piece, want %d", n, want)
	}
	tiles, keys := PrefillBounds(320, 2, 400)
	if tiles < 4 || keys < 640 {
		t.Errorf("bounds of %d tiles, %d keys", tiles, keys)
	}
}

func TestPrefillKernel(t *testing.T) {
	for _, x := range []struct {
		gpu  launch.GPU
		want string
	}{{h100, "kr_mla_prefill_h"}, {launch.GPU{SharedMax: 232448}, "kr_mla_prefill"}, {launch.GPU{Hopper: true, SharedMax: 101376}, "kr_mla_prefill"}} {
		k, c := attention(x.gpu)
		if k.String() != x.want || int(c.Shared) > x.gpu.SharedMax {
			t.Errorf("%+v: %s with %d bytes", x.gpu, k, c.Shared)
		}
	}
}

func TestPrefillRefuses(t *testing.T) {
	list := []device.Span{{Row: 0, Len: 4, Pos: 0}}
	run := func(a args, chunk int) {
		Prefill(new(launch.List), h100, a.out, a.q, a.cache, a.kvb, list, a.table, chunk, 1<<20, func(out, x launch.Mat, w launch.Weight) {}, a.p)
	}
	a := newArgs(4, 16)
	refused(t, "a piece that is not whole tiles", func() { run(a, spans.KeyAlign+spans.KeyTile) })
	refused(t, "no piece", func() { run(a, 0) })
	refused(t, "query", func() { a := a; a.q.DType = tensor.F32; run(a, 128) })
	refused(t, "rank", func() { a := a; a.p.Rank = 256; a.cache.Cols, a.kvb.F.Cols = 320, 256; run(a, 128) })
	refused(t, "out", func() { a := a; a.out.Cols--; run(a, 128) })
}
