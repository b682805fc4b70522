package offload

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages"
	"krater/stages/model"
)

// HostCalls let an accelerator request missing experts from the host in the middle of a batch's
// step, one call for each layer. The host need not read the router's choice before it enqueues
// the layer, so the device can still replay the step.
//
// The goroutine that enqueues a layer calls Post before the device's part of the layer and Take
// after it. The goroutine that submits the step calls Begin first, and End when it has waited for
// the step. Meanwhile the given number of servers (NewHostCalls) each run a Server.
type HostCalls struct {
	x          *Experts
	calls      device.HostCalls
	layers     []int // [calls] the layer of each
	topK       int
	rowType    tensor.DType
	each       bool       // the answer of a call is rows of experts, and not their sum
	out        device.Mat // [rows*K, H] F32, on the host: rows of experts, from all servers; absent with each
	workspaces []*workspace
	arrived    []atomic.Int32        // [calls] servers that have done their part
	step       atomic.Uint64         // number of calls of Begin
	stepped    atomic.Int64          // rows of the current step
	over       atomic.Bool           // no step waits for answers
	quit       atomic.Bool           // no step will again
	blanks     sync.WaitGroup        // goroutines that answer without computing
	cause      atomic.Pointer[error] // the first failure of a server
}

// workspace is the memory of one server.
type workspace struct {
	st     stages.State
	in     device.Mat   // [rows, H] F32
	q      device.QRows // absent where no expert is kept as integers
	direct device.Mat   // with each: the memory of the last answer
	counts []int32      // [E]
	assign []int32      // [rows*K]
	work   []device.ExpertRows
}

// answerLimit is the time after which the device stops waiting for an answer, so that a host that hangs
// causes an error. A working host may take seconds, because the servers may be computing a layer of
// another batch with thousands of rows.
const answerLimit = 30 * time.Second

// NewHostCalls makes the calls of a batch, each of up to rows rows.
func (x *Experts) NewHostCalls(rows, servers int) (*HostCalls, error) {
	cfg := x.parts.Config
	h := &HostCalls{x: x, layers: x.Layers(), topK: cfg.MoE.Router.TopK, rowType: device.RowType(device.LayoutOf(x.dev))}
	if x.accel == nil {
		return nil, fmt.Errorf("offload: %s makes no host calls", x.dev.Name())
	}
	h.each = x.AnswersRows()
	h.arrived = make([]atomic.Int32, len(h.layers))
	h.over.Store(true) // there is no step yet
	err := h.room(rows, servers)
	if err == nil {
		h.calls, err = x.accel.NewHostCalls(device.HostCallSize{Rows: rows, Hidden: cfg.Hidden, TopK: h.topK, Limit: answerLimit, Each: h.each})
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("offload: host calls of %d rows: %w", rows, err)
	}
	return h, nil
}

func (h *HostCalls) room(rows, servers int) error {
	cfg, host := h.x.parts.Config, h.x.host
	var err error
	if !h.each {
		if h.out, err = device.AllocMat(host, tensor.F32, rows*h.topK, cfg.Hidden); err != nil {
			return err
		}
	}
	for range servers {
		d := &workspace{st: stages.State{Rows: new(stages.Rows)}, counts: make([]int32, cfg.MoE.Experts), assign: make([]int32, rows*h.topK), work: make([]device.ExpertRows, 0, cfg.MoE.Experts)}
		h.workspaces = append(h.workspaces, d)
		if d.in, err = device.AllocMat(host, tensor.F32, rows, cfg.Hidden); err != nil {
			return err
		}
		if group := h.x.QuantGroup(); group > 0 {
			if d.q, err = device.AllocQRows(host, rows, cfg.Hidden, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close frees the memory. No step with calls may run.
func (h *HostCalls) Close() {
	h.blanks.Wait()
	if h.calls != nil {
		h.calls.Close()
	}
	for _, d := range h.workspaces {
		if !d.in.Zero() {
			d.in.Buf.Free()
		}
		d.q.Free()
	}
	if !h.out.Zero() {
		h.out.Buf.Free()
	}
	h.calls, h.workspaces, h.out = nil, nil, device.Mat{}
}

// Post enqueues a call for the choices of st whose experts have a slot below 0 in slots [1, E].
func (h *HostCalls) Post(s device.Stream, st *stages.State, slots device.Mat) {
	p := st.On(h.x.dev, s, nil)
	p.AskHost(h.calls, st.Normed, st.RouterIDs, st.RouterWeights, slots)
	p.Send()
}

// Take enqueues the wait for the answer to the last Post, which is added to st.Hidden.
func (h *HostCalls) Take(s device.Stream, st *stages.State) {
	p := st.On(h.x.dev, s, nil)
	p.TakeAnswer(h.calls, st.Hidden)
	p.Send()
}

// TakeRows appends the wait for the answer to the last Post of the same slots, whose rows are written to
// st.ExpertOut, where AnswersRows says so.
func (h *HostCalls) TakeRows(p *stages.Program, st *stages.State, slots device.Mat) {
	p.TakeRows(h.calls, st.ExpertOut, st.RouterIDs, slots)
}

// Begin begins a step with the given number of rows and returns the number of the step, for its
// servers. It must be called before the step is enqueued, when the step before has ended.
func (h *HostCalls) Begin(rows int) (step uint64) {
	step = h.step.Add(1) // before the calls are counted anew, see Server
	h.stepped.Store(int64(rows))
	for i := range h.arrived {
		h.arrived[i].Store(0)
	}
	h.cause.Store(nil)
	h.over.Store(false)
	h.calls.Begin()
	if h.quit.Load() {
		h.abort()
	}
	return step
}

// errQuit: the step is invalid because its calls were answered without computing during shutdown.
var errQuit = errors.New("offload: host calls are not answered any more")

// quitLimit is the time within which a step without servers must end.
const quitLimit = 5 * time.Second

// Quit ends the service for good: all servers return, and the calls that a running step still
// makes are answered without computing, so that it ends. It may be called at any time.
func (h *HostCalls) Quit() {
	if !h.quit.Swap(true) && !h.over.Load() {
		h.abort()
	}
}

// abort answers the remaining calls of the current step without computing.
func (h *HostCalls) abort() {
	h.fail(errQuit)
	end := time.Now().Add(quitLimit)
	h.blanks.Go(func() { h.blank(func() bool { return h.over.Load() || time.Now().After(end) }) })
}

// blank answers the open calls of a step without computing. Their rows are arbitrary.
func (h *HostCalls) blank(stop func() bool) {
	for n := range h.layers {
		call, ok := h.calls.Await(n, stop)
		if !ok {
			return
		}
		if call.Rows > 0 {
			h.calls.Answer(n)
		}
	}
}

// End must be called when a step has ended. Its error says why the step's results are invalid.
func (h *HostCalls) End() error {
	h.over.Store(true)
	if err := h.cause.Load(); err != nil {
		return *err
	}
	return h.calls.Err()
}

// Stop ends the servers of a step that is lost but has not ended: see Dismiss.
func (h *HostCalls) Stop() { h.over.Store(true) }

// Serve answers all calls of a step as one server. It returns after the last one, or when the
// step has ended.
func (h *HostCalls) Serve(step uint64, s device.Stream, who int, owns func(expert int32) bool, tell Teller) error {
	v := h.Server(step, s, who, owns, tell)
	for !v.Next(func() bool { return false }) {
	}
	return v.Err()
}

// Progress is the progress of a server with a call.
type Progress uint8

// The values, in order. A server without experts to compute skips Gathered and Computed.
const (
	Came     Progress = iota // the call has come
	Gathered                 // its rows are listed by expert, in the form that products take
	Computed                 // the experts are computed
	Answered                 // the server has done its part; the last server has sent the answer
)

// Teller is called with the progress of a server in a layer's call with the given number of rows.
// The server waits for it.
type Teller func(layer, rows int, at Progress)

// Server answers the calls of a step, one after another, together with the other servers.
type Server struct {
	h    *HostCalls
	step uint64
	s    device.Stream
	who  int // the server's number, from 0
	owns func(expert int32) bool
	tell Teller
	n    int // the next call
	fail error
}

// Server makes a server of a step for the experts for which owns reports true, on a stream of the
// host. tell may be nil.
//
// A step may end, and the next one begin, before every server has seen that the last calls request no
// rows. Such a server is done when it polls again.
func (h *HostCalls) Server(step uint64, s device.Stream, who int, owns func(expert int32) bool, tell Teller) Server {
	return Server{h: h, step: step, s: s, who: who, owns: owns, tell: tell}
}

// ended reports whether the step does not wait for the server any more.
func (v *Server) ended() bool {
	return v.h.over.Load() || v.h.quit.Load() || v.h.step.Load() != v.step
}

// Next answers the next call. It polls for the call, and every few microseconds gives up if stop
// reports true. done means that there are no more calls, or that the step has ended.
func (v *Server) Next(stop func() bool) (done bool) {
	h := v.h
	if v.n == len(h.layers) {
		return true
	}
	call, ok := h.calls.Await(v.n, func() bool {
		runtime.Gosched() // there may be fewer cores than servers that poll
		return v.ended() || stop()
	})
	switch {
	case h.quit.Load() || h.step.Load() != v.step: // else the call is of this step, which waits for it
		return true
	case !ok:
		return h.over.Load()
	}
	n, layer := v.n, h.layers[v.n]
	v.n++
	if v.who == 0 {
		h.count(&call)
	}
	if call.Rows > 0 {
		v.answer(n, layer, &call)
	}
	return v.n == len(h.layers)
}

// answer does the server's part of a call. A failure becomes the step's cause, and the device
// still gets an answer.
func (v *Server) answer(n, layer int, call *device.HostCall) {
	h, rows := v.h, call.Rows
	at := func(m Progress) {
		if v.tell != nil {
			v.tell(layer, rows, m)
		}
	}
	at(Came)
	if v.fail == nil {
		if v.fail = h.workspaces[v.who].compute(h, v.s, layer, call, v.owns, at); v.fail != nil {
			h.fail(v.fail)
		}
	}
	if int(h.arrived[n].Add(1)) == len(h.workspaces) && !h.quit.Load() {
		v.sum(call)
		h.calls.Answer(n)
	}
	at(Answered)
}

// Err returns why the server could not do its part, nil if it could.
func (v *Server) Err() error { return v.fail }

// Abandon ends a server in the middle of a step, which is lost. It still answers the calls, but
// computes no experts.
func (v *Server) Abandon(cause error) {
	v.fail, v.tell = cause, nil
	v.h.fail(cause)
	for !v.Next(func() bool { return false }) {
	}
}

// fail records why a step is lost.
func (h *HostCalls) fail(cause error) { h.cause.CompareAndSwap(nil, &cause) }

// count adds a call to the totals of Asked.
func (h *HostCalls) count(call *device.HostCall) {
	asked := 0
	for _, e := range call.IDs {
		if e >= 0 {
			asked++
		}
	}
	h.x.asked.Add(int64(asked))
	h.x.there.Add(h.stepped.Load()*int64(h.topK) - int64(asked))
}

// Asked returns the number of choices of experts that the device has requested by host calls, and the
// number that it has computed itself in the same steps.
func (x *Experts) Asked() (asked, there int64) { return x.asked.Load(), x.there.Load() }

// Dismiss answers all calls without computing while wait waits for the end of an abandoned step, which
// has no servers.
func (h *HostCalls) Dismiss(wait func() error) error {
	h.Begin(0)
	h.calls.Answer(-1) // the last call may be without an answer
	var served sync.WaitGroup
	served.Go(func() { h.blank(h.over.Load) })
	err := wait()
	h.over.Store(true)
	served.Wait()
	return err
}

// compute does a server's part of a call.
func (d *workspace) compute(h *HostCalls, s device.Stream, layer int, call *device.HostCall, owns func(int32) bool, at func(Progress)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("experts of layer %d: %w\n%s", layer, files.Caught(r), debug.Stack())
		}
	}()
	work := d.split(call.IDs, owns)
	if len(work) == 0 {
		return nil
	}
	d.st.T = call.Rows
	d.st.Normed = d.in.RowRange(0, call.Rows)
	if err := tensor.Widen(d.st.Normed.F32s(), h.rowType, call.X); err != nil {
		return err
	}
	d.st.Input = stages.NewInput(d.st.Normed, d.q)
	if d.st.ExpertOut, err = d.results(h, call); err != nil {
		return err
	}
	d.st.RouterIDs.Cols = h.topK
	h.x.prepare(s, &d.st, layer)
	at(Gathered)
	h.x.Compute(s, &d.st, layer, work)
	err = s.Synchronize()
	at(Computed)
	return err
}

// results is where rows of a call are written to.
func (d *workspace) results(h *HostCalls, call *device.HostCall) (device.Mat, error) {
	n := call.Rows * h.topK
	if !h.each {
		return h.out.RowRange(0, n), nil
	}
	if out := call.Out[:n*h.x.parts.Config.Hidden]; d.direct.Zero() || len(out) != len(d.direct.F32s()) || &out[0] != &d.direct.F32s()[0] {
		b, err := h.x.host.Wrap(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), 4*len(out)))
		if err != nil {
			return device.Mat{}, err
		}
		d.direct = device.NewMat(b, tensor.F32, n, h.x.parts.Config.Hidden)
	}
	return d.direct, nil
}

// split lists a server's rows of a call by expert, experts and rows in rising order.
func (d *workspace) split(ids []int32, owns func(int32) bool) []device.ExpertRows {
	clear(d.counts)
	for _, e := range ids {
		if e >= 0 {
			d.counts[e]++
		}
	}
	d.work = d.work[:0]
	from := int32(0)
	for e, n := range d.counts {
		if n == 0 {
			continue
		}
		if owns(int32(e)) {
			d.work = append(d.work, device.ExpertRows{Expert: int32(e), Assign: d.assign[from : from+n : from+n]})
		}
		d.counts[e] = from
		from += n
	}
	for a, e := range ids {
		if e >= 0 {
			d.assign[d.counts[e]] = int32(a)
			d.counts[e]++
		}
	}
	return d.work
}

// sum writes the answer of a call: the rows of a token added in the order of its choices, whichever
// server computed them. The answer in a lost step is zeros. With each the servers have written it.
func (v *Server) sum(call *device.HostCall) {
	h, n := v.h, call.Rows*v.h.topK
	if h.each {
		return
	}
	err := errQuit
	if h.cause.Load() == nil {
		err = h.x.addUp(v.s, call.Out[:call.Rows*h.out.Cols], h.out.RowRange(0, n), call.Weights[:n], call.IDs[:n])
	}
	if err != nil {
		clear(call.Out)
		h.fail(err)
	}
}

// addUp sums rows on the host and waits for that. It returns a panic as an error.
func (x *Experts) addUp(s device.Stream, out []float32, y device.Mat, weights []float32, ids []int32) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the sum of experts: %v\n%s", r, debug.Stack())
		}
	}()
	x.host.WeightedSumOf(s, out, y, weights, ids)
	return s.Synchronize()
}

// HostCallBytes returns the host memory that NewHostCalls allocates; group is as for MirrorBytes.
func HostCallBytes(cfg *model.Config, rows, servers, group int) int64 {
	n := int64(rows) * int64(cfg.Hidden) * (4*int64(cfg.MoE.Router.TopK) + 8) // rows of experts, and of calls
	one := 4 * int64(rows) * int64(cfg.Hidden)
	if group > 0 {
		one += int64(device.QRowsBytes(rows, cfg.Hidden, group))
	}
	return n + int64(servers)*one
}
