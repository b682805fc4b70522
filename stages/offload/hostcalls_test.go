package offload

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/kerneltest"
)

// calling is an accelerator that makes host calls; the test is the device's side of them.
type calling struct {
	device.Accelerator
	refuse error // of NewHostCalls
	open   int   // memoryCalls
	last   *memoryCalls
}

func (d *calling) HostRows() bool { return false }

func (d *calling) NewHostCalls(o device.HostCallSize) (device.HostCalls, error) {
	if d.refuse != nil {
		return nil, d.refuse
	}
	d.open++
	d.last = &memoryCalls{dev: d, size: o, answers: make(chan int, 100)}
	d.last.last.Store(&numbered{})
	return d.last, nil
}

// memoryCalls is host calls in plain memory.
type memoryCalls struct {
	dev     *calling
	size    device.HostCallSize
	last    atomic.Pointer[numbered]
	before  atomic.Uint32
	answers chan int    // numbers of the step's calls
	late    atomic.Bool // what Err says
	pause   func(n int) // before a call is waited for; may be nil
}

// numbered is a call with its number.
type numbered struct {
	device.HostCall
	n uint32
}

func (m *memoryCalls) Begin() { m.before.Store(m.last.Load().n) }

func (m *memoryCalls) Await(n int, stop func() bool) (device.HostCall, bool) {
	want := m.before.Load() + uint32(n) + 1
	if m.pause != nil {
		m.pause(n)
	}
	for {
		call := m.last.Load()
		switch past := int32(call.n - want); {
		case past == 0:
			return call.HostCall, true
		case past > 0:
			return device.HostCall{}, true
		}
		if stop() {
			return device.HostCall{}, false
		}
		runtime.Gosched()
	}
}

func (m *memoryCalls) Answer(n int) {
	if n >= 0 { // else to what an earlier step asked
		m.answers <- n
	}
}

func (m *memoryCalls) Err() error {
	if m.late.Load() {
		return device.ErrLate
	}
	return nil
}

func (m *memoryCalls) Close() { m.dev.open-- }

// post sends a call that asks for nothing, or of two rows that ask for experts 1 and 2 and
// for 2 alone, and waits for its answer.
func (m *memoryCalls) post(t *testing.T, n int, asks bool) []float32 {
	t.Helper()
	if !asks {
		m.last.Store(&numbered{n: m.last.Load().n + 1})
		return nil
	}
	x := kerneltest.Normal(kerneltest.Rand(1), 2*m.size.Hidden, 1)
	ids, weights := make([]int32, 2*m.size.TopK), make([]float32, 2*m.size.TopK)
	for i := range ids {
		ids[i], weights[i] = -1, float32(i)+0.5
	}
	ids[1], ids[0], ids[m.size.TopK] = 1, 2, 2
	call := device.HostCall{Rows: 2, X: kerneltest.Bytes(x), IDs: ids, Weights: weights, Out: make([]float32, 2*m.size.Hidden)}
	m.last.Store(&numbered{call, m.last.Load().n + 1})
	select {
	case got := <-m.answers:
		if got != n {
			t.Fatalf("call %d is answered, want %d", got, n)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("call %d is not answered", n)
	}
	return slices.Clone(call.Out)
}

// callRig makes the calls of a model with two layers of experts, for the given number of servers.
func callRig(t *testing.T, servers int) (*rig, *calling, *HostCalls) {
	t.Helper()
	r := newRig(t)
	d := new(calling)
	r.accel = d
	l, err := r.NewHostCalls(8, servers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return r, d, l
}

// serve has everybody but those given answer a step, and gives what waits for them.
func (r *rig) serve(l *HostCalls, step uint64, but ...int) (wait func() error) {
	var wg sync.WaitGroup
	failed := make([]error, len(l.workspaces))
	for who := range l.workspaces {
		if slices.Contains(but, who) {
			continue
		}
		wg.Go(func() {
			s, _ := r.host.NewStream()
			failed[who] = l.Serve(step, s, who, func(e int32) bool { return int(e)%len(l.workspaces) == who }, nil)
		})
	}
	return func() error { wg.Wait(); return errors.Join(failed...) }
}

// whole runs a step in which both layers ask, and gives their answers.
func (r *rig) whole(t *testing.T, m *memoryCalls, l *HostCalls) (out [2][]float32) {
	t.Helper()
	wait := r.serve(l, l.Begin(2))
	for n := range out {
		out[n] = m.post(t, n, true)
	}
	if err := errors.Join(l.End(), wait()); err != nil {
		t.Error(err)
	}
	return out
}

// TestHostCallsAnswers: the sums have the same bits whichever server computes them.
func TestHostCallsAnswers(t *testing.T) {
	var want [2][]float32
	for _, servers := range []int{1, 2, 5} {
		r, d, l := callRig(t, servers)
		got := r.whole(t, d.last, l)
		if servers == 1 {
			want = got
			if slices.Equal(got[0], got[1]) || slices.Max(got[0]) == 0 || slices.Max(got[1]) == 0 {
				t.Error("layers answer alike, or nothing")
			}
		}
		if !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
			t.Errorf("%d servers answer otherwise than one", servers)
		}
		if asked, there := r.Asked(); asked != 6 || there != int64(2*2*d.last.size.TopK-6) {
			t.Errorf("asked for %d choices, %d were there", asked, there)
		}
	}
}

// TestStraggler: one who has not seen yet that a step has ended when the next one begins
// leaves it alone, and the next one is served by all.
func TestStraggler(t *testing.T) {
	r, d, l := callRig(t, 2)
	want := r.whole(t, d.last, l)
	begun, held := make(chan struct{}), make(chan struct{}, 1)
	var once atomic.Bool
	d.last.pause = func(n int) {
		if n == 1 && once.CompareAndSwap(false, true) {
			held <- struct{}{}
			<-begun
		}
	}
	wait := r.serve(l, l.Begin(2))
	d.last.post(t, 0, true)
	<-held
	d.last.post(t, 1, false)
	if err := l.End(); err != nil {
		t.Error(err)
	}
	again := r.serve(l, l.Begin(2)) // what follows the mailbox of an actor comes behind the former
	close(begun)
	if err := wait(); err != nil {
		t.Error(err)
	}
	for n := range want {
		if got := d.last.post(t, n, true); !slices.Equal(got, want[n]) {
			t.Errorf("call %d of the next step has another answer", n)
		}
	}
	if err := errors.Join(l.End(), again()); err != nil {
		t.Error(err)
	}
}

// TestStragglerBetweenCalls: the same for one who looks up between two calls.
func TestStragglerBetweenCalls(t *testing.T) {
	r, d, l := callRig(t, 2)
	want := r.whole(t, d.last, l)
	step := l.Begin(2)
	wait := r.serve(l, step, 1)
	d.last.post(t, 0, false)
	d.last.post(t, 1, false)
	if err := errors.Join(l.End(), wait()); err != nil {
		t.Error(err)
	}
	again := r.serve(l, l.Begin(2), 1)
	s, _ := r.host.NewStream()
	owns := func(e int32) bool { return e%2 == 1 }
	if err := l.Serve(step, s, 1, owns, nil); err != nil { // the one who comes too late
		t.Error(err)
	}
	late := make(chan error)
	go func() { late <- l.Serve(step+1, s, 1, owns, nil) }()
	for n := range want {
		if got := d.last.post(t, n, true); !slices.Equal(got, want[n]) {
			t.Errorf("call %d of the next step has another answer", n)
		}
	}
	if err := errors.Join(l.End(), again(), <-late); err != nil {
		t.Error(err)
	}
}

// faulty is a host whose work of experts panics while it is told to.
type faulty struct {
	Host
	on atomic.Bool
}

func (f *faulty) Run(s device.Stream, l device.List) {
	if f.on.Load() && l.Ops[0].Kind == device.OpExperts {
		panic("injected")
	}
	f.Host.Run(s, l)
}

// TestServerFails: the device is not kept waiting, who waits for the step learns of it, and
// the next one is right.
func TestServerFails(t *testing.T) {
	r, d, l := callRig(t, 2)
	want := r.whole(t, d.last, l)
	f := &faulty{Host: r.Experts.host}
	r.Experts.host = f
	f.on.Store(true)
	wait := r.serve(l, l.Begin(2))
	d.last.post(t, 0, true)
	d.last.post(t, 1, true)
	if err := l.End(); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Errorf("the step: %v", err)
	}
	if err := wait(); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Errorf("those who served: %v", err)
	}
	f.on.Store(false)
	if got := r.whole(t, d.last, l); !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
		t.Error("the next step has other answers")
	}
	d.last.late.Store(true)
	if err := l.End(); !errors.Is(err, device.ErrLate) {
		t.Errorf("an answer that was late: %v", err)
	}
}

// TestDismiss: a step that nobody serves comes to its end.
func TestDismiss(t *testing.T) {
	r, d, l := callRig(t, 2)
	want := r.whole(t, d.last, l)
	fault := errors.New("the device's")
	if err := l.Dismiss(func() error {
		d.last.post(t, 0, true)
		d.last.post(t, 1, true)
		return fault
	}); err != fault {
		t.Errorf("%v", err)
	}
	if err := l.Dismiss(func() error { return nil }); err != nil { // of a step that has not got to its calls
		t.Error(err)
	}
	if got := r.whole(t, d.last, l); !slices.Equal(got[0], want[0]) {
		t.Error("the next step has other answers")
	}
}

// TestQuit: all servers return, and the step in flight and those behind it end without results,
// even if one of the servers is gone.
func TestQuit(t *testing.T) {
	r, d, l := callRig(t, 3)
	want := r.whole(t, d.last, l)
	wait := r.serve(l, l.Begin(2), 2)
	go func() {
		for l.arrived[0].Load() < 2 {
			runtime.Gosched()
		}
		l.Quit() // call 0 is with one who is gone
	}()
	if got := d.last.post(t, 0, true); slices.Equal(got, want[0]) {
		t.Error("a third is missing, and the answer is right")
	}
	d.last.post(t, 1, true)
	if err := wait(); err != nil {
		t.Error(err)
	}
	if err := l.End(); !errors.Is(err, errQuit) {
		t.Errorf("the step: %v", err)
	}
	wait = r.serve(l, l.Begin(2))
	d.last.post(t, 0, true)
	d.last.post(t, 1, true)
	if err := errors.Join(wait(), l.End()); !errors.Is(err, errQuit) {
		t.Errorf("the next step: %v", err)
	}
	l.Quit()
}

// TestQuitIdle: without a step there is nothing to wait for.
func TestQuitIdle(t *testing.T) {
	_, _, l := callRig(t, 1)
	begin := time.Now()
	l.Quit()
	l.Close()
	if took := time.Since(begin); took > quitLimit/2 {
		t.Errorf("it took %v", took)
	}
}

// scarce is a host of which the n-th allocation from now on is refused.
type scarce struct {
	Host
	left, open int
}

func (h *scarce) Alloc(n int) (device.Buffer, error) {
	if h.left--; h.left == 0 {
		return nil, fmt.Errorf("injected: %w", device.ErrOutOfMemory)
	}
	b, err := h.Host.Alloc(n)
	if err == nil {
		h.open++
		b = &counted{b, h}
	}
	return b, err
}

type counted struct {
	device.Buffer
	of *scarce
}

func (b *counted) Free() { b.of.open--; b.Buffer.Free() }

// TestHostCallsRefused: whatever is refused, nothing is left behind.
func TestHostCallsRefused(t *testing.T) {
	r := newRig(t)
	h, d := &scarce{Host: r.Experts.host}, new(calling)
	r.Experts.host, r.accel = h, d
	for nth := 1; ; nth++ {
		h.left = nth
		l, err := r.NewHostCalls(8, 2)
		if err == nil {
			if l.Close(); nth < 4 || h.open != 0 || d.open != 0 {
				t.Errorf("after %d allocations %d buffers and %d mailboxes are open", nth-1, h.open, d.open)
			}
			break
		}
		if !errors.Is(err, device.ErrOutOfMemory) || h.open != 0 || d.open != 0 {
			t.Errorf("allocation %d: %v, %d buffers and %d mailboxes are open", nth, err, h.open, d.open)
		}
	}
	h.left = 0
	d.refuse = errors.New("no mailbox")
	if _, err := r.NewHostCalls(8, 2); !errors.Is(err, d.refuse) || h.open != 0 {
		t.Errorf("%v, %d buffers are open", err, h.open)
	}
	r.accel = nil
	if _, err := r.NewHostCalls(8, 2); err == nil || h.open != 0 {
		t.Errorf("a device that asks nobody: %v, %d buffers are open", err, h.open)
	}
}
