package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/gqa"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// listRows returns how many rows of prompts attend to lists of n positions at a time.
func listRows(n int, p device.GQA) int { return max(1, ranksBytes/gqa.ListsScratch(1, 0, n, p)) }

// IndexStore does the work of an index over blocks between its projections and its scores.
func (b *Builder) IndexStore(cache launch.KV, x *elem.Index) {
	if elem.CanIndexStore(x) {
		elem.IndexStore(b.List, cache, x)
		return
	}
	b.HeadNorm(x.Q, x.Rope.Heads, x.QNorm, x.Eps)
	b.Rope(x.Q, x.Positions, x.Angles, x.Rope)
	if !x.KNorm.Zero() {
		keys := x.Rope
		keys.Heads = 1
		b.HeadNorm(x.Key, 1, x.KNorm, x.Eps)
		b.Rope(x.Key, x.Positions, x.Angles, keys)
	}
	b.StoreRows(cache, x.Key, x.Slots)
}

// SelectBlocks computes the choice of an index over blocks for the prompts of list, whose table is at table, or for its generated
// rows, and before it the keys of blocks where they have any: norm and angles are absent otherwise.
func (b *Builder) SelectBlocks(chosen, q launch.Mat, keys launch.KV, norm, angles launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.BlockIndex) {
	if len(list) == 0 {
		return
	}
	if p.Local == 0 {
		gqa.MakeBlockKeys(b.List, q.Rows, keys, norm, angles, table, decode, p)
	}
	pitch, rows, each := blockPitch(Pitch(list), p), q.Rows, len(list)
	if decode {
		rows = len(list)
	} else {
		each = min(rows, blockRows(pitch, p))
	}
	scratch := b.Scratch(gqa.BlocksScratch(each, pitch, p))
	for first := 0; first < rows; first += each {
		some := gqa.Rows{Decode: decode, First: first, Count: min(each, rows-first)}
		gqa.SelectBlocks(b.List, b.GPU, b.Plain, chosen, q, keys, table, some, pitch, scratch, p)
	}
}

// blockPitch returns the number of entries of rows that see pitch positions, rounded up to a multiple of 4.
func blockPitch(pitch int, p device.BlockIndex) int { return (pitch/p.Block + 4) &^ 3 }

// blockRows returns how many rows of prompts are scored at a time.
func blockRows(pitch int, p device.BlockIndex) int {
	return max(1, ranksBytes/gqa.BlocksScratch(1, pitch, p))
}

// SparseGQA computes grouped-query attention over listed positions, of the prompts of list or of its generated rows. Rows of prompts
// whose lists have all that they see are computed by GQA if it has a fast kernel, and all others as generated ones.
func (b *Builder) SparseGQA(out, q launch.Mat, cache launch.KV, chosen launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.GQA) {
	if len(list) == 0 {
		return
	}
	if cache.Far && !decode {
		b.staged(cache, list, table, func(cache launch.KV, list []device.Span, table launch.Mat) {
			b.SparseGQA(out, q, cache, chosen, list, table, decode, p)
		}, p.BlockTokens)
		return
	}
	if b.Plain || !gqa.CanLists(b.GPU, out, q, cache, p) {
		gqa.PlainLists(b.List, out, q, cache, chosen, table, decode, p)
		return
	}
	n := chosen.Cols / max(1, p.Lists)
	some := func(rows gqa.Rows, items int) {
		near := b.near(&cache, rows.Count, n)
		gqa.Lists(b.List, b.GPU, out, q, cache, chosen, table, rows, items, b.Scratch(gqa.ListsScratch(rows.Count, items, n, p)), p, near)
	}
	if cache.Far {
		defer b.Hold(0)
	}
	if decode {
		some(gqa.Rows{Decode: true, Count: len(list)}, min(gqa.ListItems(len(list), n), DecodeItems(list)))
		return
	}
	least := 0
	if gqa.CanPrefill(b.GPU, out, q, cache, launch.Mat{}, p) {
		least = n
	}
	rows, all := lastRows(list, least)
	if !all {
		b.GQA(out, q, cache, launch.Mat{}, list, table, false, p) // the rows that choose are computed again
	}
	each := listRows(n, p)
	for first := 0; first < rows; first += each {
		count := min(each, rows-first)
		some(gqa.Rows{First: first, Count: count, Least: least}, 0)
	}
}

// lastRows returns how many rows of the prompts of list see more than least positions, and whether all do.
func lastRows(list []device.Span, least int) (rows int, all bool) {
	all = true
	for i := range list {
		s := &list[i]
		rows += s.Len - min(max(least-s.Pos, 0), s.Len)
		all = all && s.Pos >= least
	}
	return rows, all
}

// needBlocks adds the scratch memory of sparse attention over blocks.
func needBlocks(s *device.StepSizes, need func(parts ...int)) {
	p := s.Blocks
	pitch := blockPitch(pitchOf(s.Context), p)
	need(gqa.BlocksScratch(max(s.Seqs, min(s.Rows, blockRows(pitch, p))), pitch, p))
	attention := s.GQA
	attention.Lists = p.Lists()
	n := p.Positions()
	need(gqa.ListsScratch(s.Seqs, gqa.ListItems(s.Seqs, n), n, attention))
	need(gqa.ListsScratch(min(s.Rows, listRows(n, attention)), 0, n, attention))
}
