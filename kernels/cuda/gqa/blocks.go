package gqa

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The sizes of blockindex.cu, blockscores.cu and top.cuh.
const (
	indexDim, indexHeads       = 128, 8 // of the fast kernels: values of a head, the most heads
	blockThreads, topThreads   = 128, 1024
	scoreWarps, scoreKeys      = 4, 32
	scoreColumns, queriesBytes = 64, 2048 // of products with rows of prompts; of the queries of eight columns

	blockValues = 8192 // the most values of an index query: they are in the memory that a block shares
	blockChosen = 8192 // the most blocks that a row chooses by their scores
)

var (
	kBlockKeys   = launch.Named("kr_block_keys")
	kBlockScores = launch.Named("kr_block_scores")
	kBlockTop    = launch.Named("kr_block_top")
	kScores      = func() map[scoring]launch.Kernel {
		out := map[scoring]launch.Kernel{}
		for _, dt := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
			for _, tiles := range []int{1, scoreColumns / 8} {
				out[scoring{dt, true, tiles}] = launch.Named(fmt.Sprintf("kr_block_best%d_%s", tiles, dtypeNames[dt]))
				out[scoring{dt, false, tiles}] = launch.Named(fmt.Sprintf("kr_block_sum%d_%s", tiles, dtypeNames[dt]))
			}
		}
		return out
	}()
)

// scoring names a fast kernel for scores.
type scoring struct {
	keys  tensor.DType
	local bool // heads choose for themselves
	tiles int  // eights of columns
}

// CheckBlocks names the size that no kernel takes; the zero BlockIndex has none.
func CheckBlocks(p device.BlockIndex) error {
	switch {
	case p.Heads*p.Dim > blockValues:
		return fmt.Errorf("sparse attention over blocks: %d index heads of %d, a GPU takes at most %d values", p.Heads, p.Dim, blockValues)
	case p.Chosen-p.Local > blockChosen:
		return fmt.Errorf("sparse attention over blocks: %d chosen blocks (sparse_topk_blocks, or indexer_budget / indexer_compress_ratio), a GPU takes at most %d", p.Chosen, blockChosen)
	}
	return nil
}

// MakeBlockKeys writes the keys of the blocks that the rows of all prompts in table complete, or with decode of all generated rows, in
// the place of their last tokens' raw keys (device.BlockIndex): keys [slots, Dim] F32, BF16, F8E4M3 or I8, norm [1, Dim] F32 or BF16, angles [P,
// Rope.Dim] F32. A batch has rows rows.
func MakeBlockKeys(l *launch.List, rows int, keys launch.KV, norm, angles, table launch.Mat, decode bool, p device.BlockIndex) {
	kind := checkBlocks(&keys, table, p)
	if norm.Rows != 1 || norm.Cols != p.Dim || angles.DType != tensor.F32 || angles.Cols != p.Rope.Dim || p.Rope.HeadDim != p.Dim || p.Rope.Offset+p.Rope.Dim > p.Dim {
		refuse("norm %v, angles %v for an index %+v", norm, angles, p)
	}
	if rows == 0 {
		return
	}
	l.Add(kBlockKeys, launch.Config{Grid: launch.Dim{X: uint32(rows)}, Block: launch.Dim{X: blockThreads}, Shared: uint32(4 * p.Dim), PDL: true},
		launch.P(keys.At), launch.P(keys.Scales.At), launch.I32(kind), launch.I32(keys.Stride), launch.I32(keys.Scales.Stride), launch.I32(keys.Group),
		launch.P(norm.At), wide(norm), launch.F32(p.Eps), launch.P(angles.At), launch.I32(angles.Stride), launch.I32(angles.Rows),
		launch.I32(p.Rope.Offset), launch.I32(p.Rope.Dim), bit(p.Rope.Interleaved), launch.P(table.At), bit(decode),
		launch.I32(p.Dim), launch.I32(p.Block), launch.I32(p.BlockTokens))
}

// CanScore reports whether SelectBlocks has fast kernels for these: 1 (of heads that choose for themselves), 2, 4 or 8 heads of 128, queries of
// BF16, keys of BF16 or F8E4M3, all aligned to 16 bytes.
func CanScore(q launch.Mat, keys launch.KV, p device.BlockIndex) bool {
	heads := p.Heads <= indexHeads && p.Heads&(p.Heads-1) == 0 && (p.Heads > 1 || p.Local > 0)
	return heads && p.Dim == indexDim && q.DType == tensor.BF16 && (keys.DType == tensor.BF16 || keys.DType == tensor.F8E4M3) && aligned(q) && aligned(keys.Mat)
}

// BlocksScratch returns the scratch memory of SelectBlocks in bytes: a rank for each of pitch entries of each list of each row.
func BlocksScratch(rows, pitch int, p device.BlockIndex) int { return 4 * rows * p.Lists() * pitch }

// SelectBlocks computes the choice of an index over blocks for some rows of a batch (Least is 0, First counts all rows of the
// batch): chosen [T, Width] I32, q [T, Heads*Dim] F32 or BF16, keys [slots, Dim] with the keys of all complete blocks, or with
// p.Local of tokens. Rows see at most pitch entries, a multiple of 4. It keeps their scores in scratch, of BlocksScratch bytes, aligned to
// 16. plain: without fast kernels.
func SelectBlocks(l *launch.List, gpu launch.GPU, plain bool, chosen, q launch.Mat, keys launch.KV, table launch.Mat, rows Rows, pitch int, scratch launch.Ptr, p device.BlockIndex) {
	kind := checkBlocks(&keys, table, p)
	if chosen.DType != tensor.I32 || chosen.Rows != q.Rows || chosen.Cols != p.Width() || q.Cols != p.Heads*p.Dim {
		refuse("chosen %v, q %v for an index %+v", chosen, q, p)
	}
	if pitch < 4 || pitch%4 != 0 || scratch%16 != 0 || rows.First < 0 || rows.First+rows.Count > q.Rows {
		refuse("rows %+v of q %v, pitch %d", rows, q, pitch)
	}
	if rows.Count == 0 {
		return
	}
	ranks, decode, first := []launch.Arg{launch.P(scratch), launch.I32(pitch)}, bit(rows.Decode), launch.I32(rows.First)
	sizes := []launch.Arg{launch.I32(p.Block), launch.I32(p.Chosen), launch.I32(p.Local), launch.I32(p.BlockTokens)}
	if !plain && CanScore(q, keys, p) {
		scores(l, gpu, q, keys, table, rows, pitch, scratch, p, sizes)
	} else {
		values := p.Heads * p.Dim
		if p.Local > 0 {
			values = p.Dim
		}
		shares := min(max(1, 8*gpu.SMs/(rows.Count*p.Lists())), (pitch+scoreWarps-1)/scoreWarps)
		args := append(ranks[:2:2], launch.P(q.At), wide(q), launch.I32(q.Stride), launch.P(keys.At), launch.P(keys.Scales.At), launch.I32(kind), launch.I32(keys.Stride),
			launch.I32(keys.Scales.Stride), launch.I32(keys.Group), launch.P(table.At), decode, first, launch.I32(p.Heads), launch.I32(p.Dim))
		l.Add(kBlockScores, launch.Config{Grid: launch.Dim{X: uint32(shares), Y: uint32(p.Lists()), Z: uint32(rows.Count)}, Block: launch.Dim{X: blockThreads},
			Shared: uint32(4 * values), PDL: true}, append(args, sizes...)...)
	}
	args := []launch.Arg{launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(p.Positions()), ranks[0], ranks[1], launch.P(table.At), decode, first}
	l.Add(kBlockTop, launch.Config{Grid: launch.Dim{X: uint32(p.Lists()), Y: uint32(rows.Count)}, Block: launch.Dim{X: topThreads},
		Shared: uint32(4 * max(1, p.Chosen-p.Local)), PDL: true}, append(args, sizes[:3]...)...)
}

// scores appends a fast kernel for the scores of some rows.
func scores(l *launch.List, gpu launch.GPU, q launch.Mat, keys launch.KV, table launch.Mat, rows Rows, pitch int, scratch launch.Ptr, p device.BlockIndex, sizes []launch.Arg) {
	tiles, each, entries := scoreColumns/8, scoreColumns/p.Heads, scoreWarps*scoreKeys // entries: of a block at a time
	if p.Local > 0 {
		entries = scoreWarps
	}
	if rows.Decode {
		tiles, each = 1, 1
	}
	y := (rows.Count + each - 1) / each
	shares := min(max(1, 4*gpu.SMs/y), (pitch+entries-1)/entries)
	args := []launch.Arg{launch.P(scratch), launch.I32(pitch), launch.P(q.At), launch.I32(q.Stride), launch.P(keys.At), launch.I32(keys.Stride), launch.P(table.At),
		bit(rows.Decode), launch.I32(rows.First), launch.I32(rows.Count), launch.I32(p.Heads)}
	l.Add(kScores[scoring{keys.DType, p.Local > 0, tiles}], launch.Config{Grid: launch.Dim{X: uint32(shares), Y: uint32(y)}, Block: launch.Dim{X: blockThreads}, Shared: uint32(tiles * queriesBytes), PDL: true},
		append(args, sizes...)...)
}

// checkBlocks panics unless the sizes fit, and returns the type of the keys as latent.cuh numbers it.
func checkBlocks(keys *launch.KV, table launch.Mat, p device.BlockIndex) int {
	switch {
	case p.Heads < 1 || p.Dim < 1 || p.Block < 1 || p.Local < 0 || p.Chosen < max(1, p.Local) || p.BlockTokens < 1 || CheckBlocks(p) != nil:
		refuse("an index %+v", p)
	case keys.Cols != p.Dim:
		refuse("index keys %v for heads of %d", keys.Mat, p.Dim)
	case table.Zero() || table.DType != tensor.I32 || table.At%16 != 0:
		refuse("a table of spans %v", table)
	}
	return cacheKind(keys)
}
