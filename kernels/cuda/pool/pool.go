// Package pool divides a GPU's memory into buffers. Small buffers are parts of chunks; each large
// buffer is an allocation of the driver. A driver call costs tens of microseconds and rounds up
// to 2 MiB, and a model has thousands of small buffers.
package pool

import (
	"fmt"
	"slices"
)

const (
	// Align is the alignment of every buffer.
	Align = 256
	// ChunkBytes is the size of a chunk. Large is the size from which buffers are allocations of
	// their own.
	ChunkBytes = 32 << 20
	Large      = 4 << 20
)

// Source allocates chunks and large buffers.
type Source interface {
	Alloc(n int64) (uint64, error)
	Free(at uint64) error
}

// Pool belongs to one goroutine.
type Pool struct {
	src    Source
	chunks []*chunk
	large  map[uint64]int64
	small  map[uint64]place
	held   int64
	exact  bool
}

// chunk has its free pieces in rising order; no two of them are adjacent.
type chunk struct {
	at   uint64
	free []piece
}

type piece struct{ off, n int64 }

type place struct {
	c *chunk
	piece
}

// New makes an empty pool.
func New(src Source) *Pool {
	return &Pool{src: src, large: map[uint64]int64{}, small: map[uint64]place{}}
}

// NewExact makes a pool in which each buffer is an allocation of exactly its size. A source that
// guards the ends of its allocations then guards every buffer.
func NewExact(src Source) *Pool {
	p := New(src)
	p.exact = true
	return p
}

// Takes returns the bytes of p that a buffer of n bytes uses.
func (p *Pool) Takes(n int64) int64 {
	if p.exact {
		return max(n, 1)
	}
	return Rounded(n)
}

// Rounded returns the bytes that a buffer of n bytes uses.
func Rounded(n int64) int64 { return max(n+Align-1, Align) / Align * Align }

// Held returns the bytes that the pool has allocated from its source.
func (p *Pool) Held() int64 { return p.held }

// Alloc returns n bytes, not zeroed.
func (p *Pool) Alloc(n int64) (uint64, error) {
	if n < 0 {
		return 0, fmt.Errorf("pool: %d bytes", n)
	}
	n = p.Takes(n)
	if n >= Large || p.exact {
		at, err := p.src.Alloc(n)
		if err != nil {
			return 0, err
		}
		p.large[at] = n
		p.held += n
		return at, nil
	}
	for _, c := range p.chunks {
		if off, ok := c.take(n); ok {
			p.small[c.at+uint64(off)] = place{c, piece{off, n}}
			return c.at + uint64(off), nil
		}
	}
	at, err := p.src.Alloc(ChunkBytes)
	if err != nil {
		return 0, err
	}
	p.held += ChunkBytes
	c := &chunk{at: at, free: []piece{{0, ChunkBytes}}}
	p.chunks = append(p.chunks, c)
	off, _ := c.take(n)
	p.small[at+uint64(off)] = place{c, piece{off, n}}
	return at + uint64(off), nil
}

// take cuts n bytes off the first piece that is large enough.
func (c *chunk) take(n int64) (int64, bool) {
	for i := range c.free {
		f := &c.free[i]
		if f.n < n {
			continue
		}
		off := f.off
		f.off, f.n = f.off+n, f.n-n
		if f.n == 0 {
			c.free = slices.Delete(c.free, i, i+1)
		}
		return off, true
	}
	return 0, false
}

// Free releases a buffer; an empty chunk goes back to the source. An address that is not a
// buffer's is an error.
func (p *Pool) Free(at uint64) error {
	if n, ok := p.large[at]; ok {
		delete(p.large, at)
		p.held -= n
		return p.src.Free(at)
	}
	s, ok := p.small[at]
	if !ok {
		return fmt.Errorf("pool: %#x is no buffer", at)
	}
	delete(p.small, at)
	s.c.give(s.piece)
	if f := s.c.free; len(f) != 1 || f[0].n != ChunkBytes {
		return nil
	}
	p.chunks = slices.DeleteFunc(p.chunks, func(c *chunk) bool { return c == s.c })
	p.held -= ChunkBytes
	return p.src.Free(s.c.at)
}

// give joins a piece with adjacent free ones.
func (c *chunk) give(x piece) {
	i, _ := slices.BinarySearchFunc(c.free, x.off, func(f piece, off int64) int { return int(f.off - off) })
	if i < len(c.free) && x.off+x.n == c.free[i].off {
		x.n += c.free[i].n
		c.free = slices.Delete(c.free, i, i+1)
	}
	if i > 0 && c.free[i-1].off+c.free[i-1].n == x.off {
		c.free[i-1].n += x.n
		return
	}
	c.free = slices.Insert(c.free, i, x)
}

// Close releases everything.
func (p *Pool) Close() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, c := range p.chunks {
		keep(p.src.Free(c.at))
	}
	for at := range p.large {
		keep(p.src.Free(at))
	}
	*p = Pool{src: p.src, large: map[uint64]int64{}, small: map[uint64]place{}, exact: p.exact}
	return first
}
