package convert

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu/level"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// special values in every place of a vector.
func values(n int) []float32 {
	r := kerneltest.Rand(uint64(n))
	v := kerneltest.Normal(r, n, 3)
	special := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1)), math.MaxFloat32, math.SmallestNonzeroFloat32, math.Float32frombits(0x7f800001), math.Float32frombits(0xffffffff)}
	for i := 0; i < n; i += 3 {
		v[i] = special[r.IntN(len(special))]
	}
	return v
}

func forLengths(t *testing.T, f func(fs *Funcs, n int) error) {
	for _, l := range level.Available() {
		for n := range 170 {
			if err := f(At(l), n); err != nil {
				t.Fatalf("%s, n %d: %v", l, n, err)
			}
		}
	}
}

func TestPackAndUnpack(t *testing.T) {
	forLengths(t, func(fs *Funcs, n int) error {
		src := kerneltest.GuardOf(values(n), 4*(n%16))
		packed := kerneltest.Guard[float32](Padded(n), 4*((n+3)%16))
		back := kerneltest.Guard[float32](n, 4*((n+7)%16))
		fs.Pack(packed.First(), src.First(), n)
		for i := range Padded(n) {
			want := float32(0)
			if i < n {
				want = src.Data[i]
			}
			block, half := i/32*32, i%32/2
			at := block + half
			if i%2 == 1 {
				at += 16
			}
			if err := kerneltest.SameBits(packed.Data[at:at+1], []float32{want}); err != nil {
				return fmt.Errorf("value %d: %w", i, err)
			}
		}
		fs.Unpack(back.First(), packed.First(), n)
		if err := kerneltest.SameBits(back.Data, src.Data); err != nil {
			return err
		}
		if err := packed.Check(); err != nil {
			return err
		}
		return back.Check()
	})
}

func TestWiden(t *testing.T) {
	forLengths(t, func(fs *Funcs, n int) error {
		stored, widened := kerneltest.BF16(values(n))
		src := kerneltest.GuardOf(stored, 2*(n%16))
		dst, packed, want := kerneltest.Guard[float32](n, 4*((n+3)%16)), kerneltest.Guard[float32](Padded(n), 4*((n+5)%16)), kerneltest.Guard[float32](Padded(n), 0)
		fs.Widen(dst.First(), src.First(), n)
		fs.WidenPack(packed.First(), src.First(), n)
		purePack(want.First(), kerneltest.GuardOf(widened, 0).First(), n)
		if err := kerneltest.SameBits(dst.Data, widened); err != nil {
			return err
		}
		if err := kerneltest.SameBits(packed.Data, want.Data); err != nil {
			return fmt.Errorf("packed: %w", err)
		}
		if err := dst.Check(); err != nil {
			return err
		}
		return packed.Check()
	})
}

func TestNarrow(t *testing.T) {
	forLengths(t, func(fs *Funcs, n int) error {
		src, dst := kerneltest.GuardOf(values(n), 4*(n%16)), kerneltest.Guard[uint16](n, 2*((n+3)%16))
		fs.Narrow(dst.First(), src.First(), n)
		for i, v := range src.Data {
			if want := tensor.F32ToBF16(v); dst.Data[i] != want {
				return fmt.Errorf("value %d: %g gives %04x, want %04x", i, v, dst.Data[i], want)
			}
		}
		return dst.Check()
	})
}

// Every pattern around a tie, in both directions.
func TestNarrowRounding(t *testing.T) {
	var src []float32
	for _, upper := range []uint32{0x0000, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7fc0, 0x8000, 0xbf81, 0xff7f, 0xff80} {
		for _, lower := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			src = append(src, math.Float32frombits(upper<<16|lower))
		}
	}
	for _, l := range level.Available() {
		dst := make([]uint16, len(src))
		At(l).Narrow(&dst[0], &src[0], len(src))
		for i, v := range src {
			if want := tensor.F32ToBF16(v); dst[i] != want {
				t.Errorf("%s: %08x gives %04x, want %04x", l, math.Float32bits(v), dst[i], want)
			}
		}
	}
}
