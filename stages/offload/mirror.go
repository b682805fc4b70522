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
	// Scattered rows go to stage, on the device, and from there to where they belong.
	scatter scatterOps // nil: the device does not do that
	ids     device.Mat // [tokens*K, 1] I32, of the host
	stage   device.Mat // [n, H] F32
	slots   device.Mat // [n, 1] I32
}

// scatterOps are of a device that puts rows where slots say.
type scatterOps interface {
	StoreRows(s device.Stream, cache device.KV, src, slots device.Mat)
}

// stageRows is the most rows of a mirror's stage.
const stageRows = 1024

// runsMost is how many copies of neighbouring rows a Return makes before it copies all
// rows in one and has the device scatter them.
const runsMost = 6

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
	if m.scatter, _ = x.dev.(scatterOps); err == nil && m.scatter != nil && device.LayoutOf(x.dev) == nil {
		if m.ids, err = device.AllocMat(x.host, tensor.I32, len(m.marks), 1); err == nil {
			m.stage, err = device.AllocMat(x.dev, tensor.F32, min(stageRows, len(m.marks)), cfg.Hidden)
		}
		if err == nil {
			m.slots, err = device.AllocMat(x.dev, tensor.I32, m.stage.Rows, 1)
		}
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

// StageBytes is what NewMirror takes of the device for batches within lim.
func StageBytes(cfg *model.Config, lim stages.Limits) int64 {
	return 4 * int64(min(stageRows, lim.LayerRows()*cfg.MoE.Router.TopK)) * int64(cfg.Hidden+1)
}

// MirrorBytes is what NewMirror takes of the host for batches within lim.
func MirrorBytes(cfg *model.Config, lim stages.Limits) int64 {
	n := 4*int64(lim.LayerRows())*int64(1+cfg.MoE.Router.TopK)*int64(cfg.Hidden) + 4*int64(lim.LayerRows()*cfg.MoE.Router.TopK)
	if lim.QuantGroup > 0 {
		n += int64(device.QRowsBytes(lim.LayerRows(), cfg.Hidden, lim.QuantGroup))
	}
	return n
}

// Close frees the memory.
func (m *Mirror) Close() {
	for _, x := range []device.Mat{m.in, m.out, m.ids, m.stage, m.slots} {
		if !x.Zero() {
			x.Buf.Free()
		}
	}
	m.q.Free()
	m.in, m.out, m.ids, m.stage, m.slots = device.Mat{}, device.Mat{}, device.Mat{}, device.Mat{}, device.Mat{}
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
// st.ExpertOut. They must stay as they are until s has passed, and are not the host's to
// read any more.
func (m *Mirror) Return(s device.Stream, st *stages.State, work []device.ExpertRows) {
	marks := m.marks[:st.T*m.topK]
	clear(marks)
	for _, w := range work {
		for _, a := range w.Assign {
			marks[a] = true
		}
	}
	runs := 0
	for i, marked := range marks {
		if marked && (i == 0 || !marks[i-1]) {
			runs++
		}
	}
	if runs > runsMost && !m.stage.Zero() {
		m.scattered(s, st, marks)
		return
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

// scattered is Return for rows that have few neighbours: each copy costs microseconds,
// so they are moved together here, copied by the stage and put in their places there.
func (m *Mirror) scattered(s device.Stream, st *stages.State, marks []bool) {
	rows, ids := m.out.F32s(), m.ids.I32s()
	h, n := m.out.Cols, 0
	for a, marked := range marks {
		if !marked {
			continue
		}
		if n < a {
			copy(rows[n*h:(n+1)*h], rows[a*h:(a+1)*h])
		}
		ids[n] = int32(a)
		n++
	}
	for from := 0; from < n; from += m.stage.Rows {
		k := min(m.stage.Rows, n-from)
		stage, slots := m.stage.RowRange(0, k), m.slots.RowRange(0, k)
		s.CopyIn(stage, hostBytes(m.out.RowRange(from, from+k)))
		s.CopyIn(slots, hostBytes(m.ids.RowRange(from, from+k)))
		m.scatter.StoreRows(s, device.KV{Mat: st.ExpertOut}, stage, slots)
	}
}

// hostBytes is the memory of a dense matrix.
func hostBytes(m device.Mat) []byte { return m.Buf.Host()[m.Off : m.Off+m.Bytes()] }
