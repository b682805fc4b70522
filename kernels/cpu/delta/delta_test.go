package delta

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
)

// head is a state with the operands of a token, in guarded memory.
type head struct {
	rows, width, stride int
	decays              []float32 // of the rows; nil: 0.75 of all
	s, q, k, next, v    *kerneltest.Guarded[float32]
	known, out          *kerneltest.Guarded[float32]
}

func newHead(rows, width int) *head {
	r, n := kerneltest.Rand(uint64(rows*1000+width)), 0
	of := func(count int) *kerneltest.Guarded[float32] {
		n++
		return kerneltest.GuardOf(kerneltest.Normal(r, count, 0.5), 4*((width+n)%16))
	}
	h := &head{rows: rows, width: width, stride: width + 3}
	h.s, h.q, h.k, h.next = of((rows-1)*h.stride+width), of(rows), of(rows), of(rows)
	h.v, h.known, h.out = of(width), of(width), of(width)
	return h
}

func (h *head) tile() *Tile {
	t := &Tile{S: h.s.First(), Q: h.q.First(), K: h.k.First(), Next: h.next.First(), V: h.v.First(), Known: h.known.First(), Out: h.out.First(),
		Stride: 4 * h.stride, Rows: h.rows, Width: h.width, Decay: 0.75, Strength: 0.6}
	if t.Decays = &t.Decay; h.decays != nil {
		t.Decay, t.Decays, t.DecayStep = 1, &h.decays[0], 4
	}
	return t
}

// decay is that of the whole state, and of row i beside it.
func (h *head) decay(i int) (whole, row float64) {
	if h.decays == nil {
		return 0.75, 0.75
	}
	return 1, float64(h.decays[i])
}

// product is k times the state s.
func (h *head) product(k []float32, s []float64) []float32 {
	out := make([]float32, h.width)
	for c := range out {
		sum := 0.0
		for i, f := range k {
			sum += float64(f) * s[i*h.stride+c]
		}
		out[c] = float32(sum)
	}
	return out
}

func (h *head) check(fs *Funcs) error {
	state := make([]float64, len(h.s.Data))
	for i, v := range h.s.Data {
		state[i] = float64(v)
	}
	t, n := h.tile(), h.rows
	near := func(what string, got, want []float32) error {
		if err := kerneltest.Compare(got, want, h.width, kerneltest.Relative(want, 0, 8*kerneltest.Eps32*math.Sqrt(float64(n))*(1+kerneltest.MaxAbs(want)))); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	fs.Known(t)
	if err := near("known", h.known.Data, h.product(h.k.Data, state)); err != nil {
		return err
	}
	for step, f := range []func(*Tile){fs.StepNext, fs.Step} {
		known := h.product(h.k.Data, state)
		for i := range n {
			for c := range h.width {
				s := &state[i*h.stride+c]
				whole, row := h.decay(i)
				*s = row**s + float64(h.k.Data[i])*0.6*(float64(h.v.Data[c])-whole*float64(known[c]))
			}
		}
		if f(t); step == 0 { // the next token
			if err := near("known of the next token", h.known.Data, h.product(h.next.Data, state)); err != nil {
				return err
			}
			copy(h.k.Data, h.next.Data)
		}
		if err := near("out", h.out.Data, h.product(h.q.Data, state)); err != nil {
			return err
		}
		for i := range n {
			want := make([]float32, h.width)
			for c := range want {
				want[c] = float32(state[i*h.stride+c])
			}
			if err := near("state", h.s.Data[i*h.stride:][:h.width], want); err != nil {
				return err
			}
		}
	}
	for _, g := range []*kerneltest.Guarded[float32]{h.s, h.q, h.k, h.next, h.v, h.known, h.out} {
		if err := g.Check(); err != nil {
			return err
		}
	}
	return nil
}

func TestTokens(t *testing.T) {
	for _, l := range level.Available() {
		for _, rows := range []int{1, 2, 7, 128} {
			for _, width := range []int{1, 5, 8, 15, 16, 17, 33, 64, 79, 128} {
				for _, own := range []bool{false, true} {
					h := newHead(rows, width)
					if own {
						h.decays = kerneltest.Normal(kerneltest.Rand(9), rows, 0.5)
					}
					if err := h.check(At(l)); err != nil {
						t.Fatalf("%s, %d rows of %d, decays of rows %t: %v", l, rows, width, own, err)
					}
				}
			}
		}
	}
}

// TestColumns: a column has the same bits whatever else is in a call.
func TestColumns(t *testing.T) {
	for _, l := range level.Available() {
		whole, cut := newHead(9, 70), newHead(9, 70)
		At(l).Known(whole.tile())
		At(l).StepNext(whole.tile())
		for from, n := range []int{0: 3, 3: 16, 19: 50, 69: 1} {
			if n == 0 {
				continue
			}
			x := *cut.tile()
			x.S, x.V, x.Known, x.Out = &cut.s.Data[from], &cut.v.Data[from], &cut.known.Data[from], &cut.out.Data[from]
			x.Width = n
			At(l).Known(&x)
			At(l).StepNext(&x)
		}
		for _, x := range [][2][]float32{{cut.s.Data, whole.s.Data}, {cut.out.Data, whole.out.Data}, {cut.known.Data, whole.known.Data}} {
			if err := kerneltest.SameBits(x[0], x[1]); err != nil {
				t.Errorf("%s: %v", l, err)
			}
		}
	}
}

func TestConv(t *testing.T) {
	for _, l := range level.Available() {
		for n := range 150 {
			for taps := 1; taps < 6; taps++ {
				r, stride := kerneltest.Rand(uint64(n)), n+2
				w, out := kerneltest.GuardOf(kerneltest.Normal(r, taps*stride, 1), 4*(n%16)), kerneltest.Guard[float32](n, 4*((n+1)%16))
				x, rows := make([]*float32, taps), make([]*kerneltest.Guarded[float32], taps)
				want := make([]float32, n)
				for i := range x {
					rows[i] = kerneltest.GuardOf(kerneltest.Normal(r, n, 1), 4*((n+i)%16))
					x[i] = rows[i].First()
				}
				for c := range want {
					sum := 0.0
					for i := range x {
						sum += float64(w.Data[i*stride+c]) * float64(rows[i].Data[c])
					}
					want[c] = float32(sum)
				}
				At(l).Conv(out.First(), &x[0], w.First(), 4*stride, taps, n)
				if err := kerneltest.Compare(out.Data, want, max(1, n), kerneltest.Relative(want, 2, 8*kerneltest.Eps32)); err != nil {
					t.Fatalf("%s, %d taps, n %d: %v", l, taps, n, err)
				}
				if err := out.Check(); err != nil {
					t.Fatalf("%s, %d taps, n %d: %v", l, taps, n, err)
				}
			}
		}
	}
}

// BenchmarkToken is a token of a head of 128 by 128: a generated one, whose state comes from the second
// level of cache, and one of a prompt.
func BenchmarkToken(b *testing.B) {
	for _, l := range level.Available() {
		f, h := At(l), newHead(128, 128)
		h.stride = 128
		h.s = kerneltest.GuardOf(make([]float32, 128*128), 0)
		t := h.tile()
		for _, kind := range []struct {
			name string
			run  func()
		}{{"generated", func() { f.Known(t); f.Step(t) }}, {"prompt", func() { f.StepNext(t) }}} {
			b.Run(fmt.Sprintf("%s/%s", l, kind.name), func(b *testing.B) {
				ns := kerneltest.Quartile(b, 16, func() {
					for range 16 {
						kind.run()
					}
				})
				kerneltest.Report(b, ns, 2*4*128*128, 7*128*128)
			})
		}
	}
}
