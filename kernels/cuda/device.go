//go:build cuda

package cuda

import (
	"fmt"
	"sync"
	"time"

	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/pool"
	"krater/kernels/cuda/route"
	"krater/kernels/cuda/rt"
	"krater/kernels/device"
)

// Device is a GPU as a device.Device and device.Accelerator. Enqueued work runs at the latest
// when the stream is waited for.
type Device struct {
	Layout
	gpu     *rt.GPU
	queues  []*rt.Stream // the streams of operators are siblings of these; apart uses the first
	wrap    sync.Mutex   // of the first queue
	name    string
	profile func(op string, d time.Duration) // nil: operators are not timed

	invariant bool // Options.Invariant

	mu     sync.Mutex
	budget int64 // in bytes
	used   int64
}

var (
	_ device.Device            = (*Device)(nil)
	_ device.Accelerator       = (*Device)(nil)
	_ device.AcceleratorStream = (*Stream)(nil)
)

// Open opens a GPU. Without a driver or a GPU the error says which is missing.
func Open(o Options) (*Device, error) {
	gpu, err := rt.Open(rt.Options{Index: o.Index, Images: bin.Images, Portable: o.Portable, Graphs: o.Graphs})
	if err != nil {
		return nil, err
	}
	d := &Device{Layout: Layout{F32: o.F32, Same: o.Same}, gpu: gpu, name: fmt.Sprintf("cuda:%d", o.Index), budget: o.Budget, invariant: o.Invariant}
	if _, err = d.queue(0); err == nil && d.budget <= 0 {
		d.budget, err = gpu.Free()
	}
	if err != nil {
		gpu.Close()
		return nil, err
	}
	return d, nil
}

// Name is "cuda:" and the GPU's number.
func (d *Device) Name() string { return d.name }

// Describe is the GPU's name.
func (d *Device) Describe() string { return d.gpu.Info().Name }

// Owner returns the thread that talks to the GPU, for tests.
func (d *Device) Owner() *driver.Owner { return d.gpu.Owner() }

// Capacity is the GPU's memory in bytes, including what other programs use.
func (d *Device) Capacity() int64 { return d.gpu.Total() }

// Profile makes every operator wait for its end and calls tell with the time that the GPU took; nil
// ends that. Nothing else may run meanwhile.
func (d *Device) Profile(tell func(op string, d time.Duration)) { d.profile = tell }

// Accelerator is the device itself.
func (d *Device) Accelerator() device.Accelerator { return d }

// Memory counts the bytes of buffers, each rounded up to 256.
func (d *Device) Memory() device.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return device.Memory{Total: d.budget, Used: d.used, Graphs: d.gpu.Graphs()}
}

// Close closes the GPU. Buffers and streams must not be used any more.
func (d *Device) Close() error {
	for _, s := range d.queues {
		s.Close()
	}
	return d.gpu.Close()
}

// buffer is memory of the GPU, or memory of the host that it addresses.
type buffer struct {
	dev  *Device
	at   launch.Ptr
	size int
	host []byte // pinned; nil: memory of the GPU
}

// Size is the buffer's length in bytes.
func (b *buffer) Size() int { return b.size }

// Host is nil: the host cannot address a GPU's memory.
func (b *buffer) Host() []byte { return nil }

// Free frees the memory.
func (b *buffer) Free() {
	if b.at == 0 {
		return
	}
	if b.host != nil {
		_ = b.dev.gpu.FreeHost(b.host) // a lost GPU has freed it
		b.at = 0
		return
	}
	_ = b.dev.gpu.Release(b.at) // the driver frees the memory of a lost GPU
	b.dev.take(-pool.Rounded(int64(b.size)))
	b.at = 0
}

// take adds n bytes to the used part of the budget.
func (d *Device) take(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > 0 && d.used+n > d.budget {
		return fmt.Errorf("%s: %d bytes beside %d of %d: %w", d.name, n, d.used, d.budget, device.ErrOutOfMemory)
	}
	d.used += n
	return nil
}

func (d *Device) alloc(n int, raw bool) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%s: a buffer of %d bytes", d.name, n)
	}
	size := pool.Rounded(int64(n))
	if err := d.take(size); err != nil {
		return nil, err
	}
	at, err := d.gpu.Alloc(int64(n), raw)
	if err != nil {
		_ = d.take(-size) // always fits
		return nil, fmt.Errorf("%s: %d bytes: %w", d.name, n, err)
	}
	return &buffer{dev: d, at: at, size: n}, nil
}

// Alloc returns n zeroed bytes, aligned to 256.
func (d *Device) Alloc(n int) (device.Buffer, error) {
	b, err := d.alloc(n, false)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// View returns pinned host memory as kernels read it.
func (d *Device) View(b []byte) (device.Buffer, bool) {
	at, ok := d.gpu.Mapped(b)
	return &buffer{dev: d, at: at, size: len(b)}, ok
}

// AllocHost returns n zeroed bytes of pinned host memory that kernels read and write in place.
func (d *Device) AllocHost(n int) (device.Buffer, error) {
	b, _, err := d.AllocShared(n)
	return b, err
}

// AllocShared is AllocHost, and returns the memory itself.
func (d *Device) AllocShared(n int) (device.Buffer, []byte, error) {
	host, at, err := d.gpu.MapHost(max(n, 1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %d bytes of pinned host memory: %w", d.name, n, err)
	}
	return &buffer{dev: d, at: at, size: n, host: host}, host[:n], nil
}

// Wrap copies host memory to the GPU.
func (d *Device) Wrap(b []byte) (device.Buffer, error) {
	buf, err := d.alloc(len(b), true)
	if err != nil {
		return nil, err
	}
	if err := d.apart(func(s *rt.Stream) { s.CopyIn(buf.at, b) }); err != nil {
		buf.Free()
		return nil, fmt.Errorf("%s: copy of %d bytes: %w", d.name, len(b), err)
	}
	return buf, nil
}

// apart calls f for work that belongs to no batch, and waits for that work. After a refused call the
// stream is usable again.
func (d *Device) apart(f func(s *rt.Stream)) error {
	d.wrap.Lock()
	defer d.wrap.Unlock()
	s := d.queues[0]
	f(s)
	err := s.Synchronize()
	if err != nil {
		_ = s.Recover() // the next call reports a lost GPU
	}
	return err
}

// NewStream makes a stream of queue 0 with scratch memory of its own.
func (d *Device) NewStream() (device.Stream, error) { return d.NewQueueStream(0) }

// queuesMost bounds the queues of a GPU.
const queuesMost = 64

// NewQueueStream makes a stream of a queue with scratch memory of its own.
func (d *Device) NewQueueStream(queue int) (device.AcceleratorStream, error) {
	first, err := d.queue(queue)
	if err != nil {
		return nil, fmt.Errorf("%s: queue %d: %w", d.name, queue, err)
	}
	s, err := first.Sibling()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	out := &Stream{dev: d, s: s}
	if out.turn, err = d.gpu.Alloc(route.TurnBytes, false); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	out.ops = ops.Builder{GPU: d.gpu.Info(), List: &s.List, Scratch: out.scratch, Hold: out.hold, Turn: out.turn, Invariant: d.invariant, Same: d.Same}
	return out, nil
}

// queue is the stream that all streams of a queue are siblings of.
func (d *Device) queue(n int) (*rt.Stream, error) {
	if n < 0 || n >= queuesMost {
		return nil, fmt.Errorf("there are at most %d", queuesMost)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queues) <= n {
		s, err := d.gpu.NewStream()
		if err != nil {
			return nil, err
		}
		d.queues = append(d.queues, s)
	}
	return d.queues[n], nil
}

// NewCopyStream makes a stream that runs at the same time as all others. It takes copies and
// events; operators refuse it.
func (d *Device) NewCopyStream() (device.Stream, error) {
	s, err := d.gpu.NewStream()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	return &Stream{dev: d, s: s, copies: true}, nil
}

// Pin makes copies read b in place.
func (d *Device) Pin(b []byte) (release func() error, err error) {
	if release, err = d.gpu.Pin(b); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	return release, nil
}

// Stream is an in-order stream of the GPU (device.AcceleratorStream), or one for copies.
type Stream struct {
	dev    *Device
	s      *rt.Stream
	copies bool // made by NewCopyStream, without the rest
	ops    ops.Builder
	room   *buffer
	old    []*buffer // former rooms whose beginning is held
	held   int       // bytes at the beginning of the room that an operator has
	blocks *buffer   // for tables of MoveBlocks
	table  []byte    // the same, while it is made
	parts  []elem.BlockPart
	turn   launch.Ptr
}

// scratch returns n bytes, which the next operator may use again.
func (s *Stream) scratch(n int) launch.Ptr {
	held := launch.Ptr(s.held)
	n += s.held
	if s.room != nil && s.room.size >= n {
		return s.room.at + held
	}
	if s.room != nil {
		// Work that is under way uses the old memory.
		if err := s.s.Synchronize(); err != nil {
			return s.room.at // the stream runs nothing any more
		}
		s.old = append(s.old, s.room)
		if s.held == 0 {
			for _, b := range s.old {
				b.Free()
			}
			s.old = s.old[:0]
		}
		s.room = nil
		s.s.Forget() // graphs use the old memory
	}
	b, err := s.dev.alloc(max(n, scratchStep), true)
	if err != nil {
		panic(fmt.Errorf("scratch memory: %w", err))
	}
	s.room = b
	return b.at + held
}

// hold is scratch for memory that stays the operator's while it asks for more; 0 ends that.
func (s *Stream) hold(n int) launch.Ptr {
	s.held = 0
	if n == 0 {
		return 0
	}
	n = int(pool.Rounded(int64(n)))
	at := s.scratch(n)
	s.held = n
	return at
}

// Close frees the stream and its scratch memory; its work must be done.
func (s *Stream) Close() {
	s.s.Close()
	if s.turn != 0 {
		_ = s.dev.gpu.Release(s.turn) // a lost GPU is freed by the driver
	}
	for _, b := range append(s.old, s.room, s.blocks) {
		if b != nil {
			b.Free()
		}
	}
	s.room, s.blocks = nil, nil
}

// Device is the device that made the stream.
func (s *Stream) Device() device.Device { return s.dev }

// CopyIn copies host bytes to dst, row by row if dst is not dense.
func (s *Stream) CopyIn(dst device.Mat, src []byte) {
	m, row := mat(dst), dst.Cols*dst.DType.Size()
	if b := dst.Buf.(*buffer); b.host != nil { // the driver takes no copy from host memory to host memory
		s.s.Fail(s.s.Synchronize())
		for r := range dst.Rows {
			copy(b.host[dst.Off+r*dst.Stride*dst.DType.Size():][:row], src[r*row:])
		}
		return
	}
	if dst.Dense() {
		s.s.CopyIn(m.At, src[:row*dst.Rows])
		return
	}
	for r := range dst.Rows {
		s.s.CopyIn(m.RowRange(r, r+1).At, src[r*row:(r+1)*row])
	}
}

// CopyOut copies src to host bytes, which are valid after the next Synchronize.
func (s *Stream) CopyOut(dst []byte, src device.Mat) {
	m, row := mat(src), src.Cols*src.DType.Size()
	if src.Dense() {
		s.s.CopyOut(dst[:row*src.Rows], m.At)
		return
	}
	for r := range src.Rows {
		s.s.CopyOut(dst[r*row:(r+1)*row], m.RowRange(r, r+1).At)
	}
}

// Reserve allocates the scratch memory that operators need at most.
func (s *Stream) Reserve(n int) error {
	if s.room != nil && s.room.size >= n {
		return nil
	}
	b, err := s.dev.alloc(n, true)
	if err != nil {
		return fmt.Errorf("scratch memory: %w", err)
	}
	if s.room != nil {
		s.room.Free()
	}
	s.room = b
	return nil
}

// Submit sends the step to the GPU.
func (s *Stream) Submit() { s.s.Submit() }

// Flush sends the rest of a step of which the GPU has a part.
func (s *Stream) Flush() {
	if s.s.Begun() {
		s.s.Flush()
	}
}

// Clock reads the GPU's clock: a stream is its own clock.
func (s *Stream) Clock() device.Clock { return s }

// Timestamp adds a timestamp after what was enqueued.
func (s *Stream) Timestamp() device.Timestamp { return timestamp(s.s.Timestamp()) }

// timestampCost was measured on an H200 with 50 small launches, each between two timestamps that were
// read afterwards in one trip (BenchmarkTimestamps of rt: 7.3 us per launch, 1.9 us without timestamps).
const timestampCost = 2700 * time.Nanosecond

// Cost implements device.Clock.
func (s *Stream) Cost() time.Duration { return timestampCost }

// WaitTimed is Wait between two timestamps.
func (s *Stream) WaitTimed(e device.Event) (from, to device.Timestamp) {
	if own, ok := e.(*rt.Event); ok && own.GPU() == s.dev.gpu {
		a, b := s.s.AfterTimed(own)
		return timestamp(a), timestamp(b)
	}
	s.Wait(e)
	return nil, nil
}

// timestamp converts m; a nil m becomes a nil interface.
func timestamp(m *rt.Timestamp) device.Timestamp {
	if m == nil {
		return nil
	}
	return m
}

// End is the end of the last part of a step.
func (s *Stream) End() device.Timestamp { return timestamp(s.s.End()) }

// Time sets whether the GPU times the step that begins.
func (s *Stream) Time(on bool) { s.s.Time(on) }

// Mark ends a part of a step.
func (s *Stream) Mark() bool { return s.s.Mark() }

// Took returns the GPU's time for each part of a step.
func (s *Stream) Took() []time.Duration { return s.s.Took() }

// Repeat begins a step, and reports whether the GPU replays it as a graph.
func (s *Stream) Repeat(key uint64) bool { return s.dev.profile == nil && s.s.Repeat(key) }

// Record returns an event after what was enqueued so far.
func (s *Stream) Record() device.Event { return s.s.Record() }

// Wait makes the stream wait for an event of a GPU, and the host for an event of another device.
func (s *Stream) Wait(e device.Event) {
	if own, ok := e.(*rt.Event); ok {
		s.s.After(own)
		return
	}
	if !e.Done() {
		s.s.Flush() // what was added before does not have to wait
	}
	s.s.Fail(e.Wait())
}

// Synchronize waits for everything that was enqueued and returns the stream's first error.
func (s *Stream) Synchronize() error { return s.s.Synchronize() }

// Recover makes the stream usable again after an error.
func (s *Stream) Recover() error { return s.s.Recover() }

// mat converts a matrix to the type that kernels take. A matrix of another device is a programmer
// error.
func mat(m device.Mat) launch.Mat {
	if m.Zero() {
		return launch.Mat{}
	}
	b, ok := m.Buf.(*buffer)
	if !ok {
		panic(&device.ShapeError{Op: "cuda", Why: m.String() + " is not in a GPU's memory"})
	}
	if m.Rows > 0 && m.Cols > 0 {
		end := m.Off + ((m.Rows-1)*m.Stride+m.Cols)*m.DType.Size()
		if m.Off < 0 || end > b.size {
			panic(&device.ShapeError{Op: "cuda", Why: fmt.Sprintf("%s up to byte %d of a buffer of %d", m, end, b.size)})
		}
	}
	return launch.Mat{At: b.at + launch.Ptr(m.Off), DType: m.DType, Rows: m.Rows, Cols: m.Cols, Stride: m.Stride}
}
