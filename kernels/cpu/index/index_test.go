package index

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
)

// The generator (kernels/cpu/_gen/index.go) has these offsets as constants.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{
		unsafe.Offsetof(tile.Panel), unsafe.Offsetof(tile.Q), unsafe.Offsetof(tile.W), unsafe.Offsetof(tile.Out),
		unsafe.Offsetof(tile.Stride), unsafe.Offsetof(tile.Dim), unsafe.Offsetof(tile.Heads),
	}
	if want := []uintptr{0, 8, 16, 24, 32, 40, 48}; fmt.Sprint(got) != fmt.Sprint(want) || Keys != 32 {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// keys has the keys of a panel, at odd addresses and in no order.
type keys struct {
	rows   Rows
	values [Keys][]float32
	guards []interface{ Check() error }
}

func newKeys(seed uint64, dim int, bf16 bool) *keys {
	k, r := &keys{}, kerneltest.Rand(seed)
	for _, i := range r.Perm(Keys) {
		values := kerneltest.Normal(r, dim, 1)
		if bf16 {
			stored, wide := kerneltest.BF16(values)
			g := kerneltest.GuardOf(stored, 2*(i%32))
			k.values[i], k.rows[i], k.guards = wide, unsafe.Pointer(g.First()), append(k.guards, g)
			continue
		}
		g := kerneltest.GuardOf(values, 4*(i%16))
		k.values[i], k.rows[i], k.guards = values, unsafe.Pointer(g.First()), append(k.guards, g)
	}
	return k
}

func (k *keys) panel(t *testing.T, fs *Funcs, dim int, bf16 bool) *kerneltest.Guarded[float32] {
	t.Helper()
	g := kerneltest.Guard[float32](dim*Keys, 4*(dim%16))
	fs.Panel(g.First(), &k.rows, dim, bf16)
	for _, x := range append(k.guards, g) {
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func TestPanel(t *testing.T) {
	for _, l := range level.Available() {
		for _, bf16 := range []bool{false, true} {
			for dim := 1; dim < 140; dim++ {
				k := newKeys(uint64(dim), dim, bf16)
				for at, v := range k.panel(t, At(l), dim, bf16).Data {
					if want := k.values[at%Keys][at/Keys]; v != want {
						t.Fatalf("%s, %d dimensions, bf16 %t: dimension %d of key %d is %g, want %g", l, dim, bf16, at/Keys, at%Keys, v, want)
					}
				}
			}
		}
	}
}

// TestScore: scores are near their definition, with the bits of plain Go.
func TestScore(t *testing.T) {
	for _, l := range level.Available() {
		for _, dim := range []int{1, 2, 31, 32, 33, 128} {
			for heads := 1; heads < 24; heads++ {
				r, stride := kerneltest.Rand(uint64(dim*heads)), dim+heads%3
				k := newKeys(uint64(heads), dim, true)
				q := kerneltest.GuardOf(kerneltest.Normal(r, (heads-1)*stride+dim, 1), 4*(heads%16))
				w := kerneltest.GuardOf(kerneltest.Normal(r, heads, 1), 4*(dim%16))
				run := func(fs *Funcs) []float32 {
					out := kerneltest.Guard[float32](Keys, 4*(heads%16))
					fs.Score(&Tile{Panel: k.panel(t, fs, dim, true).First(), Q: q.First(), W: w.First(), Out: out.First(), Stride: 4 * stride, Dim: dim, Heads: heads})
					if err := out.Check(); err != nil {
						t.Fatal(err)
					}
					return out.Data
				}
				got := run(At(l))
				if err := kerneltest.SameBits(got, run(&pure)); err != nil {
					t.Fatalf("%s, %d heads of %d: %v", l, heads, dim, err)
				}
				for i, v := range got {
					var want, size float64
					for h, weight := range w.Data {
						sum, all := 0.0, 0.0
						for d, x := range q.Data[h*stride:][:dim] {
							p := float64(x) * float64(k.values[i][d])
							sum, all = sum+p, all+math.Abs(p)
						}
						want, size = want+float64(weight)*max(0, sum), size+math.Abs(float64(weight))*all
					}
					if limit := size * kerneltest.Eps32 * float64(dim+heads); math.Abs(float64(v)-want) > limit {
						t.Fatalf("%s, %d heads of %d: key %d has %g, want %g within %g", l, heads, dim, i, v, want, limit)
					}
				}
			}
		}
	}
}

// TestScoreKeepsNaN: what is not a number makes its key's score so, and no other.
func TestScoreKeepsNaN(t *testing.T) {
	nan := float32(math.NaN())
	for _, l := range level.Available() {
		const dim, heads = 3, 9
		r, panel := kerneltest.Rand(1), kerneltest.Normal(kerneltest.Rand(2), dim*Keys, 1)
		panel[Keys+5] = nan
		q, w, out := kerneltest.Normal(r, heads*dim, 1), kerneltest.Normal(r, heads, 1), make([]float32, Keys)
		At(l).Score(&Tile{Panel: &panel[0], Q: &q[0], W: &w[0], Out: &out[0], Stride: 4 * dim, Dim: dim, Heads: heads})
		for i, v := range out {
			if (v != v) != (i == 5) {
				t.Errorf("%s: key %d has %g", l, i, v)
			}
		}
	}
}

// TestChoose: the best scores of any kind, of equal ones the first.
func TestChoose(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	odd := []float32{nan, -nan, inf, -inf, 0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32}
	r := kerneltest.Rand(4)
	kinds := map[string]func() float32{
		"normal": func() float32 { return float32(r.NormFloat64()) },
		"near":   func() float32 { return 1 + float32(r.IntN(64))*kerneltest.Eps32 },
		"ties":   func() float32 { return float32(r.IntN(7)) },
		"equal":  func() float32 { return -2 },
		"odd":    func() float32 { return odd[r.IntN(len(odd))] },
		"nan":    func() float32 { return nan },
		"zeros":  func() float32 { return odd[4+r.IntN(2)] },
		"inf":    func() float32 { return inf },
	}
	for _, l := range level.Available() {
		for kind, next := range kinds {
			for _, n := range []int{2, 3, 63, 64, 65, 200, 1000, 4099} {
				for _, most := range []int{1, 2, n / 3, n / 2, n - 1} {
					if most < 1 {
						continue
					}
					room := (n + Round - 1) / Round * Round
					scores := kerneltest.Guard[float32](room, 4)
					for i := range n {
						scores.Data[i] = next()
					}
					want := best(scores.Data[:n], most)
					marks, got := kerneltest.Guard[uint64](Marks(n), 8), kerneltest.Guard[int32](most, 4)
					At(l).Choose(got.Data, scores.First(), n, marks.Data)
					for _, x := range []interface{ Check() error }{scores, marks, got} {
						if err := x.Check(); err != nil {
							t.Fatal(err)
						}
					}
					if !slices.Equal(got.Data, want) {
						t.Fatalf("%s, %d of %d %s: %v, want %v", l, most, n, kind, got.Data, want)
					}
				}
			}
		}
	}
}

// best sorts.
func best(scores []float32, n int) []int32 {
	order := make([]int32, len(scores))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(scores[b], scores[a]) }) // NaN is less than all
	order = order[:n]
	slices.Sort(order)
	return order
}

func BenchmarkScore(b *testing.B) {
	for _, l := range level.Available()[1:] {
		for _, heads := range []int{4, 32, 64} {
			b.Run(fmt.Sprintf("%s/heads=%d", l, heads), func(b *testing.B) {
				const dim = 128
				fs, k := At(l), newKeys(1, dim, true)
				panel, r := kerneltest.Guard[float32](dim*Keys, 0), kerneltest.Rand(3)
				q, w, out := kerneltest.Normal(r, heads*dim, 1), kerneltest.Normal(r, heads, 1), make([]float32, Keys)
				tile := Tile{Panel: panel.First(), Q: &q[0], W: &w[0], Out: &out[0], Stride: 4 * dim, Dim: dim, Heads: heads}
				ns := kerneltest.Quartile(b, 1, func() {
					fs.Panel(panel.First(), &k.rows, dim, true)
					fs.Score(&tile)
				})
				kerneltest.Report(b, ns, 2*Keys*dim, 2*Keys*dim*heads)
			})
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, l := range level.Available() {
		b.Run(l.String(), func(b *testing.B) {
			const n, most = 32768, 2048
			values := kerneltest.Normal(kerneltest.Rand(1), n, 1)
			scores, marks, chosen := make([]float32, n), make([]uint64, Marks(n)), make([]int32, most)
			ns := kerneltest.Quartile(b, 1, func() {
				copy(scores, values)
				At(l).Choose(chosen, &scores[0], n, marks)
			})
			kerneltest.Report(b, ns, 4*n, 0)
		})
	}
}
