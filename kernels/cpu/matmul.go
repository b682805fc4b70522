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
	chunk     int // weight rows per item
	rows      int // rows of activations per item, a multiple of dot.Rows, or all
	unit      unitPack
}

func (t *matmulTask) do(l *lane, i int) {
	kernels := t.dev.tiles(t.bf16)
	chunks := (t.n + t.chunk - 1) / t.chunk
	first := i / chunks * t.rows
	last := min(t.m, first+t.rows)
	from := i % chunks * t.chunk
	end := min(t.n, from+t.chunk)
	step := t.block(last - first)
	if t.unit.tokens != nil {
		from = t.onUnit(l, from, end, step)
	}
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
}

// packTask brings rows into packed order.
type packTask struct {
	dev     *Device
	dst     *float32
	x       *float32
	xStride int // values
	k       int
}

func (t *packTask) do(_ *lane, i int) {
	t.dev.convert.Pack(rowAt(t.dst, convert.Padded(t.k), i), rowAt(t.x, t.xStride, i), t.k)
}

// MatMul is out [T, N] F32 = x [T, K] F32 * transposed w [N, K] BF16 or F32. Scratch: rowBlock rows
// of K values.
func (d *Device) MatMul(stream device.Stream, out, x, w device.Mat) {
	const op = "MatMul"
	s := d.stream(op, stream)
	o := f32(op, "out", &out, x.Rows, w.Rows)
	in := f32(op, "x", &x, x.Rows, x.Cols)
	p := newProduct(op, "w", &w, w.Rows, x.Cols)
	if x.Rows == 0 || w.Rows == 0 {
		return
	}
	if x.Cols == 0 {
		fail(op, "x is %s", x)
	}
	s.multiply(p, o, out.Stride, in, x.Stride, x.Rows)
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

// items cuts the product and returns the number of items. A matrix of few weight rows, such as a
// router's, does not occupy all lanes: then the rows of activations are cut too.
func (t *matmulTask) items(s *Stream, ns int) int {
	t.chunk, t.rows = s.chunk(t.n, ns), t.m
	chunks := (t.n + t.chunk - 1) / t.chunk
	const perLane = 2
	if want := perLane * len(s.lanes); s.shared(ns) && chunks < want && t.unit.tokens == nil {
		parts := (want + chunks - 1) / chunks
		t.rows = min(t.m, ((t.m+parts-1)/parts+dot.Rows-1)/dot.Rows*dot.Rows)
	}
	return chunks * ((t.m + t.rows - 1) / t.rows)
}

// packed brings m rows of k values into packed order in the shared arena.
func (s *Stream) packed(x *float32, stride, m, k int) *float32 {
	s.arena.reset(m * convert.Padded(k))
	t := &s.pack
	*t = packTask{dev: s.dev, dst: s.arena.take(m * convert.Padded(k)), x: x, xStride: stride, k: k}
	s.each(t, m, m*k/2, 0)
	return t.dst
}

// chunk returns how many of n weight rows one item takes: all of them if the work stays on the
// caller, otherwise a share that gives every lane a few items.
func (s *Stream) chunk(n, ns int) int {
	if !s.shared(ns) {
		return n
	}
	const perLane = 4
	each := (n + perLane*len(s.lanes) - 1) / (perLane * len(s.lanes))
	return (each + convert.Block - 1) &^ (convert.Block - 1)
}
