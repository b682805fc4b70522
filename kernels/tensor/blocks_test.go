package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomBlocks are rows of an encoding of any bits but for scales, which are finite.
func randomBlocks(r *rand.Rand, e *Encoding, rows, cols int) []byte {
	b := make([]byte, rows*e.RowBytes(cols))
	columns, size := e.Block()
	n, _ := e.Factors(cols)
	for at := 0; at < len(b); at += e.RowBytes(cols) {
		row := b[at:][:e.RowBytes(cols)]
		for i := range n {
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(float32(r.NormFloat64())))
		}
		for blocks := row[4*n:]; len(blocks) > 0; blocks = blocks[size:] {
			one := slices.Concat(row[:e.RowBytes(columns)-size], blocks[:size])
			for {
				for i := range size {
					one[len(one)-size+i] = byte(r.Uint32())
					if e == FP8 { // few blocks of 32 have no NaN
						one[len(one)-size+i] &= 0xbf
					}
				}
				if e.CheckBlocks(one, columns) == nil {
					break
				}
			}
			copy(blocks, one[len(one)-size:])
		}
	}
	return b
}

// TestBlockBands: a band has every bit of the file's blocks, and no other.
func TestBlockBands(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, name := range StoredEncodings() {
		e := EncodingOf(name)
		columns, _ := e.Block()
		for _, rows := range []int{1, 16, 37} {
			l, err := e.By(BlockGroup).On(CPU, rows, 3*columns)
			if err != nil {
				t.Fatal(err)
			}
			if n := l.Bands() * TileRows * e.RowBytes(l.Cols); l.Bytes() != n {
				t.Errorf("%s: %d bytes, the file's are %d", l, l.Bytes(), n)
			}
			m, err := e.FromBlocks(randomBlocks(r, e, rows, l.Cols), rows, l.Cols)
			if err != nil {
				t.Fatal(err)
			}
			values, scales := make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())
			l.Pack(values, scales, m)
			if got := l.Unpack(values, scales); !bytes.Equal(got.Blocks, m.Blocks) {
				t.Fatalf("%s: other blocks came back", l)
			}
			a, b := make([]float32, l.Cols), make([]float32, l.Cols)
			l.Row(a, values, scales, rows-1)
			m.Row(b, rows-1)
			if !slices.Equal(a, b) {
				t.Errorf("%s: the last row differs", l)
			}
		}
		if _, err := e.By(BlockGroup).On(CPU, 16, columns+1); err == nil {
			t.Errorf("%s: %d columns", name, columns+1)
		}
		if _, err := e.FromBlocks(make([]byte, 7), 1, columns); err == nil {
			t.Errorf("%s: 7 bytes are a row", name)
		}
	}
}

// TestBlocksOfOnes: the largest integers there are, and a scale that is not finite is refused by row
// and block.
func TestBlocksOfOnes(t *testing.T) {
	for _, name := range StoredEncodings() {
		e := EncodingOf(name)
		columns, size := e.Block()
		b := bytes.Repeat([]byte{255}, 3*e.RowBytes(2*columns))
		r := rand.New(rand.NewPCG(1, 1))
		copy(b[:len(b)-size], randomBlocks(r, e, 3, 2*columns))
		if err := e.CheckBlocks(b, 2*columns); !errors.Is(err, ErrScale) {
			t.Errorf("%s: %v", name, err)
		}
		x := e.NewIntegerRow()
		e.ReadBlock(x, b[len(b)-size:])
		for c, v := range x.Values {
			if v < -128 || v > 127 || columns%e.Sub() != 0 || math.IsInf(float64(x.Scales[c/e.Sub()]), 0) && name == "mxfp4" {
				t.Errorf("%s: column %d is %d", name, c, v)
			}
		}
	}
}

// TestFactors: FP8 has a factor for 128 columns, the last for fewer; a negative factor of NVFP4 divides.
func TestFactors(t *testing.T) {
	row := make([]byte, FP8.RowBytes(160))
	if len(row) != 8+160 {
		t.Fatalf("%d bytes", len(row))
	}
	binary.LittleEndian.PutUint32(row, math.Float32bits(0.5))
	binary.LittleEndian.PutUint32(row[4:], math.Float32bits(-3))
	for c := range 160 {
		row[8+c] = 0x7e - byte(c%2*0x76) // 448, and 8 of the unit
	}
	got := make([]float32, 160)
	m, err := FP8.FromBlocks(row, 1, 160)
	if err != nil {
		t.Fatal(err)
	}
	m.Row(got, 0)
	if got[0] != 224 || got[127] != 0.5/64 || got[128] != -3*448 || got[159] != -3.0/64 {
		t.Errorf("%v", got)
	}
	if s := halfE4M3(0x39); NVFP4Scaled.Scale(s, 3) != s*3 || NVFP4Scaled.Scale(s, -3) != s/3 {
		t.Error("a factor of NVFP4")
	}
}

// FuzzBlocks: any bytes are blocks or are refused, and what is not refused is finite and comes back
// from a band.
func FuzzBlocks(f *testing.F) {
	f.Add("q4_k", make([]byte, 288))
	f.Add("fp8", make([]byte, 4+32))
	f.Add("iq2_xs", bytes.Repeat([]byte{255}, 74))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		e := EncodingOf(name)
		if !e.Stored() || len(b) > 1<<12 {
			return
		}
		columns, size := e.Block()
		cols := len(b) / size * columns
		for cols > columns && e.RowBytes(cols) > len(b) {
			cols -= columns
		}
		m, err := e.FromBlocks(b, 1, cols)
		if err != nil || e.CheckBlocks(b, cols) != nil {
			return
		}
		l, err := e.By(BlockGroup).On(CPU, 1, cols)
		if err != nil {
			t.Fatal(err)
		}
		values, scales := make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())
		l.Pack(values, scales, m)
		if got := l.Unpack(values, scales); !bytes.Equal(got.Blocks, b) {
			t.Errorf("%s: other blocks came back", name)
		}
		row := make([]float32, cols)
		m.Row(row, 0)
		for c, v := range row {
			if v != v {
				t.Errorf("%s: column %d is no number", name, c)
			}
		}
	})
}

// TestShared: a GPU keeps blocks and Q8_0 as a CPU does, to the byte, and gate and up apart.
func TestShared(t *testing.T) {
	for _, name := range SharedEncodings() {
		e := EncodingOf(name)
		const hidden, width = 512, 256
		r := rand.New(rand.NewPCG(5, 6))
		for _, cols := range []int{hidden, width} {
			f := e.By(BlockGroup)
			host, err := f.On(CPU, 3*TileRows-7, cols)
			if err != nil {
				t.Fatal(err)
			}
			card, err := f.On(GPU, 3*TileRows-7, cols)
			if err != nil {
				t.Fatal(err)
			}
			m := NewMatrix(f, host.Rows, cols)
			if e.Stored() {
				m, _ = e.FromBlocks(randomBlocks(r, e, host.Rows, cols), host.Rows, cols)
			} else {
				x := make([]float32, cols)
				for i := range host.Rows {
					for c := range x {
						x[c] = float32(r.NormFloat64())
					}
					m.Quantize(x, i)
				}
			}
			pack := func(l Layout) []byte {
				b := make([]byte, l.Bytes())
				l.Pack(b[:l.ValueBytes()], b[l.ValueBytes():], m)
				return b
			}
			if !bytes.Equal(pack(host), pack(card)) {
				t.Errorf("%s: a GPU's bytes differ", host)
			}
		}
		if w13, _, err := e.By(BlockGroup).Network(GPU, hidden, width); err != nil || w13.Joined {
			t.Errorf("%s: %+v, %v", name, w13, err)
		}
	}
	if INT4.Shared() || INT8.Shared() || Native.Shared() || !FP8.Shared() || !Q8_0.Shared() || !IQ3_S.Shared() {
		t.Error("integers in fragments are shared, or blocks are not")
	}
}
