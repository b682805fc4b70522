package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// integerTiles is the layout of INT4 and INT8 on a CPU: one that GEMV, GEMM, AVX2, AVX-512
// VNNI and the tile unit (AMX) all read as it lies.
//
// A band has 16 rows, a tile; the last one is filled up with zeros. A line of 64 bytes holds
// 4 bytes of each of the 16 rows, row r at byte 4r:
//
//	INT4  line l: columns 8l..8l+7; byte j of a row: column 8l+j in the low nibble,
//	      column 8l+4+j in the high one; stored as value + 8
//	INT8  line l: columns 4l..4l+3, one a byte, stored as value + 128
//
// Stored values are unsigned, so that they are the unsigned operand of VPDPBUSD; a kernel
// starts its sum at -8 (or -128) times the sum of the activations. Columns are filled up to a
// multiple of 32 with zeros.
//
// Scales are [tile][group][16 rows], of two bytes each, as an encoding puts and gets them.
type integerTiles struct {
	put func(dst []byte, scale float32)
	get func(src []byte) float32
}

// lineBytes is the size of a line: 4 bytes for each row of a tile.
const lineBytes = 4 * TileRows

// LineCols is the number of columns in a line of 64 bytes of integers on a CPU.
func (e *Encoding) LineCols() int { return 32 / e.bits }

var errJoined = errors.New("a CPU's bands have no joined matrices")

func (integerTiles) Check(l Layout) error {
	switch {
	case l.Joined:
		return errJoined
	case l.Group < 32 || l.Group%32 != 0 || l.PaddedCols()%l.Group != 0:
		return fmt.Errorf("%w: %d of %d", errGroup, l.Group, l.PaddedCols())
	}
	return nil
}

func (integerTiles) BandBytes(l Layout) (values, scales int) {
	return l.PaddedCols() / l.LineCols() * lineBytes, 2 * l.Groups() * TileRows
}

// place finds the byte and the shift of a value in the band of its row.
func (integerTiles) place(l *Layout, row, col int) (at int, shift uint) {
	at = col/l.LineCols()*lineBytes + row%TileRows*4 + col%4
	if l.bits == 4 && col%8 >= 4 {
		shift = 4
	}
	return at, shift
}

func (p integerTiles) Pack(l Layout, values, scales []byte, m *Matrix, band int) {
	clear(scales)
	groups := l.Groups()
	for r := range TileRows {
		row := band*TileRows + r
		if row >= l.Rows {
			p.packRow(&l, values[4*r:], nil)
			continue
		}
		if p.packRow(&l, values[4*r:], m.Values[row*l.Cols:(row+1)*l.Cols]) {
			refuse(m, row)
		}
		for g, s := range m.Scales[row*groups : (row+1)*groups] {
			p.put(scales[2*(g*TileRows+r):], s)
		}
	}
}

// packRow writes one row, filled up with zeros, to its 4 bytes of each line; to begins at
// those of the first. bad: a value does not fit.
func (integerTiles) packRow(l *Layout, to []byte, row []int8) (bad bool) {
	le := binary.LittleEndian
	whole, whole8 := len(row)/8*8, l.Encoding == Q8_0 // all 8 bits are values
	for col := 0; col < l.PaddedCols(); col += 8 {
		var x uint64 // eight values in two's complement
		if col < whole {
			v := row[col : col+8 : col+8]
			x = uint64(uint8(v[0])) | uint64(uint8(v[1]))<<8 | uint64(uint8(v[2]))<<16 | uint64(uint8(v[3]))<<24 |
				uint64(uint8(v[4]))<<32 | uint64(uint8(v[5]))<<40 | uint64(uint8(v[6]))<<48 | uint64(uint8(v[7]))<<56
		} else if col < len(row) {
			for i, v := range row[col:] {
				x |= uint64(uint8(v)) << (8 * i)
			}
		}
		if l.bits == 4 {
			x = plusEight(x)
			bad = bad || x&bytesHigh != 0
			le.PutUint32(to[col/8*lineBytes:], uint32(x)|uint32(x>>32)<<4)
			continue
		}
		x ^= bytesSign
		bad = bad || !whole8 && anyZero(x)
		le.PutUint32(to[col/4*lineBytes:], uint32(x))
		le.PutUint32(to[col/4*lineBytes+lineBytes:], uint32(x>>32))
	}
	return bad
}

func (p integerTiles) Unpack(l Layout, values, scales []byte, r int, m *Matrix, to int) {
	dst, rowScales := m.row(to)
	v, s := p.BandBytes(l)
	tile := values[r/TileRows*v:][4*(r%TileRows):]
	for n := l.LineCols(); ; {
		for c := range min(n, len(dst)) {
			if l.bits == 8 {
				dst[c] = int8(tile[c] ^ 0x80)
				continue
			}
			dst[c] = int8(tile[c%4]>>(c/4*4)&15) - 8
		}
		if len(dst) <= n {
			break
		}
		dst, tile = dst[n:], tile[lineBytes:]
	}
	for g := range rowScales {
		rowScales[g] = p.get(scales[r/TileRows*s:][2*(g*TileRows+r%TileRows):])
	}
}
