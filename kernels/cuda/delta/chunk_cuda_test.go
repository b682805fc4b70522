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

var chunkSizes = []device.DeltaNet{
	{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 128, Taps: 1},
	{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 32, Taps: 1, ByKeyHead: true},
	{KeyHeads: 1, ValueHeads: 1, KeyDim: 72, ValueDim: 40, Taps: 1},
}

// rowSizes have a decay for each row of a state.
var rowSizes = []device.DeltaNet{
	{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 40, Taps: 1, Floor: -5},
	{KeyHeads: 2, ValueHeads: 2, KeyDim: 72, ValueDim: 32, Taps: 1, Floor: -3},
}

// operands hold what the gated delta rule reads and writes for a batch of prompts.
type operands struct {
	p                                 device.DeltaNet
	x, ba, decay, bias, states, out   []float32
	rows                              int
	gx, gba, gdecay, gbias, gst, gout launch.Mat
}

// newOperands makes rows. strength is the size of the logarithms of decays.
func newOperands(g *cudatest.GPU, p device.DeltaNet, rows int, strength float32) *operands {
	r := kerneltest.Rand(uint64(rows))
	half := func(n int) []float32 {
		_, v := kerneltest.BF16(kerneltest.Normal(r, n, 1))
		return v
	}
	o := &operands{p: p, rows: rows, x: half(rows * p.Channels()), ba: half(rows * p.Numbers()), decay: kerneltest.Normal(r, p.ValueHeads, 1),
		bias: half(p.ValueHeads * p.Rates()), states: kerneltest.Normal(r, slots*p.StateRows()*p.ValueDim, 1), out: make([]float32, rows*p.Values())}
	for i, v := range o.decay {
		o.decay[i] = -strength * (0.5 + v*v)
	}
	o.gx, o.gba = g.BF16(o.x, rows, p.Channels()), g.BF16(o.ba, rows, p.Numbers())
	o.gdecay, o.gbias = g.F32(o.decay, 1, p.ValueHeads), g.F32(o.bias, 1, p.ValueHeads*p.Rates())
	o.gst, o.gout = g.F32(o.states, slots*p.StateRows(), p.ValueDim), g.BF16(o.out, rows, p.Values())
	return o
}

// run computes prompts in chunks.
func (o *operands) run(g *cudatest.GPU, list []device.Span) {
	words := make([]int32, spans.Words(len(list), 0))
	spans.Put(words, list, nil)
	table := g.I32(words, 1, len(words))
	g.Run(func(l *launch.List) {
		Chunks(l, g.Info(), o.gout, o.gx, o.gba, o.gdecay, o.gbias, o.gst, list, table, o.p)
	})
}

// TestChunks: prompts of all lengths, several in a step, from their beginning and from any position,
// with decays that keep almost everything and with such that keep nothing.
func TestChunks(t *testing.T) {
	g := cudatest.Open(t)
	for i, p := range slices.Concat(chunkSizes, rowSizes) {
		for _, strength := range []float32{0, 0.01, 1, 40, 3e6} {
			if testing.Short() && p.Floor < 0 && strength != 40 {
				continue
			}
			lists := [][]device.Span{{{Row: 1, Len: 1, Pos: 70, Slot: 1}, {Row: 3, Len: 63, Slot: 2}, {Row: 66, Len: 65, Pos: 37, Slot: 0}}}
			if i == 0 && (strength == 1 || !testing.Short()) {
				lists = append(lists, []device.Span{{Len: 200, Pos: 64, Slot: 2}}, []device.Span{{Len: 64, Slot: 0}, {Row: 64, Len: 64, Pos: 1, Slot: 1}})
			}
			for _, list := range lists {
				last := list[len(list)-1]
				o := newOperands(g, p, last.Row+last.Len, strength)
				o.run(g, list)
				for _, s := range list {
					if s.Pos == 0 {
						clear(o.states[s.Slot*p.StateRows()*p.ValueDim:][:p.StateRows()*p.ValueDim])
					}
				}
				ref.Delta(o.out, o.x, o.ba, o.decay, o.bias, o.states, list, p)
				states := 256 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(o.states))
				out := states + kerneltest.MaxAbs(o.out)/256
				for what, x := range map[string]struct {
					got   launch.Mat
					want  []float32
					limit float64
				}{"states": {o.gst, o.states, states}, "out": {o.gout, o.out, out}} {
					if err := kerneltest.Compare(g.Floats(x.got), x.want, x.got.Cols, kerneltest.Relative(x.want, 256, x.limit)); err != nil {
						t.Errorf("%+v, decays %g, %+v, %s: %v", p, strength, list, what, err)
					}
				}
			}
		}
	}
}

// TestChunksAreCut: a prompt in several steps has the same bits as in one, if it is cut at positions
// that are multiples of a chunk.
func TestChunksAreCut(t *testing.T) {
	g := cudatest.Open(t)
	for _, p := range []device.DeltaNet{chunkSizes[1], chunkSizes[2], rowSizes[1]} {
		whole, cut := newOperands(g, p, 210, 1), newOperands(g, p, 210, 1)
		whole.run(g, []device.Span{{Len: 210, Pos: 50, Slot: 1}})
		for _, part := range [][2]int{{0, 14}, {14, 142}, {142, 206}, {206, 210}} {
			cut.run(g, []device.Span{{Row: part[0], Len: part[1] - part[0], Pos: 50 + part[0], Slot: 1}})
		}
		for what, x := range map[string][2]launch.Mat{"out": {cut.gout, whole.gout}, "states": {cut.gst, whole.gst}} {
			if err := kerneltest.SameBits(g.Floats(x[0]), g.Floats(x[1])); err != nil {
				t.Errorf("%+v, %s: %v", p, what, err)
			}
		}
	}
}

// TestChunksCheckSlots: a slot that is not there is left out, and so is a prompt without rows.
func TestChunksCheckSlots(t *testing.T) {
	g := cudatest.Open(t)
	o := newOperands(g, chunkSizes[1], 3, 1)
	for _, slot := range []int{-1, slots} {
		o.run(g, []device.Span{{Len: 3, Slot: slot}})
	}
	if !slices.Equal(g.Floats(o.gst), o.states) || !slices.Equal(g.Floats(o.gout), o.out) {
		t.Error("states or output changed")
	}
}

// TestCanChunk: what the kernel cannot read is not given to it.
func TestCanChunk(t *testing.T) {
	gpu := launch.GPU{SharedMax: 99 << 10} // compute capability 8.6, 8.9 and 12.0
	for i, change := range []func(gpu *launch.GPU, out, x *launch.Mat, p *device.DeltaNet){
		func(*launch.GPU, *launch.Mat, *launch.Mat, *device.DeltaNet) {},
		func(gpu *launch.GPU, _, _ *launch.Mat, _ *device.DeltaNet) { gpu.SharedMax = 96 << 10 },
		func(_ *launch.GPU, out, _ *launch.Mat, _ *device.DeltaNet) { out.Stride++ },
		func(_ *launch.GPU, _, x *launch.Mat, _ *device.DeltaNet) { x.Stride += 4 },
		func(_ *launch.GPU, _, x *launch.Mat, _ *device.DeltaNet) { x.At += 8 },
		func(_ *launch.GPU, _, x *launch.Mat, _ *device.DeltaNet) { x.DType = tensor.F32 },
		func(_ *launch.GPU, _, _ *launch.Mat, p *device.DeltaNet) { p.KeyDim = 136 },
		func(_ *launch.GPU, _, _ *launch.Mat, p *device.DeltaNet) { p.KeyDim = 36 },
		func(_ *launch.GPU, _, _ *launch.Mat, p *device.DeltaNet) { p.ValueDim = 36 },
		func(_ *launch.GPU, _, _ *launch.Mat, p *device.DeltaNet) { p.Floor = -5.5 },
	} {
		p, g := chunkSizes[0], gpu
		x := launch.Mat{At: 1 << 20, DType: tensor.BF16, Rows: 4, Cols: p.Channels(), Stride: p.Channels()}
		out := x
		change(&g, &out, &x, &p)
		if CanChunk(g, out, x, x, p) != (i == 0) {
			t.Errorf("change %d: %t", i, i > 0)
		}
	}
}
