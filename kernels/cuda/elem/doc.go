// Package elem launches the operators that look at rows: gathering, norms, rotation,
// the cache of keys and values, sums of expert outputs. Activations are
// F32 or BF16, each operand as its Mat says; sums are in float32. Any width works; rows
// aligned for it go 8 elements a thread. What each operator means is in kernels/device.
//
// A row's bits depend on that row only, and are the same in every run. An operator
// given shapes that do not fit panics with *device.ShapeError; one of no rows does
// nothing. Where an index comes from the GPU's memory, one that is out of range is
// left out (said at each operator): rows that fill up a batch carry -1.
package elem

import "krater/kernels/cuda/launch"

// The kernels: src/elem.cu, norm.cu, gate.cu, kvstore.cu, blocks.cu.
var (
	kGatherRows      = launch.Named("kr_gather_rows")
	kAdd             = launch.Named("kr_add")
	kWeightedSum     = launch.Named("kr_weighted_sum")
	kWeightedSumHere = launch.Named("kr_weighted_sum_here")
	kRMSNorm         = launch.Named("kr_rms_norm")
	kAddRMSNorm      = launch.Named("kr_add_rms_norm")
	kRope            = launch.Named("kr_rope")
	kStoreRows       = launch.Named("kr_store_rows")
	kLatentStore     = launch.Named("kr_latent_store")
	kGateRows        = launch.Named("kr_gate_rows")
	kMoveBlocks      = launch.Named("kr_move_blocks")
)
