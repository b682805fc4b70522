// Package elem launches the operators on single rows: gathering, norms, rotation, the cache of
// keys and values, sums of expert outputs. Activations are F32 or BF16, each operand as its Mat
// says; sums are in float32. Any width works; in aligned rows a thread processes 8 elements at a
// time. Package kernels/device defines the operators.
//
// A row's bits depend on that row only and are the same in every run. An operator panics with
// *device.ShapeError if shapes do not fit, and does nothing for no rows. An index from the GPU's
// memory that is out of range is left out (as each operator says): rows that pad a batch have -1.
package elem

import "krater/kernels/cuda/launch"

// The kernels: src/elem.cu, norm.cu, gate.cu, kvstore.cu, blocks.cu, indexer.cu.
var (
	kCopyRows        = launch.Named("kr_copy_rows")
	kSums            = launch.Named("kr_sum_words")
	kGatherRows      = launch.Named("kr_gather_rows")
	kAdd             = launch.Named("kr_add")
	kWeightedSum     = launch.Named("kr_weighted_sum")
	kWeightedSumHere = launch.Named("kr_weighted_sum_here")
	kRMSNorm         = launch.Named("kr_rms_norm")
	kAddRMSNorm      = launch.Named("kr_add_rms_norm")
	kLayerNorm       = launch.Named("kr_layer_norm")
	kRope            = launch.Named("kr_rope")
	kStoreRows       = launch.Named("kr_store_rows")
	kLatentStore     = launch.Named("kr_latent_store")
	kGate            = launch.Named("kr_gate")
	kGateRows        = launch.Named("kr_gate_rows")
	kMoveBlocks      = launch.Named("kr_move_blocks")
	kStage           = launch.Named("kr_stage_blocks")
	kNearRows        = launch.Named("kr_near_rows")
)
