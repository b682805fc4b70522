// Package jsonlines keeps JSON on one line for every reader. JSON strings may hold
// U+0085, U+2028 and U+2029 as they are, but readers with universal line ends split
// server-sent events, JSON Lines files and logs at these characters.
package jsonlines

import (
	"bytes"
	"io"
)

var separators = []struct{ raw, escaped []byte }{
	{[]byte("\u0085"), []byte(`\u0085`)},
	{[]byte("\u2028"), []byte(`\u2028`)},
	{[]byte("\u2029"), []byte(`\u2029`)},
}

// Escape writes the three characters in a piece of JSON as escapes. Its value stays the
// same, because they occur in strings only. Without any of them it returns data itself.
func Escape(data []byte) []byte {
	for _, s := range separators {
		if bytes.Contains(data, s.raw) {
			data = bytes.ReplaceAll(data, s.raw, s.escaped)
		}
	}
	return data
}

// Writer escapes what is written to w. Each Write must hold whole JSON values, as those of
// a logger do.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

func (e writer) Write(p []byte) (int, error) {
	if _, err := e.w.Write(Escape(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
