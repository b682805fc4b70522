package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// runningSize is the size of a running in float32 values.
const runningSize = 3

// keyBlock is the number of keys between two updates of the running softmax
// (arXiv 1805.02867, 2205.14135). Blocks begin at absolute positions, so a
// query meets the same blocks however its prompt was cut.
const keyBlock = 128

// mla is what decode and prefill share: checked arguments as pointers.
type mla struct {
	device.MLA
	dev       *Device
	out, q    *float32
	outStride int // values
	qStride   int
	cache     unsafe.Pointer // rows of Rank latent values, then Rope values
	cacheRow  int            // bytes
	cacheBF16 bool
	kvB       unsafe.Pointer // [Heads*(Nope+V), Rank]
	kvRow     int            // bytes
	kvBF16    bool
	spans     []device.Span
}

// check validates everything that could lead out of bounds and fills a.
func (a *mla) check(op string, d *Device, out, q, cache, kvB *device.Mat, spans []device.Span, p *device.MLA) {
	if p.Heads < 1 || p.Nope < 1 || p.Rope < 0 || p.V < 1 || p.Rank < 1 || p.BlockTokens < 1 {
		fail(op, "sizes %+v", *p)
	}
	a.MLA, a.dev, a.spans = *p, d, spans
	a.out = f32(op, "out", out, q.Rows, p.Heads*p.V)
	a.q = f32(op, "q", q, q.Rows, p.Heads*(p.Nope+p.Rope))
	a.outStride, a.qStride = out.Stride, q.Stride
	a.cache, a.cacheBF16 = weight(op, "cache", cache, cache.Rows, p.Rank+p.Rope)
	a.cacheRow = cache.Stride * cache.DType.Size()
	a.kvB, a.kvBF16 = weight(op, "kv_b", kvB, p.Heads*(p.Nope+p.V), p.Rank)
	a.kvRow = kvB.Stride * kvB.DType.Size()
	blocks := cache.Rows / p.BlockTokens
	for i := range spans {
		s := &spans[i]
		if s.Row < 0 || s.Len < 1 || s.Pos < 0 || s.Row+s.Len > q.Rows || s.Row+s.Len < s.Len || s.Pos+s.Len < s.Len {
			fail(op, "span %d: %d rows from row %d, position %d, in a batch of %d", i, s.Len, s.Row, s.Pos, q.Rows)
		}
		need := (s.Pos + s.Len + p.BlockTokens - 1) / p.BlockTokens
		if need > len(s.Blocks) {
			fail(op, "span %d: positions up to %d need %d blocks of %d, the table has %d", i, s.Pos+s.Len-1, need, p.BlockTokens, len(s.Blocks))
		}
		inRange(op, "block", s.Blocks[:need], blocks)
	}
}

// run is the longest stretch of cache rows from position pos, at most end, that
// lie one after the other in memory.
func (a *mla) run(s *device.Span, pos, end int) (rows unsafe.Pointer, n int) {
	block, offset := pos/a.BlockTokens, pos%a.BlockTokens
	slot := int(s.Blocks[block])*a.BlockTokens + offset
	stop := (block + 1) * a.BlockTokens
	for stop < end && s.Blocks[block+1] == s.Blocks[block]+1 {
		block++
		stop += a.BlockTokens
	}
	return unsafe.Add(a.cache, slot*a.cacheRow), min(stop, end) - pos
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

// cacheSize is the size of a cached value in bytes.
func (a *mla) cacheSize() int {
	if a.cacheBF16 {
		return 2
	}
	return 4
}

// shift is n values on; there must be a value.
func shift(p *float32, n int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*n))
}

// running is the state of one query's softmax: the largest scaled score and
// the sum of exponentials relative to it.
// factor is where the kernel puts the exponential of a change of top.
type running struct{ top, sum, factor float32 }

// fold turns the n scores of a block into factors and scales what was
// accumulated before (width values) to the new maximum.
func (a *mla) fold(s *running, scores *float32, n int, acc *float32, width int) {
	top := a.dev.exp.Max(scores, n) * a.Scale
	if a.Scale < 0 || top != top {
		top = slowTop(scores, n, a.Scale)
	}
	if first := s.sum == 0; first || top > s.top {
		if !first {
			a.dev.exp.ExpSum(&s.factor, &s.top, 1, 1, top)
			s.sum *= s.factor
			a.dev.axpy.Scale(acc, width, s.factor)
		}
		s.top = top
	}
	s.sum += a.dev.exp.ExpSum(scores, scores, n, a.Scale, s.top)
}

// slowTop is the largest scaled score when the scale is negative or a score is
// not a number.
func slowTop(scores *float32, n int, scale float32) float32 {
	top := minusInf
	for _, v := range unsafe.Slice(scores, n) {
		top = max(top, v*scale)
	}
	return top
}
