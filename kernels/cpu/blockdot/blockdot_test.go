package blockdot

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"krater/kernels/cpu/amx"
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
		unsafe.Offsetof(tile.Step), unsafe.Offsetof(tile.SmallStep), unsafe.Offsetof(tile.RowStep), unsafe.Offsetof(tile.Count),
		unsafe.Offsetof(tile.Config), unsafe.Offsetof(tile.Products), unsafe.Offsetof(tile.left),
	}
	if want := []uintptr{0, 8, 16, 24, 32, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168}; fmt.Sprint(got) != fmt.Sprint(want) {
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

// run computes the product at one level with everything in guarded memory, with a panel or with blocks.
func (p *problem) run(fs *Funcs, misalign, ahead int, panels bool) ([]float32, error) {
	k, groups := fs.Of[p.w.Encoding], p.x.Cols/Group
	prepared, err := p.prepare(k, p.rows, misalign)
	if err != nil {
		return nil, err
	}
	t := p.blocks(k, ahead)
	t.P = unsafe.Pointer(prepared.First())
	var outs []*kerneltest.Guarded[float32]
	for m := range p.rows {
		outs = append(outs, kerneltest.Guard[float32](p.w.Rows, 4*(misalign+3*m)%64))
		t.Out[m] = outs[m].First()
	}
	if !panels {
		k.Rows[p.rows](t)
	} else {
		panel, err := p.unpack(k, t)
		if err != nil {
			return nil, err
		}
		for _, out := range outs {
			clear(out.Data)
		}
		for _, part := range [][2]int{{0, groups / 3}, {groups / 3, groups}} { // in two parts
			if t.Groups = part[1] - part[0]; t.Groups > 0 {
				t.P = unsafe.Add(unsafe.Pointer(prepared.First()), part[0]*k.Step(p.rows))
				t.W, t.S = unsafe.Pointer(&panel.values.Data[part[0]*t.Step]), unsafe.Pointer(&panel.scales.Data[part[0]*t.SmallStep])
				k.Panels[p.rows](t)
			}
		}
	}
	var got []float32
	for _, out := range outs {
		if err := out.Check(); err != nil {
			return nil, err
		}
		got = append(got, out.Data...)
	}
	return got, nil
}

// prepare brings the rows into the order of a call of width rows.
func (p *problem) prepare(k *Kernels, width, misalign int) (*kerneltest.Guarded[byte], error) {
	groups := p.x.Cols / Group
	prepared := kerneltest.Guard[byte](groups*k.Step(width), 4*(misalign%16))
	for m := range p.rows {
		x := kerneltest.GuardOf(p.x.Q[m*p.x.Cols:(m+1)*p.x.Cols], (misalign+m)%64)
		scale, bias := kerneltest.GuardOf(p.x.Scale[m*groups:(m+1)*groups], 0), kerneltest.GuardOf(p.x.Bias[m*groups:(m+1)*groups], 0)
		k.Prepare(unsafe.Pointer(prepared.First()), m, width, x.First(), scale.First(), bias.First(), groups)
	}
	return prepared, prepared.Check()
}

// blocks is a call with the blocks.
func (p *problem) blocks(k *Kernels, ahead int) *Tile {
	return &Tile{W: unsafe.Pointer(p.values.First()), S: unsafe.Pointer(p.scales.First()), Table: k.Table, Groups: p.x.Cols / Group, Tiles: p.w.Bands(), Ahead: ahead}
}

// panel is unpacked weights.
type panel struct{ values, scales *kerneltest.Guarded[byte] }

// unpack makes a panel of the blocks of t, for whose products it has the steps.
func (p *problem) unpack(k *Kernels, t *Tile) (panel, error) {
	values, scales := k.Panel()
	t.Step, t.SmallStep = values*t.Tiles, scales*t.Tiles
	x, to := panel{kerneltest.Guard[byte](t.Groups*t.Step, 0), kerneltest.Guard[byte](t.Groups*t.SmallStep, 0)}, *t
	to.Out = [Rows]*float32{(*float32)(unsafe.Pointer(x.values.First())), (*float32)(unsafe.Pointer(x.scales.First()))}
	k.Unpack(&to)
	return x, errors.Join(x.values.Check(), x.scales.Check())
}

// ways are the ways that there are for the rows of the product: with blocks, with a panel.
func (p *problem) ways(fs *Funcs) (panels []bool) {
	if p.rows <= fs.Most {
		panels = append(panels, false)
	}
	if p.rows >= fs.LeastPanel {
		panels = append(panels, true)
	}
	return panels
}

func (p *problem) check(fs *Funcs, misalign, ahead int) error {
	want := make([]float32, p.rows*p.w.Rows)
	ref.MatMulQ(want, p.x, p.w)
	for _, panels := range p.ways(fs) {
		got, err := p.run(fs, misalign, ahead, panels)
		if err == nil {
			err = kerneltest.SameBits(got, want)
		}
		if err != nil {
			return fmt.Errorf("panels %v: %w", panels, err)
		}
	}
	return nil
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
			for rows := 1; rows <= fs.MostPanel; rows++ {
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

// The largest and smallest integers there are against the largest activations of either sign: AVX2 adds up to eight
// products of four bits as 16-bit words, 30480 at most (_gen/blockfours.go).
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
		for _, panels := range p.ways(fs) {
			got, err := p.run(fs, 0, 0, panels)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if isNaN := v != v; isNaN != (i < p.w.Rows) {
					t.Fatalf("result %d of row %d is %g", i%p.w.Rows, i/p.w.Rows, v)
				}
			}
		}
	})
}

// unit is run on the tile unit, with two calls for the columns.
func (p *problem) unit(k *Kernels) ([]float32, error) {
	prepared, err := p.prepare(k, UnitRows, 0)
	if err != nil {
		return nil, err
	}
	t, config := p.blocks(k, 0), k.Config(p.rows)
	panel, err := p.unpack(k, t)
	if err != nil {
		return nil, err
	}
	out, products := kerneltest.Guard[float32](UnitRows*p.w.Rows, 0), kerneltest.Guard[int32](4*tileRows*tileRows, 0)
	clear(out.Data)
	t.Out[0], t.RowStep, t.Count, t.Config, t.Products = out.First(), 4*p.w.Rows, p.rows, &config, products.First()
	groups, first := t.Groups, t.Groups/2
	for _, part := range [][2]int{{0, first}, {first, groups}} {
		if t.Groups = part[1] - part[0]; t.Groups > 0 {
			t.P = unsafe.Add(unsafe.Pointer(prepared.First()), part[0]*k.Step(UnitRows))
			t.W, t.S = unsafe.Pointer(&panel.values.Data[part[0]*t.Step]), unsafe.Pointer(&panel.scales.Data[part[0]*t.SmallStep])
			k.Unit(t)
		}
	}
	return out.Data[:p.rows*p.w.Rows], errors.Join(out.Check(), products.Check())
}

// The tile unit gives the same bits, for every number of rows and of groups.
func TestUnit(t *testing.T) {
	if err := amx.Int8(); err != nil {
		t.Skip(err)
	}
	fs := At(level.AVX512)
	for _, name := range tensor.StoredEncodings() {
		e := tensor.EncodingOf(name)
		if fs.Of[e].Unit == nil {
			continue
		}
		columns, _ := e.Block()
		for rows := 1; rows <= UnitRows; rows++ {
			for i, size := range [][2]int{{1, 1}, {3, 2}, {2, 7}} {
				w, x := random(uint64(i))
				p := newProblem(t, rows, size[0], size[1]*columns, e, uint64(i), w, x)
				got, err := p.unit(fs.Of[e])
				if err != nil {
					t.Fatal(err)
				}
				want := make([]float32, rows*p.w.Rows)
				ref.MatMulQ(want, p.x, p.w)
				if err := kerneltest.SameBits(got, want); err != nil {
					t.Fatalf("%s, %d rows, %d tiles, %d blocks: %v", name, rows, size[0], size[1], err)
				}
			}
		}
	}
}

// In the second-level cache: what a core can do at most. Rows that meet a panel do so with its
// unpacking, and 48 of them in parts of what a call takes. (BenchmarkUnit of package cpu measures the tile unit.)
func BenchmarkTile(b *testing.B) {
	for _, l := range level.Available()[1:] {
		fs := At(l)
		for _, name := range tensor.StoredEncodings() {
			for _, m := range slices.Compact([]int{1, 2, fs.Most, fs.MostPanel, 48}) {
				b.Run(fmt.Sprintf("%s/%s/m%d", l, name, m), func(b *testing.B) { benchmarkTile(b, fs, name, m) })
			}
		}
	}
}

func benchmarkTile(b *testing.B, fs *Funcs, name string, m int) {
	const cols, tiles, slice = 2048, 4, 16
	k := fs.Of[tensor.EncodingOf(name)]
	w, x := random(1)
	part := min(m, fs.MostPanel)
	p := newProblem(b, part, tiles, cols, tensor.EncodingOf(name), 1, w, x)
	prepared, err := p.prepare(k, part, 0)
	t := p.blocks(k, 0)
	blocks := *t
	panel, err2 := p.unpack(k, t)
	if err := errors.Join(err, err2); err != nil {
		b.Fatal(err)
	}
	blocks.Step, blocks.SmallStep = t.Step, t.SmallStep
	blocks.Out[0], blocks.Out[1] = (*float32)(unsafe.Pointer(panel.values.First())), (*float32)(unsafe.Pointer(panel.scales.First()))
	out := make([]float32, part*p.w.Rows)
	for i := range part {
		t.Out[i] = &out[i*p.w.Rows]
	}
	ns := kerneltest.Quartile(b, 1, func() {
		if m <= fs.Most {
			t.P = unsafe.Pointer(prepared.First())
			k.Rows[m](t)
			return
		}
		k.Unpack(&blocks)
		t.Groups = slice
		for g := 0; g < cols/Group; g += slice {
			t.P = unsafe.Add(unsafe.Pointer(prepared.First()), g*k.Step(part))
			t.W, t.S = unsafe.Pointer(&panel.values.Data[g*t.Step]), unsafe.Pointer(&panel.scales.Data[g*t.SmallStep])
			for range m / part {
				k.Panels[part](t)
			}
		}
	})
	kerneltest.Report(b, ns, p.w.Bytes(), 2*m*p.w.Rows*cols)
}
