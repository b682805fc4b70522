package tensor

import (
	"encoding/binary"
	"slices"
)

// INT3 has three bits a weight: one of eight integers, finer near zero, where most weights lie.
// A bfloat16 scale serves 32, 64 or 128 columns. The integers reach further down than up, so a
// group whose weights reach further up has a negative scale.
//
// The eight were found by least squared error over random groups of 64 and 128 columns, normally
// distributed and with heavier tails, each with the best scale of either sign
// (bench/results/int3.md). Products with INT8 rows are exact, and in AVX2 four products of a step
// fit in 16 bits.
var INT3 = register(&Encoding{
	name: "int3", bits: 3, groups: []int{128, 64, 32}, levels: []int8{-16, -10, -6, -3, 0, 3, 7, 12},
	packings: [kinds]Packing{CPU: int3Tiles{integerTiles{putScale, getScale}}, GPU: integerFragments{}}, widen: widenIntegers,
})

// int3Zero is the level of the weight 0. A weight is stored as its level minus this one, in three
// bits: zero bytes are zeros.
const int3Zero = 4

// int3Codes are the stored bits of each level, by its byte; 255 for what is none.
var int3Codes = func() (c [256]byte) {
	for i := range c {
		c[i] = 255
	}
	for i, v := range INT3.levels {
		c[byte(v)] = byte(i-int3Zero) & 7
	}
	return c
}()

// INT3Table has the integer of each three stored bits.
func INT3Table() (t [8]int8) {
	for i, v := range INT3.levels {
		t[(i-int3Zero)&7] = v
	}
	return t
}

// int3Tiles is the layout of INT3 on a CPU. It is like that of INT4 (integerTiles), but 32 columns
// take three lines. Of columns 4n..4n+3 in them, byte 4r+j of a line has for row r and column
// 4n+j:
//
//	line 0  n = 0 in bits 0..2, n = 1 in bits 3..5, the low two bits of n = 6 in bits 6 and 7
//	line 1  n = 2 in bits 0..2, n = 3 in bits 3..5, the low two bits of n = 7 in bits 6 and 7
//	line 2  n = 4 in bits 0..2, n = 5 in bits 3..5, the high bit of n = 6 in bit 6, of n = 7 in 7
type int3Tiles struct{ integerTiles }

// int3Step is the number of bytes of a step of 32 columns.
const int3Step = 3 * lineBytes

func (int3Tiles) BandBytes(l Layout) (values, scales int) {
	return l.PaddedCols() / 32 * int3Step, 2 * l.Groups() * TileRows
}

func (p int3Tiles) Pack(l Layout, values, scales []byte, m *Matrix, band int) {
	clear(values)
	clear(scales)
	rows := min(TileRows, l.Rows-band*TileRows)
	for r := range rows {
		row := band*TileRows + r
		if !int3Pack(values[4*r:], m.Values[row*l.Cols:(row+1)*l.Cols]) {
			refuse(m, row)
		}
		for g, s := range m.Scales[row*m.Groups() : (row+1)*m.Groups()] {
			p.put(scales[2*(g*TileRows+r):], s)
		}
	}
}

// int3Pack writes a row to its 4 bytes of each line; to begins at those of the first. ok: all
// values are of the encoding.
func int3Pack(to []byte, row []int8) (ok bool) {
	le, all := binary.LittleEndian, byte(0)
	for part := range slices.Chunk(row, 32) {
		var c [8]uint32 // by n: four codes, a byte each
		for i, v := range part {
			code := int3Codes[byte(v)]
			all |= code
			c[i/4] |= uint32(code&7) << (i % 4 * 8)
		}
		const low, high = 0x03030303, 0x04040404
		le.PutUint32(to, c[0]|c[1]<<3|c[6]&low<<6)
		le.PutUint32(to[lineBytes:], c[2]|c[3]<<3|c[7]&low<<6)
		le.PutUint32(to[2*lineBytes:], c[4]|c[5]<<3|c[6]&high<<4|c[7]&high<<5)
		to = to[min(int3Step, len(to)):]
	}
	return all < 8
}

func (p int3Tiles) Unpack(l Layout, values, scales []byte, r int, m *Matrix, to int) {
	v, s := p.BandBytes(l)
	from, table := values[r/TileRows*v:][4*(r%TileRows):], INT3Table()
	row, rowScales := m.row(to)
	for c := range row {
		line := from[c/32*int3Step+c%4:]
		n := c % 32 / 4
		code := line[n/2%3*lineBytes] >> (n % 2 * 3) & 7
		if n >= 6 {
			code = line[(n-6)*lineBytes]>>6 | line[2*lineBytes]>>n&1<<2
		}
		row[c] = table[code]
	}
	for g := range rowScales {
		rowScales[g] = p.get(scales[r/TileRows*s:][2*(g*TileRows+r%TileRows):])
	}
}

// int3PackPair writes 64 columns, from col on, of two rows that are 8 apart as integerFragments
// lays them out: the words of threads thread..thread+3. bad: a value does not fit.
func int3PackPair(tile []byte, row *[2][]int8, col, thread int) (bad bool) {
	var x [2][TileA]byte // codes
	all := byte(0)
	for half, values := range row {
		if col < len(values) {
			for i, v := range values[col:min(col+TileA, len(values))] {
				x[half][i] = int3Codes[byte(v)]
				all |= x[half][i]
			}
		}
	}
	if all > 7 {
		return true
	}
	le := binary.LittleEndian
	var nibbles [2][4]uint64 // of columns 0..7 and 8..15 of each step: two of a column, 16 bits of a thread
	for high := range nibbles {
		for step := range 4 {
			at := 16*step + 8*high
			nibbles[high][step] = le.Uint64(x[0][at:]) | le.Uint64(x[1][at:])<<4
		}
	}
	for c := range 4 {
		for i := range 3 {
			word := uint32(0)
			for high, n := range nibbles {
				word |= uint32((n[i]|n[3]>>i&0x1111111111111111<<3)>>(16*c)&0xffff) << (16 * high)
			}
			le.PutUint32(tile[int3Word(thread+c, i):], word)
		}
	}
	return false
}

// int3Word is where a thread's word lies in a tile on a GPU.
func int3Word(thread, i int) int {
	if i < 2 {
		return 8*thread + 4*i
	}
	return 8*2*TileA + 4*thread
}

// int3Value is a value in the band of its stored row on a GPU.
func int3Value(band []byte, row, col int) int8 {
	r, k := row%TileA, col%TileA
	thread, shift := r/16*32+r%8*4+k%8/2, 4*(r%16/8+k%16/8*4+k%2*2)
	tile := band[col/TileA*(TileA*TileA*3/8):]
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(tile[int3Word(thread, i):]) >> shift }
	code := word(k/16%3) & 7
	if k/16 == 3 {
		code = word(0)>>3&1 | word(1)>>2&2 | word(2)>>1&4
	}
	return INT3.levels[(code+int3Zero)&7]
}
