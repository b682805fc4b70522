package term

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// The most that a history keeps.
const (
	historyLines = 1000
	historyLine  = 4 << 10 // bytes of a line
)

// History is the lines typed before, in a file that only its owner can read. It implements the History of
// golang.org/x/term.
type History struct {
	path  string
	lines []string // the newest last
	err   error
}

// OpenHistory reads the file at path; it is made where there is none. Only the last lines count, and only those that
// have no control characters. A file that is not a regular one is an error.
func OpenHistory(path string) (*History, error) {
	h := &History{path: path}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := h.open(os.O_RDWR | os.O_CREATE)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const most = historyLines * historyLine
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-most)
	n, err := h.read(io.NewSectionReader(f, from, most), from > 0)
	if err != nil {
		return nil, err
	}
	if n > 2*historyLines { // so that a file is not written anew every time
		err = h.write()
	}
	return h, err
}

// open opens the file, a regular one of which nobody else can read.
func (h *History) open(flags int) (*os.File, error) {
	f, err := os.OpenFile(h.path, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", h.path)
	}
	if err == nil && info.Mode().Perm() != 0o600 {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// read takes the lines of a file, but the first one if it is cut, and counts them.
func (h *History) read(r io.Reader, cut bool) (n int, err error) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if text, whole := strings.CutSuffix(line, "\n"); whole && !cut {
			n++
			h.take(text)
		}
		cut = false
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// take remembers a line, if it is one to be remembered.
func (h *History) take(line string) bool {
	odd := func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }
	switch {
	case strings.TrimSpace(line) == "", len(line) > historyLine, strings.ContainsFunc(line, odd):
		return false
	case len(h.lines) > 0 && h.lines[len(h.lines)-1] == line:
		return false
	}
	if h.lines = append(h.lines, line); len(h.lines) > historyLines {
		h.lines = h.lines[1:]
	}
	return true
}

// write replaces the file by what is remembered.
func (h *History) write() error {
	f, err := os.CreateTemp(filepath.Dir(h.path), ".history-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone once it is renamed
	_, err = io.WriteString(f, strings.Join(h.lines, "\n")+"\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), h.path)
}

// Add remembers a line and appends it to the file; Err has the first failure.
func (h *History) Add(line string) {
	if !h.take(line) || h.path == "" {
		return
	}
	f, err := h.open(os.O_WRONLY | os.O_APPEND | os.O_CREATE)
	if err == nil {
		_, err = io.WriteString(f, line+"\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil && h.err == nil {
		h.err = err
	}
}

// Err is why lines are not kept.
func (h *History) Err() error { return h.err }

// Len is the number of lines.
func (h *History) Len() int { return len(h.lines) }

// At is a line, 0 the newest.
func (h *History) At(i int) string { return h.lines[len(h.lines)-1-i] }
