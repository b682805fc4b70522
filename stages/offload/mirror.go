package offload

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// Mirror is the host's side of a batch: the rows experts take and give. It belongs
// to the batch's owner.
type Mirror struct {
	st    stages.State // of the host: Normed, Input, ExpertOut and what Bank.Run reads of it
	in    device.Mat   // [tokens, H] F32
	out   device.Mat   // [tokens*K, H] F32
	q     device.QRows // [tokens, H]; absent where no expert is kept as integers
	topK  int
	marks []bool // [tokens*K] rows of a Return
}

// NewMirror makes a mirror for batches within the limits of the parts.
func (x *Experts) NewMirror() (*Mirror, error) {
	cfg, lim := x.parts.Config, x.parts.Limits
	m := &Mirror{topK: cfg.MoE.Router.TopK}
	m.marks = make([]bool, lim.LayerRows()*m.topK)
	var err error
	if m.in, err = device.AllocMat(x.host, tensor.F32, lim.LayerRows(), cfg.Hidden); err == nil {
		m.out, err = device.AllocMat(x.host, tensor.F32, lim.LayerRows()*m.topK, cfg.Hidden)
	}
	if err == nil && lim.QuantGroup > 0 {
		m.q, err = device.AllocQRows(x.host, lim.LayerRows(), cfg.Hidden, lim.QuantGroup)
	}
	if err == nil && m.in.Buf.Host() == nil {
		err = fmt.Errorf("%s is not a host", x.host.Name())
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("offload: rows of %d tokens: %w", lim.LayerRows(), err)
	}
	return m, nil
}

// MirrorBytes is what NewMirror takes for batches within lim.
func MirrorBytes(cfg *model.Config, lim stages.Limits) int64 {
	n := 4 * int64(lim.LayerRows()) * int64(1+cfg.MoE.Router.TopK) * int64(cfg.Hidden)
	if lim.QuantGroup > 0 {
		n += int64(device.QRowsBytes(lim.LayerRows(), cfg.Hidden, lim.QuantGroup))
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
	m.in, m.out = device.Mat{}, device.Mat{}
}

// Fetch enqueues the copy of the rows experts take, st.Normed. The host may use
// them once s is synchronised.
func (m *Mirror) Fetch(s device.Stream, st *stages.State) {
	m.st.T = st.T
	m.st.Normed = m.in.RowRange(0, st.T)
	m.st.Input = stages.NewInput(m.st.Normed, m.q)
	m.st.ExpertOut = m.out.RowRange(0, st.T*m.topK)
	m.st.RouterIDs.Cols = m.topK
	s.CopyOut(hostBytes(m.st.Normed), st.Normed)
}

// State is the host's view of the batch, of which only what experts read and write
// is there. It changes with Fetch.
func (m *Mirror) State() *stages.State { return &m.st }

// Return enqueues the copy of the rows that the host computed for work to
// st.ExpertOut. They must stay as they are until s has passed.
func (m *Mirror) Return(s device.Stream, st *stages.State, work []device.ExpertRows) {
	marks := m.marks[:st.T*m.topK]
	clear(marks)
	for _, w := range work {
		for _, a := range w.Assign {
			marks[a] = true
		}
	}
	for from := 0; from < len(marks); from++ {
		if !marks[from] {
			continue
		}
		to := from + 1
		for to < len(marks) && marks[to] {
			to++
		}
		s.CopyIn(st.ExpertOut.RowRange(from, to), hostBytes(m.st.ExpertOut.RowRange(from, to)))
		from = to
	}
}

// hostBytes is the memory of a dense matrix.
func hostBytes(m device.Mat) []byte { return m.Buf.Host()[m.Off : m.Off+m.Bytes()] }
