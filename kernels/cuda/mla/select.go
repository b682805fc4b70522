package mla

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// ScoreKeys is the number of keys that a block scores at a time. Room for scores is a multiple of it.
const ScoreKeys = 128

var (
	kTop    = launch.Named("kr_index_top")
	kSpans  = launch.Named("kr_sparse_spans")
	kInAny  = launch.Named("kr_mla_absorb_any")
	kOutAny = launch.Named("kr_mla_out_any")
	kScores = map[tensor.DType]launch.Kernel{
		tensor.BF16:   launch.Named("kr_index_scores_bf16"),
		tensor.F8E4M3: launch.Named("kr_index_scores_e4m3"),
	}
)

// The sizes of select.cu, top.cuh and mla_any.cu.
const (
	indexDim, indexTile, indexHeads = 128, 16, 64 // values of an index head; heads of a product; the most heads
	scoreThreads                    = 128
	topThreads, spansThreads        = 1024, 256
	topKept, topFixed               = 16 * topThreads, 9 << 10 // ranks that a block keeps; its other shared memory
	anyRows, anyValues, nopeMax     = 8, 64, 1024
)

// Rows are some rows of a batch: the generated ones or those of its prompts, Count of them from number First on.
type Rows struct {
	Decode       bool
	First, Count int
	Least        int // only rows of prompts that see more positions than this are counted
}

// CanSelect reports whether SelectRows takes these: 16, 32, 48 or 64 heads of 128, queries of BF16, a cache of BF16 or
// F8E4M3, all aligned to 16 bytes.
func CanSelect(q launch.Mat, keys launch.KV, p device.Index) bool {
	_, ok := kScores[keys.DType]
	return ok && p.Dim == indexDim && p.Heads%indexTile == 0 && p.Heads <= indexHeads && q.DType == tensor.BF16 && aligned(q) && aligned(keys.Mat)
}

// SelectScratch returns the scratch memory of SelectRows in bytes: a rank for each of pitch keys of each row, and for each eight of them.
func SelectScratch(rows, pitch int) int { return 4 * rows * (pitch + pitch/8) }

// topRoom is the shared memory in which kTop finds the keys that may be among the best; 0: they are few, or there is not enough.
func topRoom(gpu launch.GPU, pitch int) int {
	n := 4*topKept + pitch/8
	if pitch <= topKept || gpu.SharedMax > 0 && n+topFixed > gpu.SharedMax {
		return 0
	}
	return n
}

// SelectRows is Select for some rows of a batch; Least is 0, and First counts all rows of the batch. No row sees more than pitch keys, a
// multiple of 128. It keeps their scores in scratch, of SelectScratch bytes, aligned to 16.
func SelectRows(l *launch.List, gpu launch.GPU, chosen, q, weights launch.Mat, keys launch.KV, table launch.Mat, rows Rows, pitch int, scratch launch.Ptr, p device.Index) {
	const op = "Select"
	checkIndex(op, chosen, q, weights, &keys, table, p)
	if !CanSelect(q, keys, p) || pitch < 1 || pitch%ScoreKeys != 0 || scratch%16 != 0 || rows.First < 0 || rows.First+rows.Count > q.Rows {
		refuse(op, "no kernel for rows %+v of q %v, keys %v, pitch %d", rows, q, keys.Mat, pitch)
	}
	if rows.Count == 0 {
		return
	}
	shares := min(max(1, 4*gpu.SMs/rows.Count), pitch/ScoreKeys)
	decode, first := launch.I32(flag(rows.Decode)), launch.I32(rows.First)
	l.Add(kScores[keys.DType], launch.Config{Grid: launch.Dim{X: uint32(shares), Y: uint32(rows.Count)}, Block: launch.Dim{X: scoreThreads},
		Shared: uint32(p.Heads * (2*indexDim + 4)), PDL: true},
		launch.P(scratch), launch.I32(pitch), launch.P(q.At), launch.I32(q.Stride), launch.P(weights.At), wide(op, weights), launch.I32(weights.Stride),
		launch.P(keys.At), launch.I32(keys.Stride), launch.P(table.At), decode, first, launch.I32(p.Heads), launch.I32(p.TopK), launch.I32(max(1, p.Pool)), launch.I32(flag(p.Entries)), launch.I32(p.BlockTokens))
	room := topRoom(gpu, pitch)
	l.Add(kTop, launch.Config{Grid: launch.Dim{X: uint32(rows.Count)}, Block: launch.Dim{X: topThreads}, Shared: uint32(room), PDL: true},
		launch.P(chosen.At), launch.I32(chosen.Stride), launch.P(scratch), launch.I32(pitch), launch.P(table.At), decode, first, launch.I32(p.TopK), launch.I32(max(1, p.Pool)), launch.I32(flag(p.Entries)),
		launch.I32(flag(room > 0)))
}

// SparseItems bounds the items of work of rows that see at most topK positions each.
func SparseItems(rows, topK int) int { return rows * spans.ItemBound(topK) }

// SparseScratch returns the scratch memory of SparseRows in bytes.
func SparseScratch(rows, items, topK int, p device.MLA) int {
	return sparseTable(rows, topK) + DecodeScratch(rows, items, p)
}

// sparseTable is the size of a table of rows that see topK positions, each in a block of its own.
func sparseTable(rows, topK int) int {
	return align(4 * (spans.HeadWords + rows*(spans.RecordWords+topK)))
}

// SparseRows is Sparse for some rows of a batch, all of which are computed as generated ones. It takes what CanSparse does, and
// reads the chosen rows of the cache only, of one in host memory by way of near. They have at most items of work; scratch has SparseScratch bytes, aligned to 256.
func SparseRows(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, chosen, table launch.Mat, rows Rows, items int, scratch launch.Ptr, p device.MLA, near elem.Near) {
	const op = "SparseMLA"
	positions(op, chosen, q.Rows)
	check(op, out, q, &cache, &kvb, table, p)
	if rows.First < 0 || rows.Count > q.Rows {
		refuse(op, "rows %+v of q %v", rows, q)
	}
	if rows.Count == 0 {
		return
	}
	topK := chosen.Cols
	size := sparseTable(rows.Count, topK)
	l.Add(kSpans, launch.Config{Grid: launch.Dim{X: uint32(rows.Count)}, Block: launch.Dim{X: spansThreads}, PDL: true},
		launch.P(scratch), launch.P(table.At), launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(topK),
		launch.I32(flag(rows.Decode)), launch.I32(rows.First), launch.I32(rows.Least), launch.I32(p.BlockTokens))
	if near.Width > 0 {
		near.Rows(l, scratch, rows.Count, &cache, 0, -1, cache.Cols)
		cache = near.KV
	}
	p.BlockTokens = 1
	own := launch.Mat{At: scratch, DType: tensor.I32, Rows: 1, Cols: size / 4, Stride: size / 4}
	decode(l, gpu, out, q, cache, kvb, own, true, rows.Count, items, scratch+launch.Ptr(size), p, nil)
}

// absorbAny projects queries of any size into the latent space, as kAbsorb does.
func absorbAny(l *launch.List, q launch.Mat, kvb launch.Weight, table launch.Mat, half launch.Arg, rows int, to launch.Ptr, p device.MLA) {
	l.Add(kInAny, launch.Config{Grid: launch.Dim{X: uint32(p.Heads), Y: over(rows, anyRows)}, Block: launch.Dim{X: rank / 4}, Shared: uint32(4 * anyRows * p.Nope)},
		launch.P(to), launch.P(q.At), launch.I32(q.Stride), launch.P(kvb.F.At), launch.I32(kvb.F.Stride), launch.P(table.At), launch.I32(p.Heads), half,
		launch.I32(p.Nope), launch.I32(p.V))
}
