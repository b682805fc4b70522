package tensor

import (
	"encoding/binary"
	"fmt"
)

// Pack writes integer values [Rows, Cols] into dst (ValueBytes long); what fills
// up tiles and columns becomes zero. Values outside the range of Bits are a
// programmer error and panic.
func (f FormatB) Pack(dst []byte, values []int8) {
	dst = dst[:f.ValueBytes()]
	for r := range f.Tiles() * TileRows {
		var row []int8 // none where a tile is filled up
		if r < f.Rows {
			row = values[r*f.Cols : (r+1)*f.Cols]
		}
		to := dst[r/TileRows*f.TileBytes()+r%TileRows*4:]
		if f.packRow(to, row) {
			f.refuse(row, r)
		}
	}
}

// packRow writes one row, filled up with zeros, to its 4 bytes of each line; to
// begins at those of the first. bad: a value does not fit.
func (f FormatB) packRow(to []byte, row []int8) (bad bool) {
	le := binary.LittleEndian
	whole := len(row) / 8 * 8
	for col := 0; col < f.PaddedCols(); col += 8 {
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
		if f.Bits == 4 {
			x = plusEight(x)
			bad = bad || x&bytesHigh != 0
			le.PutUint32(to[col/8*lineBytes:], uint32(x)|uint32(x>>32)<<4)
			continue
		}
		x ^= bytesSign
		bad = bad || anyZero(x)
		le.PutUint32(to[col/4*lineBytes:], uint32(x))
		le.PutUint32(to[col/4*lineBytes+lineBytes:], uint32(x>>32))
	}
	return bad
}

// refuse names the value of row r that does not fit.
func (f FormatB) refuse(row []int8, r int) {
	lo, hi := -8, 7
	if f.Bits == 8 {
		lo, hi = -127, 127
	}
	for c, v := range row {
		if int(v) < lo || int(v) > hi {
			panic(fmt.Sprintf("tensor: value %d of row %d, column %d does not fit %d bits", v, r, c, f.Bits))
		}
	}
}
