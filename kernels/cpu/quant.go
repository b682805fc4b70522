package cpu

import (
	"unsafe"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/qdot"
	"krater/kernels/cpu/qrows"
	"krater/kernels/cpu/qtile"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// maxGroup bounds the columns of a group: the sums of -8 (-128) times the activations and of
// products up to 255*127 stay within 32 bits.
const maxGroup = 1 << 16

// quantRows are device.QRows that were checked.
type quantRows struct {
	q                                *int8
	scale                            *float32
	bias                             *int32
	qStride, scaleStride, biasStride int // elements
	rows, k, group                   int // k: padded
}

// typed is at for a matrix of the given type and shape.
func typed(op, name string, m *device.Mat, dt tensor.DType, rows, cols int) unsafe.Pointer {
	if m.Rows != rows || m.Cols != cols || m.DType != dt {
		fail(op, "%s is %s, need %s [%d, %d]", name, *m, dt, rows, cols)
	}
	return at(op, name, m)
}

func newQuantRows(op string, x *device.QRows) quantRows {
	rows, k := x.Q.Rows, x.Q.Cols
	if x.Group < qrows.Block || x.Group > maxGroup || x.Group%qrows.Block != 0 || k < 1 || k%x.Group != 0 {
		fail(op, "quantised rows are %s in groups of %d", x.Q, x.Group)
	}
	return quantRows{
		q:       (*int8)(typed(op, "Q", &x.Q, tensor.I8, rows, k)),
		scale:   (*float32)(typed(op, "Scale", &x.Scale, tensor.F32, rows, k/x.Group)),
		bias:    (*int32)(typed(op, "Bias", &x.Bias, tensor.I32, rows, k/x.Group)),
		qStride: x.Q.Stride, scaleStride: x.Scale.Stride, biasStride: x.Bias.Stride,
		rows: rows, k: k, group: x.Group,
	}
}

// row returns the three parts of a row.
func (x *quantRows) row(r int) (q *int8, scale *float32, bias *int32) {
	return (*int8)(unsafe.Add(unsafe.Pointer(x.q), r*x.qStride)), rowAt(x.scale, x.scaleStride, r),
		(*int32)(unsafe.Add(unsafe.Pointer(x.bias), 4*r*x.biasStride))
}

// quantTask quantises rows.
type quantTask struct {
	dev     *Device
	out     quantRows
	x       *float32
	xStride int
	cols    int
}

func (t *quantTask) do(l *lane, r int) {
	x := rowAt(t.x, t.xStride, r)
	if t.cols < t.out.k {
		l.arena.clear()
		padded := l.arena.take(t.out.k)
		n := copy(unsafe.Slice(padded, t.out.k), unsafe.Slice(x, t.cols))
		clearF32((*float32)(unsafe.Add(unsafe.Pointer(padded), 4*n)), t.out.k-n)
		x = padded
	}
	q, scale, bias := t.out.row(r)
	t.dev.qrows.Quantize(x, q, scale, bias, t.out.k/t.out.group, t.out.group/qrows.Block)
}

// QuantizeRows writes the rows of x [T, K] F32 as integers. Scratch: one row per thread if K is not
// a multiple of 32.
func (d *Device) QuantizeRows(stream device.Stream, out device.QRows, x device.Mat) {
	const op = "QuantizeRows"
	s := d.stream(op, stream)
	in := f32(op, "x", &x, x.Rows, x.Cols)
	if out.Q.Rows != x.Rows || out.Q.Cols != paddedCols(x.Cols) {
		fail(op, "out is %s for x %s", out.Q, x)
	}
	t := &s.quant
	*t = quantTask{dev: d, out: newQuantRows(op, &out), x: in, xStride: x.Stride, cols: x.Cols}
	const valuesPerNs = 4
	scratch := 0
	if t.cols < t.out.k {
		scratch = t.out.k
	}
	s.each(t, x.Rows, x.Rows*t.out.k/valuesPerNs, scratch)
}

func paddedCols(n int) int { return tensor.Padded(n) }

// quantProduct is a packed matrix that was checked, with its kernels.
type quantProduct struct {
	w, s                  unsafe.Pointer
	tileBytes, scaleBytes int // of a band of 16 rows
	n, k, steps           int // rows; padded columns; blocks of 32 columns in a group
	*encodingKernels
}

// encodingKernels are a device's kernels for the weights of an encoding.
type encodingKernels struct {
	qdot    qdot.Kernels
	blocks  *blockdot.Kernels // in place of qdot where weights are blocks of a file
	columns convert.Columns
	unit    qtile.Kernel // nil: the tile unit does not take them
}

// kernelTable joins the tables of the packages, so that a product looks once.
func kernelTable(q qdot.Funcs, b *blockdot.Funcs, c *convert.Funcs) map[*tensor.Encoding]*encodingKernels {
	table := make(map[*tensor.Encoding]*encodingKernels, len(q)+len(b.Of))
	for e, rows := range q {
		table[e] = &encodingKernels{qdot: rows, columns: c.Columns[e], unit: qtile.Kernels[e]}
	}
	for e, rows := range b.Of {
		table[e] = &encodingKernels{blocks: rows}
	}
	for e, k := range table {
		if k.columns == nil {
			k.columns = convert.Any(e)
		}
	}
	return table
}

func (d *Device) quantProduct(op, name string, w *device.QMat, rows, k, group int) quantProduct {
	if w.Zero() || w.Scales == nil {
		fail(op, "%s is absent", name)
	}
	if err := w.Check(); err != nil {
		fail(op, "%s: %v", name, err)
	}
	if w.Rows != rows || w.PaddedCols() != k || w.Group != group || group > maxGroup {
		fail(op, "%s is %s [%d, %d] in groups of %d, need [%d, %d] in groups of %d", name, w.Name(), w.Rows, w.PaddedCols(), w.Group, rows, k, group)
	}
	p := d.product(&w.Layout)
	if p.encodingKernels == nil {
		fail(op, "%s is %s, for which level %s has no kernels", name, w.Format, d.level)
	}
	p.w, p.s = part(op, name, w.Values, w.ValueAt, w.ValueBytes()), part(op, name, w.Scales, w.ScaleAt, w.ScaleBytes())
	return p
}

// product is how a matrix is multiplied that lies nowhere yet.
func (d *Device) product(l *tensor.Layout) quantProduct {
	p := quantProduct{
		n: l.Rows, k: l.PaddedCols(), steps: l.Group / qrows.Block,
		encodingKernels: d.encodings[l.Encoding],
	}
	p.tileBytes, p.scaleBytes = l.BandBytes()
	return p
}

// part is n bytes of a buffer, from byte off on.
func part(op, name string, b device.Buffer, off, n int) unsafe.Pointer {
	host := b.Host()
	if off < 0 || off > len(host) || n > len(host)-off {
		fail(op, "%s: %d bytes at byte %d are not within %d bytes", name, n, off, len(host))
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(host)), off)
}

// tiles returns the number of tiles, the last one perhaps not full.
func (p *quantProduct) tiles() int { return (p.n + tensor.TileRows - 1) / tensor.TileRows }

// bytes is the size of the matrix.
func (p *quantProduct) bytes() int { return p.tiles() * (p.tileBytes + p.scaleBytes) }

// ns estimates the time of m rows on one core.
func (p *quantProduct) ns(d *Device, m int) int {
	return max(p.bytes()/d.speed.quantBytesPerNs, 2*m*p.n*p.k/d.speed.quantOpsPerNs)
}

// quantInput names rows of activations: index[j], or first+j without an index.
type quantInput struct {
	*quantRows
	index []int32
	first int
}

// quantOutput names rows of results in the same way.
type quantOutput struct {
	base   *float32
	stride int
	index  []int32
	first  int
}

func pick(index []int32, first, j int) int {
	if index != nil {
		return int(index[j])
	}
	return first + j
}

// multiply computes the columns of weight tiles [from, to) for rows rows. Tiles go in pieces that
// stay in the second-level cache while all rows pass, or that keep a call short when they are read
// once.
func (p *quantProduct) multiply(d *Device, l *lane, in quantInput, out quantOutput, rows, from, to int) {
	if p.blocks != nil {
		p.streamBlocks(d, l, in, out, rows, from, to)
		return
	}
	if d.unit.takes(p, rows) {
		from = p.onUnit(l, in, out, rows, from, to)
	}
	p.stream(d, l, in, out, rows, from, to)
}

// stream is multiply of integers without the tile unit.
func (p *quantProduct) stream(d *Device, l *lane, in quantInput, out quantOutput, rows, from, to int) {
	most := p.qdot.Most()
	calls := (rows + most - 1) / most
	size := streamBlock
	if calls > 1 {
		size = cacheBlock
	}
	step := max(1, size/p.tileBytes)
	l.qdot.K, l.qdot.Steps = p.k, p.steps
	for ; from < to; from += step {
		l.qdot.Ahead = d.fetch.ahead(p.steps*qrows.Block, rows)
		for c := range calls {
			first, last := c*rows/calls, (c+1)*rows/calls
			for j := first; j < last; j++ {
				l.qdot.X[j-first], l.qdot.Scale[j-first], l.qdot.Bias[j-first] = in.row(pick(in.index, in.first, j))
				l.qdot.Out[j-first] = rowAt(out.base, out.stride, pick(out.index, out.first, j))
			}
			p.call(l, last-first, from, min(to, from+step))
			l.qdot.Ahead = 0 // the weights are in cache now
		}
	}
}

// call runs the kernel on tiles [from, to); Out are the starts of the rows. A last tile that is not
// full goes through a buffer, since kernels write whole tiles.
func (p *quantProduct) call(l *lane, rows, from, to int) {
	kernel := p.qdot[rows]
	t := &l.qdot
	for m := range rows {
		t.Out[m] = (*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*tensor.TileRows*from))
	}
	whole := min(to, p.n/tensor.TileRows)
	if from < whole {
		t.W, t.S, t.Tiles = unsafe.Add(p.w, from*p.tileBytes), unsafe.Add(p.s, from*p.scaleBytes), whole-from
		kernel(t)
	}
	if whole == to {
		return
	}
	var out [qdot.Rows]*float32
	for m := range rows {
		out[m] = (*float32)(unsafe.Add(unsafe.Pointer(t.Out[m]), 4*tensor.TileRows*(whole-from)))
		t.Out[m] = &l.edge[tensor.TileRows*m]
	}
	t.W, t.S, t.Tiles = unsafe.Add(p.w, whole*p.tileBytes), unsafe.Add(p.s, whole*p.scaleBytes), 1
	kernel(t)
	for m := range rows {
		copy(unsafe.Slice(out[m], p.n%tensor.TileRows), l.edge[tensor.TileRows*m:])
	}
}

// matmulQTask multiplies rows by ranges of weight tiles.
type matmulQTask struct {
	quantProduct
	dev *Device
	x   quantRows
	out quantOutput
	cut int // items

	// Many rows for the tile unit or for blocks are packed once for all items, in a loop before.
	packs   []quantPack
	packing bool
	chunks  rowChunks
}

func (t *matmulQTask) do(l *lane, i int) {
	switch {
	case t.packing:
		for r, to := t.chunks.of(i); r < to; r++ {
			q, scale, bias := t.x.row(r)
			packRow(t.packs, r, q, scale, bias)
		}
		return
	case len(t.packs) > 0:
		from, to := evenCut(i, t.cut, t.tiles())
		t.multiplyPacked(t.dev, l, t.packs, quantInput{quantRows: &t.x}, t.out, 0, t.x.rows, from, to)
		return
	}
	n := t.tiles()
	t.multiply(t.dev, l, quantInput{quantRows: &t.x}, t.out, t.x.rows, i*n/t.cut, (i+1)*n/t.cut)
}

// check checks the arguments of a product and fills t with them.
func (t *matmulQTask) check(d *Device, out *device.Mat, x *device.QRows, w *device.QMat) {
	const op = "MatMulQ"
	t.dev, t.x = d, newQuantRows(op, x)
	t.quantProduct = d.quantProduct(op, "w", w, w.Rows, t.x.k, x.Group)
	t.out = quantOutput{base: f32(op, "out", out, t.x.rows, w.Rows), stride: out.Stride}
}

// MatMulQ is out [T, N] F32 = x [T, K] * transposed w [N, K]. Scratch: that of the tile unit, see
// unit.go.
func (d *Device) MatMulQ(stream device.Stream, out device.Mat, x device.QRows, w device.QMat) {
	s := d.stream("MatMulQ", stream)
	t := &s.matmulQ
	if t.check(d, &out, &x, &w); t.x.rows == 0 {
		return
	}
	ns := t.ns(d, t.x.rows)
	t.packs = t.packs[:0]
	if len(s.lanes) > 1 && (d.unit.takes(&t.quantProduct, t.x.rows) || t.x.rows >= wideRows && d.packed(&t.quantProduct, t.x.rows)) {
		t.wide(s, ns)
		return
	}
	t.cut = min(s.cuts(ns, 1), t.tiles())
	s.each(t, t.cut, ns, d.unit.scratch(&t.quantProduct, t.x.rows))
}

// wide multiplies many rows that are packed first.
func (t *matmulQTask) wide(s *Stream, ns int) {
	t.packs = t.appendPacks(s.dev, t.packs, 0, t.x.rows)
	s.arena.reset(t.packScratch(t.packs))
	t.begin(t.packs, &s.arena)
	t.chunks = rowChunks{t.x.rows}
	t.packing = true
	s.each(t, t.chunks.count(), ns/50, 0)
	t.packing = false
	t.cut = min(widePerLane*len(s.lanes), (t.tiles()+1)/2)
	s.each(t, t.cut, ns, piece(qtile.Scratch(t.group())))
}

// group returns the columns that share a scale.
func (p *quantProduct) group() int { return p.steps * qrows.Block }

// groups returns the number of scales of a row.
func (p *quantProduct) groups() int { return p.k / p.group() }

// cuts returns the number of parts to cut each of n products that together take ns: one if they
// stay on the caller, otherwise enough to give every lane eight. Lanes take parts in turn, so a
// slow core takes fewer. But each part starts the cores' prefetchers again (measured on Zen 4, two
// threads, six experts: cut in two 0.95 of plain reads, in eight 0.88).
func (s *Stream) cuts(ns, n int) int {
	if !s.shared(ns) {
		return 1
	}
	const perLane = 8
	return (perLane*len(s.lanes) + n - 1) / n
}
