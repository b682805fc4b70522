package blockdot

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// The generator (kernels/cpu/_gen/blockdot.go) has these offsets as constants.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{
		unsafe.Offsetof(tile.P), unsafe.Offsetof(tile.W), unsafe.Offsetof(tile.S), unsafe.Offsetof(tile.Table),
		unsafe.Offsetof(tile.Out), unsafe.Offsetof(tile.Groups), unsafe.Offsetof(tile.Tiles), unsafe.Offsetof(tile.Ahead),
	}
	if want := []uintptr{0, 8, 16, 24, 32, 96, 104, 112}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// problem is one product.
type problem struct {
	x              ref.QRows
	w              ref.QMat
	values, scales *kerneltest.Guarded[byte]
	rows           int
}

func newProblem(t testing.TB, rows, tiles, k int, e *tensor.Encoding, seed uint64, w func(r *rand.Rand) byte, x func(i int) int8) *problem {
	r := kerneltest.Rand(seed)
	l, err := e.By(Group).On(tensor.CPU, tileRows*tiles, k)
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.FromBlocks(kerneltest.Blocks(r, e, l.Rows, k, func() byte { return w(r) }), l.Rows, k)
	if err != nil {
		t.Fatal(err)
	}
	p := &problem{rows: rows, values: kerneltest.Guard[byte](l.ValueBytes(), 0), scales: kerneltest.Guard[byte](l.ScaleBytes(), int(seed%7))}
	p.w = ref.QMat{Layout: l, Values: p.values.Data, Scales: p.scales.Data}
	l.Pack(p.w.Values, p.w.Scales, m)
	p.x = ref.QRows{Q: make([]int8, rows*k), Cols: k, Group: Group, Scale: kerneltest.Normal(r, rows*k/Group, 0.1), Bias: make([]int32, rows*k/Group)}
	for i := range p.x.Q {
		p.x.Q[i] = x(i)
		p.x.Bias[i/Group] -= 8 * int32(p.x.Q[i])
	}
	return p
}

func random(seed uint64) (func(*rand.Rand) byte, func(int) int8) {
	r := kerneltest.Rand(seed + 1)
	return func(r *rand.Rand) byte { return byte(r.Uint32()) }, func(int) int8 { return int8(r.IntN(255) - 127) }
}

// run computes the product at one level with everything in guarded memory.
func (p *problem) run(fs *Funcs, misalign, ahead int) ([]float32, error) {
	k, groups := fs.Of[p.w.Encoding], p.x.Cols/Group
	prepared := kerneltest.Guard[byte](groups*k.Step(p.rows), 4*(misalign%16))
	t := &Tile{P: unsafe.Pointer(prepared.First()), W: unsafe.Pointer(p.values.First()), S: unsafe.Pointer(p.scales.First()), Table: k.Table, Groups: groups, Tiles: p.w.Bands(), Ahead: ahead}
	var outs []*kerneltest.Guarded[float32]
	for m := range p.rows {
		x := kerneltest.GuardOf(p.x.Q[m*p.x.Cols:(m+1)*p.x.Cols], (misalign+m)%64)
		scale, bias := kerneltest.GuardOf(p.x.Scale[m*groups:(m+1)*groups], 0), kerneltest.GuardOf(p.x.Bias[m*groups:(m+1)*groups], 0)
		k.Prepare(t.P, m, p.rows, x.First(), scale.First(), bias.First(), groups)
		outs = append(outs, kerneltest.Guard[float32](p.w.Rows, 4*(misalign+3*m)%64))
		t.Out[m] = outs[m].First()
	}
	if err := prepared.Check(); err != nil {
		return nil, err
	}
	k.Rows[p.rows](t)
	var got []float32
	for _, out := range outs {
		if err := out.Check(); err != nil {
			return nil, err
		}
		got = append(got, out.Data...)
	}
	return got, nil
}

func (p *problem) check(fs *Funcs, misalign, ahead int) error {
	got, err := p.run(fs, misalign, ahead)
	if err != nil {
		return err
	}
	want := make([]float32, p.rows*p.w.Rows)
	ref.MatMulQ(want, p.x, p.w)
	return kerneltest.SameBits(got, want)
}

// variants runs f for every level, encoding and number of rows.
func variants(t *testing.T, f func(t *testing.T, fs *Funcs, e *tensor.Encoding, rows int)) {
	for _, l := range level.Available() {
		fs := At(l)
		for _, name := range tensor.StoredEncodings() {
			e := tensor.EncodingOf(name)
			if fs.Of[e] == nil {
				t.Errorf("%s: no kernels for %s", l, name)
				continue
			}
			for rows := 1; rows <= fs.Most; rows++ {
				t.Run(fmt.Sprintf("%s/%s/m%d", l, name, rows), func(t *testing.T) { f(t, fs, e, rows) })
			}
		}
	}
}

func TestTiles(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, e *tensor.Encoding, rows int) {
		columns, _ := e.Block()
		for i, size := range [][2]int{{1, 1}, {3, 2}, {2, 7}} {
			w, x := random(uint64(i))
			if err := newProblem(t, rows, size[0], size[1]*columns, e, uint64(i), w, x).check(fs, i, 4096*(i%2)); err != nil {
				t.Fatalf("%d tiles, %d blocks: %v", size[0], size[1], err)
			}
		}
	})
}

// On a processor without VNNI or VBMI level AVX512 has the tiles of AVX2.
func TestTilesWithoutVNNI(t *testing.T) {
	defer level.WithoutVNNI()()
	if At(level.Best()) == nil || level.Best() == level.AVX512 && At(level.AVX512) != At(level.AVX2) {
		t.Fatal("a processor without VNNI was given its instructions")
	}
}

// The largest and smallest integers there are against the largest activations of either sign.
func TestTilesOfExtremes(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, e *tensor.Encoding, rows int) {
		columns, _ := e.Block()
		for _, b := range []byte{0, 255, 0x88, 0x77, 0xf0, 0x0f, 0xaa} {
			for _, x := range []func(int) int8{
				func(int) int8 { return 127 }, func(int) int8 { return -127 }, func(int) int8 { return 0 },
				func(i int) int8 { return int8(127 - i%2*254) },
			} {
				p := newProblem(t, rows, 1, columns, e, uint64(b), func(*rand.Rand) byte { return b }, x)
				if err := p.check(fs, 0, 0); err != nil {
					t.Fatalf("bytes of %#x: %v", b, err)
				}
			}
		}
	})
}

// A scale of NaN (a row that was not finite) makes the whole row NaN, no other.
func TestTilesSpreadNaN(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, e *tensor.Encoding, rows int) {
		columns, _ := e.Block()
		w, x := random(1)
		p := newProblem(t, rows, 2, columns, e, 1, w, x)
		p.x.Scale[0] = float32(math.NaN())
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
		for _, name := range tensor.StoredEncodings() {
			e := tensor.EncodingOf(name)
			for _, m := range []int{1, 2, 4, 8} {
				if m > fs.Most {
					continue
				}
				b.Run(fmt.Sprintf("%s/%s/m%d", l, name, m), func(b *testing.B) {
					const k, tiles = 2048, 16
					w, x := random(1)
					p := newProblem(b, m, tiles, k, e, 1, w, x)
					kernels := fs.Of[e]
					prepared := make([]byte, k/Group*kernels.Step(m))
					out := make([]float32, m*tileRows*tiles)
					t := &Tile{P: unsafe.Pointer(&prepared[0]), W: unsafe.Pointer(p.values.First()), S: unsafe.Pointer(p.scales.First()), Table: kernels.Table, Groups: k / Group, Tiles: tiles}
					for i := range m {
						kernels.Prepare(t.P, i, m, &p.x.Q[i*k], &p.x.Scale[i*k/Group], &p.x.Bias[i*k/Group], k/Group)
						t.Out[i] = &out[i*tileRows*tiles]
					}
					ns := kerneltest.Quartile(b, 1, func() { kernels.Rows[m](t) })
					kerneltest.Report(b, ns, p.w.Bytes(), 2*m*tileRows*tiles*k)
				})
			}
		}
	}
}
