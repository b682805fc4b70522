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
		unsafe.Offsetof(tile.wStride), unsafe.Offsetof(tile.outStride), unsafe.Offsetof(tile.steps), unsafe.Offsetof(tile.blocks), unsafe.Offsetof(tile.tokens),
	} {
		if off != uintptr(8*i) {
			t.Fatalf("field %d is at %d, the assembly has %d", i, off, 8*i)
		}
	}
	var b Block
	got := []uintptr{unsafe.Offsetof(b.rows), unsafe.Offsetof(b.out), unsafe.Offsetof(b.steps), unsafe.Offsetof(b.next), unsafe.Offsetof(b.low)}
	if want := []uintptr{0, 128, 136, 144, 152}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// available skips where there is no unit, and says why.
func available(t testing.TB) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
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
func (p *problem) run(t *testing.T, from, to int) []float32 {
	t.Helper()
	m := to - from
	packed := kerneltest.Guard[float32](packedSize(m, p.k), 0)
	Pack(new(Block), packed.First(), &p.packedRows[from*p.k], p.k, m, p.k)
	if err := packed.Check(); err != nil {
		t.Fatal(err)
	}
	const gap = 3
	stride := p.n + gap
	out, scratch := kerneltest.Guard[float32](m*stride-gap, 4), kerneltest.Guard[float32](Products, 0)
	Multiply(new(Tile), out.First(), stride, packed.First(), m, p.k, unsafe.Pointer(&p.w[0]), 2*p.wStride, p.n/WeightRows, scratch.First())
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
	available(t)
	for i, k := range []int{32, 64, 96, 320} {
		for _, n := range []int{32, 96} {
			for _, m := range []int{1, 2, 3, 15, 16, 17, 20, 31, 32} {
				p := newProblem(uint64(i), m, n, k, 32*(i%2))
				if err := p.check(p.run(t, 0, m)); err != nil {
					t.Fatalf("%d tokens, [%d, %d]: %v", m, n, k, err)
				}
			}
		}
	}
}

// A token has the same bits alone and among others, whatever loop it meets.
func TestMultiplyIsBatchInvariant(t *testing.T) {
	available(t)
	p := newProblem(1, 32, 64, 256, 0)
	whole := p.run(t, 0, 32)
	for from := range 32 {
		for _, m := range []int{1, 2, 9, 16, 17, 30} {
			if from+m > 32 {
				continue
			}
			if err := kerneltest.SameBits(p.run(t, from, from+m), whole[from*p.n:(from+m)*p.n]); err != nil {
				t.Fatalf("tokens %d to %d: %v", from, from+m, err)
			}
		}
	}
}

// A token that is not finite is NaN, and no other.
func TestMultiplySpreadsNaN(t *testing.T) {
	available(t)
	for _, bad := range []uint32{0x7fc00000, 0xffffffff, 0x7f800001, 0x7f800000, 0xff800000} {
		for _, m := range []int{1, 5, 32} {
			p := newProblem(2, m, 32, 64, 0)
			p.x[(m-1)*p.k+37] = math.Float32frombits(bad)
			p.pack()
			for i, v := range p.run(t, 0, m) {
				if (v != v) != (i/p.n == m-1) {
					t.Fatalf("%x, %d tokens: [%d, %d] is %g", bad, m, i/p.n, i%p.n, v)
				}
			}
		}
	}
}

// Packing uses no tile: it is checked on every machine with AVX-512.
func TestPack(t *testing.T) {
	if level.Best() < level.AVX512 {
		t.Skip("no AVX-512")
	}
	for _, m := range []int{1, 2, 16, 19, 32} {
		p := newProblem(uint64(m), m, 32, 96, 0)
		for i := range p.x {
			p.x[i] *= float32(math.Exp2(float64(i%40 - 20)))
		}
		p.pack()
		packed := kerneltest.Guard[float32](packedSize(m, p.k), 0)
		Pack(new(Block), packed.First(), &p.packedRows[0], p.k, m, p.k)
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
					t.Fatalf("%d tokens: value %d of token %d is %g, want %g", m, k, i, sum, x)
				}
			}
		}
	}
}

func BenchmarkMultiply(b *testing.B) {
	available(b)
	for _, k := range []int{2048, 4096} {
		for _, m := range []int{1, 4, 16, 32} {
			b.Run(fmt.Sprintf("k%d/m%d", k, m), func(b *testing.B) {
				p := newProblem(1, m, 32, k, 0)
				packed, scratch := kerneltest.Guard[float32](packedSize(m, k), 0), kerneltest.Guard[float32](Products, 0)
				Pack(new(Block), packed.First(), &p.packedRows[0], k, m, k)
				out, t := make([]float32, m*32), new(Tile)
				ns := kerneltest.Quartile(b, 1, func() {
					Multiply(t, &out[0], 32, packed.First(), m, k, unsafe.Pointer(&p.w[0]), 2*k, 1, scratch.First())
				})
				kerneltest.Report(b, ns, 2*32*k, 2*m*32*k)
			})
		}
	}
}

// packedSize returns the float32 values that tokens <= MostTokens tokens of k columns take when
// packed.
func packedSize(tokens, k int) int {
	if tokens == 1 {
		return k
	}
	return tiles(tokens) * amx.Rows * k
}
