package cpu_test

import (
	"errors"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

func open(t testing.TB, o cpu.Options) (*cpu.Device, device.Stream) {
	t.Helper()
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return d, s
}

// forLevels runs f at every level, on one thread and shared by three. The short suite leaves plain Go to
// the build without assembly, which has nothing else and which CI tests, too.
func forLevels(t *testing.T, f func(t *testing.T, d *cpu.Device, s device.Stream)) {
	for _, l := range level.Available() {
		if testing.Short() && l == level.Pure && level.Best() != level.Pure {
			continue
		}
		for _, threads := range []int{1, 3} {
			name := l.String()
			if threads > 1 {
				name += "/shared"
			}
			t.Run(name, func(t *testing.T) {
				d, s := open(t, cpu.Options{Threads: threads, Level: l})
				if threads > 1 {
					d.ShareEverything()
				}
				f(t, d, s)
			})
		}
	}
}

// panicsWith runs f, which must panic with a ShapeError of the operator.
func panicsWith(t *testing.T, op string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		err, _ := recover().(error)
		var shape *device.ShapeError
		if !errors.As(err, &shape) || shape.Op != op {
			t.Errorf("%s: panic %v, want a ShapeError", op, err)
		}
	}()
	f()
	t.Errorf("%s: bad arguments were accepted", op)
}

// f32s wraps values as a dense F32 matrix.
func f32s(d *cpu.Device, values []float32, rows, cols int) device.Mat {
	return wrap(d, tensor.F32, values, rows, cols)
}

// rowsOf picks rows of a dense matrix.
func rowsOf(values []float32, cols int, rows []int) []float32 {
	var picked []float32
	for _, r := range rows {
		picked = append(picked, values[r*cols:(r+1)*cols]...)
	}
	return picked
}

func wrap[E any](d *cpu.Device, dt tensor.DType, data []E, rows, cols int) device.Mat {
	b, _ := d.Wrap(kerneltest.Bytes(data))
	return device.NewMat(b, dt, rows, cols)
}

// floats wraps values as F32 or, rounded, as BF16; it gives what is stored.
func floats(d *cpu.Device, dt tensor.DType, values []float32, rows, cols int) (device.Mat, []float32) {
	if dt == tensor.F32 {
		return wrap(d, dt, values, rows, cols), values
	}
	stored, widened := kerneltest.BF16(values)
	return wrap(d, dt, stored, rows, cols), widened
}

var dtypes = []tensor.DType{tensor.F32, tensor.BF16}
