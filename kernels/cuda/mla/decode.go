package mla

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kAbsorb = launch.Named("kr_mla_absorb")
	kJoin   = launch.Named("kr_mla_join")
	kMerge  = launch.Named("kr_mla_merge")
	kBoth   = launch.Named("kr_mla_join_merge")
	kAttend = map[tensor.DType]launch.Kernel{
		tensor.BF16:   launch.Named("kr_mla_decode_bf16"),
		tensor.F8E4M3: launch.Named("kr_mla_decode_e4m3"),
		tensor.I8:     launch.Named("kr_mla_decode_i8"),
	}
)

// The sizes of mla.cuh, mla_decode.cu and mla_merge.cu.
const (
	nope, rope, vDim, rank = 128, 64, 128, 512
	width                  = rank + rope

	absorbCols, absorbRows = 128, 16 // columns of a block, rows of a product
	headsPerBlock          = 16
	joinCols               = 64 // columns per block
	mergeRows, mergeV      = 8, 32
	bothRows               = 4 // rows of a block that joins and merges, at most
	// two tiles of 64 keys, a tile of weights, marks of 8 warps, the tiles' descriptions, three
	// of four parts of scores
	decodeShared = 2*64*2*width + headsPerBlock*64*2 + 4*8*headsPerBlock + 128 + 3*4*headsPerBlock*64
	// and a block's sums of a group of items
	foldShared = decodeShared + 4*headsPerBlock*rank

	// Up to this many items of a single row, merge joins them itself: each of its blocks reads
	// all items of a head.
	mergeItems = 48
)

// fixed reports whether the fast kernels support the sizes.
func fixed(p device.MLA) bool {
	return p.Nope == nope && p.Rope == rope && p.V == vDim && p.Rank == rank
}

// aligned reports whether rows of m can be read 16 bytes at a time.
func aligned(m launch.Mat) bool {
	return m.At%16 == 0 && (m.Rows <= 1 || m.Stride*m.DType.Size()%16 == 0)
}

// readable reports whether the fast kernels take the types and places of q, kv_b and the cache.
func readable(q launch.Mat, cache *launch.KV, kvb *launch.Weight) bool {
	return q.DType == tensor.BF16 && aligned(q) && kvb.F.DType == tensor.BF16 && aligned(kvb.F) && aligned(cache.Mat)
}

// CanDecode reports whether Decode takes these: DeepSeek's head sizes, queries and kv_b
// of BF16, a cache of BF16, F8E4M3 or I8 in groups that 4 divides, all aligned to 16
// bytes, and a GPU whose blocks can have 160 KiB of shared memory.
func CanDecode(gpu launch.GPU, q launch.Mat, cache launch.KV, kvb launch.Weight, p device.MLA) bool {
	return fixed(p) && CanSparse(gpu, q, cache, kvb, p)
}

// CanSparse is CanDecode for SparseRows: keys and values of a head may have any size beside the latent.
func CanSparse(gpu launch.GPU, q launch.Mat, cache launch.KV, kvb launch.Weight, p device.MLA) bool {
	_, ok := kAttend[cache.DType]
	return ok && p.Rope == rope && p.Rank == rank && p.Nope <= nopeMax && readable(q, &cache, &kvb) && gpu.SharedMax >= decodeShared && (cache.DType != tensor.I8 || cache.Group%4 == 0)
}

// DecodeItems returns the most items of work of rows generated rows with at most context
// positions.
func DecodeItems(rows, context int) int { return rows * spans.ItemBound(context) }

// DecodeScratch returns the scratch memory of Decode in bytes: 33 KB per item and 18 KB per row
// at 16 heads.
func DecodeScratch(rows, items int, p device.MLA) int {
	d := layout(rows, items, p)
	return d.marks + 2*4*items*p.Heads
}

// places are the offsets of the parts of Decode's scratch memory, in bytes.
type places struct{ part, marks int }

func layout(rows, items int, p device.MLA) places {
	part := align(2 * rows * int(over(p.Heads, headsPerBlock)) * headsPerBlock * width)
	return places{part, part + 4*items*p.Heads*rank}
}

func align(n int) int { return (n + 255) &^ 255 }

// attendShape returns the grid of attention, heads and shares of the items, and whether its
// blocks sum groups of items themselves. That needs shared memory that only some GPUs have.
func attendShape(gpu launch.GPU, items, heads int) (grid launch.Dim, folds bool, shared uint32) {
	blocks := int(over(heads, headsPerBlock))
	shares := min(max(1, gpu.SMs/blocks), items)
	if grid = (launch.Dim{X: uint32(blocks), Y: uint32(shares)}); gpu.SharedMax < foldShared {
		return grid, false, decodeShared
	}
	return grid, true, foldShared
}

// Decode computes latent attention of all generated rows in table: at most rows of them, with at
// most items of work (DecodeItems, or another bound of spans.Items over all rows). The grid
// depends only on these bounds, and a row beyond them becomes NaN. out [T, heads*128] BF16 or
// F32, q [T, heads*192] BF16. scratch has DecodeScratch bytes, aligned to 16.
func Decode(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, rows, items int, scratch launch.Ptr, p device.MLA) {
	DecodeNew(l, gpu, out, q, cache, kvb, table, rows, items, scratch, p, nil)
}

// DecodeNew is Decode for a batch of generated rows only whose latents, fresh, are not stored yet
// and whose q is not rotated yet. With nil it is Decode.
func DecodeNew(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, rows, items int, scratch launch.Ptr, p device.MLA, fresh *Fresh) {
	const op = "MLADecode"
	if !CanDecode(gpu, q, cache, kvb, p) {
		refuse(op, "no kernel for q %v, cache %v, kv_b %v", q, cache.Mat, kvb.F)
	}
	decode(l, gpu, out, q, cache, kvb, table, false, rows, items, scratch, p, fresh)
}

// decode is DecodeNew. made: a kernel of the step writes the table, so the first kernel, and by it all, starts behind that one.
func decode(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, made bool, rows, items int, scratch launch.Ptr, p device.MLA, fresh *Fresh) {
	const op = "MLADecode"
	check(op, out, q, &cache, &kvb, table, p)
	if !CanSparse(gpu, q, cache, kvb, p) {
		refuse(op, "no kernel for q %v, cache %v, kv_b %v", q, cache.Mat, kvb.F)
	}
	if fresh != nil && !CanDecodeNew(gpu, q, cache, kvb, p, fresh) {
		refuse(op, "no kernel for latents %v", fresh.KV)
	}
	if rows > q.Rows || items < rows || scratch%16 != 0 {
		refuse(op, "%d items of %d rows, q %v", items, rows, q)
	}
	cacheKind(op, &cache)
	if rows == 0 {
		return
	}
	d := layout(rows, items, p)
	part, marks := launch.P(scratch+launch.Ptr(d.part)), launch.P(scratch+launch.Ptr(d.marks))
	kvbAt, kvbStride, heads := launch.P(kvb.F.At), launch.I32(kvb.F.Stride), launch.I32(p.Heads)
	each := absorbEach(rows)
	begin := launch.Config{Grid: launch.Dim{X: rank / absorbCols, Y: uint32(p.Heads), Z: over(rows, each)},
		Block: launch.Dim{X: 256}, Shared: nope * absorbCols * 2, PDL: !made}
	queries := [9]launch.Arg{launch.P(scratch), launch.P(q.At), launch.I32(q.Stride), kvbAt, kvbStride, launch.P(table.At), heads, halves(cache.DType), launch.I32(each)}
	switch {
	case !fixed(p):
		absorbAny(l, q, kvb, table, halves(cache.DType), rows, scratch, p)
	case fresh == nil:
		l.Add(kAbsorb, begin, queries[:]...)
	default:
		fresh.add(l, begin, queries, each, q, &cache, p)
	}
	grid, folds, shared := attendShape(gpu, items, p.Heads)
	shares := 0 // of items that are not summed yet
	if folds {
		shares = int(grid.Y)
	}
	l.Add(kAttend[cache.DType], launch.Config{Grid: grid, Block: launch.Dim{X: 256}, Shared: shared, PDL: true},
		part, marks, launch.I32(items), launch.I32(shares), launch.P(scratch), launch.P(cache.At), launch.P(cache.Scales.At),
		launch.I32(cache.Stride), launch.I32(cache.Scales.Stride), launch.I32(cache.Group), launch.P(table.At),
		heads, launch.F32(float32(float64(p.Scale)*log2E)), launch.I32(p.BlockTokens))
	outAt, outWide, outStride, at := launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(table.At)
	if fixed(p) && rows*p.Heads > gpu.SMs {
		// Blocks of a head have few rows each, and all blocks fit on the GPU at once.
		each := 2
		if p.Heads*int(over(rows, each)) > gpu.SMs {
			each = bothRows
		}
		l.Add(kBoth, launch.Config{Grid: launch.Dim{X: uint32(p.Heads), Y: over(rows, each)}, Block: launch.Dim{X: 512}, PDL: true},
			outAt, outWide, outStride, part, marks, launch.I32(items), launch.I32(shares), kvbAt, kvbStride, at, heads, launch.I32(each))
		return
	}
	latents := launch.P(0)
	if rows > 1 || items > mergeItems || !fixed(p) {
		latents = launch.P(scratch) // the queries are no longer needed
		parts := rank / joinCols
		l.Add(kJoin, launch.Config{Grid: launch.Dim{X: uint32(p.Heads * parts), Y: uint32(rows)}, Block: launch.Dim{X: joinCols}, PDL: true},
			latents, part, marks, launch.I32(items), launch.I32(shares), at, heads, launch.I32(parts))
	}
	if !fixed(p) {
		l.Add(kOutAny, launch.Config{Grid: launch.Dim{X: uint32(p.Heads), Y: over(rows, anyRows), Z: over(p.V, anyValues)}, Block: launch.Dim{X: 256}, PDL: true},
			outAt, outWide, outStride, latents, kvbAt, kvbStride, at, heads, launch.I32(p.Nope), launch.I32(p.V))
		return
	}
	l.Add(kMerge, launch.Config{
		Grid: launch.Dim{X: uint32(p.Heads * vDim / mergeV), Y: over(rows, mergeRows)}, Block: launch.Dim{X: 512}, PDL: true},
		outAt, outWide, outStride, latents, part, marks, launch.I32(items), launch.I32(shares), kvbAt, kvbStride, at, heads)
}

// absorbEach returns the number of rows that a block projects into the latent space. Up to 32
// rows it is the rows of one product, because a block waits again for the queries of a second
// one. For more rows it is higher, because the GPU would not hold all blocks at once.
func absorbEach(rows int) int { return absorbRows * min(int(over(rows, 2*absorbRows)), 4) }

// halves returns 1 for a cache whose keys become F16 in products, 0 if they become BF16.
func halves(dt tensor.DType) launch.Arg {
	if dt == tensor.F8E4M3 {
		return launch.I32(1)
	}
	return launch.I32(0)
}

func over(n, by int) uint32 { return uint32((n + by - 1) / by) }
