package btile

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// The generator (kernels/cpu/_gen/btile.go) counts its offsets in this order.
func TestLayout(t *testing.T) {
	var tile Tile
	for i, off := range []uintptr{
		unsafe.Offsetof(tile.config), unsafe.Offsetof(tile.x), unsafe.Offsetof(tile.w), unsafe.Offsetof(tile.out), unsafe.Offsetof(tile.products),
		unsafe.Offsetof(tile.wStride), unsafe.Offsetof(tile.outStride), unsafe.Offsetof(tile.steps), unsafe.Offsetof(tile.blocks), unsafe.Offsetof(tile.tokens), unsafe.Offsetof(tile.ahead),
	} {
		if off != uintptr(8*i) {
			t.Fatalf("field %d is at %d, the assembly has %d", i, off, 8*i)
		}
	}
	var w Weigh
	for i, off := range []uintptr{
		unsafe.Offsetof(w.config), unsafe.Offsetof(w.upper), unsafe.Offsetof(w.lower), unsafe.Offsetof(w.w), unsafe.Offsetof(w.acc), unsafe.Offsetof(w.pairs),
		unsafe.Offsetof(w.turn), unsafe.Offsetof(w.pStride), unsafe.Offsetof(w.wStride), unsafe.Offsetof(w.accStride), unsafe.Offsetof(w.steps), unsafe.Offsetof(w.blocks),
	} {
		if off != uintptr(8*i) {
			t.Fatalf("field %d of Weigh is at %d, the assembly has %d", i, off, 8*i)
		}
	}
	var b Block
	got := []uintptr{unsafe.Offsetof(b.rows), unsafe.Offsetof(b.out), unsafe.Offsetof(b.steps), unsafe.Offsetof(b.next), unsafe.Offsetof(b.low)}
	if want := []uintptr{0, 128, 136, 144, 152}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// kernels lists the kernels that can run here.
func kernels() map[string]*Funcs {
	list := map[string]*Funcs{"pure": At(level.Pure)}
	if Available() == nil {
		list["unit"] = At(level.Best())
	}
	return list
}

// problem is m tokens against n rows of BF16 weights.
type problem struct {
	m, n, k, wStride int // stride in values
	x                []float32
	w                []uint16
	wide             []float32 // w
	packedRows       []float32 // x in packed order
}

func newProblem(seed uint64, m, n, k, gap int) *problem {
	r := kerneltest.Rand(seed)
	p := &problem{m: m, n: n, k: k, wStride: k + gap, x: kerneltest.Normal(r, m*k, 1)}
	p.w, p.wide = kerneltest.BF16(kerneltest.Normal(r, n*(k+gap), 0.05))
	p.pack()
	return p
}

func (p *problem) pack() {
	p.packedRows = make([]float32, p.m*p.k)
	for i := range p.m {
		convert.At(level.Pure).Pack(&p.packedRows[i*p.k], &p.x[i*p.k], p.k)
	}
}

// run returns the results of tokens [from, to), in guarded memory.
func (p *problem) run(t *testing.T, f *Funcs, from, to int) []float32 {
	t.Helper()
	m := to - from
	packed := kerneltest.Guard[float32](packedSize(m, p.k), 0)
	f.Pack(new(Block), packed.First(), &p.packedRows[from*p.k], p.k, m, p.k)
	if err := packed.Check(); err != nil {
		t.Fatal(err)
	}
	const gap = 3
	stride := p.n + gap
	out, scratch := kerneltest.Guard[float32](m*stride-gap, 4), kerneltest.Guard[float32](Products, 0)
	f.Multiply(new(Tile), out.First(), stride, packed.First(), m, p.k, unsafe.Pointer(&p.w[0]), 2*p.wStride, p.n/WeightRows, Ahead*(from%2), scratch.First())
	if err := out.Check(); err != nil {
		t.Fatal(err)
	}
	if err := scratch.Check(); err != nil {
		t.Fatal(err)
	}
	var got []float32
	for i := range m {
		got = append(got, out.Data[i*stride:][:p.n]...)
		for c := p.n; c < stride && i < m-1; c++ {
			if math.Float32bits(out.Data[i*stride+c]) != 0xa5a5a5a5 {
				t.Fatalf("the gap after row %d was written", i)
			}
		}
	}
	return got
}

// check compares with exact sums. An activation is short of its last bits by up to 2^-16, and k
// multiply-adds round.
func (p *problem) check(got []float32) error {
	for i := range p.m {
		for n := range p.n {
			var sum, size float64
			for k := range p.k {
				v := float64(p.x[i*p.k+k]) * float64(p.wide[n*p.wStride+k])
				sum, size = sum+v, size+math.Abs(v)
			}
			limit := size * (0x1p-16 + float64(p.k)*0x1p-24)
			if g := float64(got[i*p.n+n]); !(math.Abs(g-sum) <= limit) {
				return fmt.Errorf("token %d, weight row %d: %g, want %g within %g", i, n, g, sum, limit)
			}
		}
	}
	return nil
}

func TestMultiply(t *testing.T) {
	for name, f := range kernels() {
		for i, k := range []int{32, 64, 96, 320} {
			for _, n := range []int{32, 96} {
				for _, m := range []int{1, 2, 3, 15, 16, 17, 20, 31, 32} {
					p := newProblem(uint64(i), m, n, k, 32*(i%2))
					if err := p.check(p.run(t, f, 0, m)); err != nil {
						t.Fatalf("%s, %d tokens, [%d, %d]: %v", name, m, n, k, err)
					}
				}
			}
		}
	}
}

// The unit has the bits of plain Go.
func TestUnitIsPure(t *testing.T) {
	p := newProblem(1, 32, 64, 256, 0)
	want := p.run(t, At(level.Pure), 0, 32)
	for name, f := range kernels() {
		if err := kerneltest.SameBits(p.run(t, f, 0, 32), want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A token has the same bits alone and among others, whatever loop it meets.
func TestMultiplyIsBatchInvariant(t *testing.T) {
	for name, f := range kernels() {
		p := newProblem(1, 32, 64, 256, 0)
		whole := p.run(t, f, 0, 32)
		for from := range 32 {
			for _, m := range []int{1, 2, 9, 16, 17, 30} {
				if from+m > 32 {
					continue
				}
				if err := kerneltest.SameBits(p.run(t, f, from, from+m), whole[from*p.n:(from+m)*p.n]); err != nil {
					t.Fatalf("%s, tokens %d to %d: %v", name, from, from+m, err)
				}
			}
		}
	}
}

// A token that is not finite is NaN, and no other.
func TestMultiplySpreadsNaN(t *testing.T) {
	for name, f := range kernels() {
		for _, bad := range []uint32{0x7fc00000, 0xffffffff, 0x7f800001, 0x7f800000, 0xff800000} {
			for _, m := range []int{1, 5, 32} {
				p := newProblem(2, m, 32, 64, 0)
				p.x[(m-1)*p.k+37] = math.Float32frombits(bad)
				p.pack()
				for i, v := range p.run(t, f, 0, m) {
					if (v != v) != (i/p.n == m-1) {
						t.Fatalf("%s, %x, %d tokens: [%d, %d] is %g", name, bad, m, i/p.n, i%p.n, v)
					}
				}
			}
		}
	}
}

// weighed returns results of rows [from, to) of factors.
func weighed(t *testing.T, f *Funcs, p []float32, w []uint16, from, to, n, columns, gap int) []float32 {
	upper, lower := make([]uint16, len(p)), make([]uint16, len(p))
	for i, x := range p {
		upper[i], lower[i] = split(x)
	}
	rows, stride := to-from, columns+gap
	acc, scratch := kerneltest.Guard[float32](rows*stride-gap, 4), kerneltest.Guard[float32](Pairs, 0)
	for i := range acc.Data {
		acc.Data[i] = float32(i % stride % 7)
	}
	f.Weigh(new(Weigh), acc.First(), stride, &upper[from*n], &lower[from*n], 2*n, rows, n, unsafe.Pointer(&w[0]), 2*(columns+gap), columns, scratch.First())
	if err := acc.Check(); err != nil {
		t.Fatal(err)
	}
	if err := scratch.Check(); err != nil {
		t.Fatal(err)
	}
	var got []float32
	for m := range rows {
		for c := range columns {
			got = append(got, acc.Data[m*stride+Place(c)])
		}
	}
	return got
}

// Sums of weighted rows are close to exact ones, have the bits of plain Go, and a row has the same bits alone and among others.
func TestWeigh(t *testing.T) {
	for i, n := range []int{32, 64, 160} {
		for _, columns := range []int{64, 192} {
			const rows = WeighRows
			gap := 3 * (i % 2)
			r := kerneltest.Rand(uint64(n))
			p := kerneltest.Normal(r, rows*n, 1)
			w, wide := kerneltest.BF16(kerneltest.Normal(r, n*(columns+gap), 1))
			want := weighed(t, At(level.Pure), p, w, 0, rows, n, columns, gap)
			for m := range rows {
				for c := range columns {
					sum := float64(Place(c) % 7)
					size := sum
					for j := range n {
						v := float64(p[m*n+j]) * float64(wide[j*(columns+gap)+c])
						sum, size = sum+v, size+math.Abs(v)
					}
					if limit := size * (0x1p-16 + float64(n)*0x1p-24); !(math.Abs(float64(want[m*columns+c])-sum) <= limit) {
						t.Fatalf("n %d: [%d, %d] is %g, want %g within %g", n, m, c, want[m*columns+c], sum, limit)
					}
				}
			}
			for name, f := range kernels() {
				for _, part := range [][2]int{{0, 16}, {0, 1}, {15, 16}, {3, 8}} {
					if err := kerneltest.SameBits(weighed(t, f, p, w, part[0], part[1], n, columns, gap), want[part[0]*columns:part[1]*columns]); err != nil {
						t.Fatalf("%s, n %d, %d columns, rows %v: %v", name, n, columns, part, err)
					}
				}
			}
		}
	}
}

// Packing uses no tile: it is checked on every machine with AVX-512.
func TestPack(t *testing.T) {
	packs := map[string]*Funcs{"pure": At(level.Pure)}
	if level.Best() >= level.AVX512 {
		packs["unit"] = At(level.Best())
	}
	for name, f := range packs {
		testPack(t, name, f)
	}
}

func testPack(t *testing.T, name string, f *Funcs) {
	for _, m := range []int{1, 2, 16, 19, 32} {
		p := newProblem(uint64(m), m, 32, 96, 0)
		for i := range p.x {
			p.x[i] *= float32(math.Exp2(float64(i%40 - 20)))
		}
		p.pack()
		packed := kerneltest.Guard[float32](packedSize(m, p.k), 0)
		f.Pack(new(Block), packed.First(), &p.packedRows[0], p.k, m, p.k)
		if err := packed.Check(); err != nil {
			t.Fatal(err)
		}
		n, width := tiles(m), amx.Rows
		if m == 1 {
			width = 1
		}
		for i := range m {
			for k := range p.k {
				var sum float64
				for half := range 2 {
					at := ((k/Columns*2+half)*n+i/amx.Rows)*amx.Rows*width + k%Columns/2*width + i%amx.Rows
					word := math.Float32bits(packed.Data[at])
					sum += float64(tensor.BF16ToF32(uint16(word >> (16 * (k % 2)))))
				}
				if x := float64(p.x[i*p.k+k]); math.Abs(sum-x) > math.Abs(x)*0x1p-16 {
					t.Fatalf("%s, %d tokens: value %d of token %d is %g, want %g", name, m, k, i, sum, x)
				}
			}
		}
	}
}

func BenchmarkMultiply(b *testing.B) {
	if err := Available(); err != nil {
		b.Skip(err)
	}
	f := At(level.Best())
	const n = 128
	for _, k := range []int{128, 192, 512, 2048} {
		for _, m := range []int{1, 16, 32} {
			for _, ahead := range []int{0, Ahead} {
				b.Run(fmt.Sprintf("k%d/m%d/ahead%d", k, m, ahead), func(b *testing.B) {
					p := newProblem(1, m, n, k, 0)
					packed, scratch := kerneltest.Guard[float32](packedSize(m, k), 0), kerneltest.Guard[float32](Products, 0)
					f.Pack(new(Block), packed.First(), &p.packedRows[0], k, m, k)
					out, t := make([]float32, m*n), new(Tile)
					ns := kerneltest.Quartile(b, 1, func() {
						f.Multiply(t, &out[0], n, packed.First(), m, k, unsafe.Pointer(&p.w[0]), 2*k, n/WeightRows, ahead, scratch.First())
					})
					kerneltest.Report(b, ns, 2*n*k, 2*m*n*k)
				})
			}
		}
	}
}

func BenchmarkPackTokens(b *testing.B) {
	if level.Best() < level.AVX512 {
		b.Skip("no AVX-512")
	}
	f := At(level.Best())
	for _, m := range []int{16, 32} {
		b.Run(fmt.Sprint(m), func(b *testing.B) {
			const k = 128
			p := newProblem(1, m, 32, k, 0)
			packed := kerneltest.Guard[float32](packedSize(m, k), 0)
			ns := kerneltest.Quartile(b, 1, func() { f.Pack(new(Block), packed.First(), &p.packedRows[0], k, m, k) })
			kerneltest.Report(b, ns, 4*m*k, 0)
		})
	}
}

func BenchmarkWeigh(b *testing.B) {
	if err := Available(); err != nil {
		b.Skip(err)
	}
	const n, columns, stride = 128, 512, 576
	f, t := At(level.Best()), new(Weigh)
	w, _ := kerneltest.BF16(kerneltest.Normal(kerneltest.Rand(1), n*stride, 1))
	p, acc, scratch := make([]uint16, WeighRows*n), kerneltest.Guard[float32](WeighRows*stride, 0), kerneltest.Guard[float32](Pairs, 0)
	clear(acc.Data)
	ns := kerneltest.Quartile(b, 1, func() {
		f.Weigh(t, acc.First(), stride, &p[0], &p[0], 2*n, WeighRows, n, unsafe.Pointer(&w[0]), 2*stride, columns, scratch.First())
	})
	kerneltest.Report(b, ns, 2*n*columns, 2*WeighRows*n*columns)
}

// packedSize returns the float32 values that tokens <= MostTokens tokens of k columns take when
// packed.
func packedSize(tokens, k int) int {
	if tokens == 1 {
		return k
	}
	return tiles(tokens) * amx.Rows * k
}
