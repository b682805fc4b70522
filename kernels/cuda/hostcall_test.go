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

func (c *split) compare(rng *rand.Rand, rows int) {
	t, d, dt := c.t, c.dev, c.dev.RowType()
	s := c.stream()
	m, err := d.NewHostCalls(device.HostCallSize{Rows: 8, Hidden: hostHidden, TopK: hostTopK, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	n := rows * hostHidden
	room := func(dt tensor.DType, rows, cols int) device.Mat {
		return c.wrap(dt, rows, cols, make([]byte, rows*cols*dt.Size()))
	}
	hidden, delta, y := room(tensor.F32, rows, hostHidden), room(dt, rows, hostHidden), room(dt, rows*hostTopK, hostHidden)
	x, ids, weights := room(dt, rows, hostHidden), room(tensor.I32, rows, hostTopK), room(tensor.F32, rows, hostTopK)
	for i := range hostRepeats {
		in, shares := random(rng, n, 1), random(rng, rows*hostTopK, 1)
		var chosen []int32
		for range rows {
			p := rng.Perm(hostExperts)
			chosen = append(chosen, int32(p[0]), int32(p[1]))
		}
		m.Begin()
		s.CopyIn(hidden, make([]byte, 4*n))
		s.CopyIn(x, words(dt, in))
		s.CopyIn(ids, ints(chosen))
		s.CopyIn(weights, words(tensor.F32, shares))
		if repeated := s.Repeat(7); repeated != (i >= 2) {
			t.Fatalf("step %d repeated: %v", i, repeated)
		} else if !repeated {
			for range hostLayers {
				run(d, s, func(l *device.List) {
					l.AskHost(m, x, ids, weights, c.hereMat)
					l.ExpertsOn(y, x, &c.bank, ids)
					l.WeightedSum(delta, y, weights, device.Mat{}, ids, c.bank.Map)
					l.Add(hidden, delta)
					l.TakeAnswer(m, hidden)
				})
			}
		}
		out := make([]byte, 4*n)
		s.CopyOut(out, hidden)
		s.Submit()
		var ended atomic.Bool
		served := make(chan bool)
		go func() {
			for call := range hostLayers {
				l, ok := m.Await(call, ended.Load)
				if !ok {
					served <- false
					return
				}
				if l.Rows > 0 {
					c.answer(l)
					m.Answer(call)
				}
			}
			served <- true
		}()
		err := s.Synchronize()
		ended.Store(true)
		if ok := <-served; err != nil || !ok || m.Err() != nil {
			t.Fatalf("step %d: %v, all calls came: %v, %v", i, err, ok, m.Err())
		}
		want, size := make([]float32, n), make([]float64, rows) // size: of the terms, about
		for k, e := range chosen {
			row := k / hostTopK * hostHidden
			size[k/hostTopK] += hostLayers * math.Abs(float64(shares[k]))
			c.expert(e, hostLayers*shares[k], in[row:][:hostHidden], want[row:][:hostHidden])
		}
		bound := 1e-4
		if dt == tensor.BF16 {
			bound = 1e-2 // a hidden value may be rounded the other way
		}
		for j := range want {
			got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*j:]))
			if off := math.Abs(float64(got - want[j])); !(off <= bound*size[j/hostHidden]) {
				t.Fatalf("step %d: [%d] is %v, want %v", i, j, got, want[j])
			}
		}
	}
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
