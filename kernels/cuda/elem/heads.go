package elem

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kHeadNorm  = launch.Named("kr_head_norm")
	kHeadStore = launch.Named("kr_head_store")
)

// flagTurns and the threads of a block, as in src/headstore.cu.
const (
	flagTurns   = 512
	headThreads = 256
	manyRows    = 512
)

// byLanes reports whether kr_head_store takes heads of x: each has dim/16 lanes of a warp.
func byLanes(x launch.Mat, dim int) bool {
	return dim >= 16 && dim <= 256 && dim&(dim-1) == 0 && x.At%alignment(x.DType) == 0 && x.Stride%chunk == 0
}

// HeadNorm computes RMSNorm over each of the heads of x [T, heads*d] in place; w [1, d].
func HeadNorm(l *launch.List, x launch.Mat, heads int, w launch.Mat, eps float32) {
	const op = "HeadNorm"
	dim := checkHeads(op, "x", x, heads)
	floats(op, "w", w, 1, dim)
	if x.Rows == 0 {
		return
	}
	f := flags(x, w) &^ flagVec
	if !byLanes(x, dim) || !aligned(w) {
		l.Add(kHeadNorm, rowBlocks(x.Rows, min(headThreads, 32*heads)),
			launch.P(x.At), launch.I32(x.Stride), launch.P(w.At), launch.I32(heads), launch.I32(dim), launch.F32(eps), launch.I32(f))
		return
	}
	headStore(l, &launch.KV{}, &Heads{Q: x, QNorm: w, Eps: eps}, heads, dim)
}

// checkHeads returns the size of x's heads.
func checkHeads(op, name string, x launch.Mat, heads int) int {
	if heads < 1 || x.Cols%heads != 0 {
		refuse(op, "%s is %v, of %d heads", name, x, heads)
	}
	floats(op, name, x, x.Rows, x.Cols)
	return x.Cols / heads
}

// Heads are the rows of a batch in grouped-query attention as the projections return them, and
// the arguments for their norm, rotation and store: q [T, heads*d] and kv [T, 2*kvHeads*d], keys
// then values.
type Heads struct {
	Q, KV                    launch.Mat
	QNorm, KNorm             launch.Mat // [1, d]; both or none
	Eps                      float32
	Positions, Slots, Angles launch.Mat // I32 [T, 1] twice, written by no kernel of the step; F32 [positions, Rope.Dim]
	Rope, KRope              device.Rope
}

// CanHeadStore reports whether HeadStore takes these: heads of 16 to 256 elements, a power of
// two, that are rotated as a whole or by halves in a first part, a power of two up to half of them
// (with norms by halves, so that their sums are HeadNorm's), and everything aligned for chunks of 8.
func CanHeadStore(cache launch.KV, h *Heads) bool {
	dim, part := h.Rope.HeadDim, h.Rope.Dim
	if part != dim && (part < 16 || part > dim/2 || part&(part-1) != 0 || h.Rope.Interleaved) {
		return false
	}
	turns := device.Rope{Heads: h.Rope.Heads, HeadDim: dim, Dim: part, Interleaved: h.Rope.Interleaved}
	keys := turns
	keys.Heads = h.KRope.Heads
	return h.Rope == turns && h.KRope == keys && (h.QNorm.Zero() || !h.Rope.Interleaved) && byLanes(h.Q, dim) && byLanes(h.KV, dim) && aligned(h.QNorm) && aligned(h.KNorm) &&
		h.QNorm.DType == h.KNorm.DType && h.Angles.At%16 == 0 && h.Angles.Stride%4 == 0
}

// HeadStore does in one launch, with the same bits, the work of grouped-query attention between
// its projections and its products: HeadNorm of q and of the keys (if there are norms), Rope of
// both, and StoreRows of kv.
func HeadStore(l *launch.List, cache launch.KV, h *Heads) {
	const op = "HeadStore"
	dim := checkHeads(op, "q", h.Q, h.Rope.Heads)
	if kv := checkHeads(op, "kv", h.KV, 2*h.KRope.Heads); kv != dim || h.KV.Rows != h.Q.Rows || !CanHeadStore(cache, h) {
		refuse(op, "q %v turns by %+v, kv %v by %+v", h.Q, h.Rope, h.KV, h.KRope)
	}
	for _, w := range []launch.Mat{h.QNorm, h.KNorm} {
		if h.QNorm.Zero() != h.KNorm.Zero() {
			refuse(op, "norms %v and %v", h.QNorm, h.KNorm)
		}
		if !w.Zero() {
			floats(op, "norm", w, 1, dim)
		}
	}
	column(op, "positions", h.Positions, h.Q.Rows)
	column(op, "slots", h.Slots, h.Q.Rows)
	typed(op, "angles", h.Angles, tensor.F32, h.Angles.Rows, h.Rope.Dim)
	if h.Q.Rows > 0 {
		headStore(l, &cache, h, h.Rope.Heads, dim)
	}
}

// headStore launches kr_head_store; without h.KV it is only the norm of q.
func headStore(l *launch.List, cache *launch.KV, h *Heads, heads, dim int) {
	const op = "HeadStore"
	var c [7]launch.Arg
	f, m, kvHeads, turned := 0, [2]launch.Arg{launch.P(0), launch.I32(0)}, h.KRope.Heads, h.Rope.Dim
	if h.KV.Zero() {
		turned = dim
		c = [7]launch.Arg{launch.P(0), launch.P(0), launch.I32(0), launch.I32(0), launch.I32(0), launch.I32(0), launch.I32(0)}
	} else {
		c, f = cacheArgs(op, cache, h.KV.Cols)
		m = markArgs(op, cache, h.KV.Rows)
		f |= flagTurns
	}
	f |= flags(h.Q, h.KV, h.QNorm) &^ flagVec
	if h.Rope.Interleaved {
		f |= flagInterleaved
	}
	// Many rows keep all multiprocessors busy, so a thread processes several heads with the same
	// weights and angles.
	threads, all := headThreads, heads+2*kvHeads
	if h.Q.Rows >= manyRows {
		threads = headThreads / 2
	}
	each, parts := threads/(dim/16), 1
	if h.Q.Rows < manyRows && (cache.DType != tensor.I8 || 2*kvHeads <= each) { // an integer row is stored as a whole
		parts = (all + each - 1) / each
	}
	config := rowBlocks(h.Q.Rows, threads)
	config.Grid.Y = uint32(parts)
	l.Add(kHeadStore, config, c[0], c[1], c[2], c[3], c[4], c[5], c[6],
		launch.P(h.Q.At), launch.I32(h.Q.Stride), launch.P(h.KV.At), launch.I32(h.KV.Stride), launch.P(h.QNorm.At), launch.P(h.KNorm.At),
		launch.F32(h.Eps), launch.P(h.Positions.At), launch.P(h.Slots.At), launch.P(h.Angles.At), launch.I32(h.Angles.Stride),
		launch.I32(h.Angles.Rows), launch.I32(heads), launch.I32(kvHeads), launch.I32(dim), launch.I32(turned), m[0], m[1], launch.I32(f))
}
