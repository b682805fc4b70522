package term

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Shown makes foreign text safe for a terminal: it writes control characters as \x1b and the like,
// because a terminal acts on them. Line ends, tabs and valid text stay.
func Shown(s string) string {
	var b strings.Builder
	from := 0 // start of the text not written yet
	for i, r := range s {
		size := utf8.RuneLen(r)
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"): // not valid UTF-8
			size = 1
		case !unicode.IsControl(r) || r == '\n' || r == '\t':
			continue
		}
		b.WriteString(s[from:i])
		if from = i + size; size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if from == 0 {
		return s
	}
	b.WriteString(s[from:])
	return b.String()
}

// Safe returns w, or on a terminal a writer that passes text through Shown.
func Safe(w io.Writer) io.Writer {
	if !Is(w) {
		return w
	}
	return &safe{w: w}
}

type safe struct {
	w    io.Writer
	rest []byte // the beginning of an incomplete character
}

// Write implements io.Writer.
func (s *safe) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	n := len(s.rest)
	for i := 1; i < utf8.UTFMax && i <= n; i++ {
		if utf8.RuneStart(s.rest[n-i]) {
			if !utf8.FullRune(s.rest[n-i:]) {
				n -= i
			}
			break
		}
	}
	if _, err := io.WriteString(s.w, Shown(string(s.rest[:n]))); err != nil {
		return 0, err
	}
	s.rest = append(s.rest[:0], s.rest[n:]...)
	return len(p), nil
}
