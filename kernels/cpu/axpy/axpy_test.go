package axpy

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
)

// The generator (kernels/cpu/_gen/axpy.go) has these offsets as constants.
func TestTileLayout(t *testing.T) {
	var tile Tile
	got := []uintptr{unsafe.Offsetof(tile.P), unsafe.Offsetof(tile.Acc), unsafe.Offsetof(tile.W), unsafe.Offsetof(tile.Stride), unsafe.Offsetof(tile.N), unsafe.Offsetof(tile.Width)}
	if want := []uintptr{0, 32, 64, 72, 80, 88}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, the assembly has %v", got, want)
	}
}

// accumulate runs rows x n x width from seeded data in calls of cut rows and gives the result rows
// in natural order.
func accumulate(fs *Funcs, bf16 bool, seed uint64, rows, n, width, cut int) (got [][]float32, err error) {
	r := kerneltest.Rand(seed)
	gap, misalign := int(seed%3), int(seed%16)
	stride := width + gap
	values := kerneltest.Normal(r, n*stride, 1)
	stored, widened := kerneltest.BF16(values)
	length := max(0, (n-1)*stride+width)
	w32, w16 := kerneltest.Guard[float32](length, 4*misalign), kerneltest.Guard[uint16](length, 2*misalign)
	copy(w32.Data, values)
	copy(w16.Data, stored)
	padded := width
	if bf16 {
		values, padded = widened, convert.Padded(width)
	}
	var p, acc []*kerneltest.Guarded[float32]
	var want [][]float32
	for m := range rows {
		p = append(p, kerneltest.GuardOf(kerneltest.Normal(r, n, 1), 4*(misalign+m)%64))
		start := kerneltest.Normal(r, width, 1)
		g := kerneltest.Guard[float32](padded, 4*(misalign+m+1)%64)
		if bf16 {
			if width > 0 {
				convert.At(level.Pure).Pack(g.First(), &start[0], width)
			}
		} else {
			copy(g.Data, start)
		}
		acc = append(acc, g)
		sums := make([]float32, width)
		for i := range sums {
			sum := float64(start[i])
			for j := range n {
				sum += float64(p[m].Data[j]) * float64(values[j*stride+i])
			}
			sums[i] = float32(sum)
		}
		want = append(want, sums)
	}
	kernels := &fs.F32
	w, size := unsafe.Pointer(w32.First()), 4
	if bf16 {
		kernels, w, size = &fs.BF16, unsafe.Pointer(w16.First()), 2
	}
	for from := 0; from == 0 || from < n; from += cut {
		t := Tile{W: unsafe.Add(w, from*stride*size), Stride: stride * size, N: min(cut, n-from), Width: width}
		for m := range rows {
			t.P[m] = (*float32)(unsafe.Add(unsafe.Pointer(p[m].First()), 4*from))
			t.Acc[m] = acc[m].First()
		}
		kernels[rows](&t)
	}
	for m, g := range acc {
		if err := g.Check(); err != nil {
			return nil, err
		}
		natural := g.Data
		if bf16 {
			natural = make([]float32, width)
			if width > 0 {
				convert.At(level.Pure).Unpack(&natural[0], g.First(), width)
			}
		}
		tol := 16 * math.Sqrt(float64(n+1)) * kerneltest.Eps32
		if err := kerneltest.Compare(natural, want[m], max(1, width), kerneltest.Relative(want[m], 4, tol)); err != nil {
			return nil, fmt.Errorf("row %d: %w", m, err)
		}
		got = append(got, natural)
	}
	return got, nil
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
		for rows := 1; rows <= Rows; rows++ {
			for width := range 140 {
				if _, err := accumulate(fs, bf16, uint64(width), rows, 1+width%7, width, 100); err != nil {
					t.Fatalf("rows %d, width %d: %v", rows, width, err)
				}
			}
			for n := range 40 {
				if _, err := accumulate(fs, bf16, uint64(n), rows, n, 77, 100); err != nil {
					t.Fatalf("rows %d, n %d: %v", rows, n, err)
				}
			}
		}
	})
}

// The bits do not depend on how the rows are cut into calls.
func TestCutsGiveTheSameBits(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, bf16 bool) {
		for _, width := range []int{13, 32, 64, 100} {
			whole, err := accumulate(fs, bf16, 5, 4, 50, width, 50)
			if err != nil {
				t.Fatal(err)
			}
			for _, cut := range []int{1, 7, 16, 49} {
				got, err := accumulate(fs, bf16, 5, 4, 50, width, cut)
				if err != nil {
					t.Fatal(err)
				}
				for m := range got {
					if err := kerneltest.SameBits(got[m], whole[m]); err != nil {
						t.Fatalf("width %d, cut %d, row %d: %v", width, cut, m, err)
					}
				}
			}
		}
	})
}

// The bits of a row do not depend on the rows beside it.
func TestRowsGiveTheSameBits(t *testing.T) {
	variants(t, func(t *testing.T, fs *Funcs, bf16 bool) {
		for _, width := range []int{7, 64, 90} {
			alone, err := accumulate(fs, bf16, 2, 1, 30, width, 30)
			if err != nil {
				t.Fatal(err)
			}
			for rows := 2; rows <= Rows; rows++ {
				// The generator draws the first row first, so it is the same.
				got, err := accumulate(fs, bf16, 2, rows, 30, width, 30)
				if err != nil {
					t.Fatal(err)
				}
				if err := kerneltest.SameBits(got[0], alone[0]); err != nil {
					t.Fatalf("width %d, %d rows: %v", width, rows, err)
				}
			}
		}
	})
}

func TestAddAndScale(t *testing.T) {
	for _, l := range level.Available() {
		fs := At(l)
		for n := range 150 {
			r := kerneltest.Rand(uint64(n))
			x, y := kerneltest.Normal(r, n, 1), kerneltest.Normal(r, n, 1)
			dst, src := kerneltest.GuardOf(x, 4*(n%16)), kerneltest.GuardOf(y, 4*((n+5)%16))
			fs.Add(dst.First(), src.First(), n)
			fs.Scale(dst.First(), n, 0.3)
			want := make([]float32, n)
			for i := range want {
				sum := x[i] + y[i]
				want[i] = sum * 0.3
			}
			if err := kerneltest.SameBits(dst.Data, want); err != nil {
				t.Fatalf("%s, n %d: %v", l, n, err)
			}
			if err := dst.Check(); err != nil {
				t.Fatalf("%s, n %d: %v", l, n, err)
			}
		}
	}
}

func BenchmarkTile(b *testing.B) {
	for _, l := range level.Available() {
		for _, bf16 := range []bool{false, true} {
			for _, m := range []int{1, 4} {
				for _, width := range []int{32, 128, 512} {
					b.Run(fmt.Sprintf("%s/bf16=%v/m%d/width%d", l, bf16, m, width), func(b *testing.B) {
						const n = 128
						r := kerneltest.Rand(1)
						values := kerneltest.Normal(r, n*width, 1)
						stored, _ := kerneltest.BF16(values)
						t := Tile{W: unsafe.Pointer(&values[0]), Stride: 4 * width, N: n, Width: width}
						kernel, size := At(l).F32[m], 4
						if bf16 {
							t.W, t.Stride, kernel, size = unsafe.Pointer(&stored[0]), 2*width, At(l).BF16[m], 2
						}
						for i := range m {
							t.P[i], t.Acc[i] = &kerneltest.Normal(r, n, 1)[0], kerneltest.Guard[float32](width, 0).First()
							clear(unsafe.Slice(t.Acc[i], width))
						}
						ns := kerneltest.Quartile(b, 1, func() { kernel(&t) })
						kerneltest.Report(b, ns, n*width*size, 2*m*n*width)
					})
				}
			}
		}
	}
}
