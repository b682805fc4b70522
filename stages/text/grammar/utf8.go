package grammar

import "encoding/binary"

// set makes the states of one character of a set.
func (b *builder) set(s Set, next int32) int32 {
	edges := make([]edge, 0, len(s)+8)
	add := func(lo, hi rune) { edges = append(edges, edge{uint16(lo), uint16(hi), next}) }
	for i, r := range s {
		if r.Hi > 0x7f {
			if r.Lo <= 0x7f {
				add(r.Lo, 0x7f)
			}
			edges = append(edges, b.long(s[i:], next)...)
			break
		}
		add(r.Lo, r.Hi)
	}
	if len(edges) == 0 {
		return fail
	}
	return b.add(state{kind: kindByte, edges: edges})
}

// long makes the edges to the second bytes of the characters of a set that have several. Sets often differ in shorter ones
// alone.
func (b *builder) long(s Set, next int32) (edges []edge) {
	if s[0].Lo <= 0x7f {
		s = append(Set{{0x80, s[0].Hi}}, s[1:]...)
	}
	key := s.key(0, 0, next)
	if known, ok := b.leads[key]; ok {
		return known
	}
	for _, form := range []struct {
		from, to rune // characters
		lead     int32
		tail     int // bytes after the first
	}{{0x80, 0x7ff, 0xc0, 1}, {0x800, 0xffff, 0xe0, 2}, {0x10000, 0x10ffff, 0xf0, 3}} {
		part := s.And(Set{{form.from, form.to}})
		block := rune(1) << (6 * form.tail)
		for len(part) > 0 {
			base := part[0].Lo &^ (block - 1)
			inside := part.And(Set{{base, base + block - 1}})
			lead := form.lead + int32(base/block)
			if to := b.tail(inside, base, form.tail, next); to != fail {
				edges = joinEdge(edges, uint16(lead), to)
			}
			for len(part) > 0 && part[0].Hi < base+block {
				part = part[1:]
			}
			if len(part) > 0 && part[0].Lo < base+block {
				part = append(Set{{base + block, part[0].Hi}}, part[1:]...)
			}
		}
	}
	b.leads[key] = edges
	return edges
}

// joinEdge appends an edge for a symbol behind those of edges.
func joinEdge(edges []edge, symbol uint16, to int32) []edge {
	if n := len(edges); n > 0 && edges[n-1].to == to && edges[n-1].hi+1 == symbol {
		edges[n-1].hi = symbol
		return edges
	}
	return append(edges, edge{symbol, symbol, to})
}

// key names the last n bytes of the characters of a set from base on, and the state behind.
func (s Set) key(n int, base rune, next int32) string {
	key := binary.LittleEndian.AppendUint32(append(make([]byte, 0, 5+8*len(s)), byte(n)), uint32(next))
	for _, r := range s {
		key = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(key, uint32(r.Lo-base)), uint32(r.Hi-base))
	}
	return string(key)
}

// tail makes the states of the last n bytes of the characters of a set, all from base on.
func (b *builder) tail(s Set, base rune, n int, next int32) int32 {
	if n == 0 {
		return next
	}
	key := s.key(n, base, next)
	if at, ok := b.units[key]; ok {
		return at
	}
	var edges []edge
	block := rune(1) << (6 * (n - 1))
	for i := range rune(64) {
		from := base + i*block
		inside := s.within(from, from+block-1)
		if len(inside) == 0 {
			continue
		}
		edges = joinEdge(edges, uint16(0x80+i), b.tail(inside, from, n-1, next))
	}
	at := b.add(state{kind: kindByte, edges: edges})
	b.units[key] = at
	return at
}

// within returns the part of s from lo to hi, also of surrogates' borders.
func (s Set) within(lo, hi rune) Set {
	var out Set
	for _, r := range s {
		if a, b := max(r.Lo, lo), min(r.Hi, hi); a <= b {
			out = append(out, Range{a, b})
		}
	}
	return out
}
