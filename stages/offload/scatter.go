package offload

import (
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
)

// scatter returns rows of experts to where they belong, so that the device adds the same
// numbers whether it or the host computed them.
type scatter struct {
	marks []bool     // [tokens*K] rows to be returned
	raw   device.Mat // of an accelerator: [tokens, H] of RowType, on the host, the rows as fetched
	// Scattered rows go to stage, on the device, and from there to where they belong.
	dev   device.Device
	ids   device.Mat // [tokens*K, 1] I32, of the host
	stage device.Mat // [n, H] F32
	slots device.Mat // [n, 1] I32

	release []func() error
}

// stageRows is the largest number of rows of a stage.
const stageRows = 1024

// runsMost is the largest number of copies of neighbouring rows that a Return makes. If
// it needs more, it copies all rows in one, and the device scatters them.
const runsMost = 6

// newScatter makes a scatter of rows of out [tokens*K, H] F32, on the host.
func newScatter(x *Experts, out device.Mat) (*scatter, error) {
	cfg := x.parts.Config
	r := &scatter{dev: x.dev, marks: make([]bool, x.parts.Limits.LayerRows()*cfg.MoE.Router.TopK)}
	var err error
	if r.ids, err = device.AllocMat(x.host, tensor.I32, len(r.marks), 1); err == nil {
		r.stage, err = device.AllocMat(x.dev, tensor.F32, min(stageRows, len(r.marks)), cfg.Hidden)
	}
	if err == nil {
		r.slots, err = device.AllocMat(x.dev, tensor.I32, r.stage.Rows, 1)
	}
	if err == nil && x.accel != nil {
		if r.raw, err = device.AllocMat(x.host, x.accel.RowType(), x.parts.Limits.LayerRows(), cfg.Hidden); err == nil {
			r.release = append(r.release, x.pin(out.Buf.Host()), x.pin(r.raw.Buf.Host()))
		}
	}
	if err != nil {
		r.close()
	}
	return r, err
}

func (r *scatter) close() {
	for _, release := range r.release {
		_ = release() // a lost GPU has released it already
	}
	r.release = nil
	for _, x := range []device.Mat{r.raw, r.ids, r.stage, r.slots} {
		if !x.Zero() {
			x.Buf.Free()
		}
	}
}

func (r *scatter) fetch(s device.Stream, m *Mirror, st *stages.State) {
	to := m.st.Normed
	if !r.raw.Zero() {
		to = r.raw.RowRange(0, st.T)
	}
	s.CopyOut(hostBytes(to), st.Normed)
}

func (r *scatter) widen(m *Mirror) {
	if !r.raw.Zero() {
		widen(m.in, r.raw, m.st.T)
	}
}

func (r *scatter) send(s device.Stream, m *Mirror, st *stages.State, work []device.ExpertRows) {
	marks := r.marks[:st.T*m.topK]
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
	if (runs > runsMost || st.ExpertOut.DType != m.out.DType) && !r.stage.Zero() {
		r.scattered(s, m, st, marks)
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

// scattered is send for rows that have few neighbours: each copy costs microseconds,
// so they are moved together here, copied by the stage and put in their places there.
func (r *scatter) scattered(s device.Stream, m *Mirror, st *stages.State, marks []bool) {
	rows, ids := m.out.F32s(), r.ids.I32s()
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
	for from := 0; from < n; from += r.stage.Rows {
		k := min(r.stage.Rows, n-from)
		stage, slots := r.stage.RowRange(0, k), r.slots.RowRange(0, k)
		s.CopyIn(stage, hostBytes(m.out.RowRange(from, from+k)))
		s.CopyIn(slots, hostBytes(r.ids.RowRange(from, from+k)))
		p := st.On(r.dev, s, nil)
		p.StoreRows(device.KV{Mat: st.ExpertOut}, stage, slots)
		p.Send()
	}
}
