//go:build unix

package cpu_test

import (
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
)

// fenced is n bytes of memory with a page behind them that cannot be read.
func fenced(t *testing.T, n int) []byte {
	t.Helper()
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, n+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mprotect(b[n:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return b[:n:n]
}

// TestReadStaysInside: no loop, size or level reads past its memory.
func TestReadStaysInside(t *testing.T) {
	for _, l := range level.Available() {
		d, _ := open(t, cpu.Options{Level: l, Threads: 3})
		for _, loop := range cpu.ReadLoops {
			for _, pieces := range []int{0, 1, 2, 5, 24, 64} {
				d.Read(loop, fenced(t, pieces*cpu.ReadPiece))
			}
		}
	}
}

// TestReadReachesEveryPage: a page that cannot be read is met wherever it is.
func TestReadReachesEveryPage(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	const n = 8 * cpu.ReadPiece
	page := unix.Getpagesize()
	faults := func(d *cpu.Device, loop cpu.ReadLoop, b []byte) (met bool) {
		defer func() { met = recover() != nil }()
		d.Read(loop, b)
		return false
	}
	for _, l := range level.Available() {
		d, _ := open(t, cpu.Options{Level: l, Threads: 1})
		for _, loop := range cpu.ReadLoops {
			b := fenced(t, n)
			if faults(d, loop, b) {
				t.Fatalf("%s, %s: readable memory could not be read", l, loop)
			}
			for at := 0; at < n; at += 3 * page {
				shut := b[at:][:page]
				if err := unix.Mprotect(shut, unix.PROT_NONE); err != nil {
					t.Fatal(err)
				}
				if !faults(d, loop, b) {
					t.Errorf("%s, %s: the page at %d was left out", l, loop, at)
				}
				if err := unix.Mprotect(shut, unix.PROT_READ); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
