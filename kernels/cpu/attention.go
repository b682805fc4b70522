package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// mla is the arguments that decode and prefill share, checked and as pointers.
type mla struct {
	device.MLA
	paged     // rows of Rank latent values, then Rope values
	out, q    *float32
	outStride int // values
	qStride   int
	kvB       unsafe.Pointer // [Heads*(Nope+V), Rank]; nil when it is kept as integers
	kvRow     int            // bytes
	kvBF16    bool
	kq, vq    []quantProduct // [Heads] as integers: [Rank, Nope] and [V, Rank]
}

// check validates everything that could lead out of bounds and fills a.
func (a *mla) check(op string, d *Device, out, q *device.Mat, cache *device.KV, kvB *device.KVB, spans []device.Span, p *device.MLA) {
	if p.Heads < 1 || p.Nope < 1 || p.Rope < 0 || p.V < 1 || p.Rank < 1 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", *p)
	}
	a.MLA = *p
	a.out = f32(op, "out", out, q.Rows, p.Heads*p.V)
	a.q = f32(op, "q", q, q.Rows, p.Heads*(p.Nope+p.Rope))
	a.outStride, a.qStride = out.Stride, q.Stride
	a.kq, a.vq = a.kq[:0], a.vq[:0]
	if kvB.Integer() {
		a.integers(d, op, kvB)
	} else {
		a.kvB, a.kvBF16 = weight(op, "kv_b", &kvB.F, p.Heads*(p.Nope+p.V), p.Rank)
		a.kvRow = kvB.F.Stride * kvB.F.DType.Size()
	}
	a.block, a.scale = p.BlockTokens, p.Scale
	a.bind(op, d, cache, newKVCache(op, cache, p.Rank+p.Rope, p.Rank, p.Rope), spans, q.Rows)
}

// integers checks kv_b that is packed. All heads have the groups of the first.
func (a *mla) integers(d *Device, op string, kvB *device.KVB) {
	if len(kvB.K) != a.Heads || len(kvB.V) != a.Heads {
		fail(op, "kv_b has %d and %d heads, need %d", len(kvB.K), len(kvB.V), a.Heads)
	}
	a.kvB, a.kvBF16 = nil, false
	for h := range a.Heads {
		a.kq = append(a.kq, d.quantProduct(op, "kv_b's keys", &kvB.K[h], a.Rank, paddedCols(a.Nope), kvB.K[0].Group))
		a.vq = append(a.vq, d.quantProduct(op, "kv_b's values", &kvB.V[h], a.V, paddedCols(a.Rank), kvB.V[0].Group))
	}
}

// integer reports whether kv_b is kept as integers.
func (a *mla) integer() bool { return a.kvB == nil }

// query is head h of row r.
func (a *mla) query(r, h int) *float32 {
	return shift(rowAt(a.q, a.qStride, r), h*(a.Nope+a.Rope))
}

// result is head h of row r of the output.
func (a *mla) result(r, h int) *float32 {
	return shift(rowAt(a.out, a.outStride, r), h*a.V)
}

// keyWeights returns the first of the Nope rows of kv_b for head h; the V rows of values follow.
func (a *mla) keyWeights(h int) unsafe.Pointer {
	return unsafe.Add(a.kvB, h*(a.Nope+a.V)*a.kvRow)
}

func (a *mla) valueWeights(h int) unsafe.Pointer {
	return unsafe.Add(a.kvB, (h*(a.Nope+a.V)+a.Nope)*a.kvRow)
}
