package offload

import (
	"sync"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// sums returns to an accelerator the weighted sum of the host's results for a token, not their rows:
// a copy has 1/K of the bytes, and the operators that sum on the accelerator leave out the experts
// that it has not computed.
type sums struct {
	dev     device.Device
	raw     device.Mat // [tokens, H] of RowType, on the host: the rows as fetched
	weights []float32  // [tokens*K]
	sum     device.Mat // [tokens, H] F32, on the host
	there   device.Mat // its copy on the accelerator
	byToken []float32  // [tokens*K] weights of the host's experts, else 0
	whole   bool       // see Experts.WholeSum
	release []func() error
}

// sumBytes returns the size of a matrix of sums.
func sumBytes(cfg *model.Config, lim stages.Limits) int64 {
	return 4 * int64(lim.LayerRows()) * int64(cfg.Hidden)
}

// newSums returns what it has allocated even with an error; the caller closes it.
func newSums(x *Experts) (*sums, error) {
	cfg, rows := x.parts.Config, x.parts.Limits.LayerRows()
	r := &sums{dev: x.dev, whole: x.WholeSum(), weights: make([]float32, rows*cfg.MoE.Router.TopK), byToken: make([]float32, rows*cfg.MoE.Router.TopK)}
	var err error
	if r.raw, err = device.AllocMat(x.host, device.RowType(device.LayoutOf(x.dev)), rows, cfg.Hidden); err == nil {
		r.sum, err = device.AllocMat(x.host, tensor.F32, rows, cfg.Hidden)
	}
	if err == nil {
		r.there, err = device.AllocMat(x.dev, tensor.F32, rows, cfg.Hidden)
	}
	if err != nil {
		return r, err
	}
	r.release = append(r.release, x.pin(r.sum.Buf.Host()), x.pin(r.raw.Buf.Host()))
	return r, nil
}

func (r *sums) close() {
	for _, release := range r.release {
		_ = release() // a lost GPU has released it already
	}
	for _, x := range []device.Mat{r.raw, r.sum, r.there} {
		if !x.Zero() {
			x.Buf.Free()
		}
	}
}

func (r *sums) fetch(s device.Stream, m *Mirror, st *stages.State) {
	s.CopyOut(hostBytes(r.raw.RowRange(0, st.T)), st.Normed)
	s.CopyOut(hostFloats(r.weights[:st.T*m.topK]), st.RouterWeights)
}

func (r *sums) widen(m *Mirror) { widen(m.in, r.raw, m.st.T) }

// widen makes dst [rows, H] F32 of raw.
func widen(dst, raw device.Mat, rows int) {
	parallel(rows, func(t int) {
		if err := tensor.Widen(dst.RowRange(t, t+1).F32s(), raw.DType, hostBytes(raw.RowRange(t, t+1))); err != nil {
			panic(err) // the matrices have these sizes
		}
	})
}

// send adds the rows of a token in the order of its choices.
func (r *sums) send(s device.Stream, m *Mirror, st *stages.State, work []device.ExpertRows) {
	w := r.byToken[:st.T*m.topK]
	clear(w)
	for i := range work {
		for _, a := range work[i].Assign {
			w[a] = r.weights[a]
		}
	}
	parallel(st.T, func(t int) {
		sumRow(r.sum.RowRange(t, t+1).F32s(), m.out.F32s(), m.out.Cols, t*m.topK, w[t*m.topK:(t+1)*m.topK])
	})
	there := r.there.RowRange(0, st.T)
	s.CopyIn(there, hostBytes(r.sum.RowRange(0, st.T)))
	addSum(r.dev, s, st, there, r.whole)
}

// addSum adds the weighted sum of experts that were computed elsewhere to the output of a layer: at once, or where the step is watched or
// the layer needs the whole sum, with the sum of the experts that are here.
func addSum(dev device.Device, s device.Stream, st *stages.State, sum device.Mat, whole bool) {
	p, to := st.On(dev, s, nil), st.Hidden
	if st.Watched || whole {
		if st.HostSum.Zero() {
			st.HostSum = sum
			return
		}
		to = st.HostSum
	}
	p.Add(to, sum)
	p.Send()
}

// AddSum adds the weighted sum [T, H] F32 of experts that another device has computed, where ReturnsSums says that sums are returned.
func (x *Experts) AddSum(s device.Stream, st *stages.State, sum device.Mat) {
	addSum(x.dev, s, st, sum, x.WholeSum())
}

// sumRow sets dst to the weighted sum of rows from, from+1, ... of y [n, cols]. It does not read rows of
// weight 0.
func sumRow(dst, y []float32, cols, from int, weights []float32) {
	clear(dst)
	for k, w := range weights {
		if w == 0 {
			continue
		}
		addRow(dst, y[(from+k)*cols:(from+k+1)*cols], w)
	}
}

// addRow is dst += w * row, of equal lengths.
func addRow(dst, row []float32, w float32) {
	row = row[:len(dst)]
	for i := range dst {
		dst[i] += w * row[i]
	}
}

// parallelParts is the most goroutines of parallel.
const parallelParts = 8

// parallelRows is the number of rows that are worth another goroutine.
const parallelRows = 64

// parallel calls f for 0 to n-1, on several goroutines if n is large.
func parallel(n int, f func(int)) {
	parts := min(parallelParts, (n+parallelRows-1)/parallelRows)
	if parts < 2 {
		for i := range n {
			f(i)
		}
		return
	}
	var wg sync.WaitGroup
	for p := range parts {
		wg.Go(func() {
			for i := p * n / parts; i < (p+1)*n/parts; i++ {
				f(i)
			}
		})
	}
	wg.Wait()
}
