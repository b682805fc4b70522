package cpu

import (
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/dot"
	"krater/kernels/device"
)

// productsMost bounds the products that one loop computes.
const productsMost = 16

// productsTask is products of few rows that do not depend on each other, as one loop: each alone would end
// before all threads have taken part.
type productsTask struct {
	floats []matmulTask
	ints   []matmulQTask
	list   []productItems
}

// productItems are a product and the end of its items among those of all.
type productItems struct {
	task task
	end  int
}

func (t *productsTask) do(l *lane, i int) {
	first := 0
	for p := range t.list {
		if end := t.list[p].end; i >= end {
			first = end
			continue
		}
		t.list[p].task.do(l, i-first)
		return
	}
}

// products is how many operators at the head of l are products that one loop computes.
func (d *Device) products(l device.List) int {
	if d.tileBF16 || l.Ops[0].Kind != device.OpMatMul || l.Ops[0].Out.Rows > dot.Rows {
		return 1
	}
	n := 1
	for n < min(len(l.Ops), productsMost) && l.Ops[n].Kind == device.OpMatMul && independent(l.To(n), &l.Ops[n]) {
		n++
	}
	return n
}

// independent reports whether the product o reads and writes nothing that those of l write.
func independent(l device.List, o *device.Op) bool {
	for i := range l.Ops {
		if out := l.Ops[i].Out; out.Rows != o.Out.Rows || o.Out.Bytes() == 0 || out.Overlaps(o.Out) || out.Overlaps(o.X) || out.Overlaps(o.Q.Q) || out.Overlaps(o.Q.Scale) || out.Overlaps(o.Q.Bias) {
			return false
		}
	}
	return true
}

// multiplyAll computes products. Scratch: their rows, packed.
func (d *Device) multiplyAll(stream device.Stream, l device.List) {
	s := d.stream("MatMul", stream)
	t := &s.products
	t.floats, t.ints, t.list = t.floats[:0], t.ints[:0], t.list[:0]
	ns, bytes := 0, 0
	for i := range l.Ops {
		o := &l.Ops[i]
		if o.Weight.Integer() {
			t.ints = append(t.ints, matmulQTask{})
			q := &t.ints[len(t.ints)-1]
			q.check(d, &o.Out, &o.Q, &o.Weight.Q)
			ns, bytes = ns+q.ns(d, q.x.rows), bytes+q.bytes()
			continue
		}
		t.floats = append(t.floats, matmulTask{})
		f := &t.floats[len(t.floats)-1]
		f.check(d, &o.Out, &o.X, &o.Weight.F)
		ns, bytes = ns+f.ns(d, f.m), bytes+f.n*f.stride
	}
	t.pack(s)
	shared, items, scratch := s.shared(ns), 0, 0
	for i := range t.floats {
		f := &t.floats[i]
		f.cut, f.grain, f.rows = 1, 1, f.m
		if shared {
			f.cut = s.ranges(f.n, f.n*f.stride, bytes)
		}
		items += f.cut
		t.list = append(t.list, productItems{f, items})
	}
	for i := range t.ints {
		q := &t.ints[i]
		if q.cut = 1; shared {
			q.cut = s.ranges(q.tiles(), q.bytes(), bytes)
		}
		scratch = max(scratch, d.unit.scratch(&q.quantProduct, q.x.rows))
		items += q.cut
		t.list = append(t.list, productItems{q, items})
	}
	s.each(t, items, ns, scratch)
	clear(t.list)
}

// pack packs the rows that meet BF16 weights, those of several products once.
func (t *productsTask) pack(s *Stream) {
	room := 0
	for i := range t.floats {
		if f := &t.floats[i]; f.bf16 {
			room += piece(f.m * convert.Padded(f.k))
		}
	}
	s.arena.reset(room)
	var from [productsMost]packPart // what the rows were before; n is their stride
	for i := range t.floats {
		f := &t.floats[i]
		if !f.bf16 {
			continue
		}
		from[i] = packPart{x: f.x, n: f.xStride}
		for j := range i {
			if g := &t.floats[j]; g.bf16 && g.k == f.k && from[j].x == f.x && from[j].n == f.xStride {
				from[i].dst = g.x
			}
		}
		if from[i].dst == nil {
			from[i].dst = s.arena.take(f.m * convert.Padded(f.k))
			s.pack.add(from[i].dst, f.x, f.xStride, f.m, f.k)
		}
		f.x, f.xStride = from[i].dst, convert.Padded(f.k)
	}
	if len(s.pack.list) > 0 {
		s.pack.run(s)
	}
}
