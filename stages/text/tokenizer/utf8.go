package tokenizer

import "unicode/utf8"

// replacement is written for bytes that are not UTF-8.
const replacement = "\uFFFD"

// badLen is the length of the maximal subpart at the start of s (Unicode 17, 3.9, D93b; the WHATWG
// decoder and Rust's from_utf8_lossy do the same): the bytes of an ill-formed sequence that
// together become one U+FFFD. s is not empty and does not start with a whole character. cut is true
// if the end of s is all that is wrong, so that more bytes could complete the character.
func badLen[T string | []byte](s T) (n int, cut bool) {
	lo, hi, want := byte(0x80), byte(0xBF), 0
	switch b := s[0]; {
	case b >= 0xC2 && b <= 0xDF:
		want = 1
	case b == 0xE0:
		lo, want = 0xA0, 2
	case b == 0xED:
		hi, want = 0x9F, 2
	case b >= 0xE1 && b <= 0xEF:
		want = 2
	case b == 0xF0:
		lo, want = 0x90, 3
	case b == 0xF4:
		hi, want = 0x8F, 3
	case b >= 0xF1 && b <= 0xF3:
		want = 3
	default:
		return 1, false
	}
	for n = 1; n <= want; n++ {
		if n == len(s) {
			return n, true
		}
		if s[n] < lo || s[n] > hi {
			return n, false
		}
		lo, hi = 0x80, 0xBF
	}
	return n, false
}

// validText returns text with every maximal subpart replaced by U+FFFD, and the ranges moved along
// with it.
func validText(text string, ranges []Range) (string, []Range) {
	if utf8.ValidString(text) {
		return text, ranges
	}
	e := edits{exact: len(ranges) > 0}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			n, _ = badLen(text[i:])
			e.replace(i, i+n, replacement)
		}
		i += n
	}
	return e.apply(text), e.move(ranges)
}
