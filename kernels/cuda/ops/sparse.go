package ops

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/mla"
	"krater/kernels/device"
)

const (
	ranksBytes = 64 << 20 // of the scores of prompts' rows at a time, or those of one row
	ranksLeast = 4096     // positions
	sparseRows = 16       // prompts' rows whose chosen rows are attended to at a time
	latentRows = 256      // the same without rotated values
)

// Pitch returns the number of positions for which scores of an indexer are kept for each row of list: enough for the longest,
// and the same for a long time as contexts grow.
func Pitch(list []device.Span) int {
	most := 0
	for i := range list {
		most = max(most, list[i].Pos+list[i].Len)
	}
	return pitchOf(most)
}

func pitchOf(context int) int {
	n := ranksLeast
	for n < context {
		n *= 2
	}
	return n
}

// keyPitch returns the number of keys of those positions.
func keyPitch(pitch int, p device.Index) int {
	return (pitch/max(1, p.Pool) + mla.ScoreKeys - 1) / mla.ScoreKeys * mla.ScoreKeys
}

// ranksRows returns how many rows of prompts are scored at a time.
func ranksRows(pitch int) int { return max(1, ranksBytes/mla.SelectScratch(1, pitch)) }

// Select computes the choice of an indexer for the prompts of list, whose table is at table, or for its
// generated rows.
func (b *Builder) Select(chosen, q, weights launch.Mat, keys launch.KV, list []device.Span, table launch.Mat, decode bool, p device.Index) {
	if len(list) == 0 {
		return
	}
	if b.Plain || !mla.CanSelect(q, keys, p) {
		mla.Select(b.List, chosen, q, weights, keys, table, decode, p)
		return
	}
	pitch, rows, each := keyPitch(Pitch(list), p), q.Rows, len(list)
	if decode {
		rows = len(list)
	} else {
		each = min(rows, ranksRows(pitch))
	}
	scratch := b.Scratch(mla.SelectScratch(each, pitch))
	for first := 0; first < rows; first += each {
		some := mla.Rows{Decode: decode, First: first, Count: min(each, rows-first)}
		mla.SelectRows(b.List, b.GPU, chosen, q, weights, keys, table, some, pitch, scratch, p)
	}
}

// PoolKeys computes the keys of pools for the prompts of list, whose table is at table, or for its generated rows.
func (b *Builder) PoolKeys(out, x, bias launch.Mat, tail launch.KV, list []device.Span, table launch.Mat, decode bool, p device.Index) {
	mla.PoolKeys(b.List, out, x, bias, tail.Mat, list, table, decode, p)
}

// SparseMLA computes latent attention over chosen positions, of the prompts of list or of its generated rows. Rows of
// prompts that see all of their positions are computed by MLAPrefill if it has a fast kernel, and all others as generated ones.
func (b *Builder) SparseMLA(out, q launch.Mat, cache launch.KV, kvb launch.Weight, chosen launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.MLA) {
	if len(list) == 0 {
		return
	}
	if cache.Far && !decode {
		b.staged(cache, list, table, func(cache launch.KV, list []device.Span, table launch.Mat) {
			b.SparseMLA(out, q, cache, kvb, chosen, list, table, decode, p)
		}, p.BlockTokens)
		return
	}
	if !b.Plain && mla.CanLatent(b.GPU, q, cache, kvb, p) {
		b.latents(out, q, cache, kvb, chosen, list, table, decode, p)
		return
	}
	if b.Plain || !mla.CanSparse(b.GPU, q, cache, kvb, p) {
		mla.Sparse(b.List, out, q, cache, kvb, chosen, table, decode, p)
		return
	}
	topK := chosen.Cols
	some := func(rows mla.Rows, items int) {
		near := b.near(&cache, rows.Count, topK)
		scratch := b.Scratch(mla.SparseScratch(rows.Count, items, topK, p))
		mla.SparseRows(b.List, b.GPU, out, q, cache, kvb, chosen, table, rows, items, scratch, p, near)
	}
	if cache.Far {
		defer b.Hold(0)
	}
	if decode {
		some(mla.Rows{Decode: true, Count: len(list)}, min(mla.SparseItems(len(list), topK), DecodeItems(list)))
		return
	}
	least := topK
	if !mla.CanPrefill(b.GPU, out, q, cache, kvb, p) {
		least = 0
	}
	rows, all := lastRows(list, least)
	if !all {
		b.MLAPrefill(out, q, cache, kvb, list, table, p) // the rows that choose are computed again
	}
	for first := 0; first < rows; first += sparseRows {
		n := min(sparseRows, rows-first)
		some(mla.Rows{First: first, Count: n, Least: least}, mla.SparseItems(n, topK))
	}
}

// latents is SparseMLA for heads without rotated values.
func (b *Builder) latents(out, q launch.Mat, cache launch.KV, kvb launch.Weight, chosen launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.MLA) {
	count, each := len(list), len(list)
	if !decode {
		count, each = q.Rows, latentRows
	}
	for first := 0; first < count; first += each {
		some := mla.Rows{Decode: decode, First: first, Count: min(each, count-first)}
		mla.Latents(b.List, b.GPU, out, q, cache, kvb, chosen, table, some, b.Scratch(mla.LatentScratch(some, chosen.Cols, p)), p)
	}
}

// needSparse adds the scratch memory of sparse attention.
func needSparse(s *device.StepSizes, need func(parts ...int)) {
	pitch, positions := keyPitch(pitchOf(s.Context), s.Index), s.Index.Positions()
	need(mla.SelectScratch(max(s.Seqs, min(s.Rows, ranksRows(pitch))), pitch))
	if s.MLA.Rope == 0 {
		need(mla.LatentScratch(mla.Rows{Decode: true, Count: s.Seqs}, positions, s.MLA))
		need(mla.LatentScratch(mla.Rows{Count: min(s.Rows, latentRows)}, positions, s.MLA))
	}
	for _, rows := range []int{s.Seqs, sparseRows} {
		need(mla.SparseScratch(rows, mla.SparseItems(rows, positions), positions, s.MLA))
	}
}
