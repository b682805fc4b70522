package quant

import (
	"cmp"
	"fmt"
	"slices"

	"krater/kernels/tensor"
)

// FeedbackOptions of Feedback.
type FeedbackOptions struct {
	// Damp times the mean of the Hessian's diagonal is added to the diagonal; 0: 0.01.
	Damp float64
	// Passes bounds the refinement passes after the feedback; negative: none, 0: 8.
	Passes  int
	Threads int // as in Options
}

// Feedback quantises w [rows, cols] so that the error of its outputs on the inputs
// of h is small: columns are rounded one after the other, and what rounding a
// column loses is made up for in the columns not yet rounded (GPTQ, arXiv
// 2210.17323). A group's scale is searched when its first column's turn comes,
// weighted by what an error then still costs. Groups, and columns within a group,
// are taken by falling sum of x^2: the important ones while there is most left to
// correct them with.
//
// Then single values move by one or more where that lowers the remaining error,
// until a pass finds none. The result is never worse on these inputs (damped)
// than the plain or the searched scales.
func Feedback(w []float32, rows, cols int, t tensor.Format, h *Hessian, o FeedbackOptions) (*tensor.Matrix, error) {
	m, err := prepare(w, rows, cols, t)
	if err != nil {
		return nil, err
	}
	if m.HasRule() {
		return nil, fmt.Errorf("quant: %s has a rounding rule of its own: no error feedback", m.Format)
	}
	if h.N != cols {
		return nil, fmt.Errorf("%w: of %d columns for a matrix of %d", ErrHessian, h.N, cols)
	}
	if o.Damp == 0 {
		o.Damp = 0.01
	}
	if o.Passes == 0 {
		o.Passes = 8
	}
	f := &feedback{Matrix: m, source: w, diagonal: h.Diagonal(), passes: o.Passes}
	f.order = f.columns()
	if f.hess, err = h.full(f.order, o.Damp); err != nil {
		return nil, err
	}
	if f.factor, err = inverseFactor(slices.Clone(f.hess), cols); err != nil {
		return nil, err
	}
	eachRow(rows, o.Threads, func() func(int) { return f.worker().row })
	return m, nil
}

// feedback is the state all rows share. hess and factor are in the order of columns.
type feedback struct {
	*tensor.Matrix
	source   []float32 // [Rows, Cols]
	diagonal []float32
	order    []int     // position -> column; a group's columns lie together
	hess     []float64 // [Cols, Cols] damped Hessian
	factor   []float64 // [Cols, Cols] upper triangular U, U^T U = hess^-1
	passes   int
}

// columns sorts groups by their share of the diagonal, and columns within them.
func (f *feedback) columns() []int {
	share := make([]float64, f.Groups())
	order := make([]int, f.Cols)
	for c := range order {
		order[c] = c
		share[c/f.Group] += float64(f.diagonal[c])
	}
	slices.SortStableFunc(order, func(a, b int) int {
		ga, gb := a/f.Group, b/f.Group
		if ga != gb {
			return cmp.Or(cmp.Compare(share[gb], share[ga]), cmp.Compare(ga, gb))
		}
		return cmp.Compare(f.diagonal[b], f.diagonal[a])
	})
	return order
}

// rower is one worker's scratch memory, in the order of columns.
type rower struct {
	*feedback
	*searcher
	left   []float64 // [Cols] weights still to be rounded, corrected
	values []int8    // [Cols]
	scales []float64 // [Groups]
	diff   []float64 // [Cols] weight - value * scale
	grad   []float64 // [Cols] h * diff
	row32  []float32
	costs  []float32
	kept   result
}

// result is a candidate for a row.
type result struct {
	values []int8
	scales []float64
	err    float64
}

func (f *feedback) worker() *rower {
	return &rower{
		feedback: f, searcher: newSearcher(f.Encoding, f.Group),
		left: make([]float64, f.Cols), values: make([]int8, f.Cols), scales: make([]float64, f.Groups()),
		diff: make([]float64, f.Cols), grad: make([]float64, f.Cols),
		row32: make([]float32, f.Group), costs: make([]float32, f.Group),
		kept: result{values: make([]int8, f.Cols), scales: make([]float64, f.Groups())},
	}
}

// row quantises row r by feedback, by searched and by plain scales, refines each,
// and keeps the best. Feedback wins nearly always; with few inputs or a group of
// outliers it may not.
func (x *rower) row(r int) {
	w := x.source[r*x.Cols : (r+1)*x.Cols]
	x.feed(w)
	x.refine(w)
	x.kept.keep(x.values, x.scales, x.energy())
	for _, method := range []Method{Search, Absmax} {
		x.plain(w, method)
		if e := x.measure(w); e < x.kept.err {
			x.kept.keep(x.values, x.scales, e)
		}
	}
	for i, c := range x.order {
		x.Values[r*x.Cols+c] = x.kept.values[i]
	}
	for g, s := range x.kept.scales {
		x.Scales[r*x.Groups()+g] = float32(s)
	}
}

func (r *result) keep(values []int8, scales []float64, e float64) {
	copy(r.values, values)
	copy(r.scales, scales)
	r.err = e
}

// span finds the end of the group that starts at position from.
func (x *rower) span(from int) (to, group int) {
	group = x.order[from] / x.Group
	return from + min(x.Group, x.Cols-group*x.Group), group
}

// feed rounds column after column with feedback.
//
//go:norace
func (x *rower) feed(w []float32) {
	n := x.Cols
	for i, c := range x.order {
		x.left[i] = float64(w[c])
	}
	for from := 0; from < n; {
		to, group := x.span(from)
		for i := from; i < to; i++ {
			// An error in column i that later columns make up for costs 1/u_ii^2.
			d := x.factor[i*n+i]
			x.row32[i-from], x.costs[i-from] = float32(x.left[i]), float32(x.factor[0]*x.factor[0]/(d*d))
		}
		x.load(x.row32[:to-from], x.costs[:to-from])
		scale := x.searcher.best(x.absmax())
		x.scales[group] = scale
		for i := from; i < to; i++ {
			var q float64
			if scale != 0 {
				q = x.value(x.left[i], 1/scale)
			}
			x.values[i] = int8(q)
			u := x.factor[i*n : (i+1)*n]
			e := (x.left[i] - q*scale) / u[i]
			if e == 0 {
				continue
			}
			rest := x.left[i+1:]
			for k, v := range u[i+1:] {
				rest[k] -= e * v
			}
		}
		from = to
	}
}

// plain rounds without feedback.
func (x *rower) plain(w []float32, method Method) {
	for from := 0; from < x.Cols; {
		to, group := x.span(from)
		for i := from; i < to; i++ {
			x.row32[i-from], x.costs[i-from] = w[x.order[i]], x.diagonal[x.order[i]]
		}
		if method == Absmax {
			x.load(x.row32[:to-from], nil)
			x.scales[group] = x.absmax()
		} else {
			x.load(x.row32[:to-from], x.costs[:to-from])
			x.scales[group] = x.searcher.best(x.absmax())
		}
		x.round(x.values[from:to], x.scales[group])
		from = to
	}
}

// measure fills diff and grad and returns the output error.
//
//go:norace
func (x *rower) measure(w []float32) float64 {
	n := x.Cols
	for i, c := range x.order {
		x.diff[i] = float64(w[c]) - float64(x.values[i])*x.scales[c/x.Group]
	}
	for i := range x.grad {
		var sum float64
		for j, v := range x.hess[i*n : (i+1)*n] {
			sum += v * x.diff[j]
		}
		x.grad[i] = sum
	}
	return x.energy()
}

// energy returns the output error of diff and grad: diff^T h diff.
//
//go:norace
func (x *rower) energy() float64 {
	var sum float64
	for i, d := range x.diff {
		sum += d * x.grad[i]
	}
	return sum
}

// refine moves single values while that lowers the error. A move of value i by k
// changes it by -2 k s grad_i + k^2 s^2 h_ii, least at k = grad_i / (s h_ii).
//
//go:norace
func (x *rower) refine(w []float32) {
	n := x.Cols
	x.measure(w)
	for range x.passes {
		moved := false
		for i, c := range x.order {
			scale, hii := x.scales[c/x.Group], x.hess[i*n+i]
			if scale == 0 {
				continue
			}
			now := float64(x.values[i])
			next := x.value(now*scale+x.grad[i]/hii, 1/scale)
			k := (next - now) * scale
			// The last factor: rounding in grad must not make it circle.
			if k == 0 || -2*k*x.grad[i]+k*k*hii > -1e-9*k*k*hii {
				continue
			}
			x.values[i] = int8(next)
			x.diff[i] -= k
			for j, v := range x.hess[i*n : (i+1)*n] {
				x.grad[j] -= k * v
			}
			moved = true
		}
		if !moved {
			return
		}
	}
}
