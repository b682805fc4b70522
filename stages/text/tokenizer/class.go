package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/rangetable"
)

// class is a set of the kinds of character that split patterns tell apart; each character has
// exactly one of them, or none (unassigned, format, control). Those of Han script have classHan as
// well.
type class uint16

const (
	classLu class = 1 << iota
	classLl
	classLt
	classLm
	classLo
	classM
	classN
	classP
	classS
	classNewline // \r and \n
	classSpace   // White_Space without the newlines
	classHan     // \p{Han}: ideographs, and numbers, marks and signs used with them
)

const (
	classL   = classLu | classLl | classLt | classLm | classLo // \p{L}
	classWs  = classNewline | classSpace                       // \s
	classAny = ^class(0)
)

// ascii and the pair blockOf, blocks hold the class of every character. Blocks have 256 characters,
// and equal ones are shared: about 60 KB.
var (
	ascii   [utf8.RuneSelf]class
	blockOf [(unicode.MaxRune + 1) / 256]uint16
	blocks  [][256]class
)

// unicodeVersion is that of the reference's regular expressions. A character of a later version has
// no class, as in the reference and in the training of models that used it.
const unicodeVersion = "16.0.0"

// loadClasses fills the tables from package unicode. It takes a few ms, once.
var loadClasses = sync.OnceFunc(func() {
	flat := make([]class, unicode.MaxRune+1)
	mark := func(t *unicode.RangeTable, c class) {
		eachRange(t, func(lo, hi, stride int) {
			for x := lo; x <= hi; x += stride {
				flat[x] = c
			}
		})
	}
	mark(unicode.Lu, classLu)
	mark(unicode.Ll, classLl)
	mark(unicode.Lt, classLt)
	mark(unicode.Lm, classLm)
	mark(unicode.Lo, classLo)
	mark(unicode.M, classM)
	mark(unicode.N, classN)
	mark(unicode.P, classP)
	mark(unicode.S, classS)
	mark(unicode.White_Space, classSpace)
	flat['\r'], flat['\n'] = classNewline, classNewline
	eachRange(unicode.Han, func(lo, hi, stride int) {
		for x := lo; x <= hi; x += stride {
			flat[x] |= classHan
		}
	})
	end := 0 // what follows the last assigned character has no class anyway
	eachRange(rangetable.Assigned(unicodeVersion), func(lo, hi, stride int) {
		if stride != 1 {
			for x := lo; x <= hi; x += stride {
				clear(flat[end:x])
				end = x + 1
			}
			return
		}
		clear(flat[end:lo])
		end = hi + 1
	})

	copy(ascii[:], flat)
	seen := map[[256]class]uint16{}
	for i := range blockOf {
		block := [256]class(flat[i*256:])
		n, ok := seen[block]
		if !ok {
			n = uint16(len(blocks))
			seen[block] = n
			blocks = append(blocks, block)
		}
		blockOf[i] = n
	}
})

// eachRange calls f for the ranges of t, in order.
func eachRange(t *unicode.RangeTable, f func(lo, hi, stride int)) {
	for _, r := range t.R16 {
		f(int(r.Lo), int(r.Hi), int(r.Stride))
	}
	for _, r := range t.R32 {
		f(int(r.Lo), int(r.Hi), int(r.Stride))
	}
}

// classOf returns the class of r, which must be a valid code point.
func classOf(r rune) class { return blocks[blockOf[r>>8]][r&0xFF] }

// runeAt decodes the character at s[i]. s must be valid UTF-8.
func runeAt(s string, i int) (r rune, n int) {
	switch b := s[i]; {
	case b < 0x80:
		return rune(b), 1
	case b < 0xE0:
		return rune(b&0x1F)<<6 | rune(s[i+1]&0x3F), 2
	case b < 0xF0:
		return rune(b&0x0F)<<12 | rune(s[i+1]&0x3F)<<6 | rune(s[i+2]&0x3F), 3
	default:
		return rune(b&0x07)<<18 | rune(s[i+1]&0x3F)<<12 | rune(s[i+2]&0x3F)<<6 | rune(s[i+3]&0x3F), 4
	}
}

// classAt returns the class and the length in bytes of the character at s[i], or 0, 0 at the end of
// s.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return ascii[b], 1
	}
	r, n := runeAt(s, i)
	return classOf(r), n
}

// run returns the end of the run of characters of set that starts at s[i].
func run(s string, i int, set class) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if ascii[b]&set == 0 {
				return i
			}
			i++
			continue
		}
		r, n := runeAt(s, i)
		if classOf(r)&set == 0 {
			return i
		}
		i += n
	}
	return i
}

// runMax is run over at most max characters.
func runMax(s string, i int, set class, max int) int {
	for ; max > 0; max-- {
		c, n := classAt(s, i)
		if c&set == 0 {
			return i
		}
		i += n
	}
	return i
}
