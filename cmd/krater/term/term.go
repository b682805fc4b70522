// Package term knows the terminal: whether a stream is one, its width, colours and progress. On
// other streams the same output is plain.
package term

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// plainWidth is the default width of lines.
const plainWidth = 80

// Is reports whether w is a terminal.
func Is(w any) bool {
	f, ok := w.(*os.File)
	return ok && xterm.IsTerminal(int(f.Fd()))
}

// Colours reports whether w shows colours: it is a terminal, not a dumb one, and NO_COLOR is not
// set (https://no-color.org).
func Colours(w io.Writer) bool {
	return Is(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Width returns the number of columns of w: the terminal's, else $COLUMNS, else 80.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && s.Col > 0 {
			return int(s.Col)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return plainWidth
}
