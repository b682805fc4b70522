package gqa

import (
	"errors"
	"fmt"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	h200  = launch.GPU{SMs: 132, Hopper: true, SharedMax: 227 << 10}
	small = launch.GPU{SMs: 82, SharedMax: 99 << 10} // compute capability 8.6, 8.9 and 12.0
)

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// args are matching matrices of t rows that only have addresses.
type args struct {
	out, q, table launch.Mat
	sinks         launch.Mat
	cache         launch.KV
	p             device.GQA
}

func newArgs(t int, dt tensor.DType, p device.GQA) args {
	p.BlockTokens, p.Scale = 64, 0.1
	a := args{out: mat(tensor.BF16, t, p.Heads*p.HeadDim), q: mat(tensor.BF16, t, p.Heads*p.HeadDim), table: mat(tensor.I32, 1, 100),
		cache: launch.KV{Mat: mat(dt, 4096, p.Width())}, p: p}
	if dt == tensor.I8 {
		a.cache.Scales, a.cache.Group = mat(tensor.F32, 4096, p.Width()/p.HeadDim), p.HeadDim
	}
	return a
}

func (a *args) decode(l *launch.List, gpu launch.GPU, rows, items int) {
	Decode(l, gpu, a.out, a.q, a.cache, a.sinks, a.table, rows, items, 1<<20, a.p)
}

func first(d decoder, _ bool) decoder { return d }

var qwen3 = device.GQA{Heads: 32, KVHeads: 4, HeadDim: 128}

// A share has whole groups of items if that leaves work for all blocks.
func TestDecodeLaunches(t *testing.T) {
	for _, x := range []struct {
		p             device.GQA
		rows, context int
		grid          launch.Dim
		groups        bool
	}{
		{qwen3, 1, 2048, launch.Dim{X: 4, Y: 32}, false},
		{qwen3, 1, 32768, launch.Dim{X: 4, Y: 99}, false},
		{qwen3, 8, 32768, launch.Dim{X: 4, Y: 99}, false}, // 128 groups for 99
		{qwen3, 32, 32768, launch.Dim{X: 4, Y: 99}, true},
		{device.GQA{Heads: 64, KVHeads: 8, HeadDim: 64}, 32, 2048, launch.Dim{X: 8, Y: 66}, true},
		{device.GQA{Heads: 40, KVHeads: 2, HeadDim: 256}, 1, 100, launch.Dim{X: 4, Y: 2}, false},
		{device.GQA{Heads: 40, KVHeads: 2, HeadDim: 512}, 1, 100, launch.Dim{X: 6, Y: 2}, false},
	} {
		a := newArgs(x.rows, tensor.BF16, x.p)
		var l launch.List
		a.decode(&l, h200, x.rows, DecodeItems(x.rows, x.context))
		if len(l.Ops) != 2 {
			t.Fatalf("%d launches", len(l.Ops))
		}
		attend, join := &l.Ops[0], &l.Ops[1]
		if attend.Kernel != first(decoderOf(tensor.BF16, x.p)).attend || attend.Config.Grid != x.grid || attend.Count != 15 || l.OpArgs(attend)[3] != bit(x.groups) {
			t.Errorf("%+v: %s %+v, %d arguments, groups %v", x, attend.Kernel, attend.Config, attend.Count, l.OpArgs(attend)[3])
		}
		name, grid, count := fmt.Sprintf("kr_gqa_join_%d", x.p.HeadDim), launch.Dim{X: uint32(x.p.Heads), Y: uint32(x.rows)}, 9
		if x.groups {
			name, grid.X, count = fmt.Sprintf("kr_gqa_join_groups_%d", x.p.HeadDim), 8, 10
		}
		if join.Kernel.String() != name || join.Config.Grid != grid || join.Count != count {
			t.Errorf("%+v: %s %+v, %d arguments", x, join.Kernel, join.Config, join.Count)
		}
	}
	a := newArgs(3, tensor.BF16, qwen3)
	var l launch.List
	if a.decode(&l, h200, 0, 0); len(l.Ops) != 0 {
		t.Errorf("%d launches for no rows", len(l.Ops))
	}
}

// Steps with different lengths have the same graph.
func TestDecodeRepeats(t *testing.T) {
	a := newArgs(4, tensor.F8E4M3, qwen3)
	var one, two, three launch.List
	a.decode(&one, h200, 4, DecodeItems(4, 4096))
	a.decode(&two, h200, 4, DecodeItems(4, 4096))
	a.decode(&three, h200, 4, DecodeItems(4, 8192))
	if !one.Same(&two) || one.Same(&three) {
		t.Error("launches do not depend on the bounds alone")
	}
}

// On Hopper with a turn, a multiprocessor has one block, which computes several tiles of heads'
// rows.
func TestPrefillLaunches(t *testing.T) {
	list := []device.Span{{Len: 129}, {Len: 5, Pos: 700}}
	for _, x := range []struct {
		gpu   launch.GPU
		dt    tensor.DType
		dim   int
		turn  launch.Ptr
		name  string
		grid  launch.Dim
		block uint32
		count int
	}{
		{h200, tensor.BF16, 128, 0, "kr_gqa_prefill_bf16_128_h", launch.Dim{X: 120}, 384, 15},
		{h200, tensor.F8E4M3, 128, 512, "kr_gqa_prefill_e4m3_128_h", launch.Dim{X: 120}, 512, 15},
		{launch.GPU{SMs: 7, Hopper: true, SharedMax: h200.SharedMax}, tensor.I8, 256, 512, "kr_gqa_prefill_i8_256_h", launch.Dim{X: 7}, 384, 15},
		{small, tensor.BF16, 128, 512, "kr_gqa_prefill_bf16_128", launch.Dim{X: 40, Y: 3}, 256, 13},
		{small, tensor.BF16, 256, 512, "kr_gqa_prefill_bf16_256", launch.Dim{X: 40, Y: 6}, 128, 13},
		{h200, tensor.BF16, 512, 0, "kr_gqa_prefill_bf16_512_h", launch.Dim{X: 240}, 384, 15},
		{h200, tensor.F8E4M3, 512, 512, "kr_gqa_prefill_e4m3_512_h", launch.Dim{X: 132}, 384, 15},
		{launch.GPU{SMs: 108, SharedMax: 163 << 10}, tensor.BF16, 512, 512, "kr_gqa_prefill_bf16_512", launch.Dim{X: 40, Y: 12}, 128, 13},
		{small, tensor.I8, 512, 512, "kr_gqa_prefill_i8_512", launch.Dim{X: 40, Y: 12}, 128, 13},
	} {
		a := newArgs(134, x.dt, device.GQA{Heads: 40, KVHeads: 2, HeadDim: x.dim})
		var l launch.List
		Prefill(&l, x.gpu, a.out, a.q, a.cache, launch.Mat{}, list, a.table, x.turn, a.p)
		o := &l.Ops[0]
		if len(l.Ops) != 1 || o.Kernel.String() != x.name || o.Config.Grid != x.grid || o.Config.Block.X != x.block || int(o.Count) != x.count {
			t.Errorf("%+v: %s %+v, %d arguments", x, o.Kernel, o.Config, o.Count)
		}
	}
}

// TestPrefillWindow: which kernel takes a window or sinks, and what has none.
func TestPrefillWindow(t *testing.T) {
	list := []device.Span{{Len: 130}, {Row: 130, Len: 4}}
	sinks := mat(tensor.F32, 1, 8)
	for _, x := range []struct {
		gpu    launch.GPU
		dt     tensor.DType
		dim    int
		window int
		sinks  launch.Mat
		name   string
		count  int
	}{
		{h200, tensor.BF16, 64, 0, sinks, "kr_gqa_prefill_window_bf16_64_h", 17},
		{h200, tensor.I8, 64, 128, sinks, "kr_gqa_prefill_window_i8_64_h", 17},
		{h200, tensor.F8E4M3, 128, 4096, launch.Mat{}, "kr_gqa_prefill_window_e4m3_128_h", 17},
		{small, tensor.BF16, 64, 1, launch.Mat{}, "kr_gqa_prefill_window_bf16_64", 15},
		{h200, tensor.BF16, 256, 1024, launch.Mat{}, "kr_gqa_prefill_window_bf16_256_h", 17},
		{small, tensor.I8, 256, 1024, sinks, "kr_gqa_prefill_window_i8_256", 15},
		{h200, tensor.F8E4M3, 512, 8, launch.Mat{}, "kr_gqa_prefill_window_e4m3_512_h", 17},
	} {
		a := newArgs(134, x.dt, device.GQA{Heads: 8, KVHeads: 2, HeadDim: x.dim, Window: x.window})
		var l launch.List
		Prefill(&l, x.gpu, a.out, a.q, a.cache, x.sinks, list, a.table, 0, a.p)
		if o := &l.Ops[0]; o.Kernel.String() != x.name || int(o.Count) != x.count {
			t.Errorf("%+v: %s, %d arguments", x, o.Kernel, o.Count)
		}
		half := sinks
		half.DType = tensor.BF16
		if CanPrefill(x.gpu, a.out, a.q, a.cache, half, a.p) || CanDecode(x.gpu, a.out, a.q, a.cache, half, a.p) {
			t.Error("sinks of BF16 have a kernel")
		}
	}
	a := newArgs(134, tensor.BF16, device.GQA{Heads: 8, KVHeads: 2, HeadDim: 512, Window: 8})
	if CanDecode(h200, a.out, a.q, a.cache, launch.Mat{}, a.p) {
		t.Error("heads of 512 and a window have a kernel for generated rows")
	}
}

// TestDecodeWindow: a short window takes one launch, and a long one bounds the items.
func TestDecodeWindow(t *testing.T) {
	for _, x := range []struct{ window, items, launches int }{
		{1, 4, 1}, {128, 4, 1}, {spans.OneItem, 4, 1}, {spans.OneItem + 1, 32, 2}, {4096, 4 * 64, 2}, {1 << 20, 4 * spans.ItemsMax, 2},
	} {
		a := newArgs(4, tensor.F8E4M3, qwen3)
		a.p.Window = x.window
		var l launch.List
		items := WindowItems(4, DecodeItems(4, 32768), a.p)
		a.decode(&l, h200, 4, items)
		if items != x.items || len(l.Ops) != x.launches || l.Ops[0].Kernel.String() != "kr_gqa_decode8_window_e4m3_128" || l.Ops[0].Count != 20 {
			t.Errorf("a window of %d: %d items, want %d; %d launches, want %d; %s", x.window, items, x.items, len(l.Ops), x.launches, l.Ops[0].Kernel)
		}
	}
}

// The kernels of compute_80 fit on every GPU from 8.0 on, but for those of heads of 512 in BF16, and Hopper's on
// Hopper. What does not fit is not chosen.
func TestSharedMemory(t *testing.T) {
	most := func(key kernelKey) int {
		if key.dim == 512 && key.dtype == tensor.BF16 {
			return 163 << 10 // of compute capability 8.0
		}
		return small.SharedMax
	}
	for key, two := range decoders {
		for _, d := range two {
			if d.shared > most(key) || d.blocks*(d.bytes(h200)+1<<10) > 228<<10 {
				t.Errorf("decode %v: %d and %d bytes, %d blocks of %s", key, d.shared, d.bytes(h200), d.blocks, d.attend)
			}
		}
	}
	for key, k := range prefillers {
		if k.shared > most(key) || k.sharedHopper > h200.SharedMax {
			t.Errorf("prefill %v: %d and %d bytes", key, k.shared, k.sharedHopper)
		}
	}
	a := newArgs(134, tensor.BF16, device.GQA{Heads: 8, KVHeads: 1, HeadDim: 512})
	for _, gpu := range []launch.GPU{small, h200} {
		fits := gpu == h200
		if CanPrefill(gpu, a.out, a.q, a.cache, launch.Mat{}, a.p) != fits || CanDecode(gpu, a.out, a.q, a.cache, launch.Mat{}, a.p) != fits {
			t.Errorf("heads of 512 with %d bytes of shared memory: want %v", gpu.SharedMax, fits)
		}
	}
}

func TestFastRefuses(t *testing.T) {
	list := []device.Span{{Len: 2}}
	for name, spoil := range map[string]func(a *args){
		"head size": func(a *args) { *a = newArgs(2, tensor.BF16, device.GQA{Heads: 2, KVHeads: 1, HeadDim: 96}) },
		"rows":      func(a *args) { a.q.DType = tensor.F32 },
		"alignment": func(a *args) { a.q.Stride += 4 },
		"cache":     func(a *args) { a.cache.DType = tensor.F32 },
		"groups":    func(a *args) { *a = newArgs(2, tensor.I8, qwen3); a.cache.Group = 64 },
	} {
		a := newArgs(2, tensor.BF16, qwen3)
		spoil(&a)
		var l launch.List
		for _, f := range []func(){
			func() { a.decode(&l, h200, 2, spans.ItemGroup) },
			func() { Prefill(&l, h200, a.out, a.q, a.cache, launch.Mat{}, list, a.table, 0, a.p) },
		} {
			func() {
				defer func() {
					var e *device.ShapeError
					if err, ok := recover().(error); !ok || !errors.As(err, &e) {
						t.Errorf("%s: no ShapeError", name)
					}
				}()
				f()
			}()
		}
	}
}
