package cpu_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// cutFile is memory of n bytes that stands for a file whose end is gone.
func cutFile(t *testing.T, n int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// faults runs f, which must panic with a fault in memory. The stack is scanned while the kernel
// that has faulted is on it.
func faults(t *testing.T, what string, f func()) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		t.Helper()
		runtime.GC()
		err, _ := recover().(error)
		var fault interface{ Addr() uintptr }
		if !errors.As(err, &fault) {
			t.Errorf("%s: panic %v, want a fault", what, err)
		}
	}()
	f()
}

// TestFaultsInKernels: a fault on mapped weights reaches the caller of an operator as a panic that
// can be recovered, from assembly and from workers too, and the device serves on.
func TestFaultsInKernels(t *testing.T) {
	gone := cutFile(t, 1<<21)
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const n, k = 192, 512
		buf, err := d.Wrap(gone)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{1, 5, 80} {
			x := kerneltest.Normal(kerneltest.Rand(1), rows*k, 1)
			in, out := f32s(d, x, rows, k), f32s(d, make([]float32, rows*n), rows, n)
			wide := f32s(d, make([]float32, rows*k), rows, k)
			for _, dt := range []tensor.DType{tensor.BF16, tensor.F32} {
				w := device.NewMat(buf, dt, n, k)
				faults(t, "MatMul", func() { d.MatMul(s, out, in, w) })
				faults(t, "FFN", func() { d.FFN(s, wide, in, device.Expert{Gate: w, Up: w, Down: device.NewMat(buf, dt, k, n)}) })
				faults(t, "GatherRows", func() {
					d.GatherRows(s, wide, device.NewMat(buf, dt, n, k), wrap(d, tensor.I32, make([]int32, rows), rows, 1))
				})
			}
			for _, bits := range []int{4, 8} {
				f := tensor.Layout{Format: tensor.Integers(bits).By(64), Rows: n, Cols: k}
				w := device.QMat{Layout: f, Values: buf, Scales: buf, ScaleAt: 1 << 20}
				q := quantized(d, s, x, rows, k, 64)
				faults(t, "MatMulQ", func() { d.MatMulQ(s, out, q, w) })
			}
			w, _ := floats(d, tensor.BF16, make([]float32, n*k), n, k)
			d.MatMul(s, out, in, w)
		}
	})
}

// TestTeamPartsPanic: a part's panic reaches the caller of Run once all parts have ended, from
// whatever thread, and the team serves on.
func TestTeamPartsPanic(t *testing.T) {
	for _, threads := range []int{1, 2, 4} {
		team := cpu.NewTeam(threads)
		bad := errors.New("bad part")
		for part := range 8 {
			var ended atomic.Int32
			func() {
				defer func() {
					if err, _ := recover().(error); !errors.Is(err, bad) || threads > 1 && ended.Load() != 7 {
						t.Errorf("%d threads: panic %v after %d parts", threads, err, ended.Load())
					}
				}()
				team.Run(8, func(p int) {
					if p == part {
						panic(bad)
					}
					ended.Add(1)
				})
			}()
		}
		n := atomic.Int32{}
		if team.Run(8, func(int) { n.Add(1) }); n.Load() != 8 {
			t.Errorf("%d threads: %d parts", threads, n.Load())
		}
		team.Close()
	}
}
