package model

import "krater/kernels/device"

// BlockIndex chooses the blocks of tokens that a query attends to (QSA of Qwen4-Exp, block sparse attention of MiniMax-M3).
// device.BlockIndex describes the choice. With the zero value a query attends to all tokens.
type BlockIndex struct {
	Heads   int     // indexer_n_heads, sparse_num_index_heads
	Dim     int     // indexer_head_dim, sparse_index_dim
	Block   int     // indexer_compress_ratio, sparse_block_size: tokens of a block
	Chosen  int     // blocks: indexer_budget / indexer_compress_ratio, sparse_topk_blocks
	Local   int     // sparse_local_block: number of blocks of Chosen up to the token's own; 0: all heads share one choice, by keys of blocks
	NormEps float32 // of the norms of queries and keys
}

// blockIndexRoles are the names of the tensors.
var blockIndexRoles = Roles{
	"index_qk":     "self_attn.indexer.index_qk_proj.weight",
	"index_q_norm": "self_attn.indexer.q_layernorm.weight",
	"index_k_norm": "self_attn.indexer.k_layernorm.weight",
}

// localIndexRoles are the names of the tensors if each head chooses for itself.
var localIndexRoles = Roles{
	"index_q":      "self_attn.index_q_proj.weight",
	"index_k":      "self_attn.index_k_proj.weight",
	"index_q_norm": "self_attn.index_q_norm.weight",
	"index_k_norm": "self_attn.index_k_norm.weight",
}

// Chooses reports whether there is an index.
func (x BlockIndex) Chooses() bool { return x.Heads > 0 }

// Sizes returns the sizes that operators take, without the rotation.
func (x BlockIndex) Sizes(blockTokens int) device.BlockIndex {
	return device.BlockIndex{Heads: x.Heads, Dim: x.Dim, Block: x.Block, Chosen: x.Chosen, Local: x.Local, Eps: x.NormEps, BlockTokens: blockTokens}
}

// Projections lists the roles of the projections: one for the queries of all heads and the raw key, in this order, or one for each.
func (x BlockIndex) Projections() []string {
	if x.Local > 0 {
		return []string{"index_q", "index_k"}
	}
	return []string{"index_qk"}
}

// tensors lists the tensors in the order of use.
func (x BlockIndex) tensors(h int) []TensorSpec {
	if !x.Chooses() {
		return nil
	}
	list := []TensorSpec{{Role: "index_qk", Shape: []int{(x.Heads + 1) * x.Dim, h}, Part: Router}}
	if x.Local > 0 {
		list = []TensorSpec{{Role: "index_q", Shape: []int{x.Heads * x.Dim, h}, Part: Router}, {Role: "index_k", Shape: []int{x.Dim, h}, Part: Router}}
	}
	return append(list,
		TensorSpec{Role: "index_q_norm", Shape: []int{x.Dim}, Part: Router, Norm: true},
		TensorSpec{Role: "index_k_norm", Shape: []int{x.Dim}, Part: Router, Norm: true})
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
	return []Scratch{{(x.Heads + 1) * x.Dim, false}, {x.Sizes(1).Width(), false}}
}
