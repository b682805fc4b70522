// Package device is the contract between the stages and the hardware that runs them
// (kernels/cpu, kernels/cuda, kernels/hostsim). It has memory, ordering and operators. Operators
// are data: stages make lists of them (op.go), and a device computes lists.
package device

// Device owns memory and runs operators on it.
//
// Alloc, Wrap and Memory are safe for concurrent use. Streams of one device
// may run at the same time; one Stream belongs to one goroutine at a time.
type Device interface {
	// Name is unique in the process: "cpu", "hostsim:1", "cuda:0".
	Name() string
	// Alloc returns n zeroed bytes, aligned to 64. It fails rather than
	// exceed the device's budget (ErrOutOfMemory).
	Alloc(n int) (Buffer, error)
	// Wrap makes host memory (a mapped weight file) usable as a buffer: without
	// a copy on a device that computes on host memory, by upload elsewhere. The
	// caller keeps b alive and unchanged until Free. b need not be aligned
	// beyond its element size.
	Wrap(b []byte) (Buffer, error)
	NewStream() (Stream, error)
	Memory() Memory
	Close() error
}

// Memory counts bytes. Total is the device's budget, 0 when unlimited. Graphs is how many steps
// the device keeps as graphs, which take memory of the driver's in the host.
type Memory struct {
	Total, Used int64
	Graphs      int
}

// Buffer is a piece of one device's memory.
type Buffer interface {
	Size() int
	// Host is the memory itself where the host can address it, else nil.
	Host() []byte
	Free()
}

// Stream orders work on a device. On the CPU an operator is complete when its
// call returns; elsewhere it is only enqueued, and Synchronize (or an Event)
// tells when its results may be read by the host. An error of an enqueued
// operator surfaces at the next Synchronize.
type Stream interface {
	Device() Device
	// CopyIn copies host bytes to dst (dense, row by row); src must stay
	// unchanged until the stream passed it.
	CopyIn(dst Mat, src []byte)
	// CopyOut copies src to host bytes.
	CopyOut(dst []byte, src Mat)
	Record() Event
	Wait(Event)
	Synchronize() error
}

// Event marks a point of a stream.
type Event interface {
	Done() bool
	Wait() error
}
