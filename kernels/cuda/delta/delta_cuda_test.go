//go:build cuda

package delta

import (
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

var sizes = []device.DeltaNet{
	{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Taps: 4, ByKeyHead: true},
	{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 128, Taps: 4},
	{KeyHeads: 1, ValueHeads: 3, KeyDim: 57, ValueDim: 39, Taps: 5, ByKeyHead: true, SigmoidGate: true},
	{KeyHeads: 2, ValueHeads: 4, KeyDim: 57, ValueDim: 7, Taps: 4, Floor: -5, SigmoidGate: true},
	{KeyHeads: 1, ValueHeads: 1, KeyDim: 100, ValueDim: 5, Taps: 1},
	{KeyHeads: 2, ValueHeads: 2, KeyDim: 32, ValueDim: 32, Taps: 4, Floor: -20},
	{KeyHeads: 1, ValueHeads: 1, KeyDim: 128, ValueDim: 40, Taps: 1, Floor: -5},
}

const rows, slots = 150, 3

// scene is rows of a batch, and what is kept of three sequences.
type scene struct {
	p                                                    device.DeltaNet
	x, ba, w, decay, bias, norm, tail, states, out, conv []float32
}

func newScene(p device.DeltaNet, half bool) *scene {
	r := kerneltest.Rand(uint64(p.KeyDim))
	normal := func(n int) []float32 {
		v := kerneltest.Normal(r, n, 1)
		if half {
			_, v = kerneltest.BF16(v)
		}
		return v
	}
	c := &scene{p: p, x: normal(rows * p.Width()), ba: normal(rows * p.Numbers()), w: normal(p.Taps * p.Channels()), decay: normal(p.ValueHeads),
		bias: normal(p.ValueHeads * p.Rates()), norm: normal(p.ValueDim), tail: normal(slots * p.Taps * p.Channels()), states: normal(slots * p.StateRows() * p.ValueDim),
		out: make([]float32, rows*p.Values()), conv: make([]float32, rows*p.Channels())}
	for i, v := range c.decay {
		c.decay[i] = -v * v
	}
	return c
}

// onGPU is a scene on a GPU.
type onGPU struct {
	p                                                    device.DeltaNet
	x, ba, w, decay, bias, norm, tail, states, out, conv launch.Mat
}

func (c *scene) put(g *cudatest.GPU, half bool) *onGPU {
	row := g.F32
	if half {
		row = g.BF16
	}
	p := c.p
	return &onGPU{p: p, x: row(c.x, rows, p.Width()), ba: row(c.ba, rows, p.Numbers()), w: g.F32(c.w, p.Taps, p.Channels()),
		decay: g.F32(c.decay, 1, p.ValueHeads), bias: g.F32(c.bias, 1, p.ValueHeads*p.Rates()), norm: g.BF16(c.norm, 1, p.ValueDim),
		tail: g.F32(c.tail, slots*p.Taps, p.Channels()), states: g.F32(c.states, slots*p.StateRows(), p.ValueDim),
		out: row(c.out, rows, p.Values()), conv: row(c.conv, rows, p.Channels())}
}

// run computes convolution and rule, and with norm the norm of all rows.
func (c *onGPU) run(g *cudatest.GPU, prefill, decode []device.Span, norm bool) {
	words := make([]int32, spans.Words(len(prefill)+len(decode), 0))
	spans.Put(words, prefill, decode)
	table := g.I32(words, 1, len(words))
	g.Run(func(l *launch.List) {
		for i, list := range [][]device.Span{prefill, decode} {
			Conv(l, c.conv, c.x, c.w, c.tail, list, table, i == 1, c.p)
			Rule(l, c.out, c.conv, c.ba, c.decay, c.bias, c.states, list, table, i == 1, c.p)
		}
		if norm {
			GatedNorm(l, c.out, c.x, c.norm, 1e-6, c.p)
		}
	})
}

var (
	prompts   = []device.Span{{Row: 2, Len: 3, Pos: 5, Slot: 0}, {Row: 6, Len: 140, Pos: 0, Slot: 2}}
	generated = []device.Span{{Row: 0, Len: 1, Pos: 9, Slot: 1}}
)

// TestAgainstReference: prompts and generated rows of all sizes, in float32 and in bfloat16.
func TestAgainstReference(t *testing.T) {
	g := cudatest.Open(t)
	for _, p := range sizes {
		for _, half := range []bool{false, true} {
			c := newScene(p, half)
			_, c.norm = kerneltest.BF16(c.norm)
			d := c.put(g, half)
			d.run(g, prompts, generated, true)
			clear(c.states[2*p.StateRows()*p.ValueDim:]) // that begins here
			clear(c.tail[2*p.Taps*p.Channels():])
			for _, list := range [][]device.Span{prompts, generated} {
				ref.Conv(c.conv, c.x, c.w, c.tail, list, p)
				if half {
					_, c.conv = kerneltest.BF16(c.conv)
				}
				ref.Delta(c.out, c.conv, c.ba, c.decay, c.bias, c.states, list, p)
			}
			ref.GatedNorm(c.out, c.x, c.norm, 1e-6, p)
			for _, x := range []struct {
				what string
				got  launch.Mat
				want []float32
				ulps float64
			}{{"kept", d.tail, c.tail, 0}, {"conv", d.conv, c.conv, 64}, {"states", d.states, c.states, 256}, {"out", d.out, c.out, 256}} {
				limit := 256 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(x.want))
				if half && x.what != "kept" {
					limit += kerneltest.MaxAbs(x.want) / 64 // a value of conv one step of bfloat16 apart
				}
				if x.what == "kept" {
					limit = 0
				}
				if err := kerneltest.Compare(g.Floats(x.got), x.want, x.got.Cols, kerneltest.Relative(x.want, x.ulps, limit)); err != nil {
					t.Errorf("%+v, bfloat16 %t, %s: %v", p, half, x.what, err)
				}
			}
		}
	}
}

// TestSteps: a sequence has the same bits in one step and in several, as a prompt and generated.
func TestSteps(t *testing.T) {
	g := cudatest.Open(t)
	for _, p := range sizes[:4] {
		c := newScene(p, true)
		whole, cut := c.put(g, true), c.put(g, true)
		whole.run(g, prompts, generated, false)
		last := prompts[1]
		for at, n := range []int{0: 2, 2: 1, 3: 1, 4: 129, 133: 7} {
			if n == 0 {
				continue
			}
			part := last
			part.Row, part.Pos, part.Len = last.Row+at, last.Pos+at, n
			if n == 1 {
				cut.run(g, nil, []device.Span{part}, false)
			} else {
				cut.run(g, []device.Span{part}, nil, false)
			}
		}
		cut.run(g, prompts[:1], generated, false)
		for _, x := range [][2]launch.Mat{{cut.out, whole.out}, {cut.conv, whole.conv}, {cut.states, whole.states}, {cut.tail, whole.tail}} {
			if err := kerneltest.SameBits(g.Floats(x[0]), g.Floats(x[1])); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
		}
	}
}

// TestStep: generated rows in one launch have the bits of convolution and rule one after the other, whether the launch before
// them waits first or not; a slot that is not there is left out.
func TestStep(t *testing.T) {
	g := cudatest.Open(t)
	for i, p := range append(sizes[:2:2], device.DeltaNet{KeyHeads: 2, ValueHeads: 6, KeyDim: 57, ValueDim: 39, Taps: 3, ByKeyHead: true},
		device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 100, ValueDim: 5, Taps: 1}) {
		for _, list := range [][]device.Span{{{Row: 3, Len: 1, Pos: 9, Slot: 1}, {Row: 0, Len: 1, Pos: 0, Slot: 2}, {Row: 1, Len: 1, Pos: 2, Slot: 0}}, {{Len: 1, Slot: -1}, {Row: 1, Len: 1, Pos: 70, Slot: slots}}} {
			c := newScene(p, true)
			want := c.put(g, true)
			want.run(g, nil, list, false)
			for _, early := range []bool{false, true} {
				if testing.Short() && early == (i%2 == 0) {
					continue
				}
				got := c.put(g, true)
				words := make([]int32, spans.Words(len(list), 0))
				spans.Put(words, nil, list)
				table := g.I32(words, 1, len(words))
				g.Run(func(l *launch.List) {
					Step(l, got.out, got.x, got.w, got.tail, got.ba, got.decay, got.bias, got.states, list, table, early, p)
				})
				for what, x := range map[string][2]launch.Mat{"out": {got.out, want.out}, "states": {got.states, want.states}, "kept": {got.tail, want.tail}} {
					if err := kerneltest.SameBits(g.Floats(x[0]), g.Floats(x[1])); err != nil {
						t.Errorf("%+v, early %t, %s: %v", p, early, what, err)
					}
				}
			}
		}
	}
}

// TestSlotsAreChecked: a slot that is not there is left out.
func TestSlotsAreChecked(t *testing.T) {
	g := cudatest.Open(t)
	c := newScene(sizes[0], false)
	d := c.put(g, false)
	for _, slot := range []int{-1, slots} {
		d.run(g, []device.Span{{Len: 3, Slot: slot}}, []device.Span{{Row: 4, Len: 1, Slot: slot}}, false)
	}
	for what, x := range map[string][2][]float32{"states": {g.Floats(d.states), c.states}, "kept": {g.Floats(d.tail), c.tail}, "out": {g.Floats(d.out), c.out}} {
		if !slices.Equal(x[0], x[1]) {
			t.Errorf("%s changed", what)
		}
	}
}

// TestRefuses: shapes that do not fit.
func TestRefuses(t *testing.T) {
	table := launch.Mat{At: 1 << 20, DType: tensor.I32, Rows: 1, Cols: 16, Stride: 16}
	m := func(rows, cols int) launch.Mat {
		return launch.Mat{At: 1 << 20, DType: tensor.F32, Rows: rows, Cols: cols, Stride: cols}
	}
	p := device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 129, ValueDim: 4, Taps: 4}
	defer func() {
		if _, ok := recover().(*device.ShapeError); !ok {
			t.Error("keys of 129 values are taken")
		}
	}()
	Rule(&launch.List{}, m(1, 4), m(1, p.Channels()), m(1, 2), m(1, 1), m(1, 1), m(p.StateRows(), 4), []device.Span{{Len: 1}}, table, false, p)
}
