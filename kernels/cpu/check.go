package cpu

import (
	"fmt"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// fail raises the error of invalid arguments.
//
//go:noinline
func fail(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}

// stream checks that s was made by d.
func (d *Device) stream(op string, s device.Stream) *Stream {
	own, ok := s.(*Stream)
	if !ok || own.dev != d {
		fail(op, "the stream belongs to another device")
	}
	return own
}

// at checks that m lies within host memory and returns its first element; nil if it has no
// elements.
func at(op, name string, m *device.Mat) unsafe.Pointer {
	if m.Buf == nil {
		fail(op, "%s is absent", name)
	}
	if m.Rows <= 0 || m.Cols <= 0 {
		if m.Rows < 0 || m.Cols < 0 {
			fail(op, "%s is %s", name, *m)
		}
		return nil
	}
	host := m.Buf.Host()
	end := m.Off + ((m.Rows-1)*m.Stride+m.Cols)*m.DType.Size()
	if m.Off < 0 || m.Stride < m.Cols || end > len(host) || end < m.Off {
		fail(op, "%s: %s, stride %d, at byte %d is not within %d bytes", name, *m, m.Stride, m.Off, len(host))
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(host)), m.Off)
}

// f32 is at for a matrix that must be F32 with the given shape.
func f32(op, name string, m *device.Mat, rows, cols int) *float32 {
	if m.Rows != rows || m.Cols != cols || m.DType != tensor.F32 {
		fail(op, "%s is %s, need F32 [%d, %d]", name, *m, rows, cols)
	}
	return (*float32)(at(op, name, m))
}

// weight is at for a matrix that may be BF16 or F32, with the given shape.
func weight(op, name string, m *device.Mat, rows, cols int) (p unsafe.Pointer, bf16 bool) {
	if m.Rows != rows || m.Cols != cols || m.DType != tensor.F32 && m.DType != tensor.BF16 {
		fail(op, "%s is %s, need BF16 or F32 [%d, %d]", name, *m, rows, cols)
	}
	return at(op, name, m), m.DType == tensor.BF16
}

// i32s returns a dense column of rows indices.
func i32s(op, name string, m *device.Mat, rows int) []int32 {
	if m.Rows != rows || m.Cols != 1 || m.DType != tensor.I32 || !(m.Dense() || m.Stride == 1) {
		fail(op, "%s is %s, need dense I32 [%d, 1]", name, *m, rows)
	}
	return unsafe.Slice((*int32)(at(op, name, m)), rows)
}

// inRange checks every index.
func inRange(op, name string, ids []int32, limit int) {
	for i, id := range ids {
		if uint(id) >= uint(limit) {
			fail(op, "%s[%d] = %d, limit %d", name, i, id, limit)
		}
	}
}

// rowBytes returns the memory of row r.
func rowBytes(op string, m *device.Mat, r int) []byte {
	size := m.DType.Size()
	p := at(op, "matrix", m)
	return unsafe.Slice((*byte)(unsafe.Add(p, r*m.Stride*size)), m.Cols*size)
}
