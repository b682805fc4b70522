package mla

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kGather   = launch.Named("kr_mla_gather")
	kPrefill  = launch.Named("kr_mla_prefill")
	kPrefillH = launch.Named("kr_mla_prefill_h")
)

// The sizes of mla_prefill.cu and mla_prefill_h.cu.
const (
	expandedCols  = nope + vDim // of a head
	prefillShared = 2 * spans.KeyTile * (nope + vDim + rope) * 2
	// 128 rows of queries, two stages of 128 keys and values, eight mbarriers
	prefillSharedH = 128*(nope+rope)*2 + 2*128*(nope+rope+vDim)*2 + 8*8
	keptBytes      = 4 * 68 * 256 // per tile of rows and head
	gatherKeys     = 8
)

// DefaultKeys is the number of keys that Prefill expands at a time if memory is no concern: 84 MB
// at 16 heads.
const DefaultKeys = 8192

// CanPrefill reports whether Prefill takes these: DeepSeek's head sizes, queries and kv_b
// of BF16, any type of cache, all aligned to 16 bytes.
func CanPrefill(gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, p device.MLA) bool {
	return fixed(p) && readable(q, &cache, &kvb) && gpu.SharedMax >= prefillShared && aligned(out) && (cache.DType != tensor.I8 || cache.Group%4 == 0)
}

// PrefillScratch returns the scratch memory of Prefill for prompts with that many tiles of rows
// and keys in all (spans.Tiles, spans.Keys), of which it expands chunk at a time: 9.4 KB per key
// of the chunk at 16 heads and, if keys exceeds chunk, 1.1 MB per tile.
func PrefillScratch(tiles, keys, chunk int, p device.MLA) int {
	s := prefillLayout(keys, chunk, p)
	if keys > chunk {
		return s.kept + tiles*p.Heads*keptBytes
	}
	return s.kept
}

// PrefillBounds returns the most tiles and keys of prompts of at most seqs sequences with rows
// rows in all and at most context positions each.
func PrefillBounds(rows, seqs, context int) (tiles, keys int) {
	return rows/spans.RowTile + seqs, seqs * spans.Keys(&device.Span{Len: context})
}

// room are the offsets of the parts of Prefill's scratch memory, in bytes.
type room struct{ latents, ropes, kept int }

func prefillLayout(keys, chunk int, p device.MLA) room {
	n := min(keys, chunk)
	latents := align(n * p.Heads * expandedCols * 2)
	ropes := latents + align(n*rank*2)
	return room{latents, ropes, ropes + align(n*rope*2)}
}

// Expand is a product out [n, N] = x [n, K] * transposed w [N, K], all BF16, rows dense.
type Expand func(out, x launch.Mat, w launch.Weight)

// Prefill computes latent attention of the rows of all prompts; list is the batch in table, and
// chunk (a multiple of 64) is the number of keys that are expanded at a time. expand appends the
// products to l. out [T, heads*128] BF16 or F32, q [T, heads*192] BF16; scratch has
// PrefillScratch bytes, aligned to 16. Bits do not depend on chunk if the rows of expand do not
// depend on their number.
func Prefill(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, list []device.Span, table launch.Mat, chunk int, scratch launch.Ptr, expand Expand, p device.MLA) {
	const op = "MLAPrefill"
	check(op, out, q, &cache, &kvb, table, p)
	if !CanPrefill(gpu, out, q, cache, kvb, p) {
		refuse(op, "no kernel for out %v, q %v, cache %v, kv_b %v", out, q, cache.Mat, kvb.F)
	}
	if chunk < spans.KeyAlign || chunk%spans.KeyAlign != 0 || scratch%16 != 0 {
		refuse(op, "%d keys at a time", chunk)
	}
	kind := cacheKind(op, &cache)
	tiles, keys := 0, 0
	for i := range list {
		tiles, keys = tiles+spans.Tiles(&list[i]), keys+spans.Keys(&list[i])
	}
	s := prefillLayout(keys, chunk, p)
	var kept launch.Ptr // absent where all keys come in one piece
	if keys > chunk {
		kept = scratch + launch.Ptr(s.kept)
	}
	kernel, config := attention(gpu)
	config.Grid, config.PDL = launch.Dim{X: uint32(p.Heads), Y: uint32(tiles)}, true
	for from := 0; from < keys; from += chunk {
		n := min(chunk, keys-from)
		latents, ropes := dense(scratch+launch.Ptr(s.latents), n, rank), scratch+launch.Ptr(s.ropes)
		expanded := dense(scratch, n, p.Heads*expandedCols)
		l.Add(kGather, launch.Config{Grid: launch.Dim{X: uint32(n / gatherKeys)}, Block: launch.Dim{X: 256}, PDL: true},
			launch.P(latents.At), launch.P(ropes), launch.P(cache.At), launch.P(cache.Scales.At), launch.I32(kind),
			launch.I32(cache.Stride), launch.I32(cache.Scales.Stride), launch.I32(cache.Group), launch.P(table.At), launch.I32(from), launch.I32(p.BlockTokens))
		expand(expanded, latents, kvb)
		l.Add(kernel, config,
			launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(q.At), launch.I32(q.Stride), launch.P(expanded.At), launch.P(ropes),
			launch.I32(from), launch.I32(n), launch.P(kept), launch.P(table.At), launch.F32(float32(float64(p.Scale)*log2E)))
	}
}

// attention returns the kernel for the GPU, with its block.
func attention(gpu launch.GPU) (launch.Kernel, launch.Config) {
	if gpu.Hopper && gpu.SharedMax >= prefillSharedH {
		return kPrefillH, launch.Config{Block: launch.Dim{X: 384}, Shared: prefillSharedH}
	}
	return kPrefill, launch.Config{Block: launch.Dim{X: 256}, Shared: prefillShared}
}

func dense(at launch.Ptr, rows, cols int) launch.Mat {
	return launch.Mat{At: at, DType: tensor.BF16, Rows: rows, Cols: cols, Stride: cols}
}
