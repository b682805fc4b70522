package cpu

import "unsafe"

// Keys are divided in stretches whose bounds are fixed, so that threads can share the keys of one row. Each begins a softmax of
// its own, and their results are joined in their order. Further away stretches are longer, so that there are not too many.
const (
	nearStretch = 2 * keyBlock
	farStretch  = 8 * keyBlock
	farFrom     = 64 * keyBlock // the first position of those
)

// stretchOf is the number of the stretch of a position.
func stretchOf(pos int) int {
	if pos < farFrom {
		return pos / nearStretch
	}
	return farFrom/nearStretch + (pos-farFrom)/farStretch
}

// stretchBegin is the first position of stretch n.
func stretchBegin(n int) int {
	if far := n - farFrom/nearStretch; far > 0 {
		return farFrom + far*farStretch
	}
	return n * nearStretch
}

const (
	keptMost    = 16 << 20 // values that are kept of stretches at once
	joinedPerNs = 8        // values
)

// stretchResults holds n results of stretches, of wide values each.
type stretchResults struct {
	n, wide int
	acc     *float32
	state   []running
}

// room is the memory that the results take, in float32 values.
func (k *stretchResults) room(wide int) int { return piece(k.n*wide) + piece(runningSize*k.n) }

// take takes memory.
func (k *stretchResults) take(a *arena, wide int) {
	if k.wide = wide; k.n > 0 {
		k.acc, k.state = a.take(k.n*wide), takeRunning(a, k.n)
	}
}

// of is n results from number first on.
func (k *stretchResults) of(first, n int) (*float32, []running) {
	return rowAt(k.acc, k.wide, first), k.state[first : first+n]
}

// takeRunning is n states of unknown content.
func takeRunning(a *arena, n int) []running {
	return unsafe.Slice((*running)(unsafe.Pointer(a.take(runningSize*n))), n)
}

// joinRunning adds the result of a stretch, part and more, to that of those before, total and acc. It changes both.
func (d *Device) joinRunning(total, part *running, acc, more *float32, width int) {
	switch {
	case part.sum == 0: // sees no key of it
		return
	case total.sum == 0:
		*total = *part
		copy(unsafe.Slice(acc, width), unsafe.Slice(more, width))
		return
	case part.top > total.top:
		d.lower(total, acc, part.top, width)
	case part.top < total.top:
		d.lower(part, more, total.top, width)
	}
	total.sum += part.sum
	d.axpy.Add(acc, more, width)
}

// lower makes a result relative to a larger score.
func (d *Device) lower(s *running, acc *float32, top float32, width int) {
	d.exp.ExpSum(&s.factor, &s.top, 1, 1, top)
	s.sum *= s.factor
	d.axpy.Scale(acc, width, s.factor)
	s.top = top
}
