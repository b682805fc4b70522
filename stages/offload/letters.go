package offload

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages"
	"krater/stages/model"
)

// Letters are how an accelerator asks the host for experts that it has not got, layer by
// layer, in the middle of a batch's steps: nobody has to learn the router's choice, and a step
// that comes again stays one that the device repeats by itself.
//
// Whoever enqueues a layer calls Post before what the device computes of it and Take behind.
// Whoever submits the step calls Begin first; those who serve, as many as were said, each
// have a Server meanwhile; who has waited for the step calls End.
type Letters struct {
	x       *Experts
	mail    device.Mail
	layers  []int // of letter n
	topK    int
	rowType tensor.DType
	out     device.Mat // [rows*K, H] F32, on the host: rows of experts, whoever computed them
	desks   []*desk
	arrived []atomic.Int32        // [letters] who have done their part
	step    atomic.Uint64         // counts Begin
	stepped atomic.Int64          // rows of the step in hand
	over    atomic.Bool           // nobody waits for answers any more
	quit    atomic.Bool           // nor will anybody
	blanks  sync.WaitGroup        // of blank answers to steps in hand
	cause   atomic.Pointer[error] // the first failure of those who serve
}

// desk is the room of one who serves.
type desk struct {
	st     stages.State
	in     device.Mat   // [rows, H] F32
	q      device.QRows // absent where no expert is kept as integers
	counts []int32      // [E]
	assign []int32      // [rows*K]
	work   []device.ExpertRows
}

// answerLimit is how long the device waits for an answer, so that a host that is not well ends
// in an error and never hangs. One that is well may take seconds: those who serve may have a
// layer of another batch in hand, of thousands of rows.
const answerLimit = 30 * time.Second

// NewLetters makes letters of up to rows rows for a batch, which so many serve.
func (x *Experts) NewLetters(rows, servers int) (*Letters, error) {
	cfg := x.parts.Config
	l := &Letters{x: x, layers: x.Layers(), topK: cfg.MoE.Router.TopK, rowType: device.RowType(device.LayoutOf(x.dev))}
	if x.accel == nil {
		return nil, fmt.Errorf("offload: %s makes no host calls", x.dev.Name())
	}
	l.arrived = make([]atomic.Int32, len(l.layers))
	l.over.Store(true) // no step is on its way
	err := l.room(rows, servers)
	if err == nil {
		l.mail, err = x.accel.NewMail(device.MailSize{Rows: rows, Hidden: cfg.Hidden, TopK: l.topK, Limit: answerLimit})
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("offload: letters of %d rows: %w", rows, err)
	}
	return l, nil
}

func (l *Letters) room(rows, servers int) error {
	cfg, host := l.x.parts.Config, l.x.host
	var err error
	if l.out, err = device.AllocMat(host, tensor.F32, rows*l.topK, cfg.Hidden); err != nil {
		return err
	}
	for range servers {
		d := &desk{st: stages.State{Rows: new(stages.Rows)}, counts: make([]int32, cfg.MoE.Experts), assign: make([]int32, rows*l.topK), work: make([]device.ExpertRows, 0, cfg.MoE.Experts)}
		l.desks = append(l.desks, d)
		if d.in, err = device.AllocMat(host, tensor.F32, rows, cfg.Hidden); err != nil {
			return err
		}
		if group := l.x.QuantGroup(); group > 0 {
			if d.q, err = device.AllocQRows(host, rows, cfg.Hidden, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close frees the memory. No step that has letters may run.
func (l *Letters) Close() {
	l.blanks.Wait()
	if l.mail != nil {
		l.mail.Close()
	}
	for _, d := range l.desks {
		if !d.in.Zero() {
			d.in.Buf.Free()
		}
		d.q.Free()
	}
	if !l.out.Zero() {
		l.out.Buf.Free()
	}
	l.mail, l.desks, l.out = nil, nil, device.Mat{}
}

// Post enqueues that the host is asked for the choices of st whose experts where [1, E] has
// below 0.
func (l *Letters) Post(s device.Stream, st *stages.State, where device.Mat) {
	p := st.On(l.x.dev, s, nil)
	p.AskHost(l.mail, st.Normed, st.RouterIDs, st.RouterWeights, where)
	p.Send()
}

// Take enqueues that st.Hidden gets what the host answers to the last Post.
func (l *Letters) Take(s device.Stream, st *stages.State) {
	p := st.On(l.x.dev, s, nil)
	p.TakeAnswer(l.mail, st.Hidden)
	p.Send()
}

// Begin is called before a step of so many rows is enqueued, when the former one has ended. It
// gives the step for those who serve it.
func (l *Letters) Begin(rows int) (step uint64) {
	step = l.step.Add(1) // before the numbers of letters change, see Server
	l.stepped.Store(int64(rows))
	for i := range l.arrived {
		l.arrived[i].Store(0)
	}
	l.cause.Store(nil)
	l.over.Store(false)
	l.mail.Begin()
	if l.quit.Load() {
		l.abort()
	}
	return step
}

// errQuit is why the results of a step are of no use whose letters got blank answers.
var errQuit = errors.New("offload: nobody answers letters any more")

// quitLimit is how long a step may take to its end once nobody serves it.
const quitLimit = 5 * time.Second

// Quit ends the service, for good: all who serve return, and what the device still asks in a
// step on its way gets blank answers, so that it ends. It may be called at any time.
func (l *Letters) Quit() {
	if !l.quit.Swap(true) && !l.over.Load() {
		l.abort()
	}
}

// abort gives the letters of the step in hand blank answers.
func (l *Letters) abort() {
	l.fail(errQuit)
	end := time.Now().Add(quitLimit)
	l.blanks.Go(func() { l.blank(func() bool { return l.over.Load() || time.Now().After(end) }) })
}

// blank answers all letters of a step that are not answered, without computing anything.
func (l *Letters) blank(stop func() bool) {
	for n := range l.layers {
		letter, ok := l.mail.Await(n, stop)
		if !ok {
			return
		}
		if letter.Rows > 0 {
			l.mail.Answer(n)
		}
	}
}

// End is called when a step has ended; it answers why its results are of no use, nil if they
// are.
func (l *Letters) End() error {
	l.over.Store(true)
	if err := l.cause.Load(); err != nil {
		return *err
	}
	return l.mail.Err()
}

// Stop has the servers of a step leave, which is lost and has not ended: see Dismiss.
func (l *Letters) Stop() { l.over.Store(true) }

// Serve answers all letters of a step as one server: it returns behind the last one, or when
// the step has ended.
func (l *Letters) Serve(step uint64, s device.Stream, who int, owns func(expert int32) bool, tell Teller) error {
	v := l.Server(step, s, who, owns, tell)
	for !v.Next(func() bool { return false }) {
	}
	return v.Err()
}

// Moment is how far a server is with a letter.
type Moment uint8

// The moments, in order. Only a server that has experts to compute comes past Gathered and
// Computed.
const (
	Came     Moment = iota // the letter is there
	Gathered               // its rows are listed by expert, and as products take them
	Computed               // the experts are
	Answered               // and so is the letter, by the last of those who serve; the others have done their part
)

// Teller is told how far a server is with the letter of a layer, of so many rows. The server
// waits for it.
type Teller func(layer, rows int, at Moment)

// Server answers the letters of a step, one after the other, as one of those who do.
type Server struct {
	l    *Letters
	step uint64
	s    device.Stream
	who  int
	owns func(expert int32) bool
	tell Teller
	n    int // the next letter
	fail error
}

// Server makes a server of a step: for the experts that owns says, on a stream of the host.
// tell, if there is one, is called at every moment of a letter.
//
// A step may end, and the next one begin, before every server has seen that its last letters
// ask for nothing: who looks up then is done.
func (l *Letters) Server(step uint64, s device.Stream, who int, owns func(expert int32) bool, tell Teller) Server {
	return Server{l: l, step: step, s: s, who: who, owns: owns, tell: tell}
}

// ended reports whether nobody waits for the server.
func (v *Server) ended() bool {
	return v.l.over.Load() || v.l.quit.Load() || v.l.step.Load() != v.step
}

// Next answers the next letter. It burns its core until that is there, or until stop answers
// true, which is asked every few microseconds. done: there are no more, or the step has ended.
func (v *Server) Next(stop func() bool) (done bool) {
	l := v.l
	if v.n == len(l.layers) {
		return true
	}
	letter, ok := l.mail.Await(v.n, func() bool {
		runtime.Gosched() // with fewer cores than those who spin, all have to come on
		return v.ended() || stop()
	})
	switch {
	case l.quit.Load() || l.step.Load() != v.step: // else the letter is of this step, which waits for it
		return true
	case !ok:
		return l.over.Load()
	}
	n, layer := v.n, l.layers[v.n]
	v.n++
	if v.who == 0 {
		l.count(&letter)
	}
	if letter.Rows > 0 {
		v.answer(n, layer, &letter)
	}
	return v.n == len(l.layers)
}

// answer does the server's part of a letter. What fails is the step's cause, and does not keep
// the device waiting.
func (v *Server) answer(n, layer int, letter *device.Letter) {
	l, rows := v.l, letter.Rows
	at := func(m Moment) {
		if v.tell != nil {
			v.tell(layer, rows, m)
		}
	}
	at(Came)
	if v.fail == nil {
		if v.fail = l.desks[v.who].compute(l, v.s, layer, letter, v.owns, at); v.fail != nil {
			l.fail(v.fail)
		}
	}
	if int(l.arrived[n].Add(1)) == len(l.desks) && !l.quit.Load() {
		v.sum(letter)
		l.mail.Answer(n)
	}
	at(Answered)
}

// Err is why the server could not do its part.
func (v *Server) Err() error { return v.fail }

// Abandon ends a server in the middle of a step, which is lost: letters are still answered,
// without their experts.
func (v *Server) Abandon(cause error) {
	v.fail, v.tell = cause, nil
	v.l.fail(cause)
	for !v.Next(func() bool { return false }) {
	}
}

// fail notes why a step is lost.
func (l *Letters) fail(cause error) { l.cause.CompareAndSwap(nil, &cause) }

// count adds a letter to what the model's experts were asked.
func (l *Letters) count(letter *device.Letter) {
	asked := 0
	for _, e := range letter.IDs {
		if e >= 0 {
			asked++
		}
	}
	l.x.asked.Add(int64(asked))
	l.x.there.Add(l.stepped.Load()*int64(l.topK) - int64(asked))
}

// Asked is how many choices of experts the device has asked the host for, by letters, and how
// many it has had itself in the same steps.
func (x *Experts) Asked() (asked, there int64) { return x.asked.Load(), x.there.Load() }

// Dismiss answers all letters without computing anything while wait waits for a step that
// nobody needs any more and nobody serves.
func (l *Letters) Dismiss(wait func() error) error {
	l.Begin(0)
	l.mail.Answer(-1) // what was asked last, and perhaps not answered
	var served sync.WaitGroup
	served.Go(func() { l.blank(l.over.Load) })
	err := wait()
	l.over.Store(true)
	served.Wait()
	return err
}

// compute does a server's part of a letter.
func (d *desk) compute(l *Letters, s device.Stream, layer int, letter *device.Letter, owns func(int32) bool, at func(Moment)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("experts of layer %d: %w\n%s", layer, files.Caught(r), debug.Stack())
		}
	}()
	work := d.split(letter.IDs, owns)
	if len(work) == 0 {
		return nil
	}
	d.st.T = letter.Rows
	d.st.Normed = d.in.RowRange(0, letter.Rows)
	if err := tensor.Widen(d.st.Normed.F32s(), l.rowType, letter.X); err != nil {
		return err
	}
	d.st.Input = stages.NewInput(d.st.Normed, d.q)
	d.st.ExpertOut = l.out.RowRange(0, letter.Rows*l.topK)
	d.st.RouterIDs.Cols = l.topK
	l.x.prepare(s, &d.st, layer)
	at(Gathered)
	l.x.Compute(s, &d.st, layer, work)
	err = s.Synchronize()
	at(Computed)
	return err
}

// split lists a server's rows of a letter by expert, experts and rows rising.
func (d *desk) split(ids []int32, owns func(int32) bool) []device.ExpertRows {
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

// sum writes a letter's answer: by rank, whoever computed the rows. That of a step that is lost
// is blank.
func (v *Server) sum(letter *device.Letter) {
	l, n := v.l, letter.Rows*v.l.topK
	err := errQuit
	if l.cause.Load() == nil {
		err = l.x.addUp(v.s, letter.Out[:letter.Rows*l.out.Cols], l.out.RowRange(0, n), letter.Weights[:n], letter.IDs[:n])
	}
	if err != nil {
		clear(letter.Out)
		l.fail(err)
	}
}

// addUp sums rows on the host and waits for that; a panic is an error.
func (x *Experts) addUp(s device.Stream, out []float32, y device.Mat, weights []float32, ids []int32) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the sum of experts: %v\n%s", r, debug.Stack())
		}
	}()
	x.host.WeightedSumOf(s, out, y, weights, ids)
	return s.Synchronize()
}

// LettersBytes is what NewLetters takes of the host; group is as for MirrorBytes.
func LettersBytes(cfg *model.Config, rows, servers, group int) int64 {
	n := int64(rows) * int64(cfg.Hidden) * (4*int64(cfg.MoE.Router.TopK) + 8) // rows of experts, letters
	one := 4 * int64(rows) * int64(cfg.Hidden)
	if group > 0 {
		one += int64(device.QRowsBytes(rows, cfg.Hidden, group))
	}
	return n + int64(servers)*one
}
