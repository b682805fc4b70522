package grammar

import (
	"slices"
	"unicode/utf8"
)

// Range are the characters from Lo to Hi.
type Range struct{ Lo, Hi rune }

// Set is a set of characters: ranges in rising order that do not touch. It has no surrogates.
type Set []Range

// NewSet makes a set of ranges in any order.
func NewSet(ranges ...Range) Set {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int { return int(a.Lo - b.Lo) })
	var s Set
	add := func(lo, hi rune) {
		if lo > hi {
			return
		}
		if n := len(s); n > 0 && lo <= s[n-1].Hi+1 {
			s[n-1].Hi = max(s[n-1].Hi, hi)
			return
		}
		s = append(s, Range{lo, hi})
	}
	for _, r := range ranges {
		lo, hi := max(r.Lo, 0), min(r.Hi, utf8.MaxRune)
		add(lo, min(hi, 0xd7ff))
		add(max(lo, 0xe000), hi)
	}
	return s
}

// Runes returns a set of single characters.
func Runes(list ...rune) Set {
	ranges := make([]Range, len(list))
	for i, r := range list {
		ranges[i] = Range{r, r}
	}
	return NewSet(ranges...)
}

// Any is the set of all characters.
var Any = NewSet(Range{0, utf8.MaxRune})

// Negate returns the characters that are not in s.
func (s Set) Negate() Set {
	var out []Range
	from := rune(0)
	for _, r := range s {
		out = append(out, Range{from, r.Lo - 1})
		from = r.Hi + 1
	}
	return NewSet(append(out, Range{from, utf8.MaxRune})...)
}

// Minus returns the characters of s that are not in other.
func (s Set) Minus(other Set) Set { return s.And(other.Negate()) }

// And returns the characters in both sets.
func (s Set) And(other Set) Set {
	var out Set // of ranges that do not touch, as those of s and other
	for i, j := 0, 0; i < len(s) && j < len(other); {
		a, b := s[i], other[j]
		if lo, hi := max(a.Lo, b.Lo), min(a.Hi, b.Hi); lo <= hi {
			out = append(out, Range{lo, hi})
		}
		if a.Hi < b.Hi {
			i++
		} else {
			j++
		}
	}
	return out
}

// Has reports whether a character is in the set.
func (s Set) Has(c rune) bool {
	_, ok := slices.BinarySearchFunc(s, c, func(r Range, c rune) int {
		switch {
		case r.Hi < c:
			return -1
		case r.Lo > c:
			return 1
		}
		return 0
	})
	return ok
}
