//go:build cuda

package cublaslt

import (
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func TestAbsence(t *testing.T) {
	if _, err := open([]string{"libcublasLt.so.none", "libcublasLt.so.either"}); !errors.Is(err, ErrAbsent) ||
		!strings.Contains(err.Error(), "libcublasLt.so.either") {
		t.Fatalf("opened what is not there: %v", err)
	}
	if _, err := open([]string{"libc.so.6"}); err == nil || errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "cublasLtCreate") {
		t.Fatalf("another library: %v", err)
	}
	l, err := Open()
	if err == nil {
		t.Logf("cuBLASLt %d is here", l.Version())
		l.Close()
	} else if e := (*Error)(nil); !errors.Is(err, ErrAbsent) && !errors.As(err, &e) {
		t.Fatal(err)
	}
}

// fake opens the library of testdata, which computes in host memory.
func fake(t *testing.T) *Library {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	at := filepath.Join(t.TempDir(), "fake.so")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", at, "testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := open([]string{"libcublasLt.so.none", at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

const stream = 77 // what the fake expects

// hostMat makes a matrix of bfloat16 with small integers in host memory.
func hostMat(pin *runtime.Pinner, rng *rand.Rand, rows, cols, stride int) (launch.Mat, []float32) {
	v, f := make([]uint16, rows*stride), make([]float32, rows*cols)
	for i := range f {
		f[i] = float32(rng.IntN(17) - 8)
		v[i/cols*stride+i%cols] = tensor.F32ToBF16(f[i])
	}
	pin.Pin(&v[0])
	return launch.Mat{At: launch.Ptr(uintptr(unsafe.Pointer(&v[0]))), DType: tensor.BF16, Rows: rows, Cols: cols, Stride: stride}, f
}

func TestProduct(t *testing.T) {
	l := fake(t)
	if l.Version() != 130099 {
		t.Errorf("version %d", l.Version())
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	rng := rand.New(rand.NewPCG(1, 2))
	const m, n, k = 5, 7, 16
	x, xs := hostMat(&pin, rng, m, k, k+3)
	w, ws := hostMat(&pin, rng, n, k, k+1)
	wide, narrow := make([]float32, m*(n+2)), make([]uint16, m*n)
	pin.Pin(&wide[0])
	pin.Pin(&narrow[0])
	f := launch.Mat{At: launch.Ptr(uintptr(unsafe.Pointer(&wide[0]))), DType: tensor.F32, Rows: m, Cols: n, Stride: n + 2}
	b := launch.Mat{At: launch.Ptr(uintptr(unsafe.Pointer(&narrow[0]))), DType: tensor.BF16, Rows: m, Cols: n, Stride: n}
	for i, add := range []bool{false, true, true} {
		if err := l.BF16(stream, f, x, w, add, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := l.BF16(stream, b, x, w, false, 0, 0); err != nil {
			t.Fatal(err)
		}
		for r := range m {
			for c := range n {
				var want float32
				for j := range k {
					want += xs[r*k+j] * ws[c*k+j]
				}
				if got := wide[r*(n+2)+c]; got != want*float32(i+1) {
					t.Fatalf("run %d, [%d, %d]: %v, want %v", i, r, c, got, want*float32(i+1))
				}
				if got := narrow[r*n+c]; got != tensor.F32ToBF16(want) {
					t.Fatalf("[%d, %d]: %#x, want %v", r, c, got, want)
				}
			}
		}
	}
	if len(l.plans) != 2 {
		t.Errorf("%d plans for two shapes", len(l.plans))
	}
}

func TestRefusals(t *testing.T) {
	l := fake(t)
	var pin runtime.Pinner
	defer pin.Unpin()
	rng := rand.New(rand.NewPCG(3, 4))
	x, _ := hostMat(&pin, rng, 2, 24, 24)
	w, _ := hostMat(&pin, rng, 8, 24, 24)
	out, _ := hostMat(&pin, rng, 2, 8, 8)
	if err := l.BF16(stream, out, x, w, false, 0, 0); err == nil || !strings.Contains(err.Error(), "no algorithm") {
		t.Errorf("no algorithm: %v", err)
	}
	short := x.ColRange(0, 8)
	if err := l.BF16(stream+1, out, short, w.ColRange(0, 8), false, 0, 0); err == nil {
		t.Error("a failure of the library is not reported")
	} else if e := (*Error)(nil); !errors.As(err, &e) || e.Status != 7 {
		t.Errorf("a failure of the library: %v", err)
	}
	defer func() {
		if e, ok := recover().(*device.ShapeError); !ok || e.Op != "cublaslt BF16" {
			t.Error("took matrices that do not fit")
		}
	}()
	_ = l.BF16(stream, out, short, w, false, 0, 0)
}
