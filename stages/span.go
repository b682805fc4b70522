// Package stages is the mathematics of a step on a device: a batch of token
// rows goes through embed, the layers (attention, route, expert, merge) and
// head. This package holds the data that passes between them. Each folder below
// it is one stage and declares the few device operators that it needs. No stage
// depends on actors or on a particular device.
package stages

import "krater/kernels/device"

// Span is the part of a batch that belongs to one sequence.
type Span struct {
	device.Span
	// Windows is the block table of the layers with a window, if their rows are in window blocks
	// (Limits.WindowBlocks); nil: Blocks. Entries before the window of the first row are not read.
	Windows []int32
	Seq     uint64 // the sequence, for readers of the logits
	// Decode says that the rows are generated ones, computed with absorbed attention. They have the same
	// bits one at a time and several at once (an accelerator takes only one). Other rows belong to a
	// prompt.
	Decode bool
	Want   bool // logits of the last row are needed
	Every  bool // logits of all rows are needed
}

// Probe sees the intermediate results of a step. It is nil in production; a
// stage with a nil probe does no extra work. Ops are named as in the goldens'
// table: embed, final_norm (layer -1); input_norm, q_a, q, k, v, kv_a, kv_norm, q_rotated,
// k_pe, q_resid, index_q, indexer_query, index_k, indexer_keys, index_weights, selected, q_and_gate, attn_ungated, in_proj_qkvz and in_proj_ba (or in_proj_qkv, _z, _b, _a), delta_conv, delta_out, attn, mixer_out, post_norm, router_logits, router_ids, router_weights,
// experts_out, shared_out, mlp_out, layer_out.
//
// m holds st.T rows (final_norm: a row for each of st.Wanted) and is valid during the call only, once s has passed this point.
// A batch that layers take in pieces (State.Look) is seen piece by piece.
// layer_out arrives when the next layer starts, or at the end of a group.
type Probe interface {
	Observe(s device.Stream, layer int, op string, m device.Mat, st *State)
}
