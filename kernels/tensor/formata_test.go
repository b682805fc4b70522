package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

var rewriteA = flag.Bool("rewrite", false, "write the golden tiles of format A anew")

// shapesA cover odd sizes, every group and both joins.
var shapesA = []FormatA{
	{Rows: 64, Cols: 64, Bits: 4, Group: 64}, {Rows: 1, Cols: 1, Bits: 4, Group: 32}, {Rows: 65, Cols: 200, Bits: 4, Group: 32},
	{Rows: 96, Cols: 96, Bits: 4, Group: 32}, {Rows: 128, Cols: 352, Bits: 4, Group: 352}, {Rows: 40, Cols: 256, Bits: 4, Group: 128},
	{Rows: 64, Cols: 64, Bits: 8, Group: 64}, {Rows: 70, Cols: 130, Bits: 8, Group: 32}, {Rows: 33, Cols: 500, Bits: 8, Group: 512},
	{Rows: 128, Cols: 64, Bits: 4, Group: 64, Joined: true}, {Rows: 96, Cols: 128, Bits: 4, Group: 32, Joined: true},
	{Rows: 16, Cols: 72, Bits: 8, Group: 128, Joined: true}, {Rows: 2816, Cols: 64, Bits: 4, Group: 64, Joined: true},
}

func randomA(r *rand.Rand, f FormatA) (values []int8, scales []float32) {
	values, scales = make([]int8, f.Rows*f.Cols), make([]float32, f.Rows*((f.Cols+f.Group-1)/f.Group))
	for i := range values {
		if values[i] = int8(r.IntN(16) - 8); f.Bits == 8 {
			values[i] = int8(r.IntN(255) - 127)
		}
	}
	for i := range scales {
		scales[i] = BF16ToF32(F32ToBF16(r.Float32() - 0.5))
	}
	return values, scales
}

// TestFormatARoundTrip: every value and scale comes back, all else is zero.
func TestFormatARoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for _, f := range shapesA {
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
		values, scales := randomA(r, f)
		packed, ps := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
		f.Pack(packed, values)
		f.PackScales(ps, scales)
		n := len(scales) / f.Rows
		for row := range f.Rows {
			for c := range f.Cols {
				if got, want := f.Value(packed, row, c), values[row*f.Cols+c]; got != want {
					t.Fatalf("%+v: value (%d, %d) is %d, want %d", f, row, c, got, want)
				}
				if got, want := f.Scale(ps, row, c/f.Group), scales[row*n+c/f.Group]; got != want {
					t.Fatalf("%+v: scale (%d, %d) is %g, want %g", f, row, c/f.Group, got, want)
				}
			}
		}
		// Cleared again value by value, nothing but zeros is left.
		f.Pack(packed, make([]int8, len(values)))
		zero := byte(0x88)
		if f.Bits == 8 {
			zero = 0x80
		}
		if bytes.Count(packed, []byte{zero}) != len(packed) {
			t.Errorf("%+v: filler is not zero", f)
		}
	}
}

// TestFormatAPlacesAll: the values of whole tiles fill every byte exactly once.
func TestFormatAPlacesAll(t *testing.T) {
	for _, f := range []FormatA{{Rows: 128, Cols: 192, Bits: 4, Group: 64}, {Rows: 128, Cols: 128, Bits: 8, Group: 64, Joined: true}} {
		seen := make(map[[2]int]bool)
		for r := range f.Rows {
			for c := range f.Cols {
				at, shift := f.place(f.stored(r), c)
				if at < 0 || at >= f.ValueBytes() || seen[[2]int{at, int(shift)}] {
					t.Fatalf("%+v: (%d, %d) at byte %d, bit %d", f, r, c, at, shift)
				}
				seen[[2]int{at, int(shift)}] = true
			}
		}
		if len(seen)*f.Bits != f.ValueBytes()*8 {
			t.Errorf("%+v: %d values in %d bytes", f, len(seen), f.ValueBytes())
		}
	}
}

// fragment unpacks what thread t of a tile has loaded, as a kernel would: four
// registers of two numbers for each of the four steps.
func fragment(f FormatA, tile []byte, t int) (a [4][4][2]int) {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(tile[at:]) }
	for step := range 4 {
		for j := range 4 {
			var pair uint32
			bias := 8
			if f.Bits == 4 {
				pair = word(16*t+4*step) >> (4 * j) & 0x000f000f
			} else {
				bias = 128
				pair = word(step/2*2048+16*t+8*(step%2)+4*(j/2)) >> (8 * (j % 2)) & 0x00ff00ff
			}
			a[step][j] = [2]int{int(pair&0xffff) - bias, int(pair>>16) - bias}
		}
	}
	return a
}

// TestFormatAMultiplies emulates mma.sync.m16n8k16 (PTX ISA, "Matrix fragments
// for mma.m16n8k16") over packed tiles: register i of lane l holds row l/4, plus 8
// for odd registers, columns 2(l%4) and the next, plus 8 for registers 2 and 3;
// accumulators 0 and 1 of a lane are row l/4, 2 and 3 row l/4+8. The product must
// be the plain one; where gate and up are joined, a lane's accumulators 0 and 2
// must be gate and up of the same feature.
func TestFormatAMultiplies(t *testing.T) {
	const tokens = 8
	r := rand.New(rand.NewPCG(5, 7))
	for _, f := range shapesA {
		values, scales := randomA(r, f)
		packed, ps := make([]byte, f.ValueBytes()), make([]byte, f.ScaleBytes())
		f.Pack(packed, values)
		f.PackScales(ps, scales)
		x := make([]int, f.TileCols()*TileA*tokens)
		for k := range f.Cols {
			for n := range tokens {
				x[k*tokens+n] = r.IntN(9) - 4
			}
		}
		out := make([]float64, f.TileRows()*TileA*tokens) // by stored row
		for rt := range f.TileRows() {
			for kt := range f.TileCols() {
				tile := packed[(rt*f.TileCols()+kt)*f.TileBytes():][:f.TileBytes()]
				for thread := range 128 {
					w, lane := thread/32, thread%32
					a := fragment(f, tile, thread)
					for step := range 4 {
						for j := range 4 {
							row := w*16 + lane/4 + j%2*8
							for odd := range 2 {
								k := kt*TileA + step*16 + lane%4*2 + odd + j/2*8
								group := min(k/f.Group, f.Groups()-1)
								word := binary.LittleEndian.Uint32(ps[4*((rt*f.Groups()+group)*32+w*8+lane/4):])
								scale := BF16ToF32(uint16(word >> (16 * (j % 2))))
								for n := range tokens {
									out[(rt*TileA+row)*tokens+n] += float64(a[step][j][odd]*x[k*tokens+n]) * float64(scale)
								}
							}
						}
					}
				}
			}
		}
		n := len(scales) / f.Rows
		for row := range f.Rows {
			at := row
			if f.Joined { // by the definition, not by stored
				feature, up := row%(f.Rows/2), row/(f.Rows/2)
				at = feature/8*16 + feature%8 + 8*up
				if lane := at % 16 % 8; lane != feature%8 {
					t.Fatalf("feature %d in lane group %d", feature, lane)
				}
			}
			for token := range tokens {
				var want float64
				for c := range f.Cols {
					want += float64(values[row*f.Cols+c]) * float64(scales[row*n+c/f.Group]) * float64(x[c*tokens+token])
				}
				if got := out[at*tokens+token]; got-want > 1e-6 || want-got > 1e-6 {
					t.Fatalf("%+v: row %d token %d is %g, want %g", f, row, token, got, want)
				}
			}
		}
	}
}

// TestFormatAGolden fixes the bytes of one tile of each kind: files and kernels
// depend on them.
func TestFormatAGolden(t *testing.T) {
	for name, f := range map[string]FormatA{
		"int4": {Rows: 64, Cols: 64, Bits: 4, Group: 64}, "int8": {Rows: 64, Cols: 64, Bits: 8, Group: 64},
		"int4_joined": {Rows: 64, Cols: 64, Bits: 4, Group: 64, Joined: true},
	} {
		values := make([]int8, 64*64)
		for i := range values {
			if values[i] = int8((i/64*7+i%64*3+i/640)%16 - 8); f.Bits == 8 {
				values[i] = int8((i/64*37+i%64*11)%255 - 127)
			}
		}
		packed := make([]byte, f.ValueBytes())
		f.Pack(packed, values)
		var text bytes.Buffer
		for at := 0; at < len(packed); at += 32 {
			text.WriteString(hex.EncodeToString(packed[at:at+32]) + "\n")
		}
		path := "testdata/formata_" + name + ".hex"
		if *rewriteA {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text.Bytes(), want) {
			t.Errorf("%s: other bytes than %s", name, path)
		}
	}
	// One value by hand: row 27 = warp 1, g 3, second half; column 45 = step 2,
	// offset 13 = c 2, high, odd: register 3. Thread 32+12+2, word 2, bits 28..31.
	f := FormatA{Rows: 64, Cols: 64, Bits: 4, Group: 64}
	values := make([]int8, 64*64)
	values[27*64+45] = 5
	packed := make([]byte, f.ValueBytes())
	f.Pack(packed, values)
	if got := binary.LittleEndian.Uint32(packed[16*46+8:]); got != 0xd8888888 {
		t.Errorf("word %08x, want d8888888", got)
	}
}

func TestFormatARefused(t *testing.T) {
	for _, f := range []FormatA{
		{Rows: 0, Cols: 64, Bits: 4, Group: 64}, {Rows: 64, Cols: 64, Bits: 5, Group: 64}, {Rows: 64, Cols: 64, Bits: 4, Group: 48},
		{Rows: 24, Cols: 64, Bits: 4, Group: 64, Joined: true},
	} {
		if f.Check() == nil {
			t.Errorf("%+v passed", f)
		}
	}
	for bits, v := range map[int]int8{4: 8, 8: -128} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d in %d bits was packed", v, bits)
				}
			}()
			f := FormatA{Rows: 1, Cols: 1, Bits: bits, Group: 32}
			f.Pack(make([]byte, f.ValueBytes()), []int8{v})
		}()
	}
}

// TestFormatARange: every value outside the range is refused and named wherever it
// lies, every other one is taken.
func TestFormatARange(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 11))
	for _, f := range []FormatA{{Rows: 80, Cols: 72, Bits: 4, Group: 32, Joined: true}, {Rows: 65, Cols: 130, Bits: 8, Group: 64}} {
		lo, hi := -8, 7
		if f.Bits == 8 {
			lo, hi = -127, 127
		}
		values, packed := make([]int8, f.Rows*f.Cols), make([]byte, f.ValueBytes())
		for v := -128; v <= 127; v++ {
			at := r.IntN(len(values))
			values[at] = int8(v)
			said := func() (said any) {
				defer func() { said = recover() }()
				f.Pack(packed, values)
				return nil
			}()
			values[at] = 0
			switch text, _ := said.(string); {
			case v >= lo && v <= hi:
				if said != nil || int(f.Value(packed, at/f.Cols, at%f.Cols)) != v {
					t.Errorf("%d in %d bits: %v", v, f.Bits, said)
				}
			case !strings.Contains(text, fmt.Sprintf("value %d of row %d, column %d ", v, at/f.Cols, at%f.Cols)):
				t.Errorf("%d in %d bits: got %q", v, f.Bits, text)
			}
		}
	}
}
