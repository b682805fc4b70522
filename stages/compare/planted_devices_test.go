package compare

import (
	"encoding/binary"
	"math"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
)

// wideNorms norms what is normed by heads as one row.
type wideNorms struct{ refdevice.Device }

func (d wideNorms) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d wideNorms) HeadNorm(s device.Stream, x device.Mat, heads int, w device.Mat, eps float32) {
	buf, _ := d.Alloc(heads * w.Bytes()) // never an error
	wide := device.NewMat(buf, w.DType, 1, heads*w.Cols)
	for h := range heads {
		d.CopyRows(s, wide.ColRange(h*w.Cols, (h+1)*w.Cols), w)
	}
	d.Device.RMSNorm(s, x, x, wide, eps)
}

// rmsKeys norms index keys without taking the mean away.
type rmsKeys struct{ refdevice.Device }

func (d rmsKeys) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d rmsKeys) LayerNorm(s device.Stream, out, x, w, b device.Mat, eps float32) {
	d.Device.RMSNorm(s, out, x, w, eps)
	d.Device.AddBias(s, out, b)
}

// dense attends to every token that is seen, whatever an indexer chooses.
type dense struct{ refdevice.Device }

func (d dense) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d dense) SparseMLA(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, _ device.Mat, spans device.Spans, p device.MLA) {
	d.Device.MLAPrefill(s, out, q, cache, kvB, spans, p)
}

// wholeRope rotates whole heads of a model that rotates a part of each, or the part with the
// frequencies of whole heads.
type wholeRope struct {
	refdevice.Device
	part bool
}

func (d wholeRope) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d wholeRope) Rope(s device.Stream, x, positions, _ device.Mat, p device.Rope) {
	const context, theta = 16, 1e6
	if !d.part {
		p.Dim = p.HeadDim
	}
	buf, _ := d.Alloc(4 * context * p.Dim)
	table := device.NewMat(buf, tensor.F32, context, p.Dim)
	rows := make([]float32, context*p.Dim)
	for i := range rows {
		turn := float64(i/p.Dim) * math.Pow(theta, -float64(i%p.Dim/2*2)/float64(p.HeadDim))
		if rows[i] = float32(math.Cos(turn)); i%2 == 1 {
			rows[i] = float32(math.Sin(turn))
		}
	}
	s.CopyIn(table, bytesOf(rows))
	d.Device.Rope(s, x, positions, table, p)
}

// lastRope rotates the last values of a head, not the first.
type lastRope struct{ refdevice.Device }

func (d lastRope) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d lastRope) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	p.Offset = p.HeadDim - p.Dim
	d.Device.Rope(s, x, positions, table, p)
}

// rescaled has a softmax scale of its own: by / sqrt(head size).
type rescaled struct {
	refdevice.Device
	by float64
}

func (d rescaled) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d rescaled) MLAPrefill(s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans device.Spans, p device.MLA) {
	p.Scale = float32(d.by / math.Sqrt(float64(p.Nope+p.Rope)))
	d.Device.MLAPrefill(s, out, q, cache, kvB, spans, p)
}

// choice is how a router chooses.
type choice struct {
	device.Router
	missing bool // the correction
	weighs  bool // the correction is added to the weights too
}

// wrongRouter chooses in another way.
type wrongRouter struct {
	refdevice.Device
	change func(*choice)
}

// routed makes devices with such routers.
func routed(change func(*choice)) func() load.Device {
	return func() load.Device { return &wrongRouter{change: change} }
}

func (d *wrongRouter) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d *wrongRouter) RouteTopK(s device.Stream, ids, weights, logits, bias, factors device.Mat, p device.Router) {
	c := choice{Router: p}
	d.change(&c)
	if c.missing {
		bias = device.Mat{}
	}
	if d.Device.RouteTopK(s, ids, weights, logits, bias, factors, c.Router); !c.weighs {
		return
	}
	read := func(m device.Mat) []byte {
		b := make([]byte, m.Bytes())
		s.CopyOut(b, m)
		s.Synchronize() // never an error
		return b
	}
	row, add, to := elements[float32](read(logits)), elements[float32](read(bias)), elements[float32](read(weights))
	sum := make([]float32, logits.Rows)
	for i, e := range elements[int32](read(ids)) {
		t := i / p.TopK
		to[i] = float32(1/(1+math.Exp(-float64(row[t*p.Experts+int(e)])))) + add[e]
		sum[t] += to[i]
	}
	for i := range to {
		to[i] /= sum[i/p.TopK]
	}
	s.CopyIn(weights, bytesOf(to))
}

// bytesOf is the bytes of values.
func bytesOf(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
