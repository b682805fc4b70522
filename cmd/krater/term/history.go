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

// Limits of a history.
const (
	historyLines = 1000
	historyLine  = 4 << 10 // bytes of a line
)

// History is the lines typed before, in a file that only its owner can read. It implements the
// History interface of golang.org/x/term.
type History struct {
	path  string
	lines []string // newest last
	err   error
}

// OpenHistory reads the file at path, or creates it. It keeps only the last lines, and only those
// without control characters. A file that is not regular is an error.
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
	if n > 2*historyLines { // the file is not rewritten every time
		err = h.write()
	}
	return h, err
}

// open opens a regular file that no one else can read.
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

// read reads the lines of a file and counts them. It skips the first one if it is cut.
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

// take remembers a line if it qualifies.
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

// write replaces the contents of the file by the remembered lines.
func (h *History) write() error {
	f, err := os.CreateTemp(filepath.Dir(h.path), ".history-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
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

// Err returns why lines are not saved.
func (h *History) Err() error { return h.err }

// Len returns the number of lines.
func (h *History) Len() int { return len(h.lines) }

// At returns a line; 0 is the newest.
func (h *History) At(i int) string { return h.lines[len(h.lines)-1-i] }
