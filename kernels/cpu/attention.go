package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// mla is what decode and prefill share: checked arguments as pointers.
type mla struct {
	device.MLA
	paged     // rows of Rank latent values, then Rope values
	out, q    *float32
	outStride int // values
	qStride   int
	kvB       unsafe.Pointer // [Heads*(Nope+V), Rank]
	kvRow     int            // bytes
	kvBF16    bool
}

// check validates everything that could lead out of bounds and fills a.
func (a *mla) check(op string, d *Device, out, q, cache, kvB *device.Mat, spans []device.Span, p *device.MLA) {
	if p.Heads < 1 || p.Nope < 1 || p.Rope < 0 || p.V < 1 || p.Rank < 1 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", *p)
	}
	a.MLA = *p
	a.out = f32(op, "out", out, q.Rows, p.Heads*p.V)
	a.q = f32(op, "q", q, q.Rows, p.Heads*(p.Nope+p.Rope))
	a.outStride, a.qStride = out.Stride, q.Stride
	a.kvB, a.kvBF16 = weight(op, "kv_b", kvB, p.Heads*(p.Nope+p.V), p.Rank)
	a.kvRow = kvB.Stride * kvB.DType.Size()
	a.block, a.scale = p.BlockTokens, p.Scale
	a.bind(op, d, cache, p.Rank+p.Rope, spans, q.Rows)
}

// query is head h of row r.
func (a *mla) query(r, h int) *float32 {
	return shift(rowAt(a.q, a.qStride, r), h*(a.Nope+a.Rope))
}

// result is head h of row r of the output.
func (a *mla) result(r, h int) *float32 {
	return shift(rowAt(a.out, a.outStride, r), h*a.V)
}

// keyWeights is the first of the Nope rows of kv_b for head h; the V rows of
// values follow.
func (a *mla) keyWeights(h int) unsafe.Pointer {
	return unsafe.Add(a.kvB, h*(a.Nope+a.V)*a.kvRow)
}

func (a *mla) valueWeights(h int) unsafe.Pointer {
	return unsafe.Add(a.kvB, (h*(a.Nope+a.V)+a.Nope)*a.kvRow)
}
