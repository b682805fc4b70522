package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/gqa"
	"krater/kernels/cuda/mla"
	"krater/kernels/cuda/moe"
	"krater/kernels/cuda/native"
	"krater/kernels/cuda/route"
	"krater/kernels/cuda/sample"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// tileMin is the smallest tile for the sorting of assignments for products of many rows. It needs
// the most memory for partly filled tiles.
const tileMin = 32

// partsBytes bounds the memory for the parts of products of bfloat16 that cut K. They do so only
// if few tiles make few results.
const partsBytes = 64 << 20

// ScratchBytes bounds the scratch memory of a stream whose steps are within s.
func ScratchBytes(s *device.StepSizes) int {
	most, each := 0, 1 // each: how many values a hidden one takes between products (kept)
	if s.Cubic {
		each = 3
	}
	need := func(parts ...int) {
		n := 0
		for _, p := range parts {
			n += (p + 255) &^ 255
		}
		most = max(most, n)
	}
	items := bucket(s.Seqs * spans.ItemBound(s.Context))
	if s.MLA.Heads > 0 {
		tiles, keys := mla.PrefillBounds(s.Rows, s.Seqs, s.Context)
		need(mla.PrefillScratch(tiles, keys, min(keys, mla.DefaultKeys), s.MLA))
		need(mla.DecodeScratch(s.Seqs, items, s.MLA))
	}
	if s.Index.TopK > 0 {
		needSparse(s, need)
	}
	if s.GQA.Heads > 0 {
		need(gqa.DecodeScratch(items, s.GQA))
	}
	if s.Compressed.Heads > 0 {
		needCompressed(s, need)
	}
	if s.Blocks.Heads > 0 {
		needBlocks(s, need)
	}
	if s.Experts > 0 {
		need(route.AlignedBytes(min(s.Rows, route.MaxFused), s.TopK, s.Experts, tileMin), route.Scratch(s.Rows, s.Experts, s.Hidden))
		need(route.AlignedBytes(s.Rows, s.TopK, s.Experts, tileMin), route.AlignScratch(s.Rows, s.TopK, s.Experts),
			moe.HiddenBytes(s.Rows*s.TopK, each*s.ExpertFF))
		for _, tile := range []int{native.FewTokens, native.ManyTokens} {
			need(route.AlignedBytes(s.Rows, s.TopK, s.Experts, tile), route.AlignScratch(s.Rows, s.TopK, s.Experts),
				native.HiddenBytes(s.Rows*s.TopK, each*s.ExpertFF, tensor.BF16))
		}
		few := min(s.Rows, gemv.MaxRows)
		for tile := 1; tile <= gemv.TileRows; tile++ { // the bound of the largest is there
			need(route.AlignedBytes(few, s.TopK, s.Experts, tile), route.AlignScratch(few, s.TopK, s.Experts), route.Scratch(few, s.Experts, s.Hidden),
				gemv.MoEScratch(few, s.TopK, s.Hidden, s.ExpertFF, s.SharedFF))
		}
	}
	need(4*s.Rows*max(s.DenseFF, s.SharedFF), partsBytes) // F32 for the plain kernels
	if s.Cubic || s.Clamped {
		need(4*s.Rows*max(s.DenseFF, s.SharedFF), 2*s.Rows*max(s.DenseFF, s.SharedFF), partsBytes)
	}
	if s.Streams > 0 {
		need(elem.MixedScratch(s.Rows, s.Hidden, (2+s.Streams)*s.Streams))
		need(route.Scratch(s.Rows, (2+s.Streams)*s.Streams, s.Streams*s.Hidden))
	}
	if s.PerLayer > 0 {
		need(2*s.Rows*s.Hidden, partsBytes)
	}
	need(4 * s.Rows * s.TopK * s.ExpertFF)
	need(sample.Scratch(s.LogitRows, s.Vocab))
	if s.ChosenRow > 0 {
		tokens := max(s.MLA.BlockTokens, s.GQA.BlockTokens)
		held := max(stagedBytes((s.Context+tokens-1)/tokens, tokens, s.ChosenRow), nearBytes(s.Seqs*max(s.Index.Positions(), s.Blocks.Positions()), s.ChosenRow))
		most += (held + 255) &^ 255
	}
	return most
}
