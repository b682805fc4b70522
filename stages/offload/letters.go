package offload

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
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
	mailer  device.Mailer
	mail    device.Mail
	layers  []int // of letter n
	topK    int
	rowType tensor.DType
	out     device.Mat // [rows*K, H] F32, on the host: rows of experts, whoever computed them
	desks   []*desk
	arrived []atomic.Int32        // [letters] who have done their part
	stepped int                   // rows of the step in hand
	servers sync.WaitGroup        // of the step in hand
	over    atomic.Bool           // nobody waits for answers any more
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

// answerLimit is how long the device waits for an answer: far longer than any machine that is
// well takes, so that one that is not ends in an error and never hangs.
const answerLimit = 5 * time.Second

// NewLetters makes letters of up to rows rows for a batch, which so many serve.
func (x *Experts) NewLetters(rows, servers int) (*Letters, error) {
	cfg := x.parts.Config
	l := &Letters{x: x, layers: x.Layers(), topK: cfg.MoE.Router.TopK, rowType: device.RowType(device.LayoutOf(x.dev))}
	var ok bool
	if l.mailer, ok = x.dev.(device.Mailer); !ok {
		return nil, fmt.Errorf("offload: %s asks nobody", x.dev.Name())
	}
	l.arrived = make([]atomic.Int32, len(l.layers))
	err := l.room(rows, servers)
	if err == nil {
		l.mail, err = l.mailer.NewMail(device.MailSize{Rows: rows, Hidden: cfg.Hidden, TopK: l.topK, Limit: answerLimit})
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
		d := &desk{counts: make([]int32, cfg.MoE.Experts), assign: make([]int32, rows*l.topK), work: make([]device.ExpertRows, 0, cfg.MoE.Experts)}
		l.desks = append(l.desks, d)
		if d.in, err = device.AllocMat(host, tensor.F32, rows, cfg.Hidden); err != nil {
			return err
		}
		if group := l.x.quantGroup(); group > 0 {
			if d.q, err = device.AllocQRows(host, rows, cfg.Hidden, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close frees the memory. No step that has letters may run.
func (l *Letters) Close() {
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
	l.mailer.Post(s, l.mail, st.Normed, st.RouterIDs, st.RouterWeights, where)
}

// Take enqueues that st.Hidden gets what the host answers to the last Post.
func (l *Letters) Take(s device.Stream, st *stages.State) { l.mailer.Take(s, l.mail, st.Hidden) }

// Begin is called before a step of so many rows is submitted, when the former one has ended.
// As many servers as were said at first are to be made for it.
func (l *Letters) Begin(rows int) {
	l.servers.Add(len(l.desks))
	l.begin(rows)
}

func (l *Letters) begin(rows int) {
	l.stepped = rows
	for i := range l.arrived {
		l.arrived[i].Store(0)
	}
	l.cause.Store(nil)
	l.over.Store(false)
	l.mail.Begin()
}

// End is called when a step has ended; it answers why its results are of no use, nil if they
// are. It waits for the servers to see that: one that still looked for a last letter, of which
// the device wanted no answer, would take the next step's for it.
func (l *Letters) End() error {
	l.over.Store(true)
	l.servers.Wait()
	if err := l.cause.Load(); err != nil {
		return *err
	}
	return l.mail.Err()
}

// Stop has the servers of a step leave, which is lost and has not ended: see Dismiss.
func (l *Letters) Stop() { l.over.Store(true) }

// Server answers the letters of a step, one after the other, as one of those who do.
type Server struct {
	l     *Letters
	s     device.Stream
	who   int
	owns  func(expert int32) bool
	tell  func(layer, rows int, done bool)
	n     int // the next letter
	fail  error
	ended bool
}

// Server makes a server of the step in hand: for the experts that owns says, on a stream of
// the host. tell, if there is one, is called before and after the work of a letter.
func (l *Letters) Server(s device.Stream, who int, owns func(expert int32) bool, tell func(layer, rows int, done bool)) Server {
	return Server{l: l, s: s, who: who, owns: owns, tell: tell}
}

// Next answers the next letter. It burns its core until that is there, or until stop answers
// true, which is asked every few microseconds. done: there are no more, or the step has ended.
func (v *Server) Next(stop func() bool) (done bool) {
	done = v.next(stop)
	if done && !v.ended {
		v.ended = true
		v.l.servers.Done()
	}
	return done
}

func (v *Server) next(stop func() bool) (done bool) {
	l := v.l
	if v.n == len(l.layers) {
		return true
	}
	letter, ok := l.mail.Await(v.n, func() bool {
		runtime.Gosched() // with fewer cores than those who spin, all have to come on
		return l.over.Load() || stop()
	})
	if !ok {
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
	if v.tell != nil {
		v.tell(layer, rows, false)
	}
	if v.fail == nil {
		if v.fail = l.desks[v.who].compute(l, v.s, layer, letter, v.owns); v.fail != nil {
			l.fail(v.fail)
		}
	}
	if int(l.arrived[n].Add(1)) == len(l.desks) {
		l.sum(letter)
		l.mail.Answer(n)
	}
	if v.tell != nil {
		v.tell(layer, rows, true)
	}
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
	l.x.there.Add(int64(l.stepped*l.topK - asked))
}

// Asked is how many choices of experts the device has asked the host for, by letters, and how
// many it has had itself in the same steps.
func (x *Experts) Asked() (asked, there int64) { return x.asked.Load(), x.there.Load() }

// Dismiss answers all letters without computing anything while wait waits for a step that
// nobody needs any more and nobody serves.
func (l *Letters) Dismiss(wait func() error) error {
	l.begin(0)
	l.mail.Answer(-1) // what was asked last and nobody answered
	served := make(chan struct{})
	go func() {
		defer close(served)
		for n := range l.layers {
			letter, ok := l.mail.Await(n, l.over.Load)
			if !ok {
				return
			}
			if letter.Rows > 0 {
				l.mail.Answer(n)
			}
		}
	}()
	err := wait()
	l.over.Store(true)
	<-served
	return err
}

// compute does a server's part of a letter.
func (d *desk) compute(l *Letters, s device.Stream, layer int, letter *device.Letter, owns func(int32) bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("experts of layer %d: %v\n%s", layer, r, debug.Stack())
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
	l.x.Compute(s, &d.st, layer, work)
	return s.Synchronize()
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

// sum writes a letter's answer: by rank, whoever computed the rows.
func (l *Letters) sum(letter *device.Letter) {
	y, h := l.out.F32s(), l.out.Cols
	for t := range letter.Rows {
		dst := letter.Out[t*h : (t+1)*h]
		clear(dst)
		for k := t * l.topK; k < (t+1)*l.topK; k++ {
			if letter.IDs[k] >= 0 {
				addRow(dst, y[k*h:(k+1)*h], letter.Weights[k])
			}
		}
	}
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
