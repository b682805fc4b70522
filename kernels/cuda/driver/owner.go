//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gorgonia.org/cu"
)

// ErrClosed is returned by Do after Close.
var ErrClosed = errors.New("the GPU's owner is closed")

// Owner is the one goroutine, on one locked thread, that talks to one GPU. All driver calls for
// the GPU go through Do, which runs closures one after another with the GPU's primary context
// current.
type Owner struct {
	jobs   chan job
	spin   atomic.Int64  // nanoseconds of polling for the next job before sleeping
	gone   chan struct{} // closed when the thread has ended
	mu     sync.RWMutex  // read-locked while a job is handed over, locked to close
	closed bool
}

type job struct {
	run  func() error
	done chan error
}

// NewOwner starts the owner of a GPU (0 is the first).
func NewOwner(gpu int) (*Owner, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	o := newOwner()
	started := make(chan error)
	go o.loop(gpu, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return o, nil
}

func newOwner() *Owner { return &Owner{jobs: make(chan job, 1), gone: make(chan struct{})} }

func (o *Owner) loop(gpu int, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	defer close(o.gone)
	d, err := cu.GetDevice(gpu)
	if err != nil {
		started <- fmt.Errorf("GPU %d: %w", gpu, err)
		return
	}
	ctx, err := d.RetainPrimaryCtx()
	if err == nil {
		err = cu.SetCurrentContext(ctx)
	}
	started <- err
	if err != nil {
		return
	}
	o.serve()
	_ = d.ReleasePrimaryCtx() // there is no caller to report it to
}

// serve runs jobs until Close. After an error that has ended the context it runs no more jobs: it
// returns that error for each.
func (o *Owner) serve() {
	var lost error
	for {
		j, ok := next(o.jobs, time.Duration(o.spin.Load()))
		if !ok {
			return
		}
		if lost != nil {
			j.done <- lost
			continue
		}
		err := guarded(j.run)
		if Sticky(err) {
			lost = fmt.Errorf("the GPU's context is lost: %w", err)
		}
		j.done <- err
	}
}

// guarded turns a panic into an error: the GPU may be fine, and its owner must go on serving the
// other callers.
func guarded(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic on the GPU's thread: %v\n%s", p, debug.Stack())
		}
	}()
	return run()
}

// SetSpin makes the owner and the callers of Do poll for that long before they sleep. Waking a
// sleeping locked thread takes about 20 us, a polling one about 1 us. Polling uses a whole core,
// so set it only while a batch is in progress.
func (o *Owner) SetSpin(d time.Duration) { o.spin.Store(int64(d)) }

// Do runs f on the owner's thread and returns its error. It blocks until f has run. Calling it
// from inside f deadlocks. After a job's error was Sticky, Do returns that error and runs
// nothing.
func (o *Owner) Do(f func() error) error {
	j := job{f, make(chan error, 1)}
	o.mu.RLock()
	if o.closed {
		o.mu.RUnlock()
		return ErrClosed
	}
	o.jobs <- j
	o.mu.RUnlock()
	err, _ := next(j.done, time.Duration(o.spin.Load()))
	return err
}

// Close lets the jobs handed over so far finish and ends the thread.
func (o *Owner) Close() {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.jobs)
	}
	o.mu.Unlock()
	<-o.gone
}
