package cpu_test

import (
	"fmt"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

var deltaSizes = []device.DeltaNet{
	{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Taps: 4, ByKeyHead: true},
	{KeyHeads: 1, ValueHeads: 3, KeyDim: 7, ValueDim: 133, Taps: 4},
	{KeyHeads: 3, ValueHeads: 3, KeyDim: 16, ValueDim: 5, Taps: 2, ByKeyHead: true},
	{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 1},
	{KeyHeads: 3, ValueHeads: 3, KeyDim: 32, ValueDim: 32, Taps: 4, Floor: -5, SigmoidGate: true},
	{KeyHeads: 2, ValueHeads: 6, KeyDim: 7, ValueDim: 70, Taps: 3, Floor: -1},
}

// deltaScene is rows of a batch, and what is kept of three sequences.
type deltaScene struct {
	p                          device.DeltaNet
	rows                       int
	x, ba, conv, w             []float32
	decay, bias, norm          []float32
	tail, states, out, channel []float32
}

func newDeltaScene(p device.DeltaNet, rows int) *deltaScene {
	r := kerneltest.Rand(uint64(rows + p.ValueDim))
	normal := func(n int) []float32 { return kerneltest.Normal(r, n, 1) }
	c := &deltaScene{p: p, rows: rows, x: normal(rows * p.Width()), ba: normal(rows * p.Numbers()), w: normal(p.Taps * p.Channels()),
		decay: normal(p.ValueHeads), bias: normal(p.ValueHeads * p.Rates()), norm: normal(p.ValueDim),
		tail: normal(3 * p.Taps * p.Channels()), states: normal(3 * p.StateRows() * p.ValueDim),
		out: make([]float32, rows*p.Values()), channel: make([]float32, rows*p.Channels())}
	for i, v := range c.decay {
		c.decay[i] = -v * v
	}
	return c
}

func (c *deltaScene) clone() *deltaScene {
	x := *c
	x.tail, x.states, x.out, x.channel = slices.Clone(c.tail), slices.Clone(c.states), slices.Clone(c.out), slices.Clone(c.channel)
	return &x
}

// ref computes all operators by the reference.
func (c *deltaScene) ref(spans []device.Span) {
	ref.Conv(c.channel, c.x, c.w, c.tail, spans, c.p)
	ref.Delta(c.out, c.channel, c.ba, c.decay, c.bias, c.states, spans, c.p)
	ref.GatedNorm(c.out, c.x, c.norm, 1e-6, c.p)
}

// run computes all operators on d, the inputs as columns of one wider matrix.
func (c *deltaScene) run(d *cpu.Device, s device.Stream, spans []device.Span) {
	p, wide := c.p, c.p.Width()+c.p.Numbers()
	both := make([]float32, c.rows*wide)
	for r := range c.rows {
		copy(both[r*wide:], c.x[r*p.Width():][:p.Width()])
		copy(both[r*wide+p.Width():], c.ba[r*p.Numbers():][:p.Numbers()])
	}
	in := f32s(d, both, c.rows, wide)
	x, ba := in.ColRange(0, p.Width()), in.ColRange(p.Width(), wide)
	out, channel := f32s(d, c.out, c.rows, p.Values()), f32s(d, c.channel, c.rows, p.Channels())
	list := device.Spans{List: spans}
	d.Conv(s, channel, x, f32s(d, c.w, p.Taps, p.Channels()), device.KV{Mat: f32s(d, c.tail, 3*p.Taps, p.Channels())}, list, p)
	d.Delta(s, out, channel, ba, f32s(d, c.decay, 1, p.ValueHeads), f32s(d, c.bias, 1, p.ValueHeads*p.Rates()),
		device.KV{Mat: f32s(d, c.states, 3*p.StateRows(), p.ValueDim)}, list, p)
	d.GatedNorm(s, out, x, f32s(d, c.norm, 1, p.ValueDim), 1e-6, p)
}

// deltaSpans are rows of three sequences; some rows belong to none.
var deltaSpans = []device.Span{{Row: 0, Len: 1, Pos: 9, Slot: 2}, {Row: 1, Len: 2, Pos: 5, Slot: 0}, {Row: 4, Len: 13, Pos: 3, Slot: 1}}

func TestDeltaNet(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range deltaSizes {
			want := newDeltaScene(p, 17)
			got := want.clone()
			want.ref(deltaSpans)
			got.run(d, s, deltaSpans)
			// Rows of no span are normed too; the reference has zeros there as well.
			for _, x := range []struct {
				what      string
				got, want []float32
				cols      int
			}{{"inputs kept", got.tail, want.tail, p.Channels()}, {"channels", got.channel, want.channel, p.Channels()},
				{"states", got.states, want.states, p.ValueDim}, {"out", got.out, want.out, p.Values()}} {
				limit := 64 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(x.want))
				if err := kerneltest.Compare(x.got, x.want, x.cols, kerneltest.Relative(x.want, 16, limit)); err != nil {
					t.Errorf("%+v, %s: %v", p, x.what, err)
				}
			}
		}
	})
}

// TestDeltaNetSpans: a sequence has the same bits in one piece, in pieces of any size, and beside
// others, whose states stay theirs.
func TestDeltaNetSpans(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range deltaSizes {
			whole := newDeltaScene(p, 17)
			cut := whole.clone()
			whole.run(d, s, deltaSpans)
			clear(whole.out[3*p.Values() : 4*p.Values()]) // of no sequence
			third := deltaSpans[2]
			for at, n := range []int{0: 1, 1: 2, 3: 6, 9: 4} {
				if n == 0 {
					continue
				}
				part := third
				part.Row, part.Pos, part.Len = third.Row+at, third.Pos+at, n
				list := []device.Span{part}
				if at == 3 {
					list = append(list, deltaSpans[1], deltaSpans[0])
				}
				before := slices.Clone(cut.out)
				cut.run(d, s, list)
				for r := range cut.rows { // GatedNorm takes all rows: keep those of spans
					in := slices.ContainsFunc(list, func(sp device.Span) bool { return r >= sp.Row && r < sp.Row+sp.Len })
					if row := cut.out[r*p.Values():][:p.Values()]; !in {
						copy(row, before[r*p.Values():])
					}
				}
			}
			for _, x := range [][2][]float32{{cut.tail, whole.tail}, {cut.channel, whole.channel}, {cut.states, whole.states}, {cut.out, whole.out}} {
				if err := kerneltest.SameBits(x[0], x[1]); err != nil {
					t.Errorf("%+v: %v", p, err)
				}
			}
		}
	})
}

func TestDeltaNetRefuses(t *testing.T) {
	d, s := open(t, cpu.Options{Threads: 1})
	for _, x := range []struct {
		op   string
		span device.Span
		p    device.DeltaNet
	}{
		{"Conv", device.Span{Row: 16, Len: 2}, deltaSizes[0]},
		{"Conv", device.Span{Len: 1, Slot: 3}, deltaSizes[0]},
		{"Conv", device.Span{Len: 1, Slot: -1}, deltaSizes[0]},
		{"Conv", device.Span{Len: 1, Pos: -1}, deltaSizes[0]},
		{"Conv", device.Span{}, device.DeltaNet{KeyHeads: 2, ValueHeads: 3, KeyDim: 1, ValueDim: 1, Taps: 1}},
		{"Conv", device.Span{}, device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 17}},
		{"Conv", device.Span{}, device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 1, Floor: 1}},
		{"Conv", device.Span{}, device.DeltaNet{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 1, Floor: -1, ByKeyHead: true}},
	} {
		panicsWith(t, x.op, func() { newDeltaScene(x.p, 17).run(d, s, []device.Span{x.span}) })
	}
}

func TestGate(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, n := range []int{1, 7, 16, 33, 256} {
			const rows = 11
			r := kerneltest.Rand(uint64(n))
			out, x := kerneltest.Normal(r, rows*n, 1), kerneltest.Normal(r, rows*(n+3), 4)
			var dense []float32
			for i := range rows {
				dense = append(dense, x[i*(n+3)+3:][:n]...)
			}
			want := slices.Clone(out)
			ref.Gate(want, dense)
			d.Gate(s, f32s(d, out, rows, n), wrap(d, tensor.F32, x, rows, n+3).ColRange(3, n+3))
			if err := kerneltest.Compare(out, want, n, kerneltest.Relative(want, 4, 1e-37)); err != nil {
				t.Errorf("n %d: %v", n, err)
			}
			panicsWith(t, "Gate", func() { d.Gate(s, f32s(d, out, rows, n), f32s(d, x, rows-1, n)) })
		}
	})
}

// BenchmarkDelta is a generated token of some sequences with the sizes of Qwen3-Next-80B-A3B, whose
// states come from memory, and a prompt's tokens.
func BenchmarkDelta(b *testing.B) {
	p := device.DeltaNet{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4, ByKeyHead: true}
	for _, x := range []struct{ seqs, tokens int }{{1, 1}, {8, 1}, {1, 256}} {
		b.Run(fmt.Sprintf("seqs%d/tokens%d", x.seqs, x.tokens), func(b *testing.B) {
			d, s := open(b, cpu.Options{})
			const layers = 8
			rows := x.seqs * x.tokens
			r := kerneltest.Rand(1)
			channels, ba := f32s(d, kerneltest.Normal(r, rows*p.Channels(), 1), rows, p.Channels()), f32s(d, kerneltest.Normal(r, rows*64, 1), rows, 64)
			decay, bias := f32s(d, slices.Repeat([]float32{-1}, 32), 1, 32), f32s(d, make([]float32, 32), 1, 32)
			out := f32s(d, make([]float32, rows*p.Values()), rows, p.Values())
			var spans []device.Span
			for i := range x.seqs {
				spans = append(spans, device.Span{Row: i * x.tokens, Len: x.tokens, Slot: i})
			}
			n := x.seqs * p.StateRows()
			states := f32s(d, make([]float32, layers*n*p.ValueDim), layers*n, p.ValueDim)
			ns := kerneltest.Quartile(b, layers, func() {
				for l := range layers {
					d.Delta(s, out, channels, ba, decay, bias, device.KV{Mat: states.RowRange(l*n, (l+1)*n)}, device.Spans{List: spans}, p)
				}
			})
			kerneltest.Report(b, ns, 8*n*p.ValueDim, 7*rows*p.StateRows()*p.ValueDim)
		})
	}
}
