package hostsim

import (
	"fmt"
	"time"

	"krater/kernels/device"
)

// call is an operator or copy being enqueued: its arguments translated to memory
// of the CPU, checked to be the device's, and added up. Its stream uses it again once it has run,
// so that enqueuing does not allocate.
type call struct {
	dev  *Device
	op   string
	s    *stream
	bufs []*buffer
	work work
	list device.List // copies of the operators of a launch

	// What the operators of list point to.
	counted  []device.Mat
	packs    []device.QMat
	weight   []device.Weight
	networks []device.FFN
	kvB      []device.KVB
	near     []device.Near
	shards   []device.Mat
	lists    []device.Span
	blocks   []int32
	experts  []device.Expert
	packed   []device.QExpert
	rows     []device.ExpertRows
	assigned []int32
}

// reset empties c and keeps its memory, but not what that points to.
func (c *call) reset() {
	c.bufs, c.list.Ops, c.counted, c.packs = emptied(c.bufs), emptied(c.list.Ops), emptied(c.counted), emptied(c.packs)
	c.weight, c.networks, c.kvB, c.near = emptied(c.weight), emptied(c.networks), emptied(c.kvB), emptied(c.near)
	c.shards, c.lists, c.experts, c.packed = emptied(c.shards), emptied(c.lists), emptied(c.experts), emptied(c.packed)
	c.rows, c.blocks, c.assigned = emptied(c.rows), c.blocks[:0], c.assigned[:0]
	c.work = work{}
}

// emptied is list without elements, which are zeroed.
func emptied[T any](list []T) []T {
	clear(list)
	return list[:0]
}

// added appends v to list and returns where it is.
func added[T any](list *[]T, v T) *T {
	*list = append(*list, v)
	return &(*list)[len(*list)-1]
}

// copied appends the elements of part to list and returns these.
func copied[T any](list *[]T, part []T) []T {
	n := len(*list)
	*list = append(*list, part...)
	return (*list)[n:len(*list):len(*list)]
}

// refuse raises the error of arguments that do not fit.
func (c *call) refuse(format string, args ...any) {
	panic(&device.ShapeError{Op: c.op, Why: fmt.Sprintf(format, args...)})
}

func (d *Device) call(op string, s device.Stream) *call {
	own, ok := s.(*stream)
	switch {
	case s == nil:
		panic(&device.ShapeError{Op: op, Why: "no stream, on " + d.name})
	case !ok || own.dev != d:
		panic(&device.ShapeError{Op: op, Why: fmt.Sprintf("the stream belongs to %s, the operator to %s", s.Device().Name(), d.name)})
	}
	c := own.call()
	c.op = op
	d.mu.Lock()
	refused := d.hit(Refusal)
	d.mu.Unlock()
	if refused {
		panic(fmt.Errorf("%s: %s: %w", d.name, op, ErrRefused))
	}
	return c
}

// owner names whose memory b is.
func owner(b device.Buffer) string {
	if own, ok := b.(interface{ Device() device.Device }); ok {
		return own.Device().Name()
	}
	if b.Host() != nil || b.Size() == 0 {
		return "the host"
	}
	return fmt.Sprintf("another device (%T)", b)
}

// buffer returns the CPU's memory behind b, which is part of the argument name.
func (c *call) buffer(name, part string, b device.Buffer) device.Buffer {
	own, ok := b.(*buffer)
	if !ok || own.dev != c.dev {
		c.refuse("%s%s is memory of %s, the operator runs on %s", name, part, owner(b), c.dev.name)
	}
	c.bufs = append(c.bufs, own)
	return own.inner
}

// view translates a matrix of which the operator takes a part only.
func (c *call) view(name string, m device.Mat) device.Mat {
	if !m.Zero() {
		m.Buf = c.buffer(name, "", m.Buf)
	}
	return m
}

// mat translates a matrix and counts all of it.
func (c *call) mat(name string, m device.Mat) device.Mat {
	c.work.bytes += int64(m.Bytes())
	return c.view(name, m)
}

func (c *call) integers(name string, q device.QMat) device.QMat {
	if q.Zero() {
		return q
	}
	q.Values, q.Scales = c.buffer(name, "", q.Values), c.buffer(name, ".Scales", q.Scales)
	c.work.bytes += int64(q.Bytes())
	return q
}

func (c *call) expert(e device.Expert) device.Expert {
	return device.Expert{Gate: c.mat("gate", e.Gate), Up: c.mat("up", e.Up), Down: c.mat("down", e.Down), Extra: c.extra(e.Extra)}
}

func (c *call) quantised(e device.QExpert) device.QExpert {
	return device.QExpert{W13: c.integers("W13", e.W13), W2: c.integers("W2", e.W2), Extra: c.extra(e.Extra)}
}

func (c *call) extra(e device.Extra) device.Extra {
	e.B13, e.B2 = c.mat("the bias of gate and up", e.B13), c.mat("the bias of down", e.B2)
	return e
}

// cache translates a KV cache; what is read of it is counted apart.
func (c *call) cache(kv device.KV) device.KV {
	kv.Mat, kv.Scales = c.view("cache", kv.Mat), c.view("cache.Scales", kv.Scales)
	return kv
}

func (c *call) expansion(w *device.KVB) *device.KVB {
	out := device.KVB{F: c.mat("kv_b", w.F), K: copied(&c.packs, w.K), V: copied(&c.packs, w.V)}
	for i := range out.K {
		out.K[i] = c.integers("kv_b.K", out.K[i])
		out.V[i] = c.integers("kv_b.V", out.V[i])
	}
	return added(&c.kvB, out)
}

// spanList copies spans, whose memory may belong to another batch when they are used.
func (c *call) spanList(spans []device.Span) []device.Span {
	own := copied(&c.lists, spans)
	for i := range own {
		own[i].Blocks = copied(&c.blocks, own[i].Blocks)
	}
	return own
}

// spans copies spans. It counts the bytes of the cache rows that they read, and the pairs of a query
// and a key.
func (c *call) spans(in device.Spans, cache device.KV) (own []device.Span, keys, pairs int64) {
	own = c.spanList(in.List)
	for _, s := range own {
		keys += int64(s.Pos + s.Len)
		pairs += int64(s.Len)*int64(s.Pos) + int64(s.Len)*int64(s.Len+1)/2
	}
	c.work.bytes += keys * rowBytes(cache)
	return own, keys, pairs
}

// sparse copies spans, and counts their rows and what each sees of at most most positions.
func (c *call) sparse(spans []device.Span, most int) (own []device.Span, rows, pairs int64) {
	own = c.spanList(spans)
	for _, s := range own {
		rows += int64(s.Len)
		for r := range s.Len {
			pairs += int64(min(s.Pos+r+1, most))
		}
	}
	return own, rows, pairs
}

// rowBytes returns the size of a row of a cache with its scales.
func rowBytes(kv device.KV) int64 {
	return int64(kv.Cols*kv.DType.Size() + kv.Scales.Cols*kv.Scales.DType.Size())
}

// workList copies a list of work and gives the rows in it.
func (c *call) workList(work []device.ExpertRows) (own []device.ExpertRows, rows int64) {
	own = copied(&c.rows, work)
	for i := range own {
		own[i].Assign = copied(&c.assigned, own[i].Assign)
		rows += int64(len(own[i].Assign))
	}
	return own, rows
}

// routed checks the experts of a list of work against the size of the bank.
func (c *call) routed(work []device.ExpertRows, bank int) {
	for _, w := range work {
		if w.Expert < 0 || int(w.Expert) >= bank {
			c.refuse("expert %d of %d", w.Expert, bank)
		}
	}
}

// copies checks the size of a copy.
func (c *call) copies(name string, m device.Mat, bytes int) {
	if bytes != m.Bytes() {
		c.refuse("%d bytes for %s %s", bytes, name, m)
	}
}

// run enqueues the operators of list, which have the given number of floating point operations.
func (c *call) run(flops int64) {
	d, s := c.dev, c.s
	c.work.flops = flops
	d.mu.Lock()
	d.counters.Launches[c.op]++
	d.counters.BytesOnDevice += c.work.bytes
	d.counters.Flops += flops
	it := item{op: c.op, call: c}
	if d.hit(Operator) {
		it.fault = ErrInjected
	}
	c.place(&d.compute, d.rates.time(c.work))
	d.mu.Unlock()
	s.push(it)
}

// copy enqueues a copy.
func (c *call) copy(up bool, bytes int, f func(device.Stream)) {
	d := c.dev
	it := item{op: c.op, call: c, copy: f}
	d.mu.Lock()
	if d.hit(Copy) {
		it.fault = ErrInjected
	}
	if up {
		d.counters.CopiesUp++
		d.counters.BytesUp += int64(bytes)
		it.free, it.took = &d.upFree, d.rates.Up.time(int64(bytes))
		c.place(&d.up, it.took)
	} else {
		d.counters.CopiesDown++
		d.counters.BytesDown += int64(bytes)
		it.free, it.took = &d.downFree, d.rates.Down.time(int64(bytes))
		c.place(&d.down, it.took)
	}
	d.mu.Unlock()
	c.s.push(it)
}

// place puts work on the time line: after what is before it in its stream, not
// before the host enqueued it, when its engine is free. dev.mu is held.
func (c *call) place(e *engine, took time.Duration) {
	s := c.s
	now, earliest := c.dev.clock.times()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = e.take(earliest, max(now, s.ends), took)
}
