package qdot

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// The generator (kernels/cpu/_gen/qdot.go) has these offsets as constants.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{
		unsafe.Offsetof(tile.X), unsafe.Offsetof(tile.Scale), unsafe.Offsetof(tile.Bias), unsafe.Offsetof(tile.Out), unsafe.Offsetof(tile.W),
		unsafe.Offsetof(tile.S), unsafe.Offsetof(tile.K), unsafe.Offsetof(tile.Steps), unsafe.Offsetof(tile.Tiles), unsafe.Offsetof(tile.Ahead),
		unsafe.Offsetof(tile.rows), unsafe.Offsetof(tile.scratch), unsafe.Offsetof(tile.tileBytes), unsafe.Offsetof(tile.scaleBytes),
	}
	if want := []uintptr{0, 128, 256, 384, 512, 520, 528, 536, 544, 552, 560, 568, 576, 584}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// problem is one product; weights are aligned to 64, scales to 2, rows to 1.
type problem struct {
	x      ref.QRows
	w      ref.QMat
	values *kerneltest.Guarded[byte]
	scales *kerneltest.Guarded[byte]
	rows   int
}

// fill says what the integers are.
type fill func(i int) (w, x int)

func newProblem(rows, tiles, k, group int, e *tensor.Encoding, seed uint64, f fill) *problem {
	r := kerneltest.Rand(seed)
	b := tensor.Layout{Format: e.By(group), Rows: 16 * tiles, Cols: k}
	p := &problem{rows: rows}
	w, x := make([]int8, b.Rows*k), make([]int8, rows*k)
	for i := range w {
		v, _ := f(i)
		w[i] = int8(v)
	}
	for i := range x {
		_, v := f(i)
		x[i] = int8(v)
	}
	p.values, p.scales = kerneltest.Guard[byte](b.ValueBytes(), 0), kerneltest.Guard[byte](b.ScaleBytes(), 2*int(seed%32))
	p.w = ref.QMat{Layout: b, Values: p.values.Data, Scales: p.scales.Data}
	b.Pack(p.w.Values, p.w.Scales, b.Matrix(w, kerneltest.Normal(r, b.Rows*b.Groups(), 0.01)))
	p.x = ref.QRows{Q: x, Cols: k, Group: group, Scale: kerneltest.Normal(r, rows*b.Groups(), 0.1), Bias: make([]int32, rows*b.Groups())}
	for i, v := range x {
		p.x.Bias[i/k*b.Groups()+i%k/group] -= 8 * int32(v)
	}
	return p
}

func random(seed uint64, e *tensor.Encoding) fill {
	r := kerneltest.Rand(seed + 1)
	levels := e.Levels()
	return func(int) (int, int) { return int(levels[r.IntN(len(levels))]), r.IntN(255) - 127 }
}

// run computes the product at one level with rows in guarded memory.
func (p *problem) run(fs Funcs, misalign, ahead int) ([]float32, error) {
	t := &Tile{
		W: unsafe.Pointer(p.values.First()), S: unsafe.Pointer(p.scales.First()),
		K: p.x.Cols, Steps: p.x.Group / 32, Tiles: p.w.Bands(), Ahead: ahead,
	}
	groups := p.w.Groups()
	var outs []*kerneltest.Guarded[float32]
	for m := range p.rows {
		t.X[m] = kerneltest.GuardOf(p.x.Q[m*p.x.Cols:(m+1)*p.x.Cols], (misalign+m)%64).First()
		t.Scale[m] = kerneltest.GuardOf(p.x.Scale[m*groups:(m+1)*groups], 4*(misalign+m)%64).First()
		t.Bias[m] = kerneltest.GuardOf(p.x.Bias[m*groups:(m+1)*groups], 4*(misalign+2*m)%64).First()
		outs = append(outs, kerneltest.Guard[float32](p.w.Rows, 4*(misalign+3*m)%64))
		t.Out[m] = outs[m].First()
	}
	fs[p.w.Encoding][p.rows](t)
	var got []float32
	for _, out := range outs {
		if err := out.Check(); err != nil {
			return nil, err
		}
		got = append(got, out.Data...)
	}
	return got, nil
}

func (p *problem) want() []float32 {
	want := make([]float32, p.rows*p.w.Rows)
	ref.MatMulQ(want, p.x, p.w)
	return want
}

var encodings = []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8, tensor.Q8_0}

// rowsOf lists numbers of rows that tiles take: all, but of tiles of many rows, which loop over them, some.
func rowsOf(k Kernels) (list []int) {
	for rows := 1; rows <= k.Most(); rows++ {
		if rows <= 5 || k.Most() <= 8 || rows == 11 || rows == k.Most() {
			list = append(list, rows)
		}
	}
	return list
}

// variants runs f for every level, encoding and number of rows. Level AVX512 has no tiles of its own
// on a processor without VNNI.
func variants(t *testing.T, f func(t *testing.T, fs Funcs, e *tensor.Encoding, rows int)) {
	for _, l := range level.Available() {
		fs := At(l)
		for _, e := range encodings {
			for _, rows := range rowsOf(fs[e]) {
				t.Run(fmt.Sprintf("%s/%s/m%d", l, e.Name(), rows), func(t *testing.T) { f(t, fs, e, rows) })
			}
		}
	}
}

func TestTiles(t *testing.T) {
	variants(t, func(t *testing.T, fs Funcs, e *tensor.Encoding, rows int) {
		for i, size := range [][3]int{{1, 32, 32}, {2, 64, 32}, {1, 64, 64}, {3, 96, 96}, {2, 128, 64}, {1, 256, 128}, {5, 384, 128}, {37, 64, 32}, {2, 352, 32}, {1, 1408, 1408}, {2, 2048, 128}} {
			p := newProblem(rows, size[0], size[1], size[2], e, uint64(i), random(uint64(i), e))
			got, err := p.run(fs, i, 4096*(i%3))
			if err != nil {
				t.Fatalf("%v: %v", size, err)
			}
			if err := kerneltest.SameBits(got, p.want()); err != nil {
				t.Fatalf("%v: %v", size, err)
			}
		}
	})
}

// Every level has tiles for every number of rows it says, on a processor without VNNI too, and they
// give the same bits.
func TestTilesWithoutVNNI(t *testing.T) {
	defer level.WithoutVNNI()()
	for _, l := range level.Available() {
		fs := At(l)
		if l == level.AVX512 && reflect.ValueOf(fs).Pointer() != reflect.ValueOf(At(level.AVX2)).Pointer() {
			t.Fatal("a processor without VNNI was given its instructions")
		}
		for _, e := range encodings {
			for _, rows := range rowsOf(fs[e]) {
				p := newProblem(rows, 3, 256, 64, e, 1, random(1, e))
				got, err := p.run(fs, 1, 4096)
				if err != nil {
					t.Fatalf("%s, %s, %d rows: %v", l, e.Name(), rows, err)
				}
				if err := kerneltest.SameBits(got, p.want()); err != nil {
					t.Fatalf("%s, %s, %d rows: %v", l, e.Name(), rows, err)
				}
			}
		}
	}
}

// The largest sums there can be, where 16-bit arithmetic would saturate and a group of 65536
// columns comes near the limits of 32 bits.
func TestTilesOfExtremes(t *testing.T) {
	variants(t, func(t *testing.T, fs Funcs, e *tensor.Encoding, rows int) {
		lo, hi := e.Range()
		for name, f := range map[string]fill{
			"lowest":   func(int) (int, int) { return lo, 127 },
			"highest":  func(int) (int, int) { return hi, 127 },
			"opposite": func(int) (int, int) { return hi, -127 },
			"both low": func(int) (int, int) { return lo, -127 },
			"taking turns": func(i int) (int, int) {
				return []int{lo, hi}[i/3%2], []int{127, -127}[i%2]
			},
			"zero rows": func(int) (int, int) { return hi, 0 },
			"zeros":     func(int) (int, int) { return 0, 127 },
		} {
			for _, size := range [][2]int{{32, 32}, {512, 128}} {
				p := newProblem(rows, 1, size[0], size[1], e, 3, f)
				got, err := p.run(fs, 0, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := kerneltest.SameBits(got, p.want()); err != nil {
					t.Fatalf("%s, %v: %v", name, size, err)
				}
			}
		}
		// One group of 65536 columns, every product alike: the expression by hand.
		const k = 1 << 16
		for _, c := range [][2]int{{lo, 127}, {hi, 127}, {hi, -127}, {lo, -127}} {
			p := newProblem(rows, 1, k, k, e, 3, func(int) (int, int) { return c[0], c[1] })
			got, err := p.run(fs, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			scales := p.w.Unpack(p.w.Values, p.w.Scales).Scales
			for i, v := range got {
				want := tensor.FMA(float32(k*c[0]*c[1]), scales[i%16]*p.x.Scale[i/16], 0)
				if math.Float32bits(v) != math.Float32bits(want) {
					t.Fatalf("%v: result %d is %g, want %g", c, i, v, want)
				}
			}
		}
	})
}

// A scale of NaN (a row that was not finite) makes the whole row NaN, no other.
func TestTilesSpreadNaN(t *testing.T) {
	variants(t, func(t *testing.T, fs Funcs, e *tensor.Encoding, rows int) {
		p := newProblem(rows, 2, 128, 32, e, 1, random(1, e))
		p.x.Scale[2] = float32(math.NaN())
		got, err := p.run(fs, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if isNaN := v != v; isNaN != (i < p.w.Rows) {
				t.Fatalf("result %d of row %d is %g", i%p.w.Rows, i/p.w.Rows, v)
			}
		}
	})
}

// In the second-level cache: what a core can do at most.
func BenchmarkTile(b *testing.B) {
	for _, l := range level.Available()[1:] {
		fs := At(l)
		for _, e := range encodings {
			for _, group := range []int{32, 128, 2048} {
				for _, m := range []int{1, 2, 3, 4, 6, 8, 12, 16} {
					if m > fs[e].Most() {
						continue
					}
					b.Run(fmt.Sprintf("%s/%s/g%d/m%d", l, e.Name(), group, m), func(b *testing.B) {
						const k, tiles = 2048, 16
						p := newProblem(m, tiles, k, group, e, 1, random(1, e))
						t := &Tile{W: unsafe.Pointer(p.values.First()), S: unsafe.Pointer(p.scales.First()), K: k, Steps: group / 32, Tiles: tiles}
						const stride = k + 64 // as the device has it, so that rows do not meet in one place of the first-level cache
						x, out := make([]int8, m*stride), make([]float32, m*16*tiles)
						for i := range m {
							copy(x[i*stride:], p.x.Q[i*k:(i+1)*k])
							t.X[i], t.Scale[i], t.Bias[i] = &x[i*stride], &p.x.Scale[i*k/group], &p.x.Bias[i*k/group]
							t.Out[i] = &out[i*16*tiles]
						}
						ns := kerneltest.Quartile(b, 1, func() { fs[e][m](t) })
						kerneltest.Report(b, ns, p.w.ValueBytes()+p.w.ScaleBytes(), 2*m*16*tiles*k)
					})
				}
			}
		}
	}
}
