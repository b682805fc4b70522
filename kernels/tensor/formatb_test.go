package tensor

import (
	"math/rand/v2"
	"testing"
)

func TestFormatBRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range []FormatB{
		{Rows: 1, Cols: 32, Bits: 4, Group: 32}, {Rows: 16, Cols: 64, Bits: 4, Group: 64}, {Rows: 17, Cols: 96, Bits: 4, Group: 32},
		{Rows: 33, Cols: 128, Bits: 8, Group: 128}, {Rows: 5, Cols: 40, Bits: 4, Group: 64}, {Rows: 16, Cols: 100, Bits: 8, Group: 32},
		{Rows: 40, Cols: 352, Bits: 8, Group: 352},
	} {
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
		values := make([]int8, f.Rows*f.Cols)
		for i := range values {
			if f.Bits == 4 {
				values[i] = int8(rng.IntN(16) - 8)
			} else {
				values[i] = int8(rng.IntN(255) - 127)
			}
		}
		scales := make([]float32, f.Rows*f.Groups())
		for i := range scales {
			scales[i] = BF16ToF32(F32ToBF16(rng.Float32() + 0.01))
		}
		packed, packedScales := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
		f.Pack(packed, values)
		f.PackScales(packedScales, scales)
		row := make([]float32, f.Cols)
		for r := range f.Rows {
			f.Row(row, packed, packedScales, r)
			for c := range f.Cols {
				v := values[r*f.Cols+c]
				if got := f.Value(packed, r, c); got != v {
					t.Fatalf("%+v: value (%d, %d) is %d, want %d", f, r, c, got, v)
				}
				if want := float32(v) * scales[r*f.Groups()+c/f.Group]; row[c] != want {
					t.Fatalf("%+v: weight (%d, %d) is %g, want %g", f, r, c, row[c], want)
				}
			}
		}
		for r := f.Rows; r < f.Tiles()*TileRows; r++ {
			for c := range f.PaddedCols() {
				if got := f.Value(packed, r, c); got != 0 {
					t.Fatalf("%+v: filler (%d, %d) is %d", f, r, c, got)
				}
			}
		}
	}
}

// TestFormatBLine fixes the layout itself: kernels and files depend on it.
func TestFormatBLine(t *testing.T) {
	f := FormatB{Rows: 16, Cols: 32, Bits: 4, Group: 32}
	values := make([]int8, f.Rows*f.Cols)
	values[3*32+13] = 5 // row 3, column 13: line 1, byte 3*4+1, high nibble
	packed := make([]byte, f.ValueBytes())
	f.Pack(packed, values)
	if got := packed[64+13]; got != 0xd8 {
		t.Errorf("INT4 byte %#x, want 0xd8", got)
	}
	f.Bits = 8
	packed = make([]byte, f.ValueBytes())
	f.Pack(packed, values)
	if got := packed[3*64+3*4+1]; got != 133 {
		t.Errorf("INT8 byte %d, want 133", got)
	}
}

func TestFormatBCheck(t *testing.T) {
	for _, f := range []FormatB{
		{}, {Rows: 1, Cols: 32, Bits: 3, Group: 32}, {Rows: 1, Cols: 32, Bits: 4, Group: 16}, {Rows: 1, Cols: 32, Bits: 4, Group: 64},
		{Rows: 1, Cols: 32, Bits: 4}, {Rows: 1, Cols: 96, Bits: 8, Group: 64}, {Rows: -1, Cols: 32, Bits: 4, Group: 32},
	} {
		if f.Check() == nil {
			t.Errorf("%+v passed", f)
		}
	}
}
