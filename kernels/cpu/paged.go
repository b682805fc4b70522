package cpu

import (
	"unsafe"

	"krater/kernels/device"
)

// runningSize is the size of a running in float32 values.
const runningSize = 3

// keyBlock is the number of keys between two updates of the running softmax (arXiv 1805.02867,
// 2205.14135). Blocks begin at absolute positions, so a query sees the same blocks however its
// prompt was cut.
const keyBlock = 128

// paged is the common part of all attention operators: spans of queries over a cache in blocks, and
// the running softmax.
type paged struct {
	dev   *Device
	kv    kvCache
	bf16  bool    // the tiles read BF16, else F32
	block int     // tokens in a KV block
	per   int     // tokens of a row of the cache (device.EntryRows); 0: one
	scale float32 // softmax scale
	spans []device.Span
}

// bind checks the spans of a batch of rows rows over a cache that was checked; block is set.
func (a *paged) bind(op string, d *Device, cache *device.KV, kv kvCache, spans []device.Span, rows int) {
	a.dev, a.spans, a.kv, a.bf16 = d, spans, kv, kv.bf16()
	blocks := cache.Rows / device.EntryRows(a.block, max(1, a.per))
	for i := range spans {
		s := &spans[i]
		if s.Row < 0 || s.Len < 1 || s.Pos < 0 || s.Row+s.Len > rows || s.Row+s.Len < s.Len || s.Pos+s.Len < s.Len {
			fail(op, "span %d: %d rows from row %d, position %d, in a batch of %d", i, s.Len, s.Row, s.Pos, rows)
		}
		need := (s.Pos+s.Len-1)/a.block + 1
		if need > len(s.Blocks) {
			fail(op, "span %d: positions up to %d need %d blocks of %d, the table has %d", i, s.Pos+s.Len-1, need, a.block, len(s.Blocks))
		}
		inRange(op, "block", s.Blocks[:need], blocks)
	}
}

// run returns the longest stretch of cache rows from position pos, at most end, that lie one after
// the other: n from slot on.
func (a *paged) run(s *device.Span, pos, end int) (slot, n int) {
	block, offset := pos/a.block, pos%a.block
	slot = int(s.Blocks[block])*a.block + offset
	stop := (block + 1) * a.block
	for stop < end && s.Blocks[block+1] == s.Blocks[block]+1 {
		block++
		stop += a.block
	}
	return slot, min(stop, end) - pos
}

// tileSize returns the size in bytes of a value as the tiles read it.
func (a *paged) tileSize() int {
	if a.bf16 {
		return 2
	}
	return 4
}

// shift returns the address n values further; there must be a value.
func shift(p *float32, n int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*n))
}

// running is the state of one query's softmax: the largest scaled score, and the sum of
// exponentials relative to it. The kernel stores the exponential of a change of top in factor.
type running struct{ top, sum, factor float32 }

// fold turns the n scores of a block into factors, and scales the accumulated width values to the
// new maximum.
func (a *paged) fold(s *running, scores *float32, n int, acc *float32, width int) {
	top := a.dev.exp.Max(scores, n) * a.scale
	if a.scale < 0 || top != top {
		top = slowTop(scores, n, a.scale)
	}
	if s.sum == 0 {
		s.top = top
	} else if top > s.top {
		a.dev.lower(s, acc, top, width)
	}
	s.sum += a.dev.exp.ExpSum(scores, scores, n, a.scale, s.top)
}

// slowTop returns the largest scaled score when the scale is negative or a score is not a number.
func slowTop(scores *float32, n int, scale float32) float32 {
	top := minusInf
	for _, v := range unsafe.Slice(scores, n) {
		top = max(top, v*scale)
	}
	return top
}
