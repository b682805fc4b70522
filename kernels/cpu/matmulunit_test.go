package cpu_test

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/exp"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// openTiles opens a device with the tile unit, or with plain Go that computes the same.
func openTiles(t testing.TB, threads int) (*cpu.Device, device.Stream) {
	t.Helper()
	l := level.Best()
	if btile.Available() != nil {
		l = level.Pure
	}
	d, s := open(t, cpu.Options{Threads: threads, TileBF16: true, Level: l})
	if threads > 1 {
		d.ShareEverything()
	}
	return d, s
}

// BF16 on the tile unit: close to exact sums, and a row has the same bits among any other rows and
// for any number of threads.
func TestMatMulOnTheTileUnit(t *testing.T) {
	if btile.Available() != nil {
		if _, refused := cpu.New(cpu.Options{TileBF16: true, Level: level.Best()}); refused == nil && level.Best() != level.Pure {
			t.Fatal("a unit that is not there was not refused")
		}
	}
	one, s1 := openTiles(t, 1)
	many, s3 := openTiles(t, 3)
	for _, size := range [][2]int{{32, 32}, {31, 64}, {70, 96}, {129, 64}, {64, 40}, {715, 352}} {
		n, k := size[0], size[1]
		const most = 140
		x := kerneltest.Normal(kerneltest.Rand(1), most*k, 1)
		w, wide := floats(one, tensor.BF16, kerneltest.Normal(kerneltest.Rand(2), n*k, 0.1), n, k)
		whole := make([]float32, most*n)
		one.MatMul(s1, f32s(one, whole, most, n), f32s(one, x, most, k), w)
		for i, got := range whole {
			var sum, scale float64
			for c := range k {
				v := float64(x[i/n*k+c]) * float64(wide[i%n*k+c])
				sum, scale = sum+v, scale+math.Abs(v)
			}
			if limit := scale * (0x1p-16 + float64(k)*0x1p-24); !(math.Abs(float64(got)-sum) <= limit) {
				t.Fatalf("%v: [%d, %d] is %g, want %g within %g", size, i/n, i%n, got, sum, limit)
			}
		}
		w, _ = floats(many, tensor.BF16, wide, n, k)
		for _, rows := range [][2]int{{0, 1}, {5, 6}, {3, 19}, {7, 24}, {20, 52}, {9, 140}} {
			m := rows[1] - rows[0]
			got := kerneltest.Guard[float32](m*n, 4)
			many.MatMul(s3, f32s(many, got.Data, m, n), f32s(many, x[rows[0]*k:rows[1]*k], m, k), w)
			if err := kerneltest.SameBits(got.Data, whole[rows[0]*n:rows[1]*n]); err != nil {
				t.Fatalf("%v, rows %v: %v", size, rows, err)
			}
			if err := got.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFFNOnTheTileUnit: a network has the bits of its products and SiLU between them, for any other
// rows and any number of threads, and makes no garbage.
func TestFFNOnTheTileUnit(t *testing.T) {
	one, s1 := openTiles(t, 1)
	many, s3 := openTiles(t, 3)
	for _, size := range [][2]int{{64, 96}, {96, 64}, {352, 160}} {
		const most = 140
		h, f := size[0], size[1]
		x := kerneltest.Normal(kerneltest.Rand(1), most*h, 1)
		weight := func(d *cpu.Device, seed uint64, n, k int) device.Mat {
			w, _ := floats(d, tensor.BF16, kerneltest.Normal(kerneltest.Rand(seed), n*k, 0.1), n, k)
			return w
		}
		network := func(d *cpu.Device) device.Expert {
			return device.Expert{Gate: weight(d, 2, f, h), Up: weight(d, 3, f, h), Down: weight(d, 4, h, f)}
		}
		e := network(one)
		gate, up, whole := make([]float32, most*f), make([]float32, most*f), make([]float32, most*h)
		one.MatMul(s1, f32s(one, gate, most, f), f32s(one, x, most, h), e.Gate)
		one.MatMul(s1, f32s(one, up, most, f), f32s(one, x, most, h), e.Up)
		for r := range most {
			exp.At(one.Level()).SiluMul(&gate[r*f], &gate[r*f], &up[r*f], f)
		}
		one.MatMul(s1, f32s(one, whole, most, h), f32s(one, gate, most, f), e.Down)
		e = network(many)
		for _, rows := range [][2]int{{0, 1}, {5, 6}, {3, 19}, {20, 52}, {0, 140}} {
			m := rows[1] - rows[0]
			got := kerneltest.Guard[float32](m*h, 4)
			out, in := f32s(many, got.Data, m, h), f32s(many, x[rows[0]*h:rows[1]*h], m, h)
			many.FFN(s3, out, in, e)
			if err := kerneltest.SameBits(got.Data, whole[rows[0]*h:rows[1]*h]); err != nil {
				t.Fatalf("%v, rows %v: %v", size, rows, err)
			}
			if err := got.Check(); err != nil {
				t.Fatal(err)
			}
			if n := kerneltest.Allocations(func() { many.FFN(s3, out, in, e) }); n != 0 {
				t.Errorf("%v, rows %v: %v allocations", size, rows, n)
			}
		}
	}
}

// BenchmarkTileBF16 compares with multiply-adds of AVX-512 on one core.
func BenchmarkTileBF16(b *testing.B) {
	for _, m := range []int{1, 4, 16, 32, 64, 128} {
		for _, unit := range []bool{false, true} {
			b.Run(fmt.Sprintf("m%d/unit=%v", m, unit), func(b *testing.B) {
				if err := btile.Available(); err != nil {
					b.Skip(err)
				}
				d, s := open(b, cpu.Options{Threads: 1, TileBF16: unit})
				const n, k = 2048, 2048
				w, _ := floats(d, tensor.BF16, kerneltest.Normal(kerneltest.Rand(2), n*k, 0.1), n, k)
				x, out := f32s(d, kerneltest.Normal(kerneltest.Rand(1), m*k, 1), m, k), f32s(d, make([]float32, m*n), m, n)
				ns := kerneltest.Quartile(b, 1, func() { d.MatMul(s, out, x, w) })
				kerneltest.Report(b, ns, 2*n*k, 2*m*n*k)
			})
		}
	}
}
