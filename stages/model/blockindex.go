package model

import "krater/kernels/device"

// BlockIndex chooses the blocks of tokens that a query attends to (QSA of Qwen4-Exp): device.BlockIndex says how.
// The zero value chooses none: a query attends to all tokens.
type BlockIndex struct {
	Heads   int     // indexer_n_heads
	Dim     int     // indexer_head_dim
	Block   int     // indexer_compress_ratio: tokens of a block
	Chosen  int     // blocks: indexer_budget / indexer_compress_ratio
	NormEps float32 // of the norms of queries and keys
}

// blockIndexRoles are the names of the tensors.
var blockIndexRoles = Roles{
	"index_qk":     "self_attn.indexer.index_qk_proj.weight",
	"index_q_norm": "self_attn.indexer.q_layernorm.weight",
	"index_k_norm": "self_attn.indexer.k_layernorm.weight",
}

// Chooses reports whether there is an index.
func (x BlockIndex) Chooses() bool { return x.Heads > 0 }

// Sizes are the sizes that operators take, but for the rotation.
func (x BlockIndex) Sizes(blockTokens int) device.BlockIndex {
	return device.BlockIndex{Heads: x.Heads, Dim: x.Dim, Block: x.Block, Chosen: x.Chosen, Eps: x.NormEps, BlockTokens: blockTokens}
}

// tensors lists the tensors in the order of use: the projection gives the queries of all heads, then the
// raw key.
func (x BlockIndex) tensors(h int) []TensorSpec {
	if !x.Chooses() {
		return nil
	}
	return []TensorSpec{
		{Role: "index_qk", Shape: []int{(x.Heads + 1) * x.Dim, h}, Part: Router},
		{Role: "index_q_norm", Shape: []int{x.Dim}, Part: Router, Norm: true},
		{Role: "index_k_norm", Shape: []int{x.Dim}, Part: Router, Norm: true},
	}
}

func (x BlockIndex) state() []State {
	if !x.Chooses() {
		return nil
	}
	return []State{{Kind: Paged, Width: x.Dim, Group: x.Dim}}
}

func (x BlockIndex) scratch() []Scratch {
	if !x.Chooses() {
		return nil
	}
	// The projection, and the positions, which are no wider than float32.
	return []Scratch{{(x.Heads + 1) * x.Dim, false}, {x.Sizes(1).Positions(), false}}
}
