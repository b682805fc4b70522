package ops

import (
	"krater/kernels/cuda/gemm"
	"krater/kernels/cuda/gqa"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/mla"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
)

// MLAPrefill computes latent attention of the prompts of list, whose table is at table.
func (b *Builder) MLAPrefill(out, q launch.Mat, cache launch.KV, kvb launch.Weight, list []device.Span, table launch.Mat, p device.MLA) {
	if len(list) == 0 {
		return
	}
	if b.Plain || !mla.CanPrefill(b.GPU, out, q, cache, kvb, p) {
		mla.PlainPrefill(b.List, out, q, cache, kvb, table, p)
		return
	}
	tiles, keys := 0, 0
	for i := range list {
		tiles, keys = tiles+spans.Tiles(&list[i]), keys+spans.Keys(&list[i])
	}
	chunk := min(keys, mla.DefaultKeys)
	scratch := b.Scratch(mla.PrefillScratch(tiles, keys, chunk, p))
	mla.Prefill(b.List, b.GPU, out, q, cache, kvb, list, table, chunk, scratch, b.expand, p)
}

// expandRows is the number of rows for which the product that expands keys and values is planned.
// It is fixed, so that a key has the same bits whatever other keys are expanded with it.
const expandRows = 2048

// expand is a product within MLAPrefill (mla.Expand).
func (b *Builder) expand(out, x launch.Mat, w launch.Weight) {
	if !gemm.Can(out, x, w.F) {
		refuse("MLAPrefill", "keys and values %v of %v and %v", out, x, w.F)
	}
	plan := gemm.Choose(b.GPU, gemm.Sizes{M: expandRows, N: w.F.Rows, K: w.F.Cols})
	plan.Parts = 1 // a plan with parts would need its own scratch memory
	gemm.BF16(b.List, b.GPU, out, x, w.F, gemm.Options{Plan: plan})
}

// MLADecode computes latent attention of the generated rows of list.
func (b *Builder) MLADecode(out, q launch.Mat, cache launch.KV, kvb launch.Weight, list []device.Span, table launch.Mat, p device.MLA) {
	if len(list) == 0 {
		return
	}
	if b.Plain || !mla.CanDecode(b.GPU, q, cache, kvb, p) {
		mla.PlainDecode(b.List, out, q, cache, kvb, table, p)
		return
	}
	items := DecodeItems(list)
	mla.Decode(b.List, b.GPU, out, q, cache, kvb, table, len(list), items, b.Scratch(mla.DecodeScratch(len(list), items, p)), p)
}

// LatentDecode computes Latent and MLADecode of a batch that has generated rows only; q and kv
// are undefined afterwards.
func (b *Builder) LatentDecode(out, q, kv, norm launch.Mat, eps float32, cache launch.KV, positions, slots, angles launch.Mat, qRope, kRope device.Rope,
	kvb launch.Weight, list []device.Span, table launch.Mat, p device.MLA) {
	f := mla.Fresh{KV: kv, Norm: norm, Eps: eps, Positions: positions, Slots: slots, Angles: angles, Interleaved: qRope.Interleaved}
	if b.Plain || len(list) == 0 || !mla.CanDecodeNew(b.GPU, q, cache, kvb, p, &f) {
		b.Latent(cache, q, kv, norm, eps, positions, slots, angles, qRope, kRope)
		b.MLADecode(out, q, cache, kvb, list, table, p)
		return
	}
	items := DecodeItems(list)
	mla.DecodeNew(b.List, b.GPU, out, q, cache, kvb, table, len(list), items, b.Scratch(mla.DecodeScratch(len(list), items, p)), p, &f)
}

// GQA computes grouped-query attention of the prompts of list, whose table is at table, or of its
// generated rows.
func (b *Builder) GQA(out, q launch.Mat, cache launch.KV, sinks launch.Mat, list []device.Span, table launch.Mat, decode bool, p device.GQA) {
	switch {
	case len(list) == 0:
	case decode && !b.Plain && gqa.CanDecode(b.GPU, out, q, cache, sinks, p):
		items := gqa.WindowItems(len(list), DecodeItems(list), p)
		gqa.Decode(b.List, b.GPU, out, q, cache, sinks, table, len(list), items, b.Scratch(gqa.DecodeScratch(items, p)), p)
	case !decode && !b.Plain && gqa.CanPrefill(b.GPU, out, q, cache, sinks, p):
		gqa.Prefill(b.List, b.GPU, out, q, cache, sinks, list, table, b.Turn, p)
	default:
		gqa.Plain(b.List, out, q, cache, sinks, table, decode, p)
	}
}

// DecodeItems returns the number of items of work that attention of generated rows provides for:
// enough for list, and the same for a long time as contexts grow.
func DecodeItems(list []device.Span) int {
	n := 0
	for i := range list {
		n += spans.Items(list[i].Pos + list[i].Len)
	}
	return bucket(n)
}

// bucket rounds up, by a quarter at most from 16 on.
func bucket(n int) int {
	step := 4
	for n > 4*step {
		step *= 2
	}
	return (n + step - 1) / step * step
}
