package files

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyRegularFiles: what is no regular file is refused with its name and its kind, and
// nothing waits for a pipe's writer.
func TestOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, kind := range map[string]string{"fifo": "a pipe", "folder": "a directory", "socket": "a socket", "zero": "a device"} {
		switch path := at(name); name {
		case "fifo":
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		case "folder":
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		case "socket":
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Skip(err)
			}
			defer l.Close()
		case "zero":
			if err := os.Symlink("/dev/zero", path); err != nil {
				t.Fatal(err)
			}
		}
		for how, read := range map[string]func() error{
			"Read":  func() error { _, err := Read(at(name), 10); return err },
			"Dir":   func() error { _, err := fs.ReadFile(Dir(dir), name); return err },
			"fs":    func() error { _, err := fs.Stat(Dir(dir), name); return err },
			"Open ": func() error { _, err := Open(at(name)); return err },
		} {
			err := read()
			if !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), at(name)) || !strings.Contains(err.Error(), kind) {
				t.Errorf("%s of %s: %v", how, name, err)
			}
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	whole := write("whole", "0123456789")
	link, gone := filepath.Join(dir, "link"), filepath.Join(dir, "gone")
	for path, to := range map[string]string{link: "whole", gone: "../blobs/absent"} {
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	pointer := write("weights.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:"+strings.Repeat("0", 64)+"\nsize 14149960\n")
	for _, x := range []struct {
		path  string
		limit int64
		want  error
		words string
	}{
		{whole, 10, nil, ""},
		{link, 10, nil, ""},
		{whole, 9, ErrTooLarge, "10 bytes"},
		{"/proc/self/status", 10, ErrTooLarge, "10 bytes"}, // its size is said to be 0
		{gone, 10, ErrDangling, "../blobs/absent"},
		{filepath.Join(dir, "none"), 10, fs.ErrNotExist, "none"},
		{pointer, 1000, ErrPointer, "(14149960 bytes); fetch it in the model's folder with: git lfs pull --include weights.bin"},
		{write("odd", "version https://git-lfs\nsize 1\x1b[31m\n"), 1000, ErrPointer, "odd"},
	} {
		data, err := Read(x.path, x.limit)
		switch {
		case x.want == nil && (err != nil || string(data) != "0123456789"):
			t.Errorf("%s: %q, %v", x.path, data, err)
		case x.want != nil && (!errors.Is(err, x.want) || !strings.Contains(err.Error(), x.words) || !strings.Contains(err.Error(), filepath.Base(x.path))):
			t.Errorf("%s: %v", x.path, err)
		}
	}
	if _, err := Read(gone, 10); errors.Is(err, fs.ErrNotExist) {
		t.Error("a dangling link passes for a file that is not there")
	}
	if err := CheckPointer("x", []byte("version https://git-lfs\nsize 1\x1b[31m\n")); strings.Contains(err.Error(), "\x1b") {
		t.Errorf("foreign bytes in %q", err)
	}
}

// TestLost: a fault on a mapped file names the file, any other panic does not.
func TestLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights")
	page := os.Getpagesize()
	if err := os.WriteFile(path, make([]byte, 3*page), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Map(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(b)
	caught := func(do func()) (r any) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { r = recover() }()
		do()
		return nil
	}
	sum := byte(0)
	read := func() { sum += b[2*page+7] }
	if r := caught(read); r != nil {
		t.Fatal(r)
	}
	if err := os.Truncate(path, int64(page)); err != nil {
		t.Fatal(err)
	}
	lost := func(r any) bool {
		e, ok := errors.AsType[*LostError](Caught(r))
		return ok && e.Name == "weights" && e.At == int64(2*page+7) && strings.Contains(e.Error(), "weights can no longer be read")
	}
	if err := Guard(func() error { read(); return nil }); !lost(err) {
		t.Errorf("%v", err)
	}
	if r := caught(func() { _ = Guard(func() error { panic("other") }) }); r != "other" {
		t.Errorf("%v", r)
	}
	if r := caught(read); !lost(r) || !lost(fmt.Errorf("wrapped: %w", r.(error))) {
		t.Errorf("%v", r)
	}
	var list []int
	for _, r := range []any{"text", errors.New("other"), caught(func() { sum += byte(list[page]) })} {
		if err := Caught(r); lost(r) || err.Error() != fmt.Sprint(r) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestMapFails: where the system has no room, the error names file and size.
func TestMapFails(t *testing.T) {
	defer func(f func(int, int64, int, int, int) ([]byte, error)) { mmap = f }(mmap)
	mmap = func(int, int64, int, int, int) ([]byte, error) { return nil, syscall.ENOMEM }
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, make([]byte, 77), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := Map(f); b != nil || !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "77 bytes") {
		t.Errorf("%v, %v", b, err)
	}
}

// FuzzCheckPointer: a pointer's own bytes do not get into the error, but for digits.
func FuzzCheckPointer(f *testing.F) {
	f.Add([]byte("version https://git-lfs\nsize 12\n"))
	f.Add([]byte("version https://git-lfs\nsize 1\x1b[31m\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		err := CheckPointer("name", data)
		if err == nil {
			return
		}
		for _, r := range err.Error() {
			if r < ' ' || r > '~' {
				t.Fatalf("%q gives %q", data, err)
			}
		}
		if len(err.Error()) > 200 {
			t.Fatalf("%d bytes of error", len(err.Error()))
		}
	})
}
