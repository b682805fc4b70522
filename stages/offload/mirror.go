package offload

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// Mirror is the host's side of a batch: the input and output rows of experts. It belongs to the
// batch's owner.
type Mirror struct {
	st   stages.State // of the host: Normed, Input, ExpertOut and what Bank.Run reads of it
	in   device.Mat   // [tokens, H] F32
	out  device.Mat   // [tokens*K, H] F32
	q    device.QRows // [tokens, H]; absent where no expert is kept as integers
	topK int
	back returns // how results of the host get to the device
}

// returns is how a kind of device takes the results of the host.
type returns interface {
	// fetch enqueues the copies of Mirror.Fetch.
	fetch(s device.Stream, m *Mirror, st *stages.State)
	// widen sets m.st.Normed to the rows that were fetched.
	widen(m *Mirror)
	// send enqueues the copy of the results of work.
	send(s device.Stream, m *Mirror, st *stages.State, work []device.ExpertRows)
	close()
}

// NewMirror makes a mirror for batches within the limits of the parts.
func (x *Experts) NewMirror() (*Mirror, error) {
	cfg, rows := x.parts.Config, x.parts.Limits.LayerRows()
	m := &Mirror{topK: cfg.MoE.Router.TopK, st: stages.State{Rows: new(stages.Rows)}}
	var err error
	if m.in, err = device.AllocMat(x.host, tensor.F32, rows, cfg.Hidden); err == nil {
		m.out, err = device.AllocMat(x.host, tensor.F32, rows*m.topK, cfg.Hidden)
	}
	if group := x.QuantGroup(); err == nil && group > 0 {
		m.q, err = device.AllocQRows(x.host, rows, cfg.Hidden, group)
	}
	if err == nil && m.in.Buf.Host() == nil {
		err = fmt.Errorf("%s is not a host", x.host.Name())
	}
	if err == nil {
		if x.accel != nil && !x.accel.HostRows() {
			m.back, err = newSums(x)
		} else {
			m.back, err = newScatter(x, m.out)
		}
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("offload: rows of %d tokens: %w", rows, err)
	}
	return m, nil
}

// QuantGroup returns the group of rows as integers for the host's experts; 0: they take no integers.
func (x *Experts) QuantGroup() int {
	for _, b := range x.banks {
		if len(b.host.Integers) > 0 {
			return b.host.Integers[0].W13.Group
		}
	}
	return 0
}

// StageBytes returns the device memory that NewMirror allocates for batches within lim.
func StageBytes(cfg *model.Config, lim stages.Limits, l device.Layout) int64 {
	if l != nil && !l.HostRows() {
		return sumBytes(cfg, lim)
	}
	return 4 * int64(min(stageRows, lim.LayerRows()*cfg.MoE.Router.TopK)) * int64(cfg.Hidden+1)
}

// MirrorBytes returns the host memory that NewMirror allocates for batches within lim; group is that of
// the host's experts, 0 if they are not integers.
func MirrorBytes(cfg *model.Config, lim stages.Limits, group int, l device.Layout) int64 {
	n := 4*int64(lim.LayerRows())*int64(1+cfg.MoE.Router.TopK)*int64(cfg.Hidden) + 4*int64(lim.LayerRows()*cfg.MoE.Router.TopK)
	if group > 0 {
		n += int64(device.QRowsBytes(lim.LayerRows(), cfg.Hidden, group))
	}
	if l != nil {
		if !l.HostRows() {
			n += sumBytes(cfg, lim)
		}
		n += int64(lim.LayerRows()) * int64(cfg.Hidden) * int64(l.RowType().Size())
	}
	return n
}

// Close frees the memory.
func (m *Mirror) Close() {
	for _, x := range []device.Mat{m.in, m.out} {
		if !x.Zero() {
			x.Buf.Free()
		}
	}
	m.q.Free()
	if m.back != nil {
		m.back.close()
	}
	m.in, m.out, m.back = device.Mat{}, device.Mat{}, nil
}

// Fetch enqueues the copy of the experts' input rows, st.Normed. The host may use them when s is
// synchronised, after Experts.Prepare.
func (m *Mirror) Fetch(s device.Stream, st *stages.State) {
	m.st.T = st.T
	m.st.Normed = m.in.RowRange(0, st.T)
	m.st.Input = stages.NewInput(m.st.Normed, m.q)
	m.st.ExpertOut = m.out.RowRange(0, st.T*m.topK)
	m.st.RouterIDs.Cols = m.topK
	m.back.fetch(s, m, st)
}

// State returns the host's view of the batch: the matrices that experts read and write. Fetch changes it.
func (m *Mirror) State() *stages.State { return &m.st }

// Return enqueues the copy of the results of work to st: to their rows of st.ExpertOut, or on an
// accelerator without HostRows their weighted sum, which is added to st.Hidden, or in a step that a Probe sees, and where there are several
// residual streams, becomes st.HostSum. The host must not change or read its rows until s has passed the copy.
func (m *Mirror) Return(s device.Stream, st *stages.State, work []device.ExpertRows) {
	m.back.send(s, m, st, work)
}

// hostBytes returns the memory of a dense matrix.
func hostBytes(m device.Mat) []byte { return m.Buf.Host()[m.Off : m.Off+m.Bytes()] }
