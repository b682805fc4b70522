package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// ngramTask copies rows of a table. An item is a row of the batch, so that threads wait for a disk at the same time.
type ngramTask struct {
	dev                *Device
	out                *float32
	outStride          int
	rows               *int32 // [T, heads], dense
	list               []int32
	shards             []unsafe.Pointer
	bf16               bool
	perShard, rowBytes int
	heads, dim         int
	last               []int32 // the ids of a row, the newest first
	ahead              bool    // rows are asked for, not copied
}

// ngramRowNs is the time to copy a row of a table that is in memory, or to ask for one.
const ngramRowNs = 500

// willNeed can be replaced by tests.
var willNeed = adviseRead

// NGrams: out [T, Width] F32, rows [T, Heads] I32 and dense, ids [T, 1] I32, shards of BF16 or F32 [n, Dim], all of one
// type and size, tail [slots*Order, 1] F32. Without out rows has the numbers afterwards, and the system is asked to read
// what of the rows is not in memory; nobody waits for it.
func (d *Device) NGrams(stream device.Stream, out, rows, ids device.Mat, shards []device.Mat, tail device.KV, in device.Spans, p device.NGrams) {
	const op = "NGrams"
	s := d.stream(op, stream)
	t := &s.ngrams
	if p.Order < 2 || p.PerOrder < 1 || p.Dim < 1 || len(p.Multipliers) != p.Order || len(p.Sizes) != p.Heads() || len(p.Offsets) != p.Heads() || len(shards) == 0 {
		fail(op, "%d shards, sizes %+v", len(shards), p)
	}
	if rows.Rows != ids.Rows || rows.Cols != p.Heads() || rows.DType != tensor.I32 || !rows.Dense() || !tail.Dense() {
		fail(op, "rows are %s, need dense I32 [%d, %d]; tail is %s", rows, ids.Rows, p.Heads(), tail.Mat)
	}
	t.dev, t.heads, t.dim, t.shards, t.list = d, p.Heads(), p.Dim, t.shards[:0], t.list[:0]
	if t.ahead = out.Zero(); !t.ahead {
		t.out, t.outStride = f32(op, "out", &out, ids.Rows, p.Width()), out.Stride
	}
	t.rows, t.perShard, t.rowBytes = (*int32)(at(op, "rows", &rows)), shards[0].Rows, shards[0].Cols*shards[0].DType.Size()
	for i := range shards {
		m, first := &shards[i], &shards[0]
		if m.Rows != first.Rows || m.DType != first.DType || !m.Dense() {
			fail(op, "shard %d is %s, the first %s", i, *m, *first)
		}
		var from unsafe.Pointer
		from, t.bf16 = weight(op, "shard", m, first.Rows, p.Dim)
		t.shards = append(t.shards, from)
	}
	if p.Rows() > uint64(t.perShard)*uint64(len(shards)) || p.Rows() > math.MaxInt32 {
		fail(op, "%d shards of %d rows, need %d, at most %d", len(shards), t.perShard, p.Rows(), math.MaxInt32)
	}
	checkSpans(op, in.List, ids.Rows, tail.Rows/p.Order)
	id := i32s(op, "ids", &ids, ids.Rows)
	kept := unsafe.Slice(f32(op, "tail", &tail.Mat, tail.Rows, 1), tail.Rows)
	for i := range in.List {
		t.span(&in.List[i], id, kept, &p)
	}
	s.each(t, len(t.list), len(t.list)*t.heads*ngramRowNs, 0)
}

// span finds the rows that a span reads, and keeps its newest ids unless it is ahead.
func (t *ngramTask) span(sp *device.Span, id []int32, tail []float32, p *device.NGrams) {
	kept := tail[sp.Slot*p.Order:][:p.Order]
	for len(t.last) < p.Order {
		t.last = append(t.last, 0)
	}
	x := t.last[:p.Order]
	for r := range sp.Len {
		pos := sp.Pos + r
		for back := range min(p.Order, pos+1) {
			if back <= r {
				x[back] = id[sp.Row+r-back]
			} else {
				x[back] = int32(kept[(pos-back)%p.Order])
			}
		}
		p.Fill(x, pos)
		row := t.row(sp.Row + r)
		for h := range row {
			row[h] = int32(p.Row(h, x))
		}
		t.list = append(t.list, int32(sp.Row+r))
	}
	for r := max(0, sp.Len-p.Order); r < sp.Len && !t.ahead; r++ {
		kept[(sp.Pos+r)%p.Order] = float32(id[sp.Row+r])
	}
}

func (t *ngramTask) row(r int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(t.rows), 4*t.heads*r)), t.heads)
}

func (t *ngramTask) do(_ *lane, i int) {
	r := int(t.list[i])
	for h, row := range t.row(r) {
		from := unsafe.Add(t.shards[int(row)/t.perShard], int(row)%t.perShard*t.rowBytes)
		if t.ahead {
			willNeed(from, t.rowBytes)
			continue
		}
		to := shift(rowAt(t.out, t.outStride, r), h*t.dim)
		if t.bf16 {
			t.dev.convert.Widen(to, (*uint16)(from), t.dim)
		} else {
			copy(unsafe.Slice(to, t.dim), unsafe.Slice((*float32)(from), t.dim))
		}
	}
}
