package gqa

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The sizes of src/gqa_step.cuh.
const (
	decodeThreads = 128
	warps         = 4
	stepKeys      = spans.KeyTile / warps
	stepBytes     = 4096 // of a warp's keys in shared memory, in at most four steps
)

// decoder is the kernels for a cache's type and a head size, with 8 or 16 query heads of a group (8 of heads of 512).
type decoder struct {
	attend, join launch.Kernel
	window       launch.Kernel // attend with a window; none: zero
	groups       launch.Kernel // join of whole groups
	heads        int           // query heads per block
	shared, late int           // bytes of a block of attend, and in addition on Hopper
	blocks       int           // blocks per multiprocessor
}

// windowDim is the largest head size that has kernels of generated rows with a window.
const windowDim = 256

type kernelKey struct {
	dtype tensor.DType
	dim   int
}

var dtypeNames = map[tensor.DType]string{tensor.BF16: "bf16", tensor.F8E4M3: "e4m3", tensor.I8: "i8"}

var decoders = func() map[kernelKey][2]decoder {
	out := map[kernelKey][2]decoder{}
	for dt, name := range dtypeNames {
		for dim, blocks := range map[int][2]int{64: {4, 3}, 128: {4, 2}, 256: {2, 2}, 512: {2, 2}} {
			var two [2]decoder
			if dim == 128 && dt != tensor.F8E4M3 {
				blocks[0] = 3 // they need more registers
			}
			each := [2]int{8, 16}
			if dim == 512 { // the sums of more heads need more registers
				each[1] = 8
				if dt == tensor.BF16 {
					blocks = [2]int{1, 1}
				}
			}
			for i, heads := range each {
				two[i] = decoder{attend: named(fmt.Sprintf("kr_gqa_decode%d_%s", heads, name), dim), join: named("kr_gqa_join", dim), groups: named("kr_gqa_join_groups", dim),
					heads: heads, shared: decodeShared(dt, dim, heads), late: lateShared(dim, heads), blocks: blocks[i]}
				if dim <= windowDim {
					two[i].window = named(fmt.Sprintf("kr_gqa_decode%d_window_%s", heads, name), dim)
				}
			}
			out[kernelKey{dt, dim}] = two
		}
	}
	return out
}()

// lateShared returns what Ring has in addition on Hopper, where warps are joined while the next
// item's keys are multiplied: sums of a group's items, and two mbarriers.
func lateShared(dim, heads int) int {
	if dim > 1024/heads {
		return 0
	}
	return dim*heads*4 + 8*decodeThreads + 16
}

// decodeShared returns the size of Ring.
func decodeShared(dt tensor.DType, dim, heads int) int {
	unit, scales, chunk, far := stepKeys*dim*dt.Size(), 0, min(dim, 1024/heads), dim*heads > 2048
	if dt == tensor.I8 {
		scales = stepKeys * 2 * 4
	}
	if far {
		chunk = 512 / heads
	}
	n := warps*max(1, min(stepBytes/unit, 4))*(2*unit+scales+16) + warps*heads*((chunk+4)*4+8)
	if far { // queries, and sums of a group's items
		n += dim/16*heads*32 + dim*heads*4 + 8*decodeThreads
	}
	return n
}

// bytes returns the shared memory of a block of attend.
func (d *decoder) bytes(gpu launch.GPU) int {
	if gpu.Hopper {
		return d.shared + d.late
	}
	return d.shared
}

// decoderOf returns the kernels for p's groups.
func decoderOf(dt tensor.DType, p device.GQA) (d decoder, ok bool) {
	two, ok := decoders[kernelKey{dt, p.HeadDim}]
	if p.Heads > 8*p.KVHeads {
		return two[1], ok
	}
	return two[0], ok
}

// CanDecode reports whether Decode takes these: heads of 64, 128, 256 or 512, queries of BF16, a cache
// of BF16, F8E4M3 or I8 with one scale per head, rows aligned to 16 bytes, sinks of F32 or none, and no
// window with heads of 512. Those need more shared memory than some GPUs have.
func CanDecode(gpu launch.GPU, out, q launch.Mat, cache launch.KV, sinks launch.Mat, p device.GQA) bool {
	d, ok := decoderOf(cache.DType, p)
	return ok && (p.Window == 0 || p.HeadDim <= windowDim) && readable(out, q, &cache, sinks, p) && gpu.SharedMax >= d.bytes(gpu)
}

// readable reports whether the fast kernels take rows, cache and sinks.
func readable(out, q launch.Mat, cache *launch.KV, sinks launch.Mat, p device.GQA) bool {
	return q.DType == tensor.BF16 && (sinks.Zero() || sinks.DType == tensor.F32) && aligned(q) && aligned(cache.Mat) && aligned(out) && (cache.DType != tensor.I8 || cache.Group == p.HeadDim)
}

// aligned reports whether rows of m can be read 16 bytes at a time.
func aligned(m launch.Mat) bool {
	return m.At%16 == 0 && (m.Rows <= 1 || m.Stride*m.DType.Size()%16 == 0)
}

// DecodeItems returns the most items of work of rows generated rows with at most context
// positions.
func DecodeItems(rows, context int) int { return rows * spans.ItemBound(context) }

// WindowItems returns the most items of rows generated rows that have items of work without the
// window of p (0: none).
func WindowItems(rows, items int, p device.GQA) int {
	if p.Window == 0 {
		return items
	}
	return min(items, rows*spans.WindowBound(p.Window))
}

// DecodeScratch returns the scratch memory of Decode for that many items, in bytes.
func DecodeScratch(items int, p device.GQA) int { return partBytes(items, p) + 2*4*items*p.Heads }

func partBytes(items int, p device.GQA) int { return 4 * items * p.Heads * p.HeadDim }

// decodeShape returns the grid of attention: parts of the groups of query heads, and shares of
// the items. groups means that a block joins the items of whole groups. It is set if no
// multiprocessor then waits long for one that has a group more.
func decodeShape(gpu launch.GPU, d decoder, items int, p device.GQA) (grid launch.Dim, groups bool) {
	parts := p.KVHeads * ((p.Heads/p.KVHeads + d.heads - 1) / d.heads)
	room := max(1, gpu.SMs*d.blocks/parts)
	n := items / spans.ItemGroup
	rounds := (n + room - 1) / room
	return launch.Dim{X: uint32(parts), Y: uint32(min(items, room))}, rounds > 3 || n > 0 && 8*n >= 7*rounds*room
}

// Decode computes attention of all generated rows in table: at most rows of them, with at most
// items of work (DecodeItems, or another bound of spans.Items over all rows; in a window
// WindowItems). The grid depends only on these bounds, and a row beyond them becomes NaN. out [T,
// heads*d] BF16 or F32, q [T, heads*d] BF16, sinks [1, heads] F32 or absent. scratch has
// DecodeScratch bytes, aligned to 16. Rows of a window of at most spans.OneItem keys take one
// launch, and rows beyond the bound are unchanged; other rows take two.
func Decode(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, sinks, table launch.Mat, rows, items int, scratch launch.Ptr, p device.GQA) {
	check(out, q, &cache, table, p)
	sinkType(sinks, p)
	if !CanDecode(gpu, out, q, cache, sinks, p) {
		refuse("no kernel for out %v, q %v, cache %v, sinks %v", out, q, cache.Mat, sinks)
	}
	if rows > q.Rows || items < rows || scratch%16 != 0 {
		refuse("%d items of %d rows, q %v", items, rows, q)
	}
	if rows == 0 {
		return
	}
	f := newFlow(gpu, cache, items, scratch, p)
	one := p.Window > 0 && p.Window <= spans.OneItem
	more := []launch.Arg{launch.I32(p.BlockTokens)}
	if p.Window > 0 {
		var here launch.Ptr // where attend itself writes rows
		if one {
			here, f.groups = out.At, false
		}
		f.d.attend = f.d.window
		more = append(more, launch.I32(p.Window), launch.P(here), wide(out), launch.I32(out.Stride), launch.P(sinks.At))
	}
	f.attend(l, true, q, cache, table, more...)
	if !one {
		f.join(l, out, sinks, table, rows)
	}
}

// flow is attention of generated rows whose items give sums in scratch memory, which are then joined.
type flow struct {
	d           decoder
	gpu         launch.GPU
	p           device.GQA
	items       int
	part, marks launch.Ptr
	grid        launch.Dim
	groups      bool
}

func newFlow(gpu launch.GPU, cache launch.KV, items int, scratch launch.Ptr, p device.GQA) flow {
	f := flow{gpu: gpu, p: p, items: items, part: scratch, marks: scratch + launch.Ptr(partBytes(items, p))}
	f.d, _ = decoderOf(cache.DType, p)
	f.grid, f.groups = decodeShape(gpu, f.d, items, p)
	return f
}

// attend appends attention; more are the arguments of its kernel that others do not have. early: nothing that it reads before it waits for
// earlier kernels was written by one of this step.
func (f *flow) attend(l *launch.List, early bool, q launch.Mat, cache launch.KV, table launch.Mat, more ...launch.Arg) {
	args := append(make([]launch.Arg, 0, 20), launch.P(f.part), launch.P(f.marks), launch.I32(f.items), bit(f.groups), launch.P(q.At), launch.I32(q.Stride),
		launch.P(cache.At), launch.P(cache.Scales.At), launch.I32(cache.Stride), launch.I32(cache.Scales.Stride), launch.P(table.At), launch.I32(f.p.Heads),
		launch.I32(f.p.KVHeads), scale(f.p))
	l.Add(f.d.attend, launch.Config{Grid: f.grid, Block: launch.Dim{X: decodeThreads}, Shared: uint32(f.d.bytes(f.gpu)), PDL: early}, append(args, more...)...)
}

// join appends the joins of at most rows rows.
func (f *flow) join(l *launch.List, out, sinks, table launch.Mat, rows int) {
	k, x := f.d.join, f.p.Heads
	args := []launch.Arg{launch.P(out.At), wide(out), launch.I32(out.Stride), launch.P(f.part), launch.P(f.marks), launch.I32(f.items), launch.P(table.At)}
	if f.groups {
		each := 4 * decodeThreads / f.p.HeadDim // heads of a block
		k, x, args = f.d.groups, (f.p.Heads+each-1)/each, append(args, launch.I32(f.p.Heads))
	}
	l.Add(k, launch.Config{Grid: launch.Dim{X: uint32(x), Y: uint32(rows)}, Block: launch.Dim{X: decodeThreads}, PDL: true},
		append(args, launch.I32(f.p.Window), launch.P(sinks.At))...)
}

// scale converts scores to powers of two.
func scale(p device.GQA) launch.Arg { return launch.F32(float32(float64(p.Scale) * math.Log2E)) }

func bit(v bool) launch.Arg {
	if v {
		return launch.I32(1)
	}
	return launch.I32(0)
}
