// Package clock is a device that adds up the time of its operators by what they
// are for, and the bytes of weights and cache they read. It is exact only over
// a device whose operators are complete when their call returns, and for one
// stream at a time.
package clock

import (
	"slices"
	"strings"
	"time"

	"krater/kernels/device"
	"krater/stages/load"
)

// The stages that operators are counted for.
const (
	Embed     = "embed"
	Norms     = "norms"
	Attention = "attention"
	Router    = "router"
	Quantize  = "quantise"
	Experts   = "experts"
	Shared    = "shared"
	Dense     = "dense"
	Merge     = "merge"
	Head      = "head"
)

// Spent is what one operator took for one stage.
type Spent struct {
	Stage    string
	Operator string
	Calls    int
	Time     time.Duration
	Bytes    int64 // of weights and of the KV cache
}

// Device is a device that keeps count while On.
type Device struct {
	load.Device
	On    bool
	vocab int

	spent  map[[2]string]*Spent
	routed bool       // an expert choice was made since the last norm
	logits device.Mat // output of the last product
	last   *Spent     // where it was counted,
	lastBy Spent      // and with what
}

// New wraps dev; a product with vocab rows of weights is the head.
func New(dev load.Device, vocab int) *Device {
	return &Device{Device: dev, vocab: vocab, spent: map[[2]string]*Spent{}}
}

// Reset forgets everything counted.
func (d *Device) Reset() { clear(d.spent) }

// Spent lists what was counted, by stage and operator.
func (d *Device) Spent() []Spent {
	var out []Spent
	for _, s := range d.spent {
		if s.Calls > 0 {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b Spent) int {
		if c := strings.Compare(a.Stage, b.Stage); c != 0 {
			return c
		}
		return strings.Compare(a.Operator, b.Operator)
	})
	return out
}

// entry is the count of an operator for a stage.
func (d *Device) entry(stage, op string) *Spent {
	key := [2]string{stage, op}
	s := d.spent[key]
	if s == nil {
		s = &Spent{Stage: stage, Operator: op}
		d.spent[key] = s
	}
	return s
}

// count runs f and counts it. bytes is asked only when counting.
func (d *Device) count(stage, op string, bytes func() int64, f func()) {
	if !d.On {
		f()
		return
	}
	start := time.Now()
	f()
	took := time.Since(start)
	s := d.entry(stage, op)
	s.Calls, s.Time, s.Bytes = s.Calls+1, s.Time+took, s.Bytes+bytes()
	d.last, d.lastBy = s, Spent{Operator: op, Calls: 1, Time: took, Bytes: bytes()}
}

func nothing() int64 { return 0 }

func bytesOf(m device.Mat) func() int64 { return func() int64 { return int64(m.Bytes()) } }

// GatherRows is the embedding, or the choice of the rows that the head takes.
func (d *Device) GatherRows(s device.Stream, out, table, ids device.Mat) {
	d.count(Embed, "GatherRows", bytesOf(out), func() { d.Device.GatherRows(s, out, table, ids) })
}

func (d *Device) RMSNorm(s device.Stream, out, x, w device.Mat, eps float32) {
	d.routed = false
	d.count(Norms, "RMSNorm", bytesOf(w), func() { d.Device.RMSNorm(s, out, x, w, eps) })
}

func (d *Device) AddRMSNorm(s device.Stream, out, x, delta, w device.Mat, eps float32) {
	d.routed = false
	d.count(Norms, "AddRMSNorm", bytesOf(w), func() { d.Device.AddRMSNorm(s, out, x, delta, w, eps) })
}

func (d *Device) Add(s device.Stream, x, delta device.Mat) {
	d.count(Norms, "Add", nothing, func() { d.Device.Add(s, x, delta) })
}

// product is the stage of a product with so many rows of weights. The router's
// is found when its result is routed.
func (d *Device) product(rows int) string {
	if rows == d.vocab {
		return Head
	}
	return Attention
}

func (d *Device) MatMul(s device.Stream, out, x, w device.Mat) {
	d.count(d.product(w.Rows), "MatMul", bytesOf(w), func() { d.Device.MatMul(s, out, x, w) })
	d.logits = out
}

func (d *Device) MatMulQ(s device.Stream, out device.Mat, x device.QRows, w device.QMat) {
	d.count(d.product(w.Rows), "MatMulQ", func() int64 { return int64(w.Bytes()) }, func() { d.Device.MatMulQ(s, out, x, w) })
	d.logits = out
}

func (d *Device) QuantizeRows(s device.Stream, out device.QRows, x device.Mat) {
	d.count(Quantize, "QuantizeRows", nothing, func() { d.Device.QuantizeRows(s, out, x) })
}

// RouteTopK takes the product that made its logits with it to the router.
func (d *Device) RouteTopK(s device.Stream, ids, weights, logits, bias device.Mat, p device.Router) {
	if by := d.lastBy; d.On && d.last != nil && logits == d.logits {
		from, to := d.last, d.entry(Router, by.Operator)
		if from.Operator == by.Operator && from != to {
			from.Calls, from.Time, from.Bytes = from.Calls-1, from.Time-by.Time, from.Bytes-by.Bytes
			to.Calls, to.Time, to.Bytes = to.Calls+1, to.Time+by.Time, to.Bytes+by.Bytes
		}
	}
	d.routed = true
	d.count(Router, "RouteTopK", nothing, func() { d.Device.RouteTopK(s, ids, weights, logits, bias, p) })
}

func (d *Device) AddBias(s device.Stream, x, b device.Mat) {
	d.count(Attention, "AddBias", bytesOf(b), func() { d.Device.AddBias(s, x, b) })
}

func (d *Device) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	d.count(Attention, "HeadNorm", bytesOf(w), func() { d.Device.HeadNorm(s, x, heads, w, eps) })
}

func (d *Device) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	d.count(Attention, "Rope", nothing, func() { d.Device.Rope(s, x, positions, table, p) })
}

func (d *Device) StoreRows(s device.Stream, cache device.KV, src, slots device.Mat) {
	d.count(Attention, "StoreRows", nothing, func() { d.Device.StoreRows(s, cache, src, slots) })
}

func (d *Device) CopyRows(s device.Stream, dst, src device.Mat) {
	d.count(Attention, "CopyRows", bytesOf(src), func() { d.Device.CopyRows(s, dst, src) })
}

// cached is what attention over spans reads of the cache, once a row.
func cached(cache device.KV, spans []device.Span) int64 {
	var rows int64
	for _, s := range spans {
		rows += int64(s.Pos + s.Len)
	}
	return rows * int64(cache.Bytes()) / int64(max(1, cache.Mat.Rows))
}

func (d *Device) GQA(s device.Stream, out, q device.Mat, cache device.KV, spans device.Spans, p device.GQA) {
	d.count(Attention, "GQA", func() int64 { return cached(cache, spans.List) }, func() { d.Device.GQA(s, out, q, cache, spans, p) })
}

func (d *Device) MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	d.count(Attention, "MLAPrefill", func() int64 { return cached(cache, spans.List) + int64(kvB.Bytes()) },
		func() { d.Device.MLAPrefill(s, out, q, cache, kvB, spans, p) })
}

func (d *Device) MLADecode(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	d.count(Attention, "MLADecode", func() int64 { return cached(cache, spans.List) + int64(kvB.Bytes()) },
		func() { d.Device.MLADecode(s, out, q, cache, kvB, spans, p) })
}

// network is the stage of a feed-forward network: the shared experts of a layer
// that routed, else the network of a dense one.
func (d *Device) network() string {
	if d.routed {
		return Shared
	}
	return Dense
}

func (d *Device) FFN(s device.Stream, out, x device.Mat, e device.Expert) {
	d.count(d.network(), "FFN", func() int64 { return int64(e.Bytes()) }, func() { d.Device.FFN(s, out, x, e) })
}

func (d *Device) FFNQ(s device.Stream, out device.Mat, x device.QRows, e device.QExpert) {
	d.count(d.network(), "FFNQ", func() int64 { return int64(e.Bytes()) }, func() { d.Device.FFNQ(s, out, x, e) })
}

func (d *Device) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	d.count(Experts, "Experts", func() (n int64) {
		for _, w := range work {
			n += int64(bank[w.Expert].Bytes())
		}
		return n
	}, func() { d.Device.Experts(s, y, x, bank, work, topK) })
}

func (d *Device) ExpertsQ(s device.Stream, y device.Mat, x device.QRows, bank []device.QExpert, work []device.ExpertRows, topK int) {
	d.count(Experts, "ExpertsQ", func() (n int64) {
		for _, w := range work {
			n += int64(bank[w.Expert].Bytes())
		}
		return n
	}, func() { d.Device.ExpertsQ(s, y, x, bank, work, topK) })
}

func (d *Device) WeightedSum(s device.Stream, out, y, weights, base device.Mat) {
	d.count(Merge, "WeightedSum", nothing, func() { d.Device.WeightedSum(s, out, y, weights, base) })
}
