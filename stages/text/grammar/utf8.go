package grammar

import "encoding/binary"

// set makes the states of one character of a set.
func (b *builder) set(s Set, next int32) int32 {
	var edges []edge
	add := func(lo, hi, to int32) {
		if to == fail {
			return
		}
		if n := len(edges); n > 0 && edges[n-1].to == to && int32(edges[n-1].hi)+1 == lo {
			edges[n-1].hi = uint16(hi)
			return
		}
		edges = append(edges, edge{uint16(lo), uint16(hi), to})
	}
	for _, r := range s.And(Set{{0, 0x7f}}) {
		add(int32(r.Lo), int32(r.Hi), next)
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
			add(lead, lead, b.tail(inside, base, form.tail, next))
			for len(part) > 0 && part[0].Hi < base+block {
				part = part[1:]
			}
			if len(part) > 0 && part[0].Lo < base+block {
				part = append(Set{{base + block, part[0].Hi}}, part[1:]...)
			}
		}
	}
	if len(edges) == 0 {
		return fail
	}
	return b.add(state{kind: kindByte, edges: edges})
}

// tail makes the states of the last n bytes of the characters of a set, all from base on.
func (b *builder) tail(s Set, base rune, n int, next int32) int32 {
	if n == 0 {
		return next
	}
	key := binary.LittleEndian.AppendUint32([]byte{byte(n)}, uint32(next))
	for _, r := range s {
		key = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(key, uint32(r.Lo-base)), uint32(r.Hi-base))
	}
	if at, ok := b.units[string(key)]; ok {
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
		to := b.tail(inside, from, n-1, next)
		c := uint16(0x80 + i)
		if k := len(edges); k > 0 && edges[k-1].to == to && edges[k-1].hi+1 == c {
			edges[k-1].hi = c
			continue
		}
		edges = append(edges, edge{c, c, to})
	}
	at := b.add(state{kind: kindByte, edges: edges})
	b.units[string(key)] = at
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
