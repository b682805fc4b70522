package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewriteTiles = flag.Bool("rewrite", false, "write the golden tiles of GPUs anew")

// gpuShapes cover odd sizes, every group and both joins.
var gpuShapes = []Layout{
	{Format: INT4.By(64), Rows: 64, Cols: 64, For: GPU}, {Format: INT4.By(32), Rows: 1, Cols: 1, For: GPU}, {Format: INT4.By(32), Rows: 65, Cols: 200, For: GPU},
	{Format: INT4.By(32), Rows: 96, Cols: 96, For: GPU}, {Format: INT4.By(352), Rows: 128, Cols: 352, For: GPU}, {Format: INT4.By(128), Rows: 40, Cols: 256, For: GPU},
	{Format: INT8.By(64), Rows: 64, Cols: 64, For: GPU}, {Format: INT8.By(32), Rows: 70, Cols: 130, For: GPU}, {Format: INT8.By(512), Rows: 33, Cols: 500, For: GPU},
	{Format: INT4.By(64), Rows: 128, Cols: 64, For: GPU, Joined: true}, {Format: INT4.By(32), Rows: 96, Cols: 128, For: GPU, Joined: true},
	{Format: INT8.By(128), Rows: 16, Cols: 72, For: GPU, Joined: true}, {Format: INT4.By(64), Rows: 2816, Cols: 64, For: GPU, Joined: true},
	{Format: INT3.By(64), Rows: 64, Cols: 64, For: GPU}, {Format: INT3.By(32), Rows: 1, Cols: 1, For: GPU}, {Format: INT3.By(32), Rows: 65, Cols: 200, For: GPU},
	{Format: INT3.By(128), Rows: 40, Cols: 256, For: GPU}, {Format: INT3.By(64), Rows: 96, Cols: 192, For: GPU, Joined: true},
}

// randomMatrix has any integers and scales that a layout can have.
func randomMatrix(r *rand.Rand, l Layout) *Matrix {
	m := NewMatrix(l.Format, l.Rows, l.Cols)
	for i := range m.Values {
		m.Values[i] = l.levels[r.IntN(len(l.levels))]
	}
	for i := range m.Scales {
		m.Scales[i] = BF16ToF32(F32ToBF16(r.Float32() - 0.5))
	}
	return m
}

// packed lays a matrix out.
func packed(l Layout, m *Matrix) (values, scales []byte) {
	values, scales = make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())
	l.Pack(values, scales, m)
	return values, scales
}

// TestRoundTrip: every value and scale comes back from every layout, and all else is zero.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for _, l := range append(slices.Clone(gpuShapes), cpuShapes...) {
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		m := randomMatrix(r, l)
		values, scales := packed(l, m)
		got := l.Unpack(values, scales)
		if !slices.Equal(got.Values, m.Values) || !slices.Equal(got.Scales, m.Scales) {
			t.Errorf("%+v: another matrix comes back", l)
		}
		row := make([]float32, l.Cols)
		got.Row(row, l.Rows-1)
		for c, v := range row {
			at := (l.Rows-1)*l.Cols + c
			if want := float32(m.Values[at]) * m.Scales[(l.Rows-1)*m.Groups()+c/l.Group]; v != want {
				t.Fatalf("%+v: weight %d of the last row is %g, want %g", l, c, v, want)
			}
		}
		zero := map[*Encoding]byte{INT4: 0x88, INT8: 0x80}[l.Encoding]
		want, stored := 0, 0 // values that are not zero
		for _, v := range m.Values {
			want += min(1, int(v)&0xff)
		}
		for _, b := range values {
			if l.Encoding == INT4 && b>>4 != 8 {
				stored++
			}
			if l.Encoding == INT4 && b&15 != 8 || l.Encoding == INT8 && b != zero {
				stored++
			}
		}
		if stored != want && l.Encoding != INT3 { // whose values lie across bytes
			t.Errorf("%+v: %d values that are not zero became %d", l, want, stored)
		}
		values, _ = packed(l, NewMatrix(l.Format, l.Rows, l.Cols))
		if bytes.Count(values, []byte{zero}) != len(values) {
			t.Errorf("%+v: filler is not zero", l)
		}
	}
}

// TestFragmentsPlacesAll: the values of whole tiles fill every byte exactly once.
func TestFragmentsPlacesAll(t *testing.T) {
	for _, f := range []Layout{{Format: INT4.By(64), Rows: 128, Cols: 192, For: GPU}, {Format: INT8.By(64), Rows: 128, Cols: 128, For: GPU, Joined: true}} {
		seen := make(map[[2]int]bool)
		band, _ := f.BandBytes()
		for r := range f.Rows {
			for c := range f.Cols {
				at, shift := (integerFragments{}).place(&f, f.stored(r), c)
				at += f.stored(r) / TileA * band
				if at < 0 || at >= f.ValueBytes() || seen[[2]int{at, int(shift)}] {
					t.Fatalf("%+v: (%d, %d) at byte %d, bit %d", f, r, c, at, shift)
				}
				seen[[2]int{at, int(shift)}] = true
			}
		}
		if len(seen)*f.bits != f.ValueBytes()*8 {
			t.Errorf("%+v: %d values in %d bytes", f, len(seen), f.ValueBytes())
		}
	}
}

// fragment unpacks what thread t of a tile has loaded, as a kernel would: four
// registers of two numbers for each of the four steps.
func fragment(f Layout, tile []byte, t int) (a [4][4][2]int) {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(tile[at:]) }
	if f.Encoding == INT3 {
		w, table := [4]uint32{word(8 * t), word(8*t + 4), word(1024 + 4*t)}, INT3Table()
		w[3] = w[0]>>3&0x11111111 | w[1]>>2&0x22222222 | w[2]>>1&0x44444444
		for step := range 4 {
			for j := range 4 {
				for odd := range 2 {
					a[step][j][odd] = int(table[w[step]>>(16*(j/2)+4*(j%2)+8*odd)&7])
				}
			}
		}
		return a
	}
	for step := range 4 {
		for j := range 4 {
			var pair uint32
			bias := 8
			if f.bits == 4 {
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

// TestFragmentsMultiplies emulates mma.sync.m16n8k16 (PTX ISA, "Matrix fragments
// for mma.m16n8k16") over packed tiles: register i of lane l holds row l/4, plus 8
// for odd registers, columns 2(l%4) and the next, plus 8 for registers 2 and 3;
// accumulators 0 and 1 of a lane are row l/4, 2 and 3 row l/4+8. The product must
// be the plain one; where gate and up are joined, a lane's accumulators 0 and 2
// must be gate and up of the same feature.
func TestFragmentsMultiplies(t *testing.T) {
	const tokens = 8
	r := rand.New(rand.NewPCG(5, 7))
	for _, f := range gpuShapes {
		m := randomMatrix(r, f)
		values, scales := m.Values, m.Scales
		packed, ps := packed(f, m)
		tiles, tileBytes := f.PaddedCols()/TileA, integerFragments{}.tileBytes(&f)
		x := make([]int, tiles*TileA*tokens)
		for k := range f.Cols {
			for n := range tokens {
				x[k*tokens+n] = r.IntN(9) - 4
			}
		}
		out := make([]float64, f.Bands()*TileA*tokens) // by stored row
		for rt := range f.Bands() {
			for kt := range tiles {
				tile := packed[(rt*tiles+kt)*tileBytes:][:tileBytes]
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

// TestFragmentsGolden fixes the bytes of one tile of each kind: files and kernels
// depend on them.
func TestFragmentsGolden(t *testing.T) {
	for name, f := range map[string]Layout{
		"int4": {Format: INT4.By(64), Rows: 64, Cols: 64, For: GPU}, "int8": {Format: INT8.By(64), Rows: 64, Cols: 64, For: GPU},
		"int4_joined": {Format: INT4.By(64), Rows: 64, Cols: 64, For: GPU, Joined: true}, "int3": {Format: INT3.By(64), Rows: 64, Cols: 64, For: GPU},
	} {
		m := NewMatrix(f.Format, 64, 64)
		values := m.Values
		for i := range values {
			if values[i] = int8((i/64*7+i%64*3+i/640)%16 - 8); f.bits == 8 {
				values[i] = int8((i/64*37+i%64*11)%255 - 127)
			}
			if f.Encoding == INT3 {
				values[i] = INT3.levels[(i/64*7+i%64*3+i/640)%8]
			}
		}
		packed, _ := packed(f, m)
		var text bytes.Buffer
		for at := 0; at < len(packed); at += 32 {
			text.WriteString(hex.EncodeToString(packed[at:at+32]) + "\n")
		}
		path := "testdata/fragments_" + name + ".hex"
		if *rewriteTiles {
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
	f := Layout{Format: INT4.By(64), Rows: 64, Cols: 64, For: GPU}
	m := NewMatrix(f.Format, 64, 64)
	m.Values[27*64+45] = 5
	values, _ := packed(f, m)
	if got := binary.LittleEndian.Uint32(values[16*46+8:]); got != 0xd8888888 {
		t.Errorf("word %08x, want d8888888", got)
	}
}

func TestFragmentsRefused(t *testing.T) {
	for _, f := range []Layout{
		{Format: INT4.By(64), Rows: 0, Cols: 64, For: GPU}, {Rows: 64, Cols: 64, For: GPU}, {Format: INT4.By(48), Rows: 64, Cols: 64, For: GPU},
		{Format: INT4.By(64), Rows: 24, Cols: 64, For: GPU, Joined: true},
	} {
		if f.Check() == nil {
			t.Errorf("%+v passed", f)
		}
	}
}

// TestRange: every value outside the range is refused and named wherever it lies, every other
// one is taken.
func TestRange(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 11))
	for _, l := range []Layout{
		{Format: INT4.By(32), Rows: 80, Cols: 72, For: GPU, Joined: true}, {Format: INT8.By(64), Rows: 65, Cols: 130, For: GPU},
		{Format: INT4.By(32), Rows: 80, Cols: 72}, {Format: INT8.By(32), Rows: 65, Cols: 130}, {Format: INT3.By(32), Rows: 65, Cols: 130},
		{Format: INT3.By(64), Rows: 80, Cols: 72, For: GPU, Joined: true},
	} {
		m := NewMatrix(l.Format, l.Rows, l.Cols)
		values, scales := packed(l, m)
		for v := -128; v <= 127; v++ {
			at := r.IntN(len(m.Values))
			m.Values[at] = int8(v)
			said := func() (said any) {
				defer func() { said = recover() }()
				l.Pack(values, scales, m)
				return nil
			}()
			switch text, _ := said.(string); {
			case slices.Contains(l.levels, int8(v)):
				if said != nil || int(l.Unpack(values, scales).Values[at]) != v {
					t.Errorf("%d as %s: %v", v, l.Format, said)
				}
			case !strings.Contains(text, fmt.Sprintf("value %d of row %d, column %d ", v, at/l.Cols, at%l.Cols)):
				t.Errorf("%d as %s: got %q", v, l.Format, text)
			}
			m.Values[at] = 0
		}
	}
}
