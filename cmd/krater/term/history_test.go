package term

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func history(t *testing.T, path string) *History {
	t.Helper()
	h, err := OpenHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestHistory: what was typed is found again, the newest first, by its owner only.
func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "krater", "h")
	h := history(t, path)
	for _, line := range []string{"a", "b", "b", "", "  ", "\x1b[31mred", strings.Repeat("x", 5000), "é"} {
		h.Add(line)
	}
	if h.Err() != nil || h.Len() != 3 || h.At(0) != "é" || h.At(2) != "a" {
		t.Errorf("%v: %q", h.Err(), h.lines)
	}
	if again := history(t, path); again.Len() != 3 || again.At(1) != "b" {
		t.Errorf("%q", again.lines)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	history(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	for name, break_ := range map[string]func(string) error{
		"a folder":    func(p string) error { return os.Mkdir(p, 0o755) },
		"a link":      func(p string) error { return os.Symlink(path, p) },
		"a FIFO":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"in no place": func(p string) error { return os.WriteFile(filepath.Dir(p), nil, 0o600) },
	} {
		p := filepath.Join(t.TempDir(), "h")
		if name == "in no place" {
			p = filepath.Join(p, "h")
		}
		if err := break_(p); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenHistory(p); err == nil {
			t.Errorf("%s is a history", name)
		}
	}
}

// TestHistoryIsBounded: the last thousand lines are kept, and a file that has grown is written anew.
func TestHistoryIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	var b bytes.Buffer
	for i := range 2 * historyLines {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	h := history(t, path)
	if h.Len() != historyLines || h.At(0) != "line 1999" || h.At(999) != "line 1000" {
		t.Errorf("%d lines, %s to %s", h.Len(), h.At(0), h.At(h.Len()-1))
	}
	h.Add("one more")
	history(t, path)
	if data, err := os.ReadFile(path); err != nil || bytes.Count(data, []byte("\n")) != historyLines || !bytes.HasSuffix(data, []byte("line 1999\none more\n")) {
		t.Errorf("%v: %d lines", err, bytes.Count(data, []byte("\n")))
	}
}

// FuzzHistory: no file makes more of it than its owner typed.
func FuzzHistory(f *testing.F) {
	f.Add([]byte("a\nb\n"))
	f.Add([]byte("\x1b[0m\n\xff\nno end"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := &History{}
		if _, err := h.read(bytes.NewReader(data), false); err != nil {
			t.Fatal(err)
		}
		for i := range h.Len() {
			if line := h.At(i); line == "" || len(line) > historyLine || strings.ContainsAny(line, "\x1b\x00\r\n\x7f") {
				t.Errorf("%q", line)
			}
		}
		if h.Len() > historyLines {
			t.Errorf("%d lines", h.Len())
		}
	})
}
