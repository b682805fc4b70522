package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kIndexStore = launch.Named("kr_index_store")

// indexHeads is the most query heads of kr_index_store: a block has a warp for each, and one for the key.
const indexHeads = 31

// Index is the rows of a batch in an index over blocks as the projections return them: queries Q [T, heads*d] and keys Key [T, d], with the
// arguments for their norms, rotation and store. Without KNorm keys are stored as they are.
type Index struct {
	Q, Key                   launch.Mat // of one type
	QNorm, KNorm             launch.Mat // [1, d], of one type
	Eps                      float32
	Positions, Slots, Angles launch.Mat // as in Heads
	Rope                     device.Rope
}

// CanIndexStore reports whether IndexStore takes these: heads whose norm a lane of a warp has 16 values of, which are rotated from their
// first value on.
func CanIndexStore(x *Index) bool {
	norms := aligned(x.QNorm) && (x.KNorm.Zero() || x.KNorm.DType == x.QNorm.DType && aligned(x.KNorm))
	return x.Rope.Offset == 0 && !x.Rope.Back && x.Rope.Heads <= indexHeads && x.Q.DType == x.Key.DType && norms && byLanes(x.Q, x.Rope.HeadDim) && byLanes(x.Key, x.Rope.HeadDim)
}

// IndexStore does in one launch, with the same bits, the work of an index over blocks between its projections and its scores: HeadNorm and
// Rope of the queries, HeadNorm and Rope of the keys if they have a norm, and StoreRows of the keys.
func IndexStore(l *launch.List, cache launch.KV, x *Index) {
	const op = "IndexStore"
	p := x.Rope
	if dim := checkHeads(op, "q", x.Q, p.Heads); dim != p.HeadDim || !CanIndexStore(x) {
		refuse(op, "q %v, key %v turn by %+v", x.Q, x.Key, p)
	}
	checkRope(op, p, x.Q.Cols)
	floats(op, "key", x.Key, x.Q.Rows, p.HeadDim)
	floats(op, "q norm", x.QNorm, 1, p.HeadDim)
	if !x.KNorm.Zero() {
		floats(op, "key norm", x.KNorm, 1, p.HeadDim)
	}
	column(op, "positions", x.Positions, x.Q.Rows)
	column(op, "slots", x.Slots, x.Q.Rows)
	typed(op, "angles", x.Angles, tensor.F32, x.Angles.Rows, p.Dim)
	c, _ := cacheArgs(op, &cache, p.HeadDim)
	m := markArgs(op, &cache, x.Q.Rows)
	if x.Q.Rows == 0 {
		return
	}
	f := flags(x.Q, x.QNorm) &^ flagVec
	if p.Interleaved {
		f |= flagInterleaved
	}
	config := rowBlocks(x.Q.Rows, 32*(p.Heads+1))
	config.Shared = uint32(4 * (p.Heads + 1) * p.HeadDim)
	l.Add(kIndexStore, config, c[0], c[1], c[2], c[3], c[4], c[5], c[6],
		launch.P(x.Q.At), launch.I32(x.Q.Stride), launch.P(x.Key.At), launch.I32(x.Key.Stride), launch.P(x.QNorm.At), launch.P(x.KNorm.At), launch.F32(x.Eps),
		launch.P(x.Positions.At), launch.P(x.Slots.At), launch.P(x.Angles.At), launch.I32(x.Angles.Stride), launch.I32(x.Angles.Rows),
		launch.I32(p.Heads), launch.I32(p.HeadDim), launch.I32(p.Dim), m[0], m[1], launch.I32(f))
}
