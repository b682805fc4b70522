//go:build cuda

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

const (
	hostExperts, hostTopK   = 4, 2
	hostHidden, hostWidth   = 64, 64
	hostLayers, hostRepeats = 3, 4
)

// split is a stack of mixtures whose experts lie partly in a bank and are partly the host's.
type split struct {
	t       *testing.T
	dev     *Device
	w13, w2 [][]float32 // of every expert
	bank    device.Bank
	here    []int32
	hereMat device.Mat
}

// words are float32s or bfloat16s.
func words(dt tensor.DType, x []float32) []byte {
	var b []byte
	for _, v := range x {
		if dt == tensor.F32 {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		} else {
			b = binary.LittleEndian.AppendUint16(b, tensor.F32ToBF16(v))
		}
	}
	return b
}

func ints(x []int32) (b []byte) {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func (c *split) wrap(dt tensor.DType, rows, cols int, b []byte) device.Mat {
	buf, err := c.dev.Wrap(b)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(buf.Free)
	return device.NewMat(buf, dt, rows, cols)
}

func random(rng *rand.Rand, n int, size float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = tensor.BF16ToF32(tensor.F32ToBF16(float32(size * rng.NormFloat64())))
	}
	return x
}

// newSplit keeps experts where here says, of three places.
func newSplit(t *testing.T, rng *rand.Rand, f32 bool, here []int32) *split {
	dev := opened(t, Options{F32: f32})
	c := &split{t: t, dev: dev, here: here}
	const places, n13, n2 = 3, 2 * hostWidth * hostHidden, hostHidden * hostWidth
	const step = 2 * (n13 + n2)
	memory := make([]byte, places*step)
	for e := range hostExperts {
		c.w13, c.w2 = append(c.w13, random(rng, n13, 0.2)), append(c.w2, random(rng, n2, 0.2))
		if at := here[e]; at >= 0 {
			copy(memory[at*step:], words(tensor.BF16, c.w13[e]))
			copy(memory[at*step+2*n13:], words(tensor.BF16, c.w2[e]))
		}
	}
	all := c.wrap(tensor.BF16, 1, len(memory)/2, memory)
	c.hereMat = c.wrap(tensor.I32, 1, hostExperts, ints(here))
	c.bank = device.Bank{Experts: hostExperts, Step: step, Map: c.hereMat,
		W13: device.Weight{F: device.NewMat(all.Buf, tensor.BF16, 2*hostWidth, hostHidden)},
		W2:  device.Weight{F: device.Mat{Buf: all.Buf, Off: 2 * n13, DType: tensor.BF16, Rows: hostHidden, Cols: hostWidth, Stride: hostWidth}}}
	return c
}

func (c *split) stream() *Stream {
	s, err := c.dev.NewStream()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(s.(*Stream).Close)
	return s.(*Stream)
}

// expert adds share times an expert's result for x to out.
func (c *split) expert(e int32, share float32, x, out []float32) {
	dot := func(a, b []float32) (sum float64) {
		for i := range a {
			sum += float64(a[i]) * float64(b[i])
		}
		return sum
	}
	h := make([]float32, hostWidth)
	for f := range h {
		g, u := dot(x, c.w13[e][f*hostHidden:][:hostHidden]), dot(x, c.w13[e][(hostWidth+f)*hostHidden:][:hostHidden])
		h[f] = float32(g / (1 + math.Exp(-g)) * u)
		if !c.dev.F32 {
			h[f] = tensor.BF16ToF32(tensor.F32ToBF16(h[f]))
		}
	}
	for i := range out {
		out[i] += share * float32(dot(h, c.w2[e][i*hostWidth:][:hostWidth]))
	}
}

// answer computes what a call asks for.
func (c *split) answer(l device.HostCall) {
	clear(l.Out)
	x := make([]float32, len(l.Out))
	if err := tensor.Widen(x, c.dev.RowType(), l.X); err != nil {
		c.t.Error(err)
	}
	for i, e := range l.IDs {
		if row := i / hostTopK * hostHidden; e >= 0 {
			c.expert(e, l.Weights[i], x[row:][:hostHidden], l.Out[row:][:hostHidden])
		}
	}
}

// TestExpertsOnBothSides: a step whose experts are partly the host's gives what it gives
// with all of them in one place, again and again, also repeated as it is.
func TestExpertsOnBothSides(t *testing.T) {
	for _, f32 := range []bool{true, false} {
		for _, here := range [][]int32{{2, -1, 0, -1}, {-1, -1, -1, -1}, {0, 2, 1, -1}} {
			for _, rows := range []int{1, 5} {
				t.Run(fmt.Sprintf("F32 %v, %v, %d rows", f32, here, rows), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(31, uint64(rows)))
					newSplit(t, rng, f32, here).compare(rng, rows)
				})
			}
		}
	}
}

// hostStep is the data of a step.
type hostStep struct {
	*split
	s                *Stream
	m                device.HostCalls
	hidden, delta, y device.Mat
	x, ids, weights  device.Mat
}

// choices is the input of a step.
type choices struct {
	in, shares []float32
	chosen     []int32
}

func (c *split) compare(rng *rand.Rand, rows int) {
	c.t.Helper()
	m, err := c.dev.NewHostCalls(device.HostCallSize{Rows: 8, Hidden: hostHidden, TopK: hostTopK, Limit: time.Minute})
	if err != nil {
		c.t.Fatal(err)
	}
	defer m.Close()
	dt := c.dev.RowType()
	room := func(dt tensor.DType, rows, cols int) device.Mat {
		return c.wrap(dt, rows, cols, make([]byte, rows*cols*dt.Size()))
	}
	h := &hostStep{split: c, s: c.stream(), m: m,
		hidden: room(tensor.F32, rows, hostHidden), delta: room(dt, rows, hostHidden), y: room(dt, rows*hostTopK, hostHidden),
		x: room(dt, rows, hostHidden), ids: room(tensor.I32, rows, hostTopK), weights: room(tensor.F32, rows, hostTopK)}
	for i := range hostRepeats {
		in := choices{in: random(rng, rows*hostHidden, 1), shares: random(rng, rows*hostTopK, 1)}
		for range rows {
			p := rng.Perm(hostExperts)
			in.chosen = append(in.chosen, int32(p[0]), int32(p[1]))
		}
		out := make([]byte, 4*len(in.in))
		if repeated := h.submit(in, out); repeated != (i >= 2) {
			c.t.Fatalf("step %d repeated: %v", i, repeated)
		}
		if err := h.serve(); err != nil {
			c.t.Fatalf("step %d: %v", i, err)
		}
		if err := h.check(in, out); err != nil {
			c.t.Fatalf("step %d: %v", i, err)
		}
	}
}

// submit starts a step, and reports whether it is repeated as it was.
func (h *hostStep) submit(in choices, out []byte) (repeated bool) {
	h.m.Begin()
	h.s.CopyIn(h.hidden, make([]byte, len(out)))
	h.s.CopyIn(h.x, words(h.dev.RowType(), in.in))
	h.s.CopyIn(h.ids, ints(in.chosen))
	h.s.CopyIn(h.weights, words(tensor.F32, in.shares))
	if repeated = h.s.Repeat(7); !repeated {
		for range hostLayers {
			run(h.dev, h.s, func(l *device.List) {
				l.AskHost(h.m, h.x, h.ids, h.weights, h.hereMat)
				l.ExpertsOn(h.y, h.x, &h.bank, h.ids)
				l.WeightedSum(h.delta, h.y, h.weights, device.Mat{}, h.ids, h.bank.Map)
				l.Add(h.hidden, h.delta)
				l.TakeAnswer(h.m, h.hidden)
			})
		}
	}
	h.s.CopyOut(out, h.hidden)
	h.s.Submit()
	return repeated
}

// serve answers the calls of a step until it ends.
func (h *hostStep) serve() error {
	var ended atomic.Bool
	served := make(chan error)
	go func() {
		for call := range hostLayers {
			l, ok := h.m.Await(call, ended.Load)
			if !ok {
				served <- fmt.Errorf("call %d did not come", call)
				return
			}
			if l.Rows > 0 {
				h.answer(l)
				h.m.Answer(call)
			}
		}
		served <- nil
	}()
	err := h.s.Synchronize()
	ended.Store(true)
	return errors.Join(err, <-served, h.m.Err())
}

// check compares the result of a step with what all experts give on the host.
func (h *hostStep) check(in choices, out []byte) error {
	want, size := make([]float32, len(in.in)), make([]float64, h.x.Rows) // size: of the terms, about
	for k, e := range in.chosen {
		row := k / hostTopK * hostHidden
		size[k/hostTopK] += hostLayers * math.Abs(float64(in.shares[k]))
		h.expert(e, hostLayers*in.shares[k], in.in[row:][:hostHidden], want[row:][:hostHidden])
	}
	bound := 1e-4
	if h.dev.RowType() == tensor.BF16 {
		bound = 1e-2 // a hidden value may be rounded the other way
	}
	for j := range want {
		got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*j:]))
		if off := math.Abs(float64(got - want[j])); !(off <= bound*size[j/hostHidden]) {
			return fmt.Errorf("[%d] is %v, want %v", j, got, want[j])
		}
	}
	return nil
}

// TestMapOfAnotherBank: a map that does not have a place for every expert is refused.
func TestMapOfAnotherBank(t *testing.T) {
	c := newSplit(t, rand.New(rand.NewPCG(1, 1)), false, []int32{0, 1, 2, -1})
	s := c.stream()
	x, y, ids := c.wrap(tensor.BF16, 1, hostHidden, make([]byte, 2*hostHidden)), c.wrap(tensor.BF16, hostTopK, hostHidden, make([]byte, 4*hostHidden)),
		c.wrap(tensor.I32, 1, hostTopK, make([]byte, 4*hostTopK))
	c.bank.Map = c.hereMat.ColRange(0, hostExperts-1)
	defer func() {
		var e *device.ShapeError
		if err, ok := recover().(error); !ok || !errors.As(err, &e) {
			t.Errorf("%v", err)
		}
	}()
	run(c.dev, s, func(l *device.List) { l.ExpertsOn(y, x, &c.bank, ids) })
}

// TestHostCallsRefused: sizes that calls cannot have.
func TestHostCallsRefused(t *testing.T) {
	c := newSplit(t, rand.New(rand.NewPCG(1, 1)), false, []int32{0, 1, 2, -1})
	for _, o := range []device.HostCallSize{{}, {Rows: 1, Hidden: 60, TopK: 1, Limit: time.Second}, {Rows: 1, Hidden: 64, TopK: 1}} {
		if m, err := c.dev.NewHostCalls(o); err == nil {
			m.Close()
			t.Errorf("%+v makes a mailbox", o)
		}
	}
}
