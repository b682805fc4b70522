package tokenizer

// shortPiece is up to how many symbols a piece is merged by scanning for the best pair each time,
// which is quadratic but beats the heap until about here.
const shortPiece = 64

// merge applies the merges to the symbols in sc.ids until none is possible, and returns the tokens,
// which share memory with sc. Each step merges the pair of the lowest rank, the leftmost if there
// are several (Sennrich et al. 2016 with the ranks of the file).
func (t *pairTable) merge(sc *scratch) []int32 {
	if len(sc.ids) <= shortPiece {
		return t.mergeShort(sc)
	}
	return t.mergeLong(sc)
}

// pairValues fills sc.pairs. The last entry has no right neighbour.
func (t *pairTable) pairValues(sc *scratch) []uint64 {
	n := len(sc.ids)
	sc.pairs = room(sc.pairs, n)
	pairs := sc.pairs[:n]
	for i := 0; i+1 < n; i++ {
		if i%lookEvery == lookEvery-1 && !sc.look() {
			break
		}
		pairs[i] = t.get(sc.ids[i], sc.ids[i+1])
	}
	if n > 0 {
		pairs[n-1] = noMerge
	}
	return pairs
}

func (t *pairTable) mergeShort(sc *scratch) []int32 {
	ids, pairs := sc.ids, t.pairValues(sc)
	for {
		best, at := noMerge, -1
		for i, p := range pairs {
			if p < best {
				best, at = p, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = int32(uint32(best))
		ids = append(ids[:at+1], ids[at+2:]...)
		pairs = append(pairs[:at+1], pairs[at+2:]...)
		pairs[at] = noMerge
		if at+1 < len(ids) {
			pairs[at] = t.get(ids[at], ids[at+1])
		}
		if at > 0 {
			pairs[at-1] = t.get(ids[at-1], ids[at])
		}
	}
}

// mergeLong keeps the candidates in a heap: O(n log n) for n symbols, for any text. An entry is
// stale when its pair has changed, which its rank shows. When the context ends it gives up; sc.err
// says so.
func (t *pairTable) mergeLong(sc *scratch) []int32 {
	n := len(sc.ids)
	ids, pairs := sc.ids, t.pairValues(sc)
	if sc.err != nil {
		return nil
	}
	sc.next, sc.prev, sc.heap = room(sc.next, n), room(sc.prev, n), room(sc.heap, n)
	next, prev := sc.next[:n], sc.prev[:n]
	heap := sc.heap[:0]
	for i := range ids {
		next[i], prev[i] = int32(i+1), int32(i-1)
		if pairs[i] != noMerge {
			heap = append(heap, pairs[i]&^0xFFFFFFFF|uint64(i))
		}
	}
	heapify(heap)
	const gone = -1 // merged into the symbol on its left
	for looks := 0; len(heap) > 0; looks++ {
		if looks%lookEvery == lookEvery-1 && !sc.look() {
			return nil
		}
		top := heap[0]
		at := int32(uint32(top))
		value := pairs[at]
		if ids[at] == gone || value == noMerge || value>>32 != top>>32 {
			heap = pop(heap)
			continue
		}
		right := next[at]
		after := next[right]
		ids[at], ids[right] = int32(uint32(value)), gone
		next[at] = after
		pairs[at] = noMerge
		if int(after) < n {
			prev[after] = at
			pairs[at] = t.get(ids[at], ids[after])
		}
		// The new pair takes the place of the old one at the top.
		if pairs[at] != noMerge {
			heap[0] = pairs[at]&^0xFFFFFFFF | uint64(at)
			down(heap, 0)
		} else {
			heap = pop(heap)
		}
		if left := prev[at]; left >= 0 {
			pairs[left] = t.get(ids[left], ids[at])
			if pairs[left] != noMerge {
				heap = push(heap, pairs[left]&^0xFFFFFFFF|uint64(left))
			}
		}
	}
	sc.heap = heap
	out := ids[:0]
	for i := 0; i < n; i = int(next[i]) {
		out = append(out, ids[i])
	}
	return out
}

// A binary min-heap of plain numbers; container/heap would box each of them.

func heapify(h []uint64) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		down(h, i)
	}
}

func down(h []uint64, i int) {
	x := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= x {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = x
}

func pop(h []uint64) []uint64 {
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	if last > 0 {
		down(h, 0)
	}
	return h
}

func push(h []uint64, x uint64) []uint64 {
	h = append(h, x)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= x {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = x
	return h
}
