package cpu

import (
	"math"
	"slices"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// routerScratch is the scratch of RouteTopK for one row.
type routerScratch struct {
	scores, choice []float32 // [Experts]
	rates          []float32 // [Groups]
	groups         []int32   // [TopGroups]
	chosen         []int32   // [TopK]
}

// RouteTopK chooses TopK experts for each row of logits [T, E] F32; bias [1, E] F32 or absent is
// added for choosing only; factors [1, E] F32 or absent multiply the weights. ids [T, K] I32 and weights [T, K] F32 come out by falling weight, then
// rising id. Equal scores are chosen by rising id. A score that is not a number is never preferred
// to one that is.
func (d *Device) RouteTopK(stream device.Stream, ids, weights, logits, bias, factors device.Mat, p device.Router) {
	const op = "RouteTopK"
	s := d.stream(op, stream)
	checkRouter(op, &p)
	in := f32(op, "logits", &logits, logits.Rows, p.Experts)
	w := f32(op, "weights", &weights, logits.Rows, p.TopK)
	if ids.DType != tensor.I32 || ids.Rows != logits.Rows || ids.Cols != p.TopK {
		fail(op, "ids is %s, need I32 [%d, %d]", ids, logits.Rows, p.TopK)
	}
	id := (*float32)(at(op, "ids", &ids)) // for rowAt; elements are I32
	var b *float32
	if !bias.Zero() {
		b = f32(op, "bias", &bias, 1, p.Experts)
	}
	var by []float32
	if !factors.Zero() {
		by = unsafe.Slice(f32(op, "factors", &factors, 1, p.Experts), p.Experts)
	}
	t := &s.route
	*t = routeTask{dev: d, Router: p, in: in, ids: id, weights: w, bias: b, factors: by, inRow: logits.Stride, idRow: ids.Stride, wRow: weights.Stride, rows: logits.Rows}
	t.each = max(1, min(chunkRows, logits.Rows/(2*len(s.lanes))))
	for _, l := range s.lanes {
		l.router.grow(&p)
	}
	s.each(t, (logits.Rows+t.each-1)/t.each, logits.Rows*p.Experts*routeNs, 0)
}

// routeNs is the time that the choice takes for an expert on one core.
const routeNs = 32

// routeTask is RouteTopK. An item is each rows.
type routeTask struct {
	dev *Device
	device.Router
	in, ids, weights, bias *float32 // ids are I32; bias may be nil
	factors                []float32
	inRow, idRow, wRow     int // elements
	rows, each             int
}

func (t *routeTask) do(l *lane, i int) {
	r := &l.router
	for row := i * t.each; row < min(t.rows, (i+1)*t.each); row++ {
		t.dev.score(r.scores, rowAt(t.in, t.inRow, row), t.Scoring)
		copy(r.choice, r.scores)
		if t.bias != nil {
			t.dev.axpy.Add(&r.choice[0], t.bias, t.Experts)
		}
		r.choose(&t.Router)
		r.weigh(&t.Router, t.factors, unsafe.Slice((*int32)(unsafe.Pointer(rowAt(t.ids, t.idRow, row))), t.TopK),
			unsafe.Slice(rowAt(t.weights, t.wRow, row), t.TopK))
	}
}

// grow makes room, so that no worker allocates.
func (r *routerScratch) grow(p *device.Router) {
	r.scores, r.choice, r.rates = grown(r.scores, p.Experts), grown(r.choice, p.Experts), grown(r.rates, p.Groups)
	r.chosen, r.groups = slices.Grow(r.chosen[:0], p.TopK), slices.Grow(r.groups[:0], p.TopGroups)
}

func checkRouter(op string, p *device.Router) {
	groups := max(1, p.Groups)
	switch {
	case p.Experts < 1 || p.TopK < 1 || p.TopK > p.Experts:
		fail(op, "top %d of %d experts", p.TopK, p.Experts)
	case p.Experts%groups != 0:
		fail(op, "%d experts in %d groups", p.Experts, groups)
	case groups > 1 && (p.TopGroups < 1 || p.TopGroups > groups || p.TopK > p.TopGroups*(p.Experts/groups)):
		fail(op, "top %d of %d experts from %d of %d groups", p.TopK, p.Experts, p.TopGroups, groups)
	case p.Scoring > device.ScoreSqrtSoftplus || p.GroupScore > device.GroupTop2Sum:
		fail(op, "scoring %d, group score %d", p.Scoring, p.GroupScore)
	}
}

// RouteByToken weighs the experts that table [V, TopK] F32 lists for tokens [T, 1] I32: ids [T, K] I32 and weights [T, K] F32 as those
// of RouteTopK. An id in the table that is no expert's becomes the nearest one.
func (d *Device) RouteByToken(stream device.Stream, ids, weights, logits, tokens, table device.Mat, p device.Router) {
	const op = "RouteByToken"
	s := d.stream(op, stream)
	checkRouter(op, &p)
	in := f32(op, "logits", &logits, logits.Rows, p.Experts)
	w := f32(op, "weights", &weights, logits.Rows, p.TopK)
	id := (*float32)(unsafe.Pointer(positions(op, &ids, logits.Rows, p.TopK))) // for rowAt; elements are I32
	list := f32(op, "table", &table, table.Rows, p.TopK)
	token := i32s(op, "tokens", &tokens, logits.Rows)
	inRange(op, "tokens", token, table.Rows)
	r := &s.lanes[0].router
	r.grow(&p)
	for row := range logits.Rows {
		d.score(r.scores, rowAt(in, logits.Stride, row), p.Scoring)
		r.chosen = r.chosen[:0]
		for _, e := range unsafe.Slice(rowAt(list, table.Stride, int(token[row])), p.TopK) {
			r.chosen = append(r.chosen, int32(max(0, min(int(e), p.Experts-1))))
		}
		r.weigh(&p, nil, unsafe.Slice((*int32)(unsafe.Pointer(rowAt(id, ids.Stride, row))), p.TopK),
			unsafe.Slice(rowAt(w, weights.Stride, row), p.TopK))
	}
}

// score turns logits into scores.
func (d *Device) score(scores []float32, logits *float32, kind device.Scoring) {
	n, dst := len(scores), unsafe.SliceData(scores)
	switch kind {
	case device.ScoreSigmoid:
		d.exp.Sigmoid(dst, logits, n)
		return
	case device.ScoreSqrtSoftplus:
		for i, v := range unsafe.Slice(logits, n) {
			x := float64(v)
			scores[i] = float32(math.Sqrt(max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))))
		}
		return
	}
	sum := d.exp.ExpSum(dst, logits, n, 1, d.exp.Max(logits, n))
	d.axpy.Scale(dst, n, 1/sum)
}

// choose fills chosen by choice, after leaving only the best groups.
func (r *routerScratch) choose(p *device.Router) {
	if p.Groups > 1 {
		r.maskGroups(p)
	}
	r.chosen = topK(r.chosen, r.choice, p.TopK)
}

// maskGroups sets the choice of all experts outside the best groups to minus infinity.
func (r *routerScratch) maskGroups(p *device.Router) {
	size := p.Experts / p.Groups
	r.rates = grown(r.rates, p.Groups)
	for g := range r.rates {
		first, second := minusInf, minusInf
		for _, v := range r.choice[g*size : (g+1)*size] {
			switch {
			case v > first:
				first, second = v, first
			case v > second:
				second = v
			}
		}
		r.rates[g] = first
		if p.GroupScore == device.GroupTop2Sum && size > 1 {
			r.rates[g] += second
		}
	}
	r.groups = topK(r.groups, r.rates, p.TopGroups)
	for g := range p.Groups {
		if !contains(r.groups, int32(g)) {
			for i := g * size; i < (g+1)*size; i++ {
				r.choice[i] = minusInf
			}
		}
	}
}

// weigh orders the chosen experts and returns their weights: the raw scores, times factors unless
// that is nil.
func (r *routerScratch) weigh(p *device.Router, factors []float32, ids []int32, weights []float32) {
	var sum float32
	for k, e := range r.chosen {
		w, at := r.scores[e], k
		sum += w
		if factors != nil {
			w *= factors[e]
		}
		for ; at > 0 && (w > weights[at-1] || w == weights[at-1] && e < ids[at-1]); at-- {
			weights[at], ids[at] = weights[at-1], ids[at-1]
		}
		weights[at], ids[at] = w, e
	}
	scale := p.Scale
	for k := range weights {
		if p.Normalize {
			weights[k] /= sum + 1e-20
		}
		weights[k] *= scale
	}
}

var minusInf = float32(math.Inf(-1))

// topK returns the indices of the k largest values, falling, equal ones by rising index; values
// that are not numbers count as minus infinity. It needs k <= len(values).
func topK(top []int32, values []float32, k int) []int32 {
	top = top[:0]
	for i, v := range values {
		if v != v {
			v = minusInf
			values[i] = v
		}
		if len(top) == k && !(v > values[top[k-1]]) {
			continue
		}
		if len(top) < k {
			top = append(top, 0)
		}
		at := len(top) - 1
		for ; at > 0 && v > values[top[at-1]]; at-- {
			top[at] = top[at-1]
		}
		top[at] = int32(i)
	}
	return top
}

func contains(list []int32, v int32) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

// grown is s with length n, kept where it is when it has the room.
func grown(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}
