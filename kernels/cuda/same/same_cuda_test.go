//go:build cuda

package same

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// shape is a mixture in a test.
type shape struct {
	enc                 *tensor.Encoding
	group               int // 0: a whole row
	rows, h, f          int
	act                 device.Activation
	biased              bool
	x, y                tensor.DType
	tile                int
	experts, topK, gone int // gone: an expert that is not in the bank
}

func (p shape) String() string {
	return fmt.Sprintf("%s %d [%d, %d] of %d rows, tiles of %d, %+v, biased %v, %s to %s", p.enc.Name(), p.group, p.h, p.f, p.rows, p.tile, p.act, p.biased, p.x, p.y)
}

// mixture is a shape's experts on both sides.
type mixture struct {
	shape
	host []device.QExpert
	bank launch.Bank
}

func (p shape) mixture(t *testing.T, c *cudatest.GPU, d *cpu.Device, seed uint64) mixture {
	t.Helper()
	m := mixture{shape: p}
	r, format := kerneltest.Rand(seed), p.enc.By(p.group)
	w13, w2, err := format.Network(tensor.GPU, p.h, p.f)
	if err != nil {
		t.Fatal(err)
	}
	cpu13, cpu2, err := format.Network(tensor.CPU, p.h, p.f)
	if err != nil {
		t.Fatal(err)
	}
	wrap := func(b []byte) device.Buffer { w, _ := d.Wrap(b); return w }
	var values, scales [2][]byte
	var biases []float32
	for range p.experts {
		var e device.QExpert
		for i, l := range [2][2]tensor.Layout{{w13, cpu13}, {w2, cpu2}} {
			x := tensor.NewMatrix(l[0].Format, l[0].Rows, l[0].Cols)
			levels := p.enc.Levels()
			for j := range x.Values {
				x.Values[j] = levels[r.IntN(len(levels))]
			}
			for j, v := range kerneltest.Normal(r, len(x.Scales), 0.02) {
				x.Scales[j] = tensor.BF16ToF32(tensor.F32ToBF16(v))
			}
			v, s := make([]byte, l[0].ValueBytes()), make([]byte, l[0].ScaleBytes())
			l[0].Pack(v, s, x)
			values[i], scales[i] = append(values[i], v...), append(scales[i], s...)
			v, s = make([]byte, l[1].ValueBytes()), make([]byte, l[1].ScaleBytes())
			l[1].Pack(v, s, x)
			q := device.QMat{Layout: l[1], Values: wrap(v), Scales: wrap(s)}
			if i == 0 {
				e.W13 = q
			} else {
				e.W2 = q
			}
		}
		e.Act = p.act
		if p.biased {
			b := kerneltest.Normal(r, 2*p.f+p.h, 1)
			all := device.NewMat(wrap(kerneltest.Bytes(b)), tensor.F32, 1, len(b))
			e.B13, e.B2 = all.ColRange(0, 2*p.f), all.ColRange(2*p.f, len(b))
			biases = append(biases, b...)
		}
		m.host = append(m.host, e)
	}
	n := int64(p.experts)
	m.bank = launch.Bank{Experts: p.experts, W13: launch.Weight{A: launch.Tiles{Layout: w13, Values: c.Bytes(values[0]), Scales: c.Bytes(scales[0])}},
		W2:   launch.Weight{A: launch.Tiles{Layout: w2, Values: c.Bytes(values[1]), Scales: c.Bytes(scales[1])}},
		Step: int64(len(values[0])) / n, ScaleStep: int64(len(scales[0])) / n, Step2: int64(len(values[1])) / n, ScaleStep2: int64(len(scales[1])) / n,
		Extra: launch.Extra{Alpha: p.act.Alpha, Limit: p.act.Limit, Shift: p.act.Shift, Cubic: p.act.Cubic}}
	if p.biased {
		all := c.F32(biases, 1, len(biases))
		m.bank.B13, m.bank.B2, m.bank.BiasStep = all.At, all.ColRange(2*p.f, 2*p.f+p.h).At, int64(4*(2*p.f+p.h))
	}
	slots := make([]int32, p.experts)
	for e := range slots {
		slots[e] = int32(e)
	}
	slots[p.gone] = -1
	m.bank.Map = c.I32(slots, 1, p.experts).At
	return m
}

// check compares the rows of Experts with those of ExpertsQ, bit by bit.
func (m *mixture) check(t *testing.T, c *cudatest.GPU, d *cpu.Device, s device.Stream, values []float32) {
	t.Helper()
	if m.x == tensor.BF16 {
		_, values = kerneltest.BF16(values)
	}
	wrap := func(x []float32, rows int) device.Mat {
		b, _ := d.Wrap(kerneltest.Bytes(x))
		return device.NewMat(b, tensor.F32, rows, len(x)/rows)
	}
	q, err := device.AllocQRows(d, m.rows, m.h, m.host[0].W13.Group)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Free()
	d.QuantizeRows(s, q, wrap(values, m.rows))
	r := kerneltest.Rand(9)
	ids, work := make([]int32, m.rows*m.topK), make([]device.ExpertRows, m.experts)
	for a := range ids {
		e := (r.IntN(m.experts) + a%m.topK) % m.experts
		ids[a] = int32(e)
		work[e].Expert, work[e].Assign = int32(e), append(work[e].Assign, int32(a))
	}
	want := make([]float32, len(ids)*m.h)
	d.ExpertsQ(s, wrap(want, len(ids)), q, m.host, slices.DeleteFunc(work, func(w device.ExpertRows) bool { return len(w.Assign) == 0 }), m.topK)

	x := c.F32(values, m.rows, m.h)
	if m.x == tensor.BF16 {
		x = c.BF16(values, m.rows, m.h)
	}
	y := c.Strided(m.y, len(ids), m.h, m.h+3)
	list := c.I32(ids, m.rows, m.topK)
	a := route.NewAligned(c.Alloc(route.AlignedBytes(m.rows, m.topK, m.experts, m.tile)), m.rows, m.topK, m.experts, m.tile)
	a.Map = m.bank.Map
	memory := c.Alloc(ScratchBytes(m.rows, m.topK, m.h, m.f))
	c.Run(func(l *launch.List) {
		route.Align(l, &a, list, 0)
		Experts(l, y, memory, x, m.bank, a)
	})
	got := c.Floats(y)
	for i, v := range want {
		e := ids[i/m.h]
		if int(e) == m.gone {
			if got[i] == got[i] {
				t.Fatalf("%v: row %d of an expert that is not there has %v", m, i/m.h, got[i])
			}
			continue
		}
		if m.y == tensor.BF16 {
			v = tensor.BF16ToF32(tensor.F32ToBF16(v))
		}
		if math.Float32bits(got[i]) != math.Float32bits(v) && (got[i] == got[i] || v == v) {
			t.Fatalf("%v: row %d, expert %d, column %d is %g, the processor has %g", m, i/m.h, e, i%m.h, got[i], v)
		}
	}
}

var activations = []device.Activation{{}, {Alpha: 1.702, Limit: 0.5, Shift: 1}, device.GELUTanh, {Limit: 7}}

// TestExpertsHaveAProcessorsBits goes over formats, groups, odd sizes, activations and types.
func TestExpertsHaveAProcessorsBits(t *testing.T) {
	c := cudatest.Open(t)
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := uint64(0)
	for _, enc := range []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8} {
		for _, group := range enc.GroupSizes() {
			for i, size := range [][3]int{{3, 72, 16}, {1, 512, 144}, {21, 160, 48}, {40, 256, 128}, {70, 200, 80}, {150, 64, 32}} {
				if testing.Short() && i > 2 {
					break
				}
				p := shape{enc: enc, group: group, rows: size[0], h: size[1], f: size[2], tile: []int{FewTokens, ManyTokens}[n%2],
					act: activations[n/2%4], biased: n%3 == 1, x: []tensor.DType{tensor.BF16, tensor.F32}[n/3%2], y: []tensor.DType{tensor.F32, tensor.BF16}[n/5%2],
					experts: 4, topK: 2, gone: int(n % 4)}
				m := p.mixture(t, c, d, n)
				values := kerneltest.Normal(kerneltest.Rand(n), p.rows*p.h, 1)
				if i == 2 { // groups of every kind: nothing, almost nothing, large, and no number in one row
					for j := range p.h {
						values[j], values[p.h+j], values[2*p.h+j] = 0, values[p.h+j]*0x1p-104, values[2*p.h+j]*1e30
					}
					values[3*p.h+7] = float32(math.NaN())
					values[4*p.h+9] = float32(math.Inf(1))
				}
				m.check(t, c, d, s, values)
				n++
			}
		}
	}
}
