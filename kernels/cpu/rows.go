package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// GatherRows copies row ids[i] of table [V, H] (BF16 or F32) to row i of out [n, H] F32.
func (d *Device) GatherRows(stream device.Stream, out, table, ids device.Mat) {
	const op = "GatherRows"
	d.stream(op, stream)
	index := i32s(op, "ids", &ids, out.Rows)
	o := f32(op, "out", &out, out.Rows, out.Cols)
	src, bf16 := weight(op, "table", &table, table.Rows, out.Cols)
	inRange(op, "ids", index, table.Rows)
	row := table.Stride * table.DType.Size()
	for i, id := range index {
		dst, from := rowAt(o, out.Stride, i), unsafe.Add(src, int(id)*row)
		if bf16 {
			d.convert.Widen(dst, (*uint16)(from), out.Cols)
		} else {
			copy(unsafe.Slice(dst, out.Cols), unsafe.Slice((*float32)(from), out.Cols))
		}
	}
}

// StoreRows writes row i of src [T, W] F32 to row slots[i] of cache [slots, W], rounded to what the
// cache is kept in: see convert.Funcs.
func (d *Device) StoreRows(stream device.Stream, cache device.KV, src, slots device.Mat) {
	const op = "StoreRows"
	d.stream(op, stream)
	index := i32s(op, "slots", &slots, src.Rows)
	in := f32(op, "src", &src, src.Rows, src.Cols)
	kv := newKVCache(op, &cache, src.Cols, src.Cols)
	inRange(op, "slots", index, cache.Rows)
	if src.Cols == 0 {
		return
	}
	var marks []int32
	if !cache.Marks.Zero() {
		marks = i32s(op, "marks", &cache.Marks, src.Rows)
	}
	for i, slot := range index {
		row := rowAt(in, src.Stride, i)
		kv.store(d.convert, int(slot), row, src.Cols)
		if marks != nil && marks[i] == 0 && !d.finite(row, src.Cols) {
			marks[i] = cache.Mark
		}
	}
}

// finite reports whether none of n values is NaN or infinite. Their sum of squares shows it, unless
// it overflows.
func (d *Device) finite(x *float32, n int) bool {
	if sum := d.norm.SumSquares(x, n); sum-sum == 0 {
		return true
	}
	for _, v := range unsafe.Slice(x, n) {
		if v-v != 0 {
			return false
		}
	}
	return true
}

// CopyRows is dst = src, both [n, W] of one type, in memory that does not overlap.
func (d *Device) CopyRows(stream device.Stream, dst, src device.Mat) {
	const op = "CopyRows"
	d.stream(op, stream)
	if dst.DType != src.DType || dst.Rows != src.Rows || dst.Cols != src.Cols {
		fail(op, "%s to %s", src, dst)
	}
	to, from := at(op, "dst", &dst), at(op, "src", &src)
	if to == nil {
		return
	}
	size := dst.DType.Size()
	for r := range dst.Rows {
		copy(unsafe.Slice((*byte)(unsafe.Add(to, r*dst.Stride*size)), dst.Cols*size), unsafe.Slice((*byte)(unsafe.Add(from, r*src.Stride*size)), src.Cols*size))
	}
}

// Add is x += delta, both [T, H] F32.
func (d *Device) Add(stream device.Stream, x, delta device.Mat) {
	const op = "Add"
	d.stream(op, stream)
	dst, src := f32(op, "x", &x, x.Rows, x.Cols), f32(op, "delta", &delta, x.Rows, x.Cols)
	if x.Cols == 0 {
		return
	}
	for r := range x.Rows {
		d.axpy.Add(rowAt(dst, x.Stride, r), rowAt(src, delta.Stride, r), x.Cols)
	}
}

// AddBias is x += b for every row; x [T, N] F32, b [1, N] BF16 or F32. Scratch: N values for a BF16
// bias.
func (d *Device) AddBias(stream device.Stream, x, b device.Mat) {
	const op = "AddBias"
	s := d.stream(op, stream)
	dst := f32(op, "x", &x, x.Rows, x.Cols)
	src, bf16 := weight(op, "b", &b, 1, x.Cols)
	if x.Cols == 0 {
		return
	}
	bias := (*float32)(src)
	if bf16 {
		s.arena.reset(x.Cols)
		bias = s.arena.take(x.Cols)
		d.convert.Widen(bias, (*uint16)(src), x.Cols)
	}
	for r := range x.Rows {
		d.axpy.Add(rowAt(dst, x.Stride, r), bias, x.Cols)
	}
}

// GateRows is out *= sigmoid(x * w) for every row; out [T, N] and x [T, H] F32, w [1, H] BF16 or
// F32. Scratch: H values for a BF16 w.
func (d *Device) GateRows(stream device.Stream, out, x, w device.Mat) {
	const op = "GateRows"
	s := d.stream(op, stream)
	dst, in := f32(op, "out", &out, x.Rows, out.Cols), f32(op, "x", &x, x.Rows, x.Cols)
	src, bf16 := weight(op, "w", &w, 1, x.Cols)
	if out.Cols == 0 || x.Cols == 0 {
		fail(op, "out is %s, x is %s", out, x)
	}
	s.arena.reset(x.Cols)
	if bf16 {
		wide := s.arena.take(x.Cols)
		d.convert.Widen(wide, (*uint16)(src), x.Cols)
		src = unsafe.Pointer(wide)
	}
	t := &s.lanes[0].dot
	t.W, t.Stride, t.K, t.N, t.Out[0] = src, 0, x.Cols, 1, &s.gate
	for r := range x.Rows {
		t.X[0] = rowAt(in, x.Stride, r)
		d.dot.F32[1](t)
		d.exp.Sigmoid(&s.gate, &s.gate, 1)
		d.axpy.Scale(rowAt(dst, out.Stride, r), out.Cols, s.gate)
	}
}

// WeightedSum is out [T, H] = base + sum over k of weights[t][k] * y[t*K+k],
// added in that order. base may be absent or out itself.
func (d *Device) WeightedSum(stream device.Stream, out, y, weights, base device.Mat) {
	const op = "WeightedSum"
	s := d.stream(op, stream)
	topK := weights.Cols
	o := f32(op, "out", &out, out.Rows, out.Cols)
	in := f32(op, "y", &y, out.Rows*topK, out.Cols)
	w := f32(op, "weights", &weights, out.Rows, topK)
	var b *float32
	if !base.Zero() {
		b = f32(op, "base", &base, out.Rows, out.Cols)
	}
	if out.Cols == 0 || topK == 0 {
		fail(op, "out is %s, weights are %s", out, weights)
	}
	d.weightedSum(s, &out, &y, &weights, &base, sumTask{out: o, y: in, w: w, base: b})
}
