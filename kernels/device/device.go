// Package device is the contract between the stages and the hardware that runs them
// (kernels/cpu, kernels/cuda, kernels/hostsim). It defines memory, the order of work, and operators.
// Operators are data: stages make lists of them (op.go), and a device computes the lists.
package device

// Device owns memory and runs operators on it.
//
// A type that wraps a device embeds it and overrides the methods that it observes, mostly Run. So it
// keeps all other behaviour: fusions, and the operations of an accelerator.
//
// Alloc, Wrap and Memory are safe for concurrent use. Streams of one device may run at the same
// time; one Stream belongs to one goroutine at a time.
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
	// Run enqueues the operators of l on s, in order. Arguments that do not fit cause a panic with
	// *ShapeError before that operator writes anything. The list may change once Run returns;
	// what its arguments point to (weights, sizes) must not.
	Run(s Stream, l List)
	// Fused returns the number of operators at the start of l that the device computes as one, at least
	// 1. A wrapper that times or counts operators calls it.
	Fused(l List) int
	// Accelerator returns the device's further operations if it is an accelerator, else nil.
	Accelerator() Accelerator
	Memory() Memory
	Close() error
}

// Memory counts bytes. Total is the device's budget, 0 if it is unlimited. Graphs is the number of steps
// that the device keeps as graphs, for which the driver uses host memory.
type Memory struct {
	Total, Used int64
	Graphs      int
}

// Buffer is a piece of one device's memory.
type Buffer interface {
	Size() int
	// Host returns the memory itself if the host can address it, else nil.
	Host() []byte
	Free()
}

// Upload copies host bytes to dst, on a stream of its own, and waits.
func Upload(dev Device, dst Mat, src []byte) error {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	s.CopyIn(dst, src)
	return s.Synchronize()
}

// Stream orders work on a device. On the CPU an operator is complete when its
// call returns. On other devices the call only enqueues it, and the host may read
// the results after Synchronize or an Event. The next Synchronize returns the
// error of an enqueued operator.
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

	// Repeat begins a step, after the copies of its inputs. All work enqueued until the next Synchronize
	// must depend on key alone; key is 0 for a step that will not come again. If Repeat reports true,
	// the stream has replayed the whole step except for copies to the host, and nothing may be
	// enqueued. Only accelerators replay steps.
	Repeat(key uint64) bool
	// Submit sends the enqueued work to the device; a Synchronize that follows only waits. The work of an
	// accelerator's stream from one Submit (or Synchronize, or Record) to the next runs in one piece:
	// no work of other streams comes in between, so streams may share the scratch memory of stages.
	// Steps run in the order in which they are submitted.
	Submit()
	// Recover makes the stream usable again after a batch was abandoned. It drops work that was not sent
	// to the device and waits for work that was sent. The results of the lost work are undefined. An
	// error means that the device is lost; a device that does not know yet returns the error on the next
	// use. No other goroutine may use the stream meanwhile.
	Recover() error
	// Clock reads the device's clock at points of the stream. It is nil for a device without one.
	Clock() Clock
	// Close frees what the stream holds; its work must be done.
	Close()
}

// Event marks a point of a stream.
type Event interface {
	Done() bool
	// Wait waits until the device has passed the point. If the stream had failed before the point, Wait
	// returns the cause after all work sent to the device before has ended.
	Wait() error
	// Err returns the error of the stream when the event was recorded, nil if it had not failed. Such an
	// error is a call that the driver refused while the device works on. A device that fails as a whole
	// reports that in Wait and Synchronize only.
	Err() error
}

// Immediate implements the methods that have nothing to do for a stream whose work is complete when the
// call returns. Such streams embed it.
type Immediate struct{}

// Record returns an event that has passed.
func (Immediate) Record() Event { return passed{} }

// Wait returns at once: work of other streams was complete when it was enqueued.
func (Immediate) Wait(Event) {}

// Synchronize has nothing to wait for.
func (Immediate) Synchronize() error { return nil }

// Repeat reports false.
func (Immediate) Repeat(uint64) bool { return false }

// Submit does nothing.
func (Immediate) Submit() {}

// Recover does nothing.
func (Immediate) Recover() error { return nil }

// Clock returns nil.
func (Immediate) Clock() Clock { return nil }

// Close does nothing.
func (Immediate) Close() {}

// passed is the event of work that is complete.
type passed struct{}

func (passed) Done() bool  { return true }
func (passed) Wait() error { return nil }
func (passed) Err() error  { return nil }
