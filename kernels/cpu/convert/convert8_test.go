package convert

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// notNaN returns the float8 codes that a cache may hold.
func notNaN(code int) uint8 {
	if code&0x7f == 0x7f {
		return uint8(code - 1)
	}
	return uint8(code)
}

func TestWidenF8(t *testing.T) {
	forLengths(t, func(fs *Funcs, n int) error {
		const rows = 3
		stride := n + n%5
		src, dst := kerneltest.Guard[uint8]((rows-1)*stride+n, n%16), kerneltest.Guard[uint16](rows*Padded(n), 2*((n+3)%16))
		for i := range src.Data {
			src.Data[i] = notNaN(7 * (i + n) & 0xff)
		}
		fs.WidenF8(dst.First(), src.First(), n, rows, stride)
		for r := range rows {
			for i := range n {
				code := src.Data[r*stride+i]
				if got, want := tensor.BF16ToF32(dst.Data[r*Padded(n)+i]), tensor.F8E4M3ToF32(code); math.Float32bits(got) != math.Float32bits(want) {
					return fmt.Errorf("row %d, value %d: code %02x is %g, want %g", r, i, code, got, want)
				}
			}
		}
		return dst.Check()
	})
}

// Every code, in the vectors of every level and in their tails.
func TestWidenF8OfAllCodes(t *testing.T) {
	codes := make([]uint8, 256)
	for i := range codes {
		codes[i] = notNaN(i)
	}
	for _, l := range level.Available() {
		for _, n := range []int{256, 1} {
			got := make([]uint16, 256*Padded(n)/n)
			At(l).WidenF8(&got[0], &codes[0], n, 256/n, n)
			for i, code := range codes {
				if v := got[i/n*Padded(n)+i%n]; tensor.BF16ToF32(v) != tensor.F8E4M3ToF32(code) || v>>15 != uint16(code>>7) {
					t.Errorf("%s, rows of %d: code %02x is %04x", l, n, code, v)
				}
			}
		}
	}
}

func TestNarrowF8(t *testing.T) {
	forLengths(t, func(fs *Funcs, n int) error {
		src, dst := kerneltest.GuardOf(values(n), 4*(n%16)), kerneltest.Guard[uint8](n, (n+3)%16)
		for i := range src.Data {
			src.Data[i] *= float32(math.Ldexp(1, i%40-20))
		}
		fs.NarrowF8(dst.First(), src.First(), n)
		for i, v := range src.Data {
			if want := ref.F8E4M3(v); dst.Data[i] != want {
				return fmt.Errorf("value %d: %g gives %02x, want %02x", i, v, dst.Data[i], want)
			}
		}
		return dst.Check()
	})
}

// Every tie between two float8 values and its neighbours, and what saturates.
func TestNarrowF8Rounding(t *testing.T) {
	var src []float32
	for code := range 0x7e {
		a, b := tensor.F8E4M3ToF32(uint8(code)), tensor.F8E4M3ToF32(uint8(code+1))
		tie := (a + b) / 2
		src = append(src, a, tie, math.Nextafter32(tie, 0), math.Nextafter32(tie, 500))
	}
	for _, v := range []float64{448, 464, 465, 480, 1e6, math.MaxFloat32, math.Inf(1), 1e-30, 1e-42, math.NaN()} {
		src = append(src, float32(v))
	}
	for _, v := range slices.Clone(src) {
		src = append(src, -v)
	}
	for _, l := range level.Available() {
		dst := make([]uint8, len(src))
		At(l).NarrowF8(&dst[0], &src[0], len(src))
		for i, v := range src {
			if want := ref.F8E4M3(v); dst[i] != want {
				t.Errorf("%s: %g gives %02x, want %02x", l, v, dst[i], want)
			}
			if dst[i]&0x7f == 0x7f {
				t.Errorf("%s: %g became NaN", l, v)
			}
		}
	}
}

func TestI8(t *testing.T) {
	for _, l := range level.Available() {
		for group := 1; group < 140; group++ {
			if err := checkI8(At(l), group, 1+group%3); err != nil {
				t.Fatalf("%s, groups of %d: %v", l, group, err)
			}
		}
	}
}

func checkI8(fs *Funcs, group, groups int) error {
	n := group * groups
	src := kerneltest.GuardOf(values(n), 4*(n%16))
	if group%4 == 0 { // one group in three is small, one plain
		for i := range src.Data {
			src.Data[i] = []float32{1e-32, 0.01, 1e30}[i/group%3] * float32(i%17-8)
		}
	}
	q, scales := kerneltest.Guard[int8](n, (n+3)%16), kerneltest.Guard[float32](groups, 4*(n%16))

	wantQ, wantScales := make([]int8, n), make([]float32, groups)
	ref.StoreRowsI8(wantQ, wantScales, src.Data, []int32{0}, n, group)
	fs.QuantI8(q.First(), src.First(), scales.First(), group, groups)
	if !slices.Equal(q.Data, wantQ) {
		return fmt.Errorf("%g gives %v, want %v", src.Data, q.Data, wantQ)
	}
	if err := kerneltest.SameBits(scales.Data, wantScales); err != nil {
		return fmt.Errorf("scales: %w", err)
	}
	// Rows of all groups, then (where there are several) of one group each.
	back := kerneltest.Guard[float32](n, 4*((n+7)%16))
	fs.WidenI8(back.First(), q.First(), scales.First(), group, groups, 1, n, 4*groups)
	want := ref.WidenI8(q.Data, scales.Data, n, group)
	if err := kerneltest.SameBits(back.Data, want); err != nil {
		return err
	}
	rows := kerneltest.Guard[float32]((groups-1)*Padded(group)+group, 4*((n+9)%16))
	fs.WidenI8(rows.First(), q.First(), scales.First(), group, 1, groups, group, 4)
	for r := range groups {
		if err := kerneltest.SameBits(rows.Data[r*Padded(group):][:group], want[r*group:][:group]); err != nil {
			return fmt.Errorf("row %d: %w", r, err)
		}
	}
	for i, v := range back.Data {
		if v != v || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%g became %g", src.Data[i], v)
		}
	}
	for _, err := range []error{q.Check(), scales.Check(), back.Check(), rows.Check()} {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestColumns(t *testing.T) {
	for _, l := range level.Available() {
		for _, bits := range []int{4, 8} {
			for _, size := range [][2]int{{1, 1}, {2, 1}, {3, 2}, {1, 4}} {
				f := tensor.Layout{Format: tensor.Integers(bits).By(32 * size[1]), Rows: 16, Cols: 32 * size[0] * size[1]}
				r := kerneltest.Rand(uint64(bits))
				values := make([]int8, f.Rows*f.Cols)
				for i := range values {
					values[i] = int8(r.IntN(1<<bits-1) - (1<<(bits-1) - 1))
				}
				values[3] = int8(-1 << (bits - 1))
				if bits == 8 {
					values[3] = -127
				}
				w, s := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
				f.Pack(w, s, f.Matrix(values, kerneltest.Normal(r, f.Rows*f.Groups(), 1)))
				m := f.Unpack(w, s)
				const wide = 19
				dst := kerneltest.Guard[float32]((f.Cols-1)*wide+16, 4)
				before := bytes.Clone(kerneltest.Bytes(dst.Data))
				kernel := At(l).Columns[f.Encoding]
				kernel(dst.First(), &w[0], unsafe.SliceData(s), 4*wide, size[0], size[1])
				row := make([]float32, f.Cols)
				for i := range f.Rows {
					m.Row(row, i)
					for c, want := range row {
						if got := dst.Data[c*wide+i]; math.Float32bits(got) != math.Float32bits(want) {
							t.Fatalf("%s, INT%d: [%d, %d] is %g, want %g", l, bits, i, c, got, want)
						}
					}
				}
				if err := dst.Check(); err != nil {
					t.Error(err)
				}
				if after := kerneltest.Bytes(dst.Data); f.Cols > 1 && !bytes.Equal(after[64:76], before[64:76]) {
					t.Errorf("%s: the gap was written", l)
				}
			}
		}
	}
}

func BenchmarkWiden8(b *testing.B) {
	const rows = 128
	for _, l := range level.Available() {
		for _, n := range []int{64, 576} {
			src, wide, narrow, scales := make([]uint8, rows*n), make([]float32, rows*n), make([]uint16, rows*Padded(n)), make([]float32, n/64)
			b.Run(fmt.Sprintf("%s/f8/%d", l, n), func(b *testing.B) {
				kerneltest.Report(b, kerneltest.Quartile(b, 1, func() { At(l).WidenF8(&narrow[0], &src[0], n, rows, n) }), rows*n, 0)
			})
			b.Run(fmt.Sprintf("%s/i8/%d", l, n), func(b *testing.B) {
				kerneltest.Report(b, kerneltest.Quartile(b, 1, func() {
					At(l).WidenI8(&wide[0], (*int8)(unsafe.Pointer(&src[0])), &scales[0], 64, n/64, rows, n, 0)
				}), rows*n, 0)
			})
		}
	}
}
