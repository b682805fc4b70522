package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// poolTask makes the keys of pools. An item is a span and some channels, so that one thread alone reads
// and writes the rows kept of them.
type poolTask struct {
	device.Index
	dev                            *Device
	out, x, bias, tail             *float32
	outStride, xStride, biasStride int
	parts                          int
	spans                          []device.Span
}

const (
	// poolChannels is the channels of an item.
	poolChannels = 32
	// poolNs is the time of a key's value on one core, in 1/16 ns.
	poolNs = 32
)

// PoolKeys: out [T, Dim], x [T, 2*Dim], bias [Pool, Dim] and tail [slots*Pool, 2*Dim] F32. Scratch per thread: Pool + 2
// times poolChannels values.
func (d *Device) PoolKeys(stream device.Stream, out, x, bias device.Mat, tail device.KV, in device.Spans, p device.Index) {
	const op = "PoolKeys"
	s := d.stream(op, stream)
	if p.Dim < 1 || p.Pool < 1 || !tail.Dense() {
		fail(op, "sizes %+v, tail is %s, stride %d", p, tail.Mat, tail.Stride)
	}
	rows := checkSpans(op, in.List, x.Rows, tail.Rows/p.Pool)
	s.pools = poolTask{Index: p, dev: d, parts: (p.Dim + poolChannels - 1) / poolChannels, spans: in.List,
		out: f32(op, "out", &out, x.Rows, p.Dim), x: f32(op, "x", &x, x.Rows, 2*p.Dim), bias: f32(op, "bias", &bias, p.Pool, p.Dim),
		tail: f32(op, "tail", &tail.Mat, tail.Rows, 2*p.Dim), outStride: out.Stride, xStride: x.Stride, biasStride: bias.Stride}
	s.each(&s.pools, len(in.List)*s.pools.parts, rows*p.Dim*poolNs/16, (p.Pool+2)*piece(poolChannels))
	s.pools.spans = nil
}

func (t *poolTask) do(l *lane, item int) {
	sp, first := &t.spans[item/t.parts], item%t.parts*poolChannels
	n := min(poolChannels, t.Dim-first)
	l.arena.clear()
	gates, top, sum := l.arena.take(t.Pool*piece(poolChannels)), unsafe.Slice(l.arena.take(n), n), unsafe.Slice(l.arena.take(n), n)
	kept := func(pos int) *float32 { return shift(rowAt(t.tail, 2*t.Dim, sp.Slot*t.Pool+pos%t.Pool), first) }
	for r := range sp.Len {
		out := unsafe.Slice(shift(rowAt(t.out, t.outStride, sp.Row+r), first), n)
		clear(out)
		if (sp.Pos+r+1)%t.Pool != 0 {
			continue
		}
		// row is the j-th token of the pool that ends here.
		row := func(j int) *float32 {
			if back := t.Pool - 1 - j; back > r {
				return kept(sp.Pos + r - back)
			}
			return shift(rowAt(t.x, t.xStride, sp.Row+r+1-t.Pool+j), first)
		}
		for j := range t.Pool {
			gate := unsafe.Slice(rowAt(gates, piece(poolChannels), j), n)
			bias := unsafe.Slice(shift(rowAt(t.bias, t.biasStride, j), first), n)
			biased(gate, unsafe.Slice(shift(row(j), t.Dim), n), bias, top, j == 0)
		}
		clear(sum)
		for j := range t.Pool {
			t.dev.weigh(out, sum, unsafe.Slice(rowAt(gates, piece(poolChannels), j), n), unsafe.Slice(row(j), n), top)
		}
		for c, v := range sum {
			out[c] /= v
		}
	}
	for r := max(0, sp.Len-t.Pool); r < sp.Len; r++ {
		from := shift(rowAt(t.x, t.xStride, sp.Row+r), first)
		for _, part := range [...]int{0, t.Dim} {
			copy(unsafe.Slice(shift(kept(sp.Pos+r), part), n), unsafe.Slice(shift(from, part), n))
		}
	}
}

// biased makes gate = z + bias, the gates of a token's channels, and top the largest of each channel so far.
func biased(gate, z, bias, top []float32, first bool) {
	for c, v := range z {
		if gate[c] = v + bias[c]; first || gate[c] > top[c] {
			top[c] = gate[c]
		}
	}
}

// weigh adds a token to softmax over tokens for each channel: gate becomes exp(gate - top), total grows by it and sum by it
// times value.
func (d *Device) weigh(sum, total, gate, value, top []float32) {
	for c := range gate {
		gate[c] -= top[c]
	}
	d.exp.ExpSum(&gate[0], &gate[0], len(gate), 1, 0)
	for c, e := range gate {
		total[c] += e
		sum[c] += e * value[c]
	}
}
