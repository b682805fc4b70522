//go:build cuda

// Package cudatest gives tests of kernels a GPU, or the emulator.
package cudatest

import (
	"errors"
	"sync"
	"testing"
	"unsafe"

	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/rt"
	"krater/kernels/tensor"
)

// GPU is a GPU for one test. Its memory is released when the test ends.
type GPU struct {
	*rt.GPU
	t testing.TB
	s *rt.Stream
}

var (
	once   sync.Once
	shared *rt.GPU
	refuse error
)

// Open returns the process' GPU. It skips the test if there is none; any other failure to open it
// fails the test.
func Open(t testing.TB) *GPU {
	t.Helper()
	once.Do(func() {
		if refuse = driver.Available(); refuse == nil {
			shared, refuse = rt.Open(rt.Options{Images: bin.Images, Exact: true})
		}
	})
	if errors.Is(refuse, driver.ErrNoDriver) {
		t.Skip(refuse)
	}
	if refuse != nil {
		t.Fatal(refuse)
	}
	s, err := shared.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &GPU{GPU: shared, t: t, s: s}
}

// Stream returns the test's stream.
func (c *GPU) Stream() *rt.Stream { return c.s }

// Poison is the byte with which new memory is filled: every float of it is NaN, every index far
// out of range.
const Poison = 0xff

// Alloc returns n poisoned bytes.
func (c *GPU) Alloc(n int) launch.Ptr {
	c.t.Helper()
	at, err := c.GPU.Alloc(int64(n), true)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := c.Release(at); err != nil && c.Err() == nil {
			c.t.Error(err)
		}
	})
	c.s.List.Fill(at, int64(n), Poison)
	c.Sync()
	return at
}

// Mat makes a poisoned dense matrix.
func (c *GPU) Mat(dt tensor.DType, rows, cols int) launch.Mat {
	c.t.Helper()
	return c.Strided(dt, rows, cols, cols)
}

// Strided makes a poisoned matrix with gaps between its rows.
func (c *GPU) Strided(dt tensor.DType, rows, cols, stride int) launch.Mat {
	c.t.Helper()
	return launch.Mat{At: c.Alloc(rows * stride * dt.Size()), DType: dt, Rows: rows, Cols: cols, Stride: stride}
}

// Bytes copies b to the GPU.
func (c *GPU) Bytes(b []byte) launch.Ptr {
	c.t.Helper()
	at := c.Alloc(len(b))
	c.s.CopyIn(at, b)
	c.Sync()
	return at
}

// Upload copies x to the GPU.
func Upload[E any](c *GPU, x []E) launch.Ptr {
	c.t.Helper()
	return c.Bytes(Raw(x))
}

// F32 makes a matrix of x [rows, cols].
func (c *GPU) F32(x []float32, rows, cols int) launch.Mat {
	c.t.Helper()
	return launch.Mat{At: Upload(c, x[:rows*cols]), DType: tensor.F32, Rows: rows, Cols: cols, Stride: cols}
}

// BF16 makes a matrix of x [rows, cols], rounded to bfloat16.
func (c *GPU) BF16(x []float32, rows, cols int) launch.Mat {
	c.t.Helper()
	v := make([]uint16, rows*cols)
	for i := range v {
		v[i] = tensor.F32ToBF16(x[i])
	}
	return launch.Mat{At: Upload(c, v), DType: tensor.BF16, Rows: rows, Cols: cols, Stride: cols}
}

// I32 makes a matrix of x [rows, cols].
func (c *GPU) I32(x []int32, rows, cols int) launch.Mat {
	c.t.Helper()
	return launch.Mat{At: Upload(c, x[:rows*cols]), DType: tensor.I32, Rows: rows, Cols: cols, Stride: cols}
}

// Tiles packs integers [Rows, Cols] and scales [Rows, groups].
func (c *GPU) Tiles(f tensor.Layout, values []int8, scales []float32) launch.Tiles {
	c.t.Helper()
	v, s := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
	f.Pack(v, s, f.Matrix(values, scales))
	return launch.Tiles{Layout: f, Values: c.Bytes(v), Scales: c.Bytes(s)}
}

// Run calls build to append to a list, runs the list and waits.
func (c *GPU) Run(build func(l *launch.List)) {
	c.t.Helper()
	build(&c.s.List)
	c.Sync()
}

// Sync waits for the stream; an error ends the test.
func (c *GPU) Sync() {
	c.t.Helper()
	if err := c.s.Synchronize(); err != nil {
		c.t.Fatal(err)
	}
}

// Download reads n elements from address at.
func Download[E any](c *GPU, at launch.Ptr, n int) []E {
	c.t.Helper()
	out := make([]E, n)
	c.s.CopyOut(Raw(out), at)
	c.Sync()
	return out
}

// Floats reads a matrix of F32 or BF16 as float32 [Rows, Cols], without its gaps.
func (c *GPU) Floats(m launch.Mat) []float32 {
	c.t.Helper()
	out := make([]float32, m.Rows*m.Cols)
	for r := range m.Rows {
		row := Download[byte](c, m.RowRange(r, r+1).At, m.Cols*m.DType.Size())
		if err := tensor.Widen(out[r*m.Cols:(r+1)*m.Cols], m.DType, row); err != nil {
			c.t.Fatal(err)
		}
	}
	return out
}

// Raw returns the memory of x.
func Raw[E any](x []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(e)))
}
