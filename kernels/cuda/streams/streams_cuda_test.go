//go:build cuda

package streams

import (
	"fmt"
	"math/rand/v2"
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

// rig makes matrices of one type of rows on the GPU, and remembers their values as they are there.
type rig struct {
	*cudatest.GPU
	r    *rand.Rand
	half bool
}

func (g *rig) rows(rows, cols int) (launch.Mat, []float32) {
	x := kerneltest.Normal(g.r, rows*cols, 1)
	if !g.half {
		return g.F32(x, rows, cols), x
	}
	_, x = kerneltest.BF16(x)
	return g.BF16(x, rows, cols), x
}

func (g *rig) floats(rows, cols int) (launch.Mat, []float32) {
	x := kerneltest.Normal(g.r, rows*cols, 1)
	return g.F32(x, rows, cols), x
}

func (g *rig) empty(rows, cols int) launch.Mat {
	if g.half {
		return g.Mat(tensor.BF16, rows, cols)
	}
	return g.Mat(tensor.F32, rows, cols)
}

// near allows some roundings to float32, and one to the type of the result.
func (g *rig) near(t *testing.T, what string, got launch.Mat, want []float32) {
	t.Helper()
	ulps := 64.
	if got.DType == tensor.BF16 {
		ulps += 0x1p15
	}
	if err := kerneltest.Compare(g.Floats(got), want, got.Cols, kerneltest.Relative(want, ulps, 64*kerneltest.Eps32*kerneltest.MaxAbs(want))); err != nil {
		t.Errorf("%s of %v: %v", what, got, err)
	}
}

// shapes are rows, streams and values of a stream: aligned and not, more than a block's threads.
var shapes = []struct{ rows, n, h int }{{1, 4, 64}, {3, 3, 96}, {2, 2, 5}, {2, 4, 2560}, {2, 5, 33}, {1, 1, 1}, {1, 6, 16}}

func each(t *testing.T, f func(t *testing.T, g *rig, rows, n, h int)) {
	c := cudatest.Open(t)
	for _, s := range shapes {
		for _, half := range []bool{false, true} {
			if testing.Short() && s.h > 2000 && !half {
				continue
			}
			t.Run(fmt.Sprintf("%+v/%t", s, half), func(t *testing.T) { f(t, &rig{c, kerneltest.Rand(uint64(s.h)), half}, s.rows, s.n, s.h) })
		}
	}
}

func TestSigmoid(t *testing.T) {
	each(t, func(t *testing.T, g *rig, rows, n, h int) {
		x, want := g.rows(rows, n*h)
		y, more := g.rows(rows, n)
		p, q := device.Sigmoid{Silu: true, In: 0.25, Out: 1}, device.Sigmoid{In: 0.5, Out: 2}
		g.Run(func(l *launch.List) { Sigmoid(l, x, p, y, q) })
		ref.Sigmoid(want, p)
		ref.Sigmoid(more, q)
		g.near(t, "silu", x, want)
		g.near(t, "more", y, more)
	})
}

func TestCollapse(t *testing.T) {
	each(t, func(t *testing.T, g *rig, rows, n, h int) {
		x, xs := g.rows(rows, n*h)
		w, ws := g.rows(rows, n*h)
		out, want := g.empty(rows, h), make([]float32, rows*h)
		g.Run(func(l *launch.List) { Collapse(l, out, x, w) })
		ref.Collapse(want, xs, ws, n, h)
		g.near(t, "sum", out, want)
		p := device.Sigmoid{In: 2, Out: 0.25}
		g.Run(func(l *launch.List) { CollapseBy(l, out, x, w, p) })
		bent := slices.Clone(ws)
		ref.Sigmoid(bent, p)
		ref.Collapse(want, xs, bent, n, h)
		g.near(t, "sum by sigmoids", out, want)
		if h == 1 {
			return // a weight of each stream is one of each value
		}
		one, ones := g.floats(rows, n)
		g.Run(func(l *launch.List) { Collapse(l, out, x, one) })
		ref.CollapseWhole(want, xs, ones, n, h)
		g.near(t, "sum of whole streams", out, want)
		g.Run(func(l *launch.List) { Collapse(l, out, x, launch.Mat{}) })
		ref.CollapseWhole(want, xs, nil, n, h)
		g.near(t, "mean", out, want)
	})
}

func TestSpread(t *testing.T) {
	each(t, func(t *testing.T, g *rig, rows, n, h int) {
		y, ys := g.rows(rows, h)
		w, ws := g.rows(rows, n)
		base, bases := g.floats(rows, n*h)
		want := make([]float32, rows*n*h)
		out := g.empty(rows, n*h)
		g.Run(func(l *launch.List) { Spread(l, out, y, w, launch.Mat{}) })
		ref.Spread(want, ys, ws, nil, n, h)
		g.near(t, "spread", out, want)
		norm, norms := g.rows(1, n*h)
		same := g.F32(bases, rows, n*h)
		g.Run(func(l *launch.List) {
			Spread(l, base, y, w, base)
			Norms(l, out, base, norm, n, 1e-6, launch.Mat{}, launch.Mat{})
		})
		first := g.Floats(out)
		ref.Spread(want, ys, ws, bases, n, h)
		g.near(t, "spread onto", base, want)
		normed := make([]float32, len(want))
		for i := range rows * n {
			ref.RMSNorm(normed[i*h:][:h], want[i*h:][:h], norms[i%n*h:][:h], 1e-6)
		}
		g.near(t, "norms", out, normed)
		g.Run(func(l *launch.List) { Norms(l, out, same, norm, n, 1e-6, y, w) })
		g.near(t, "spread onto, with norms", same, want)
		if err := kerneltest.SameBits(g.Floats(out), first); err != nil {
			t.Errorf("norms of what has grown: %v", err)
		}
		mixed, weights := g.floats(rows, n+n*n)
		again := g.F32(bases, rows, n*h)
		g.Run(func(l *launch.List) { Spread(l, again, y, mixed, again) })
		ref.SpreadMixed(want, ys, weights, bases, n, h)
		if n > 0 {
			g.near(t, "mixed", again, want)
		}
	})
}

func TestGates(t *testing.T) {
	each(t, func(t *testing.T, g *rig, rows, n, h int) {
		x, xs := g.rows(rows, n*h)
		y, ys := g.rows(rows, n*h)
		out, want := g.empty(rows, n), make([]float32, rows*n)
		g.Run(func(l *launch.List) { Gates(l, out, x, y) })
		ref.StreamGates(want, xs, ys, h)
		g.near(t, "gates", out, want)
	})
}

// TestFew: the products with what is done to them, over all numbers of rows, and the same bits for a row in each.
func TestFew(t *testing.T) {
	c := cudatest.Open(t)
	for _, s := range []struct{ n, h, rank int }{{4, 64, 32}, {3, 40, 328}, {5, 72, 8}, {4, 2560, 320}} {
		if testing.Short() && s.h > 2000 {
			continue
		}
		g := &rig{c, kerneltest.Rand(uint64(s.h)), true}
		k := s.n * s.h
		width := (s.rank + s.n + 7) &^ 7
		x, xs := g.rows(FewRows, k)
		down, downs := g.rows(width, k)
		up, ups := g.rows(k, s.rank)
		low, more, p := device.Sigmoid{Silu: true, In: 0.25, Out: 1}, device.Sigmoid{In: 0.25, Out: 2}, device.Sigmoid{In: 0.25, Out: 0.5}
		for i := range downs { // sums near 1
			downs[i] /= float32(s.h)
		}
		_, downs = kerneltest.BF16(downs)
		down = g.BF16(downs, width, k)
		var first [2][]float32
		for _, m := range []int{4, 2, 1} {
			rows, out, in := x.RowRange(0, m), g.empty(m, width), g.empty(m, s.h)
			g.Run(func(l *launch.List) {
				MixLow(l, out, rows, launch.Weight{F: down}, s.rank, low, more)
				MixIn(l, in, rows, out.ColRange(0, s.rank), launch.Weight{F: up}, p)
			})
			lows, ins := g.Floats(out), g.Floats(in)
			if m < FewRows {
				for i, got := range [][]float32{lows, ins} {
					if err := kerneltest.SameBits(got, first[i][:len(got)]); err != nil {
						t.Errorf("%+v, %d rows: %v", s, m, err)
					}
				}
				continue
			}
			first = [2][]float32{lows, ins}
			want, sum := make([]float32, m*width), make([]float32, m*s.h)
			weights := make([]float32, m*k)
			for r := range m {
				ref.MatMul(want[r*width:][:width], xs[r*k:][:k], downs, 1, width, k)
				ref.Sigmoid(want[r*width:][:s.rank], low)
				ref.Sigmoid(want[r*width+s.rank:][:width-s.rank], more)
				ref.MatMul(weights[r*k:][:k], lows[r*width:][:s.rank], ups, 1, k, s.rank)
			}
			g.near(t, "low", out, want)
			ref.Sigmoid(weights, p)
			ref.Collapse(sum, xs, weights, s.n, s.h)
			g.near(t, "in", in, sum)
		}
	}
}

// batch is rows of three sequences, some of no sequence, one from the start and longer than a tile.
var batch = struct{ prompts, generated []device.Span }{
	[]device.Span{{Row: 1, Len: 2, Pos: 5, Slot: 0}, {Row: 4, Len: 140, Pos: 0, Slot: 1}}, []device.Span{{Row: 0, Len: 1, Pos: 12, Slot: 2}},
}

const batchRows, slots = 146, 3

// run calls f for the prompts and the generated rows of a batch.
func (g *rig) run(prompts, generated []device.Span, f func(l *launch.List, list []device.Span, table launch.Mat, decode bool)) {
	words := make([]int32, spans.Words(len(prompts)+len(generated), 0))
	spans.Put(words, prompts, generated)
	table := g.I32(words, 1, len(words))
	g.Run(func(l *launch.List) {
		f(l, generated, table, true)
		f(l, prompts, table, false)
	})
}

// pieces runs the batch, with its long prompt in pieces, one of a single row.
func (g *rig) pieces(f func(l *launch.List, list []device.Span, table launch.Mat, decode bool)) {
	part := func(from, to int) []device.Span {
		s := batch.prompts[1]
		s.Row, s.Pos, s.Len = s.Row+from, s.Pos+from, to-from
		return []device.Span{s}
	}
	g.run(append(part(0, 1), batch.prompts[0]), batch.generated, f)
	g.run(nil, part(1, 2), f)
	g.run(part(2, 9), nil, f)
	g.run(part(9, 140), nil, f)
}

func TestTapConv(t *testing.T) {
	c := cudatest.Open(t)
	for _, p := range []device.TapConv{{Taps: 4, Step: 3}, {Taps: 1, Step: 1}, {Taps: 6, Step: 5}} {
		for _, half := range []bool{false, true} {
			const n = 133
			g := &rig{c, kerneltest.Rand(uint64(p.Step)), half}
			x, xs := g.rows(batchRows, n)
			w, ws := g.floats(p.Taps, n)
			tail, tails := g.floats(slots*p.Reach(), n)
			cut, out, again := g.F32(tails, slots*p.Reach(), n), g.empty(batchRows, n), g.empty(batchRows, n)
			g.run(batch.prompts, batch.generated, func(l *launch.List, list []device.Span, table launch.Mat, decode bool) {
				TapConv(l, out, x, w, tail, list, table, decode, p)
			})
			g.pieces(func(l *launch.List, list []device.Span, table launch.Mat, decode bool) {
				TapConv(l, again, x, w, cut, list, table, decode, p)
			})
			want := make([]float32, batchRows*n)
			ref.TapConv(want, xs, ws, tails, slices.Concat(batch.prompts, batch.generated), p, n)
			if err := kerneltest.SameBits(g.Floats(tail), tails); err != nil {
				t.Errorf("%+v: kept: %v", p, err)
			}
			if err := kerneltest.SameBits(g.Floats(cut), tails); err != nil {
				t.Errorf("%+v: kept in pieces: %v", p, err)
			}
			for _, s := range slices.Concat(batch.prompts, batch.generated) {
				g.near(t, fmt.Sprintf("%+v", p), out.RowRange(s.Row, s.Row+s.Len), want[s.Row*n:][:s.Len*n])
				if err := kerneltest.SameBits(g.Floats(again.RowRange(s.Row, s.Row+s.Len)), g.Floats(out.RowRange(s.Row, s.Row+s.Len))); err != nil {
					t.Errorf("%+v in pieces: %v", p, err)
				}
			}
		}
	}
}

func TestNGrams(t *testing.T) {
	c := cudatest.Open(t)
	for _, dim := range []int{5, 16} {
		p := &device.NGrams{Order: 3, PerOrder: 5, Dim: dim, EOS: 7, Multipliers: []uint64{12345678901, 98765432109, 1<<43 + 5},
			Sizes: []uint64{11, 13, 17, 19, 23, 29, 31, 37, 41, 43}, Offsets: []uint64{0, 11, 24, 41, 60, 83, 112, 143, 180, 221}}
		for _, half := range []bool{false, true} {
			g := &rig{c, kerneltest.Rand(3), half}
			from, table := g.rows(int(p.Rows())+3, dim)
			ids := make([]int32, batchRows)
			for i := range ids {
				ids[i] = int32(i*i+3*i) % 11
			}
			id, words := g.I32(ids, batchRows, 1), g.I32(p.Words(), 1, len(p.Words()))
			tails := []float32{1, 2, 3, 4, 7, 6, 7, 8, 9}
			tail, cut := g.F32(tails, len(tails), 1), g.F32(tails, len(tails), 1)
			out, again := g.empty(batchRows, p.Width()), g.empty(batchRows, p.Width())
			rows, more := g.Mat(tensor.I32, batchRows, p.Heads()), g.Mat(tensor.I32, batchRows, p.Heads())
			g.run(batch.prompts, batch.generated, func(l *launch.List, list []device.Span, at launch.Mat, decode bool) {
				NGrams(l, out, rows, id, from, words, tail, list, at, decode, p)
			})
			g.pieces(func(l *launch.List, list []device.Span, at launch.Mat, decode bool) {
				NGrams(l, again, more, id, from, words, cut, list, at, decode, p)
			})
			want, numbers := make([]float32, batchRows*p.Width()), make([]int32, batchRows*p.Heads())
			ref.NGrams(want, numbers, ids, table, tails, slices.Concat(batch.prompts, batch.generated), *p)
			for what, x := range map[string][3]launch.Mat{"whole": {out, rows, tail}, "in pieces": {again, more, cut}} {
				got := cudatest.Download[int32](c, x[1].At, len(numbers))
				for _, s := range slices.Concat(batch.prompts, batch.generated) {
					if from, to := s.Row*p.Heads(), (s.Row+s.Len)*p.Heads(); !slices.Equal(got[from:to], numbers[from:to]) {
						t.Errorf("%s: rows %v, want %v", what, got[from:to], numbers[from:to])
					}
					if err := kerneltest.SameBits(g.Floats(x[0].RowRange(s.Row, s.Row+s.Len)), want[s.Row*p.Width():][:s.Len*p.Width()]); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				if !slices.Equal(g.Floats(x[2]), tails) {
					t.Errorf("%s: kept %v, want %v", what, g.Floats(x[2]), tails)
				}
			}
		}
	}
}

// TestSlotsAreChecked: a slot that is not there is left out.
func TestSlotsAreChecked(t *testing.T) {
	c := cudatest.Open(t)
	g := &rig{c, kerneltest.Rand(1), false}
	p := device.TapConv{Taps: 2, Step: 2}
	x, _ := g.rows(6, 4)
	w, _ := g.floats(2, 4)
	tail, tails := g.floats(slots*p.Reach(), 4)
	out := g.empty(6, 4)
	before := g.Floats(out)
	for _, slot := range []int{-1, slots} {
		g.run([]device.Span{{Len: 3, Slot: slot}}, []device.Span{{Row: 4, Len: 1, Slot: slot}}, func(l *launch.List, list []device.Span, table launch.Mat, decode bool) {
			TapConv(l, out, x, w, tail, list, table, decode, p)
		})
	}
	if err := kerneltest.SameBits(g.Floats(tail), tails); err != nil {
		t.Error(err)
	}
	if err := kerneltest.SameBits(g.Floats(out), before); err != nil {
		t.Error(err)
	}
}
