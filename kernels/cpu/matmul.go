package cpu

import (
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

const (
	rowBlock    = 128     // rows of activations packed and multiplied at a time
	cacheBlock  = 1 << 18 // bytes of weights that stay in the second-level cache while rows pass
	streamBlock = 1 << 20 // bytes of weights of one assembly call when they are read once: some 40 us
	weightStep  = 8       // weight rows per tile: blocks are multiples of it
)

// product is x * w^T for some rows: everything a tile needs but the rows.
type product struct {
	w      unsafe.Pointer
	stride int // bytes between weight rows
	n, k   int
	bf16   bool
}

func newProduct(op, name string, w *device.Mat, n, k int) product {
	p, bf16 := weight(op, name, w, n, k)
	return product{w: p, stride: w.Stride * w.DType.Size(), n: n, k: k, bf16: bf16}
}

// block returns the number of weight rows to process together for m rows of activations.
func (p *product) block(m int) int {
	size := streamBlock
	if m > dot.Rows {
		size = cacheBlock
	}
	return max(weightStep, size/max(1, p.stride)&^(weightStep-1))
}

// ns estimates the time of m rows on one core.
func (p *product) ns(d *Device, m int) int {
	return max(p.n*p.stride/d.speed.bytesPerNs, 2*m*p.n*p.k/d.speed.flopsPerNs)
}

// tile points t at weight rows [from, to).
func (p *product) tile(t *dot.Tile, from, to int) {
	t.W = unsafe.Add(p.w, from*p.stride)
	t.Stride, t.K, t.N = p.stride, p.k, to-from
}

// tiles returns the kernels for weights of this type.
func (d *Device) tiles(bf16 bool) *[dot.Rows + 1]func(*dot.Tile) {
	if bf16 {
		return &d.dot.BF16
	}
	return &d.dot.F32
}

// matmulTask multiplies a block of rows with ranges of weight rows.
type matmulTask struct {
	product
	dev       *Device
	x, out    *float32
	xStride   int // values
	outStride int
	m         int
	cut       int // ranges of weight rows
	grain     int // they begin at multiples of it
	rows      int // rows of activations per item, a multiple of dot.Rows, or all
	unit      unitPack
}

func (t *matmulTask) do(l *lane, i int) {
	kernels := t.dev.tiles(t.bf16)
	first := i / t.cut * t.rows
	last := min(t.m, first+t.rows)
	grains := (t.n + t.grain - 1) / t.grain
	from := i % t.cut * grains / t.cut * t.grain
	end := min(t.n, (i%t.cut+1)*grains/t.cut*t.grain)
	step := t.block(last - first)
	if t.unit.tokens != nil {
		from = t.onUnit(l, from, end, step)
	}
	l.dot.Ahead = t.dev.fetch.floats
	for ; from < end; from += step {
		to := min(end, from+step)
		t.tile(&l.dot, from, to)
		for r := first; r < last; r += dot.Rows {
			rows := min(dot.Rows, last-r)
			for j := range rows {
				l.dot.X[j] = rowAt(t.x, t.xStride, r+j)
				l.dot.Out[j] = (*float32)(unsafe.Add(unsafe.Pointer(t.out), 4*((r+j)*t.outStride+from)))
			}
			kernels[rows](&l.dot)
		}
	}
	l.dot.Ahead = 0
}

// packTask brings rows into packed order, at most packPiece values an item.
type packTask struct {
	dev  *Device
	list []packPart
}

// packPart is n values of a row.
type packPart struct {
	dst, x *float32
	n      int
}

const (
	packPiece   = 4096 // a multiple of convert.Block
	packedPerNs = 8    // values
)

func (t *packTask) do(_ *lane, i int) {
	p := &t.list[i]
	t.dev.convert.Pack(p.dst, p.x, p.n)
}

// add adds m rows of k values.
func (t *packTask) add(dst, x *float32, stride, m, k int) {
	for r := range m {
		for at := 0; at < k; at += packPiece {
			t.list = append(t.list, packPart{shift(rowAt(dst, convert.Padded(k), r), at), shift(rowAt(x, stride, r), at), min(packPiece, k-at)})
		}
	}
}

// run packs what was added.
func (t *packTask) run(s *Stream) {
	values := 0
	for i := range t.list {
		values += t.list[i].n
	}
	t.dev = s.dev
	s.each(t, len(t.list), values/packedPerNs, 0)
	clear(t.list)
	t.list = t.list[:0]
}

// MatMul is out [T, N] F32 = x [T, K] F32 * transposed w [N, K] BF16 or F32. Scratch: rowBlock rows
// of K values.
func (d *Device) MatMul(stream device.Stream, out, x, w device.Mat) {
	s := d.stream("MatMul", stream)
	var t matmulTask
	if t.check(d, &out, &x, &w); t.m > 0 && t.n > 0 {
		s.multiply(t.product, t.out, t.outStride, t.x, t.xStride, t.m)
	}
}

// check checks the arguments of a product and fills t with them.
func (t *matmulTask) check(d *Device, out, x, w *device.Mat) {
	const op = "MatMul"
	t.dev, t.m, t.xStride, t.outStride = d, x.Rows, x.Stride, out.Stride
	t.out, t.x = f32(op, "out", out, x.Rows, w.Rows), f32(op, "x", x, x.Rows, x.Cols)
	t.product = newProduct(op, "w", w, w.Rows, x.Cols)
	if x.Rows > 0 && w.Rows > 0 && x.Cols == 0 {
		fail(op, "x is %s", *x)
	}
}

// multiply is MatMul of a product and rows that were checked; strides are values.
func (s *Stream) multiply(p product, out *float32, outStride int, x *float32, xStride, rows int) {
	t := &s.matmul
	t.product, t.dev, t.outStride = p, s.dev, outStride
	for r := 0; r < rows; r += rowBlock {
		t.m = min(rowBlock, rows-r)
		t.out = rowAt(out, outStride, r)
		t.x, t.xStride = rowAt(x, xStride, r), xStride
		if t.bf16 {
			t.x, t.xStride = s.packed(t.x, xStride, t.m, t.k), convert.Padded(t.k)
		}
		scratch := t.unit.pack(s, t)
		ns := t.ns(s.dev, t.m)
		s.each(t, t.items(s, ns), ns, scratch)
	}
}

// items cuts the product and returns the number of items. Few rows of activations need what memory
// gives, so weights are divided by bytes. Many read weights again and again: then an item has whole
// blocks of weight rows, and where a matrix of few, such as a router's, does not occupy all lanes, the
// rows of activations are cut too.
func (t *matmulTask) items(s *Stream, ns int) int {
	t.cut, t.grain, t.rows = 1, 1, t.m
	if !s.shared(ns) {
		return 1
	}
	if t.unit.tokens == nil && t.m <= dot.Rows {
		t.cut = s.ranges(t.n, t.n*t.stride, t.n*t.stride)
		return t.cut
	}
	const perLane, lines = 2, 4
	want := perLane * len(s.lanes)
	t.grain = convert.Block
	if t.unit.tokens == nil && t.n < want*convert.Block {
		t.grain = weightStep
	}
	each := (t.n + lines*len(s.lanes) - 1) / (lines * len(s.lanes))
	t.grain *= (each + t.grain - 1) / t.grain
	t.cut = (t.n + t.grain - 1) / t.grain
	if t.cut < want && t.unit.tokens == nil {
		parts := (want + t.cut - 1) / t.cut
		t.rows = min(t.m, ((t.m+parts-1)/parts+dot.Rows-1)/dot.Rows*dot.Rows)
	}
	return t.cut * ((t.m + t.rows - 1) / t.rows)
}

// packed brings m rows of k values into packed order in the shared arena.
func (s *Stream) packed(x *float32, stride, m, k int) *float32 {
	s.arena.reset(m * convert.Padded(k))
	dst := s.arena.take(m * convert.Padded(k))
	s.pack.add(dst, x, stride, m, k)
	s.pack.run(s)
	return dst
}

const (
	rangesPerLane = 4       // of weights that are read once
	leastRange    = 1 << 14 // bytes: some 2 us
	mostRange     = 1 << 16 // of several products: the last to end keep others waiting
)

// ranges is into how many ranges to cut n weight rows, or bands of them, of some bytes where a loop
// reads all in all.
func (s *Stream) ranges(n, bytes, all int) int {
	each := max(leastRange, all/(rangesPerLane*len(s.lanes)))
	if bytes < all {
		each = min(each, mostRange)
	}
	return max(1, min(n, (bytes+each-1)/each))
}
