package qtile

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// The generator (kernels/cpu/_gen/qtile.go) counts its offsets in this order.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{
		unsafe.Offsetof(tile.config), unsafe.Offsetof(tile.a), unsafe.Offsetof(tile.scale), unsafe.Offsetof(tile.w), unsafe.Offsetof(tile.s),
		unsafe.Offsetof(tile.panel), unsafe.Offsetof(tile.products), unsafe.Offsetof(tile.sums), unsafe.Offsetof(tile.wStride),
		unsafe.Offsetof(tile.sStride), unsafe.Offsetof(tile.aStride), unsafe.Offsetof(tile.scaleStride), unsafe.Offsetof(tile.sliceGroups),
		unsafe.Offsetof(tile.steps), unsafe.Offsetof(tile.blocks), unsafe.Offsetof(tile.rows), unsafe.Offsetof(tile.left),
		unsafe.Offsetof(tile.now), unsafe.Offsetof(tile.block), unsafe.Offsetof(tile.aBlock), unsafe.Offsetof(tile.scaleBlock),
	}
	for i, off := range got {
		if off != uintptr(8*i) {
			t.Fatalf("field %d is at %d, the assembly has %d", i, off, 8*i)
		}
	}
}

// available skips where there is no unit, and says why.
func available(t testing.TB) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
}

var encodings = []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8}

type problem struct {
	m, k, group int
	x           ref.QRows
	w           ref.QMat
}

// multiply runs the kernel of the problem's encoding.
func (p *problem) multiply(w *Work) {
	values, scales := p.w.BandBytes()
	w.Multiply(Kernels[p.w.Encoding], unsafe.Pointer(&p.w.Values[0]), unsafe.Pointer(&p.w.Scales[0]), values, scales)
}

func newProblem(seed uint64, m, k, group int, e *tensor.Encoding, constant *[2]int8) *problem {
	r := kerneltest.Rand(seed)
	f := tensor.Layout{Format: e.By(group), Rows: WeightRows, Cols: k}
	p := &problem{m: m, k: k, group: group, w: ref.QMat{Layout: f, Values: make([]byte, f.ValueBytes()), Scales: make([]byte, f.ScaleBytes())}}
	w, x := make([]int8, f.Rows*k), make([]int8, m*k)
	for i := range w {
		w[i] = e.Levels()[r.IntN(len(e.Levels()))]
		if constant != nil {
			w[i] = constant[0]
		}
	}
	for i := range x {
		x[i] = int8(r.IntN(255) - 127)
		if constant != nil {
			x[i] = constant[1]
		}
	}
	f.Pack(p.w.Values, p.w.Scales, f.Matrix(w, kerneltest.Normal(r, f.Rows*f.Groups(), 0.01)))
	p.x = ref.QRows{Q: x, Cols: k, Group: group, Scale: kerneltest.Normal(r, m*f.Groups(), 0.1), Bias: make([]int32, m*f.Groups())}
	return p
}

// room is scratch for tokens and Work, with guards around each.
type room struct{ tokens, work *kerneltest.Guarded[float32] }

func (p *problem) room() room {
	return room{kerneltest.Guard[float32](TokensScratch(p.m, p.k, p.group), 0), kerneltest.Guard[float32](Scratch(p.group), 0)}
}

func (r room) Check() error { return errors.Join(r.tokens.Check(), r.work.Check()) }

func (p *problem) run(w *Work, scratch room) []float32 {
	var t Tokens
	t.Begin(p.m, p.k, p.group, scratch.tokens.First())
	groups := p.k / p.group
	for i := range p.m {
		t.Pack(i, &p.x.Q[i*p.k], &p.x.Scale[i*groups])
	}
	w.Begin(&t, scratch.work.First())
	p.multiply(w)
	got := make([]float32, p.m*WeightRows)
	for i := range p.m {
		w.Result(i, &got[i*WeightRows])
	}
	return got
}

func (p *problem) check(got []float32) error {
	want := make([]float32, p.m*WeightRows)
	ref.MatMulQ(want, p.x, p.w)
	return kerneltest.SameBits(got, want)
}

func TestMultiply(t *testing.T) {
	available(t)
	for _, e := range encodings {
		for i, size := range [][2]int{{64, 64}, {128, 128}, {256, 64}, {320, 64}, {384, 128}, {256, 256}, {640, 128}, {1408, 1408}, {1024, 512}} {
			for _, m := range []int{1, 3, 4, 5, 8, 13, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128} {
				if size[0] > 1000 && m > 40 {
					continue
				}
				p := newProblem(uint64(i), m, size[0], size[1], e, nil)
				scratch := p.room()
				if err := p.check(p.run(new(Work), scratch)); err != nil {
					t.Fatalf("%s, %d tokens, %v: %v", e.Name(), m, size, err)
				}
				if err := scratch.Check(); err != nil {
					t.Fatalf("%s, %d tokens, %v: %v", e.Name(), m, size, err)
				}
			}
		}
	}
	for _, e := range encodings {
		least, most := e.Range()
		lo, hi := int8(least), int8(most)
		for _, c := range [][2]int8{{lo, 127}, {hi, 127}, {hi, -127}, {lo, -127}, {0, 127}, {hi, 0}} {
			p := newProblem(1, 20, 512, 256, e, &c)
			if err := p.check(p.run(new(Work), p.room())); err != nil {
				t.Fatalf("%s, %v: %v", e.Name(), c, err)
			}
		}
	}
}

// Goroutines that move between threads, with collections in between, keep their tiles apart.
func TestMultiplyUnderPreemption(t *testing.T) {
	available(t)
	var all sync.WaitGroup
	for g := range 4 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			p := newProblem(uint64(g), 1+g%40, 256, 128, encodings[g%len(encodings)], nil)
			scratch, w := p.room(), new(Work)
			for i := range 40 {
				if err := p.check(p.run(w, scratch)); err != nil {
					t.Errorf("goroutine %d, call %d: %v", g, i, err)
					return
				}
				if i%16 == 0 {
					runtime.GC()
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkMultiply(b *testing.B) {
	available(b)
	for _, e := range encodings {
		for _, group := range []int{64, 128, 2048} {
			for _, m := range []int{4, 8, 16, 32, 48, 64, 128} {
				b.Run(fmt.Sprintf("%s/g%d/m%d", e.Name(), group, m), func(b *testing.B) {
					p, w := newProblem(1, m, 2048, group, e, nil), new(Work)
					p.run(w, p.room())
					ns := kerneltest.Quartile(b, 1, func() {
						p.multiply(w)
					})
					kerneltest.Report(b, ns, 0, 2*m*WeightRows*p.k)
				})
			}
		}
	}
}
