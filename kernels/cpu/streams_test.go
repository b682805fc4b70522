package cpu_test

import (
	"slices"
	"sync"
	"testing"
	"unsafe"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// near holds what an operator of the CPU gives to the reference.
func near(t *testing.T, what string, got, want []float32, cols int) {
	t.Helper()
	limit := 64 * kerneltest.Eps32 * (1 + kerneltest.MaxAbs(want))
	if err := kerneltest.Compare(got, want, cols, kerneltest.Relative(want, 16, limit)); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestStreams(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, x := range [][3]int{{1, 1, 1}, {17, 3, 37}, {9, 4, 300}, {2, 18, 515}} {
			rows, n, h := x[0], x[1], x[2]
			r := kerneltest.Rand(uint64(rows))
			streams, other := kerneltest.Normal(r, rows*n*h, 1), kerneltest.Normal(r, rows*n*h, 1)
			factors, row := kerneltest.Normal(r, rows*n, 1), kerneltest.Normal(r, rows*h, 1)

			got, want := make([]float32, rows*h), make([]float32, rows*h)
			ref.Collapse(want, streams, other, n, h)
			d.Collapse(s, f32s(d, got, rows, h), f32s(d, streams, rows, n*h), f32s(d, other, rows, n*h))
			near(t, "Collapse", got, want, h)

			wide, wanted := slices.Clone(streams), make([]float32, rows*n*h)
			ref.Spread(wanted, row, factors, wide, n, h)
			m := f32s(d, wide, rows, n*h)
			d.Spread(s, m, f32s(d, row, rows, h), f32s(d, factors, rows, n), m)
			near(t, "Spread onto itself", wide, wanted, h)
			ref.Spread(wanted, row, factors, nil, n, h)
			d.Spread(s, m, f32s(d, row, rows, h), f32s(d, factors, rows, n), device.Mat{})
			near(t, "Spread", wide, wanted, h)

			gates, wantGates := make([]float32, rows*n), make([]float32, rows*n)
			ref.StreamGates(wantGates, streams, other, h)
			d.StreamGates(s, f32s(d, gates, rows, n), f32s(d, streams, rows, n*h), f32s(d, other, rows, n*h))
			near(t, "StreamGates", gates, wantGates, n)

			for _, p := range []device.Sigmoid{{Silu: true, In: 0.25, Out: 1}, {In: 1, Out: 0.5}, {In: 0.25, Out: 2}} {
				got, want := slices.Clone(streams), slices.Clone(streams)
				ref.Sigmoid(want, p)
				d.Sigmoid(s, f32s(d, got, rows, n*h), p)
				near(t, "Sigmoid", got, want, h)
			}
		}
		bad := f32s(d, make([]float32, 6), 1, 6)
		panicsWith(t, "Collapse", func() { d.Collapse(s, bad.ColRange(0, 4), bad, bad) })
		panicsWith(t, "Spread", func() { d.Spread(s, bad, bad.ColRange(0, 4), bad, bad) })
		panicsWith(t, "StreamGates", func() { d.StreamGates(s, bad.ColRange(0, 4), bad, bad) })
	})
}

// tapSpans are rows of three sequences, some of no sequence, one from the start.
var tapSpans = []device.Span{{Row: 0, Len: 1, Pos: 12, Slot: 2}, {Row: 1, Len: 2, Pos: 5, Slot: 0}, {Row: 4, Len: 13, Pos: 0, Slot: 1}}

func TestTapConv(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range []device.TapConv{{Taps: 4, Step: 3}, {Taps: 1, Step: 1}, {Taps: 2, Step: 5}} {
			const rows, n = 17, 301
			r := kerneltest.Rand(uint64(p.Step))
			x, w := kerneltest.Normal(r, rows*n, 1), kerneltest.Normal(r, p.Taps*n, 1)
			tail, out := kerneltest.Normal(r, 3*p.Reach()*n, 1), make([]float32, rows*n)
			kept, got := slices.Clone(tail), slices.Clone(out)
			ref.TapConv(out, x, w, tail, tapSpans, p, n)
			cache := device.KV{Mat: f32s(d, kept, 3*p.Reach(), n)}
			run := func(spans []device.Span) {
				d.TapConv(s, f32s(d, got, rows, n), f32s(d, x, rows, n), f32s(d, w, p.Taps, n), cache, device.Spans{List: spans}, p)
			}
			last := tapSpans[2] // in pieces, which give the same
			first, rest := last, last
			first.Len, rest.Len, rest.Row, rest.Pos = 5, last.Len-5, last.Row+5, 5
			run([]device.Span{tapSpans[0], tapSpans[1], first})
			run([]device.Span{rest})
			near(t, "out", got, out, n)
			if err := kerneltest.SameBits(kept, tail); err != nil {
				t.Errorf("kept: %v", err)
			}
			panicsWith(t, "TapConv", func() { run([]device.Span{{Row: 0, Len: 1, Slot: 3}}) })
		}
	})
}

func TestNGrams(t *testing.T) {
	p := device.NGrams{Order: 3, PerOrder: 2, Dim: 5, EOS: 7, Multipliers: []uint64{12345678901, 98765432109, 55555555555},
		Sizes: []uint64{11, 13, 17, 19}, Offsets: []uint64{0, 11, 24, 41}}
	ids := []int32{1, 7, 2, 9, 3, 4, 7, 7, 5, 6, 1, 2, 3, 4, 5, 6, 7}
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, dt := range dtypes {
			const shards, per = 4, 16
			r := kerneltest.Rand(3)
			var table []float32
			var mats []device.Mat
			for range shards {
				m, values := floats(d, dt, kerneltest.Normal(r, per*p.Dim, 1), per, p.Dim)
				mats, table = append(mats, m), append(table, values...)
			}
			tail := []float32{1, 2, 3, 4, 7, 6, 7, 8, 9}
			out, numbers := make([]float32, len(ids)*p.Width()), make([]int32, len(ids)*p.Heads())
			kept, got, rows := slices.Clone(tail), slices.Clone(out), slices.Clone(numbers)
			before := slices.Clone(tail)
			ref.NGrams(out, numbers, ids, table, tail, tapSpans, p)
			run := func(spans []device.Span) {
				d.NGrams(s, f32s(d, got, len(ids), p.Width()), wrap(d, tensor.I32, rows, len(ids), p.Heads()), wrap(d, tensor.I32, ids, len(ids), 1), mats,
					device.KV{Mat: f32s(d, kept, len(tail), 1)}, device.Spans{List: spans}, p)
			}
			asked := map[unsafe.Pointer]int{}
			var lock sync.Mutex
			end := cpu.OnWillNeed(func(p unsafe.Pointer, n int) {
				lock.Lock()
				defer lock.Unlock()
				asked[p] = n
			})
			d.NGrams(s, device.Mat{}, wrap(d, tensor.I32, rows, len(ids), p.Heads()), wrap(d, tensor.I32, ids, len(ids), 1), mats,
				device.KV{Mat: f32s(d, kept, len(tail), 1)}, device.Spans{List: tapSpans}, p)
			end()
			if !slices.Equal(rows, numbers) || !slices.Equal(kept, before) {
				t.Errorf("ahead: rows %v, want %v; kept %v", rows, numbers, kept)
			}
			for _, sp := range tapSpans {
				for _, row := range numbers[sp.Row*p.Heads():][:sp.Len*p.Heads()] {
					m := mats[row/per].RowRange(int(row)%per, int(row)%per+1)
					if n := asked[unsafe.Pointer(&m.Buf.Host()[m.Off])]; n != m.Bytes() {
						t.Errorf("%d bytes of row %d were asked for, want %d", n, row, m.Bytes())
					}
				}
			}
			clear(rows)
			last := tapSpans[2]
			first, rest := last, last
			first.Len, rest.Len, rest.Row, rest.Pos = 1, last.Len-1, last.Row+1, 1
			run([]device.Span{tapSpans[0], tapSpans[1], first})
			run([]device.Span{rest})
			if !slices.Equal(rows, numbers) || !slices.Equal(kept, tail) {
				t.Errorf("rows %v, want %v; kept %v, want %v", rows, numbers, kept, tail)
			}
			if err := kerneltest.SameBits(got, out); err != nil {
				t.Error(err)
			}
			panicsWith(t, "NGrams", func() { run([]device.Span{{Row: 16, Len: 2}}) })
			mats = mats[:3]
			panicsWith(t, "NGrams", func() { run(tapSpans[:1]) })
		}
	})
}
