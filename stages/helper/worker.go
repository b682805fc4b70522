package helper

import (
	"errors"
	"fmt"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages"
	"krater/stages/link"
	"krater/stages/load"
	"krater/stages/model"
)

// room is rows of a batch on a device, as experts read and write them.
type room struct {
	st  stages.State
	in  device.Mat   // [rows, H] of the device's type
	out device.Mat   // [rows*K, H] likewise
	ids device.Mat   // [rows, K] I32
	wts device.Mat   // [rows, K] F32
	q   device.QRows // absent where no expert takes integers
}

// newRoom allocates a room. After an error it is to be closed, too.
func newRoom(dev device.Device, cfg *model.Config, rows, group int) (*room, error) {
	r, k, dt := &room{st: stages.State{Rows: new(stages.Rows)}}, cfg.MoE.Router.TopK, device.RowType(device.LayoutOf(dev))
	var errs [5]error
	r.in, errs[0] = device.AllocMat(dev, dt, rows, cfg.Hidden)
	r.out, errs[1] = device.AllocMat(dev, dt, rows*k, cfg.Hidden)
	r.ids, errs[2] = device.AllocMat(dev, tensor.I32, rows, k)
	r.wts, errs[3] = device.AllocMat(dev, tensor.F32, rows, k)
	if group > 0 {
		r.q, errs[4] = device.AllocQRows(dev, rows, cfg.Hidden, group)
	}
	return r, errors.Join(errs[:]...)
}

// enter makes the state that of the first rows.
func (r *room) enter(rows int) {
	st := &r.st
	st.T, st.Normed, st.ExpertOut = rows, r.in.RowRange(0, rows), r.out.RowRange(0, rows*r.ids.Cols)
	st.RouterIDs, st.RouterWeights = r.ids.RowRange(0, rows), r.wts.RowRange(0, rows)
	st.Input = stages.NewInput(st.Normed, r.q)
}

func (r *room) close() {
	free(r.in, r.out, r.ids, r.wts)
	r.q.Free()
}

func free(list ...device.Mat) {
	for _, m := range list {
		if !m.Zero() {
			m.Buf.Free()
		}
	}
}

// Worker computes for one batch. It belongs to who has the batch's work.
type Worker struct {
	x         *Experts
	rank      device.Device
	room      *room         // the helper's
	from, to  device.Stream // of the rank's device and of the helper
	out, back *link.Hop
	begun     bool          // Begin has carried the rows of the step
	failed    error         // what went wrong there
	result    device.Mat    // [n, H] on the helper: what goes back, rows F32 or sums of the type of rows
	stage     device.Mat    // [n, H] on the rank, where that goes
	at        [2]device.Mat // [n, 1] I32 on both: the rows of ExpertOut
	list      []int32       // [n] the same on the host
	src, dst  [3]device.Mat // reused
}

// WorkerOptions say where a worker's rank is.
type WorkerOptions struct {
	Rank   load.Rank
	Queue  int // of the rank's device, if that is an accelerator: one that no batch has
	Links  []link.Kind
	Out    *link.Pair // from the rank to the helper
	Back   *link.Pair
	Sample device.Mat // memory of the rank of at least [LayerRows, H] F32, which the test of the links overwrites
}

// Open makes a worker, with links that were tested. fallen are the faults of kinds of links that do not work.
func (h *Experts) Open(o WorkerOptions) (w *Worker, fallen []error, err error) {
	cfg, lim := h.parts.Config, o.Rank.Limits
	w = &Worker{x: h, rank: o.Rank.Device}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	if err = w.streams(&o); err != nil {
		return w, nil, err
	}
	n := lim.LayerRows()
	if w.room, err = newRoom(h.dev, cfg, n, h.group()); err != nil {
		return w, nil, err
	}
	dt := w.room.in.DType
	if !h.sums() {
		dt = tensor.F32
		n = min(stageRows, n*cfg.MoE.Router.TopK)
		if w.at[0], err = device.AllocMat(o.Rank.Device, tensor.I32, n, 1); err == nil {
			w.at[1], err = device.AllocMat(h.dev, tensor.I32, n, 1)
		}
		w.list = make([]int32, n)
	}
	if err == nil {
		w.result, err = device.AllocMat(h.dev, dt, n, cfg.Hidden)
	}
	if err == nil {
		w.stage, err = device.AllocMat(o.Rank.Device, dt, n, cfg.Hidden)
	}
	if err != nil {
		return w, nil, err
	}
	in := w.room.in
	sample := device.NewMat(o.Sample.Buf, in.DType, in.Rows, in.Cols)
	if w.out, fallen, err = link.Open(o.Out, o.Links, w.from, w.to, sample, in, w.room.ids.Bytes()+w.room.wts.Bytes()); err != nil {
		return w, fallen, err
	}
	var more []error
	w.back, more, err = link.Open(o.Back, o.Links, w.to, w.from, w.result, w.stage, 0)
	return w, append(fallen, more...), err
}

// streams makes the streams of both sides.
func (w *Worker) streams(o *WorkerOptions) (err error) {
	if a := o.Rank.Device.Accelerator(); a != nil {
		w.from, err = a.NewQueueStream(o.Queue)
	} else {
		w.from, err = o.Rank.Device.NewStream()
	}
	if err != nil {
		return err
	}
	if w.x.accel == nil {
		w.to, err = w.x.dev.NewStream()
		return err
	}
	to, err := w.x.accel.NewQueueStream(0)
	if err != nil {
		return err
	}
	w.to = to
	return to.Reserve(w.x.accel.ScratchBytes(load.StepSizes(w.x.parts.Config, o.Rank.Limits)))
}

// group is that of rows as integers, 0 where experts take none.
func (h *Experts) group() int {
	if h.accel != nil {
		return 0
	}
	return h.x.QuantGroup()
}

// Links name the links in use, to the helper and back.
func (w *Worker) Links() (out, back string) { return w.out.Name(), w.back.Name() }

// Close frees what the worker has allocated. Nothing of it may be under way but copies that hang.
func (w *Worker) Close() {
	for _, h := range []*link.Hop{w.out, w.back} {
		if h != nil {
			h.Close()
		}
	}
	for _, s := range []device.Stream{w.from, w.to} {
		if s != nil {
			s.Close()
		}
	}
	if w.room != nil {
		w.room.close()
	}
	free(w.result, w.stage, w.at[0], w.at[1])
}

// Begin carries the rows of st behind what s, a stream of the rank's device, has, if both devices are accelerators: what is enqueued on s afterwards
// would hold up the sum of the rows. Compute of the same rows follows, and returns what went wrong.
func (w *Worker) Begin(s device.Stream, st *stages.State) {
	if w.x.accel != nil && !w.out.Waits() {
		w.begun, w.failed = true, w.carry(s, st)
	}
}

// Drop waits for rows that Begin carried for a step which was given up. The errors have the meaning of Recover.
func (w *Worker) Drop() (rank, helper error) {
	if !w.begun {
		return nil, nil
	}
	w.begun = false
	return w.Recover()
}

// carry carries what experts read of the rows of st.
func (w *Worker) carry(from device.Stream, st *stages.State) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("rows for %s: %w", w.x.dev.Name(), files.Caught(r))
		}
	}()
	n, own := 1, &w.room.st
	if w.room.enter(st.T); w.x.accel != nil {
		n = 3
	}
	w.src, w.dst = [3]device.Mat{st.Normed, st.RouterIDs, st.RouterWeights}, [3]device.Mat{own.Normed, own.RouterIDs, own.RouterWeights}
	return w.out.Carry(from, w.to, w.src[:n], w.dst[:n])
}

// Compute computes the experts of work for the rows of st, which are complete, and waits for that. The results
// are rows of st.ExpertOut, or where an accelerator takes sums the weighted sum of each token in Sum. After an error the
// step is lost; Recover says whether the worker can go on.
func (w *Worker) Compute(st *stages.State, layer int, work []device.ExpertRows) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("experts of layer %d on %s: %w", layer, w.x.dev.Name(), files.Caught(r))
		}
	}()
	own := &w.room.st
	if !w.begun {
		w.failed = w.carry(w.from, st)
	}
	if w.begun = false; w.failed != nil {
		return w.failed
	}
	w.x.run(w.to, own, layer, work)
	if !w.x.sums() {
		return w.rows(st, work)
	}
	result := w.result.RowRange(0, st.T)
	p := own.On(w.x.dev, w.to, nil)
	p.WeightedSum(result, own.ExpertOut, own.RouterWeights, device.Mat{}, own.RouterIDs, w.x.view.Bank(layer).Map)
	p.Send()
	if err := w.carryBack(result, w.stage.RowRange(0, st.T)); err != nil {
		return err
	}
	return w.arrived(true, true)
}

// run enqueues experts of a layer.
func (h *Experts) run(s device.Stream, st *stages.State, layer int, work []device.ExpertRows) {
	p := st.On(h.dev, s, nil)
	if h.accel != nil {
		p.ExpertsOn(st.ExpertOut, st.Normed, h.view.Bank(layer), st.RouterIDs)
		p.Send()
		return
	}
	if h.group() > 0 {
		p.QuantizeRows(st.Input.Q, st.Input.X)
		p.Send()
	}
	h.bank(layer).Run(s, h.dev, st, work)
}

// rows sends the rows of work back, where they belong in st.ExpertOut.
func (w *Worker) rows(st *stages.State, work []device.ExpertRows) error {
	own, first, n := &w.room.st, true, 0
	send := func() error {
		at, from := w.at[0].RowRange(0, n), w.at[1].RowRange(0, n)
		result, stage := w.result.RowRange(0, n), w.stage.RowRange(0, n)
		list := unsafe.Slice((*byte)(unsafe.Pointer(&w.list[0])), 4*n)
		w.to.CopyIn(from, list)
		p := own.On(w.x.dev, w.to, nil)
		p.GatherRows(result, own.ExpertOut, from)
		p.Send()
		if err := w.carryBack(result, stage); err != nil {
			return err
		}
		w.from.CopyIn(at, list)
		l := device.List{}
		l.StoreRows(device.KV{Mat: st.ExpertOut}, stage, at)
		w.from.Device().Run(w.from, l)
		err := w.arrived(first, true)
		first, n = false, 0
		return err
	}
	for _, x := range work {
		for _, a := range x.Assign {
			w.list[n] = a
			if n++; n == len(w.list) {
				if err := send(); err != nil {
					return err
				}
			}
		}
	}
	switch {
	case n > 0:
		return send()
	case first: // nothing was asked for
		return w.arrived(true, false)
	}
	return nil
}

func (w *Worker) carryBack(src, dst device.Mat) error {
	w.src[0], w.dst[0] = src, dst
	return w.back.Carry(w.to, w.from, w.src[:1], w.dst[:1])
}

// arrived waits for both sides and compares what was carried: to the helper, and back.
func (w *Worker) arrived(out, back bool) error {
	if err := errors.Join(w.from.Synchronize(), w.to.Synchronize()); err != nil {
		return err
	}
	if out {
		if err := w.out.Arrived(); err != nil {
			return err
		}
	}
	if back {
		return w.back.Arrived()
	}
	return nil
}

// Sum is where the sums of the tokens are, [LayerRows, H] on the rank; absent where rows travel.
func (w *Worker) Sum() device.Mat {
	if w.x.sums() {
		return w.stage
	}
	return device.Mat{}
}

// Recover makes the worker usable again after an error of Compute. The errors say that the rank's device, or the helper or
// its links, are lost.
func (w *Worker) Recover() (rank, helper error) {
	if rank, helper = w.from.Recover(), w.to.Recover(); rank != nil || helper != nil {
		return rank, helper
	}
	return nil, errors.Join(w.leave(w.out, w.renewRoom), w.leave(w.back, w.renewStage))
}

var errHang = errors.New("copies hang, and there is no other link")

// leave gives up links whose copies hang. What these may still write is left to them, and renew allocates other memory.
func (w *Worker) leave(h *link.Hop, renew func() error) error {
	switch {
	case h.Settled():
		return nil
	case !h.Leave():
		return errHang
	}
	return renew()
}

func (w *Worker) renewRoom() error {
	r, err := newRoom(w.x.dev, w.x.parts.Config, w.room.in.Rows, w.x.group())
	if err != nil {
		r.close()
		return err
	}
	w.room = r
	return nil
}

func (w *Worker) renewStage() error {
	m, err := device.AllocMat(w.rank, w.stage.DType, w.stage.Rows, w.stage.Cols)
	if err == nil {
		w.stage = m
	}
	return err
}
