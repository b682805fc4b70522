// Package refdevice is a device for tests that runs the operators of kernels/ref.
// The host cannot address its memory, and its streams defer all work until the
// host waits, as a GPU may. Stages that read results too early, or reuse memory
// that a stream still needs, get wrong results here.
package refdevice

import (
	"fmt"
	"sync"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Device is the reference device.
type Device struct{}

// buffer is memory of the device, hidden from the host.
type buffer struct {
	data []byte
	mu   sync.Mutex
	wide map[device.Mat][]float32 // matrices of data that view has widened, until data changes
}

func (b *buffer) Size() int    { return len(b.data) }
func (b *buffer) Host() []byte { return nil }
func (b *buffer) Free()        { b.data, b.wide = nil, nil }

// Name is "ref".
func (Device) Name() string { return "ref" }

// Alloc returns zeroed memory.
func (Device) Alloc(n int) (device.Buffer, error) { return &buffer{data: make([]byte, n)}, nil }

// Wrap copies b, as a device with memory of its own does.
func (Device) Wrap(b []byte) (device.Buffer, error) {
	return &buffer{data: append([]byte(nil), b...)}, nil
}

// NewStream makes a stream with nothing to do.
func (Device) NewStream() (device.Stream, error) { return &stream{}, nil }

// Accelerator is nil: the operators take the lists of work and rows of float32 that a CPU's take.
func (Device) Accelerator() device.Accelerator { return nil }

// Memory is not counted.
func (Device) Memory() device.Memory { return device.Memory{} }

// Close does nothing.
func (Device) Close() error { return nil }

// stream is a queue of what was enqueued and not yet done.
type stream struct {
	mu    sync.Mutex
	queue []func()
}

func (s *stream) push(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, f)
}

func (s *stream) Device() device.Device { return Device{} }

func (s *stream) CopyIn(dst device.Mat, src []byte) {
	if len(src) != dst.Bytes() {
		panic(fmt.Sprintf("refdevice: %d bytes for %s", len(src), dst))
	}
	s.push(func() { change(dst, func(r int, row []byte) { copy(row, src[r*len(row):]) }) })
}

func (s *stream) CopyOut(dst []byte, src device.Mat) {
	if len(dst) != src.Bytes() {
		panic(fmt.Sprintf("refdevice: %d bytes for %s", len(dst), src))
	}
	s.push(func() { eachRow(src, func(r int, row []byte) { copy(dst[r*len(row):], row) }) })
}

// Synchronize does all that is enqueued.
func (s *stream) Synchronize() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.queue {
		f()
	}
	s.queue = s.queue[:0]
	return nil
}

// Repeat reports false: nothing is replayed.
func (s *stream) Repeat(uint64) bool { return false }

// Submit does nothing: Synchronize does what is enqueued.
func (s *stream) Submit() {}

// Recover does what is left.
func (s *stream) Recover() error { return s.Synchronize() }

// Clock is nil.
func (s *stream) Clock() device.Clock { return nil }

// Close does nothing.
func (s *stream) Close() {}

// Record marks the end of the queue.
func (s *stream) Record() device.Event { return event{s} }

// Wait makes what follows on s come after e.
func (s *stream) Wait(e device.Event) {
	s.push(func() {
		if other := e.(event).s; other != s {
			_ = other.Synchronize()
		}
	})
}

// event is over when its stream has nothing left to do: later than need be, never
// too early.
type event struct{ s *stream }

func (e event) Done() bool {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return len(e.s.queue) == 0
}

func (e event) Wait() error { return e.s.Synchronize() }
func (e event) Err() error  { return nil }

// change calls f with the bytes of every row of m, which f writes.
func change(m device.Mat, f func(r int, row []byte)) {
	b := m.Buf.(*buffer)
	b.mu.Lock()
	b.wide = nil
	b.mu.Unlock()
	eachRow(m, f)
}

// eachRow calls f with the bytes of every row of m, which f reads.
func eachRow(m device.Mat, f func(r int, row []byte)) {
	data, size := m.Buf.(*buffer).data, m.DType.Size()
	for r := range m.Rows {
		at := m.Off + r*m.Stride*size
		f(r, data[at:at+m.Cols*size])
	}
}

// view returns m as a dense float32 slice, to read only, and until m is written. Weights and caches
// are large beside the rows of a step, so they are not copied for every operator.
func view(m device.Mat) []float32 {
	b := m.Buf.(*buffer)
	if m.DType == tensor.F32 && m.Stride == m.Cols && m.Rows*m.Cols > 0 {
		return unsafe.Slice((*float32)(unsafe.Pointer(&b.data[m.Off])), m.Rows*m.Cols)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.wide[m]
	if !ok {
		if b.wide == nil {
			b.wide = map[device.Mat][]float32{}
		}
		v = floats(m)
		b.wide[m] = v
	}
	return v
}

// floats copies m to a dense float32 slice.
func floats(m device.Mat) []float32 {
	out := make([]float32, 0, m.Rows*m.Cols)
	eachRow(m, func(_ int, row []byte) {
		switch m.DType {
		case tensor.F32:
			out = append(out, unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), m.Cols)...)
		case tensor.BF16:
			for _, b := range unsafe.Slice((*uint16)(unsafe.Pointer(&row[0])), m.Cols) {
				out = append(out, tensor.BF16ToF32(b))
			}
		default:
			panic("refdevice: " + m.String())
		}
	})
	return out
}

// store writes a dense float32 slice to m.
func store(m device.Mat, v []float32) {
	change(m, func(r int, row []byte) {
		src := v[r*m.Cols : (r+1)*m.Cols]
		switch m.DType {
		case tensor.F32:
			copy(unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), m.Cols), src)
		case tensor.BF16:
			for i, x := range src {
				*(*uint16)(unsafe.Pointer(&row[2*i])) = tensor.F32ToBF16(x)
			}
		default:
			panic("refdevice: " + m.String())
		}
	})
}

// ints copies m [n, 1] or [n, k] to a dense slice.
func ints(m device.Mat) []int32 {
	var out []int32
	eachRow(m, func(_ int, row []byte) {
		out = append(out, unsafe.Slice((*int32)(unsafe.Pointer(&row[0])), m.Cols)...)
	})
	return out
}

func storeInts(m device.Mat, v []int32) {
	change(m, func(r int, row []byte) {
		copy(unsafe.Slice((*int32)(unsafe.Pointer(&row[0])), m.Cols), v[r*m.Cols:])
	})
}
