package elem

import (
	"encoding/binary"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Rope rotates x [T, *] in place by each row's position, I32 [T, 1]. Row q of table [P, Dim] F32
// holds the pairs (cos, sin) of position q. A row whose position is not in the table is
// unchanged.
func Rope(l *launch.List, x, positions, table launch.Mat, p device.Rope) {
	const op = "Rope"
	floats(op, "x", x, x.Rows, x.Cols)
	checkRope(op, p, x.Cols)
	column(op, "positions", positions, x.Rows)
	typed(op, "table", table, tensor.F32, table.Rows, p.Dim)
	if x.Rows == 0 || p.Dim == 0 {
		return
	}
	f := flags(x)
	if !turnsByChunks(x, table, p) {
		f &^= flagVec
	}
	if p.Interleaved {
		f |= flagInterleaved
	}
	units := p.Heads * p.Dim / 2 / step(f, flagVec)
	l.Add(kRope, rowBlocks(x.Rows, min(256, warps(units))),
		launch.P(x.At), launch.I32(x.Stride), launch.P(positions.At), launch.P(table.At), launch.I32(table.Stride), launch.I32(table.Rows),
		launch.I32(p.Heads), launch.I32(p.HeadDim), launch.I32(p.Offset), launch.I32(p.Dim), launch.I32(f))
}

func checkRope(op string, p device.Rope, cols int) {
	if p.Heads < 1 || p.Dim < 0 || p.Dim%2 != 0 || p.Offset < 0 || p.Offset+p.Dim > p.HeadDim || p.Heads*p.HeadDim > cols {
		refuse(op, "%+v does not fit rows of %d", p, cols)
	}
}

// turnsByChunks reports whether the halves of every head's rotated part, and the table's rows,
// consist of aligned chunks.
func turnsByChunks(x, table launch.Mat, p device.Rope) bool {
	return x.At%alignment(x.DType) == 0 && x.Stride%chunk == 0 && p.HeadDim%chunk == 0 && p.Offset%chunk == 0 && p.Dim%(2*chunk) == 0 &&
		table.At%16 == 0 && table.Stride%4 == 0
}

// cacheKind returns the kernels' number for the type of a cache.
func cacheKind(op string, c *launch.KV, cols int) int {
	kind := 0
	switch c.DType {
	case tensor.F32:
	case tensor.BF16:
		kind = 1
	case tensor.F8E4M3:
		kind = 2
	case tensor.I8:
		kind = 3
		if c.Group < 1 || cols%c.Group != 0 {
			refuse(op, "groups of %d in rows of %d", c.Group, cols)
		}
		typed(op, "scales", c.Scales, tensor.F32, c.Rows, cols/c.Group)
	default:
		refuse(op, "a cache of %v", c.Mat)
	}
	if c.Zero() || c.Cols != cols || c.Stride < cols {
		refuse(op, "cache is %v, rows have %d", c.Mat, cols)
	}
	return kind
}

// cacheArgs returns the first arguments of kernels that store: the cache up to its rows.
func cacheArgs(op string, c *launch.KV, cols int) (args [7]launch.Arg, flags int) {
	kind := cacheKind(op, c, cols)
	if c.DType != tensor.I8 && aligned(c.Mat) {
		flags = flagCacheVec
	}
	return [7]launch.Arg{launch.P(c.At), launch.P(c.Scales.At), launch.I32(kind), launch.I32(c.Stride), launch.I32(c.Scales.Stride),
		launch.I32(c.Group), launch.I32(c.Rows)}, flags
}

// markArgs returns the arguments for rows that are not finite.
func markArgs(op string, c *launch.KV, rows int) [2]launch.Arg {
	if !c.Marks.Zero() {
		column(op, "marks", c.Marks, rows)
	}
	return [2]launch.Arg{launch.P(c.Marks.At), launch.I32(c.Mark)}
}

// StoreRows writes row i of src [T, W] to row slots[i] of the cache as device.KV defines:
// rounded, saturated, and with NaN as zero in 8 bits. Slots outside of the cache (-1) are left
// out.
func StoreRows(l *launch.List, cache launch.KV, src, slots launch.Mat) {
	const op = "StoreRows"
	floats(op, "src", src, src.Rows, src.Cols)
	column(op, "slots", slots, src.Rows)
	c, f := cacheArgs(op, &cache, src.Cols)
	m := markArgs(op, &cache, src.Rows)
	if src.Rows == 0 || src.Cols == 0 {
		return
	}
	f |= flags(src)
	threads := min(256, warps(src.Cols/step(f, flagVec)))
	if cache.DType == tensor.I8 {
		threads = min(256, 32*(src.Cols/cache.Group)) // one warp per group
	}
	l.Add(kStoreRows, rowBlocks(src.Rows, threads), c[0], c[1], c[2], c[3], c[4], c[5], c[6],
		launch.P(src.At), launch.I32(src.Stride), launch.P(slots.At), launch.I32(src.Cols), m[0], m[1], launch.I32(f))
}

// LatentStore does in one launch, with the same bits, the work of latent attention between its
// projections and its products: Rope of q [T, *] by qRope; RMSNorm by kvNorm [1, rank] of the
// first rank columns of kv [T, rank+rope], in place; Rope of the other columns by kRope;
// StoreRows of kv.
func LatentStore(l *launch.List, cache launch.KV, q, kv, kvNorm launch.Mat, eps float32, positions, slots, table launch.Mat, qRope, kRope device.Rope) {
	const op = "LatentStore"
	rank, dim := kvNorm.Cols, kRope.Dim
	floats(op, "q", q, kv.Rows, q.Cols)
	floats(op, "kv", kv, kv.Rows, rank+dim)
	floats(op, "kvNorm", kvNorm, 1, rank)
	checkRope(op, qRope, q.Cols)
	if (kRope != device.Rope{Heads: 1, HeadDim: dim, Dim: dim, Interleaved: qRope.Interleaved}) || qRope.Dim != dim || dim == 0 || dim%2 != 0 {
		refuse(op, "keys turn by %+v, queries by %+v", kRope, qRope)
	}
	column(op, "positions", positions, kv.Rows)
	column(op, "slots", slots, kv.Rows)
	typed(op, "table", table, tensor.F32, table.Rows, dim)
	c, f := cacheArgs(op, &cache, kv.Cols)
	m := markArgs(op, &cache, kv.Rows)
	if kv.Rows == 0 {
		return
	}
	f |= flags(q, kv, kvNorm) &^ flagVec
	if aligned(kv.ColRange(0, rank)) && aligned(kvNorm) {
		f |= flagNormVec
	}
	if turnsByChunks(q, table, qRope) && rank%chunk == 0 && turnsByChunks(kv, table, kRope) {
		f |= flagVec
	}
	if qRope.Interleaved {
		f |= flagInterleaved
	}
	norm := normThreads(rank, step(f, flagNormVec))
	turners := min(256, warps((qRope.Heads+1)*dim/2/step(f, flagVec)))
	l.Add(kLatentStore, rowBlocks(kv.Rows, norm+turners), c[0], c[1], c[2], c[3], c[4], c[5], c[6],
		launch.P(q.At), launch.I32(q.Stride), launch.P(kv.At), launch.I32(kv.Stride), launch.P(kvNorm.At), launch.I32(rank), launch.F32(eps),
		launch.I32(norm), launch.P(positions.At), launch.P(slots.At), launch.P(table.At), launch.I32(table.Stride), launch.I32(table.Rows),
		launch.I32(qRope.Heads), launch.I32(qRope.HeadDim), launch.I32(qRope.Offset), launch.I32(dim), m[0], m[1], launch.I32(f))
}

// BlockPart is a matrix of blocks of a cache, and the host memory for its blocks as the GPU
// addresses it. Bytes is the size of a block.
type BlockPart struct {
	Cache, Host launch.Ptr
	Bytes       int
}

// StageBlocks copies the blocks of prompt i of a table from far, in host memory, to near, one behind the other, and makes at to a
// table of that prompt alone (spans.Words(1, blocks)) whose blocks are these. bytes is the size of a block.
func StageBlocks(l *launch.List, to, table launch.Ptr, i int, near, far launch.Ptr, bytes, blocks int) {
	l.Add(kStage, launch.Config{Grid: launch.Dim{X: uint32(blocks)}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(to), launch.P(table), launch.I32(i), launch.P(near), launch.P(far), launch.I32(bytes))
}

// Near is memory of the GPU for the rows of a cache in host memory that some rows of a batch see. The zero Near means that the cache
// is in the GPU's memory.
type Near struct {
	launch.KV     // [records * width, ...], strides as those of the cache
	Width     int // rows of the cache that a record sees at most
}

// NewNear cuts memory for records that see at most width rows of far each.
func NewNear(far *launch.KV, records, width int, cut func(bytes int) launch.Ptr) Near {
	n := Near{KV: *far, Width: width}
	n.Far = false
	for _, m := range [...]*launch.Mat{&n.Mat, &n.Scales} {
		if !m.Zero() {
			m.Rows = records * width
			m.At = cut(m.Rows * m.Stride * m.DType.Size())
		}
	}
	return n
}

// Rows copies the rows of far that a table of generated rows with blocks of one token names, and makes the table name the copies.
// The table has that many records. Of each row it copies cols columns from column one on, and from two on; two < 0: from one
// alone. A table of other columns of the same rows may have the same memory.
func (n *Near) Rows(l *launch.List, table launch.Ptr, records int, far *launch.KV, one, two, cols int) {
	cfg := launch.Config{Grid: launch.Dim{X: uint32((n.Width + 7) / 8), Y: uint32(records)}, Block: launch.Dim{X: 256}, PDL: true}
	part := func(near, far launch.Mat, one, two, cols int, keep int32) {
		size := far.DType.Size()
		if two >= 0 {
			two *= size
		}
		l.Add(kNearRows, cfg, launch.P(table), launch.P(near.At), launch.P(far.At), launch.I32(n.Width), launch.I32(far.Stride*size), launch.I32(cols*size),
			launch.I32(one*size), launch.I32(two), launch.I32(int(keep)))
	}
	if !far.Scales.Zero() {
		other := two
		if two >= 0 {
			other /= far.Group
		}
		part(n.Scales, far.Scales, one/far.Group, other, cols/far.Group, 1)
	}
	part(n.Mat, far.Mat, one, two, cols, 0)
}

// BlockTable appends the table that MoveBlocks reads to buf: parts, and moves from a block to a
// block.
func BlockTable(buf []byte, parts []BlockPart, from, to []int32) []byte {
	for _, p := range parts {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(p.Cache))
		buf = binary.LittleEndian.AppendUint64(buf, uint64(p.Host))
		buf = binary.LittleEndian.AppendUint64(buf, uint64(p.Bytes))
	}
	for i := range from {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(from[i]))
		buf = binary.LittleEndian.AppendUint32(buf, uint32(to[i]))
	}
	return buf
}

// MoveBlocks copies blocks of every part between cache and host, as table says, which lies in the
// GPU's memory. With save it copies to the host. Sources and destinations must not share a block.
func MoveBlocks(l *launch.List, table launch.Ptr, parts, moves int, save bool) {
	if parts == 0 || moves == 0 {
		return
	}
	dir := 0
	if save {
		dir = 1
	}
	l.Add(kMoveBlocks, launch.Config{Grid: launch.Dim{X: uint32(moves), Y: uint32(parts)}, Block: launch.Dim{X: 256}, PDL: true}, launch.P(table), launch.I32(dir))
}
