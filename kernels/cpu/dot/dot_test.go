package dot

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
)

// The generator (kernels/cpu/_gen/dot.go) has these offsets as constants.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{unsafe.Offsetof(tile.X), unsafe.Offsetof(tile.Out), unsafe.Offsetof(tile.W), unsafe.Offsetof(tile.Stride), unsafe.Offsetof(tile.K), unsafe.Offsetof(tile.N), unsafe.Offsetof(tile.Ahead)}
	if want := []uintptr{0, 32, 64, 72, 80, 88, 96}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// problem is one product in guarded memory, weights widened for the reference.
type problem struct {
	m, n, k int
	x       []*kerneltest.Guarded[float32] // natural order
	packed  []*kerneltest.Guarded[float32]
	w32     *kerneltest.Guarded[float32]
	w16     *kerneltest.Guarded[uint16]
	xs      []float32
	ws, wb  []float32
}

func newProblem(seed uint64, m, n, k, gap, misalign int) *problem {
	r := kerneltest.Rand(seed)
	p := &problem{m: m, n: n, k: k}
	p.xs = kerneltest.Normal(r, m*k, 1)
	p.ws = kerneltest.Normal(r, n*k, 1)
	stored, widened := kerneltest.BF16(p.ws)
	p.wb = widened
	stride := k + gap
	length := max(0, (n-1)*stride+k)
	p.w32, p.w16 = kerneltest.Guard[float32](length, 4*misalign), kerneltest.Guard[uint16](length, 2*misalign)
	for j := range n {
		copy(p.w32.Data[j*stride:], p.ws[j*k:(j+1)*k])
		copy(p.w16.Data[j*stride:], stored[j*k:(j+1)*k])
	}
	for i := range m {
		row := p.xs[i*k : (i+1)*k]
		p.x = append(p.x, kerneltest.GuardOf(row, 4*(misalign+i)%64))
		packed := kerneltest.Guard[float32](convert.Padded(k), 4*(misalign+i)%64)
		if k > 0 {
			convert.At(level.Pure).Pack(packed.First(), &row[0], k)
		}
		p.packed = append(p.packed, packed)
	}
	return p
}

// run multiplies and checks against the reference and the guards.
func (p *problem) run(f *Funcs, bf16 bool, gap int) ([]float32, error) {
	t := Tile{W: unsafe.Pointer(p.w32.First()), Stride: 4 * (p.k + gap), K: p.k, N: p.n}
	kernels, w, x := f.F32, p.ws, p.x
	if bf16 {
		t.W, t.Stride = unsafe.Pointer(p.w16.First()), 2*(p.k+gap)
		kernels, w, x = f.BF16, p.wb, p.packed
	}
	var outs []*kerneltest.Guarded[float32]
	for i := range p.m {
		out := kerneltest.Guard[float32](p.n, 4*(i+3))
		outs = append(outs, out)
		t.X[i], t.Out[i] = x[i].First(), out.First()
	}
	kernels[p.m](&t)
	var got []float32
	for _, out := range outs {
		if err := out.Check(); err != nil {
			return nil, err
		}
		got = append(got, out.Data...)
	}
	want := make([]float32, p.m*p.n)
	ref.MatMul(want, p.xs, w, p.m, p.n, p.k)
	if len(got) == 0 {
		return got, nil
	}
	tol := func(int) float64 { return 0 }
	if p.k > 0 {
		tol = kerneltest.DotTolerance(p.xs, w, p.k)
	}
	return got, kerneltest.Compare(got, want, p.n, tol)
}

func variants(t *testing.T, f func(t *testing.T, fs *Funcs, bf16 bool)) {
	for _, l := range level.Available() {
		for _, bf16 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/bf16=%v", l, bf16), func(t *testing.T) { f(t, At(l), bf16) })
		}
	}
}

func TestTileLengths(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, bf16 bool) {
		for m := 1; m <= Rows; m++ {
			for k := range 131 {
				n, gap, misalign := 1+(k*7+m)%19, k%3, k%16
				if _, err := newProblem(uint64(k), m, n, k, gap, misalign).run(fs, bf16, gap); err != nil {
					t.Fatalf("m %d, n %d, k %d: %v", m, n, k, err)
				}
			}
			for n := range 35 {
				if _, err := newProblem(uint64(n), m, n, 70, 1, n%16).run(fs, bf16, 1); err != nil {
					t.Fatalf("m %d, n %d: %v", m, n, err)
				}
			}
			if _, err := newProblem(9, m, 9, 4099, 5, 1).run(fs, bf16, 5); err != nil {
				t.Fatalf("m %d: %v", m, err)
			}
		}
	})
}

// A result has the same bits in every tile shape and at every place in it.
func TestTileShapesGiveTheSameBits(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, bf16 bool) {
		for _, k := range []int{1, 16, 31, 64, 77, 256, 1000, 1030, 4100} {
			const n = 23
			p := newProblem(uint64(k), 4, n, k, 0, 3)
			whole, err := p.run(fs, bf16, 0)
			if err != nil {
				t.Fatal(err)
			}
			for m := range 4 {
				for from := range n {
					// Rows [m, m+rows) against weight rows [from, n).
					rows := 1 + from%(4-m)
					part := *p
					part.m, part.n = rows, n-from
					part.x, part.packed = p.x[m:], p.packed[m:]
					part.xs = p.xs[m*k : (m+rows)*k]
					part.ws, part.wb = p.ws[from*k:], p.wb[from*k:]
					w32, w16 := *p.w32, *p.w16
					part.w32, part.w16 = kerneltest.GuardOf(w32.Data[from*k:], 8), kerneltest.GuardOf(w16.Data[from*k:], 6)
					got, err := part.run(fs, bf16, 0)
					if err != nil {
						t.Fatal(err)
					}
					for i := range rows {
						if err := kerneltest.SameBits(got[i*part.n:(i+1)*part.n], whole[(m+i)*n+from:(m+i+1)*n]); err != nil {
							t.Fatalf("k %d, row %d of %d, from %d: %v", k, i, rows, from, err)
						}
					}
				}
			}
		}
	})
}

// NaN and infinity reach the results they belong to and no other.
func TestTileSpecialValues(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, bf16 bool) {
		for _, k := range []int{5, 37, 64} {
			p := newProblem(1, 4, 9, k, 0, 0)
			nan, inf := float32(math.NaN()), float32(math.Inf(1))
			p.w32.Data[2*k+k-1], p.w16.Data[2*k+k-1] = nan, 0x7fc0
			p.w32.Data[5*k], p.w16.Data[5*k] = inf, 0x7f80
			p.ws[2*k+k-1], p.wb[2*k+k-1] = nan, nan
			p.ws[5*k], p.wb[5*k] = inf, inf
			got, err := p.run(fs, bf16, 0)
			if err != nil && got == nil {
				t.Fatal(err)
			}
			for i, v := range got {
				isNaN, isInf := math.IsNaN(float64(v)), math.IsInf(float64(v), 0)
				if isNaN != (i%9 == 2) || isInf != (i%9 == 5) {
					t.Fatalf("k %d: result %d is %g", k, i, v)
				}
			}
		}
	})
}

func BenchmarkTile(b *testing.B) {
	for _, l := range level.Available() {
		for _, bf16 := range []bool{false, true} {
			for _, m := range []int{1, 2, 3, 4} {
				for _, k := range []int{64, 256, 2048} {
					n := 1 << 17 / k // 256 KB of BF16
					b.Run(fmt.Sprintf("%s/bf16=%v/m%d/k%d", l, bf16, m, k), func(b *testing.B) {
						p := newProblem(1, m, n, k, 0, 0)
						t := Tile{W: unsafe.Pointer(p.w32.First()), Stride: 4 * k, K: k, N: n}
						kernel, x, size := At(l).F32[m], p.x, 4
						if bf16 {
							t.W, t.Stride = unsafe.Pointer(p.w16.First()), 2*k
							kernel, x, size = At(l).BF16[m], p.packed, 2
						}
						for i := range m {
							t.X[i], t.Out[i] = x[i].First(), kerneltest.Guard[float32](n, 0).First()
						}
						ns := kerneltest.Quartile(b, 1, func() { kernel(&t) })
						kerneltest.Report(b, ns, n*k*size, 2*m*n*k)
					})
				}
			}
		}
	}
}
