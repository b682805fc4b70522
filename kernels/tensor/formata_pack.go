package tensor

import (
	"encoding/binary"
	"fmt"
)

// Pack writes integer values [Rows, Cols] into dst (ValueBytes long); what fills
// up tiles becomes zero. Values outside the range of Bits are a programmer error
// and panic.
func (f FormatA) Pack(dst []byte, values []int8) {
	dst = dst[:f.ValueBytes()]
	n := f.TileCols() * f.TileBytes()
	for i := range f.TileRows() {
		f.PackTiles(dst[i*n:(i+1)*n], values, i)
	}
}

// PackTiles writes row i of the tiles of values [Rows, Cols] into dst: TileCols
// tiles, the part of Pack that may be done by several threads.
func (f FormatA) PackTiles(dst []byte, values []int8, i int) {
	var row [2][]int8 // stored rows g and g+8
	for r := 0; r < TileA; r += 16 {
		for g := range 8 {
			for half := range row {
				row[half] = nil
				if at := f.source(i*TileA + r + g + 8*half); at >= 0 {
					row[half] = values[at*f.Cols : (at+1)*f.Cols]
				}
			}
			thread := r/16*32 + g*4
			for k := range f.TileCols() {
				tile := dst[k*f.TileBytes():][:f.TileBytes()]
				if f.packPair(tile, &row, k*TileA, thread) {
					f.refuse(values)
				}
			}
		}
	}
}

// source is the row of the matrix that is stored as a row, -1 for a filler.
func (f FormatA) source(stored int) int {
	switch {
	case stored >= f.Rows:
		return -1
	case !f.Joined:
		return stored
	}
	return stored/16*8 + stored%8 + stored%16/8*(f.Rows/2)
}

// Eight bytes at a time: of each byte, the bits above INT4, the bias, the sign.
const (
	bytesHigh = 0xf0f0f0f0f0f0f0f0
	bytesFour = 0x0808080808080808
	bytesSign = 0x8080808080808080
	bytesOne  = 0x0101010101010101
)

// packPair writes 64 columns, from col on, of two rows that are 8 apart: the
// parts of threads thread..thread+3. bad: a value does not fit.
func (f FormatA) packPair(tile []byte, row *[2][]int8, col, thread int) (bad bool) {
	var x [2][TileA]byte // two's complement
	for half, values := range row {
		if col < len(values) {
			for i, v := range values[col:min(col+TileA, len(values))] {
				x[half][i] = byte(v)
			}
		}
	}
	le := binary.LittleEndian
	for step := range 4 {
		a, b := x[0][16*step:16*step+16], x[1][16*step:16*step+16]
		a0, a1, b0, b1 := le.Uint64(a), le.Uint64(a[8:]), le.Uint64(b), le.Uint64(b[8:])
		if f.Bits == 4 {
			a0, a1, b0, b1 = plusEight(a0), plusEight(a1), plusEight(b0), plusEight(b1)
			bad = bad || (a0|a1|b0|b1)&bytesHigh != 0
			putWords(tile[16*thread+4*step:], a0|b0<<4, a1|b1<<4)
			continue
		}
		a0, a1, b0, b1 = a0^bytesSign, a1^bytesSign, b0^bytesSign, b1^bytesSign
		bad = bad || anyZero(a0) || anyZero(a1) || anyZero(b0) || anyZero(b1)
		words := tile[step/2*2048+16*thread+8*(step%2):]
		putWords(words, a0, b0)
		putWords(words[4:], a1, b1)
	}
	return bad
}

// plusEight adds 8 to every byte.
func plusEight(x uint64) uint64 { return (x&^bytesSign + bytesFour) ^ x&bytesSign }

// anyZero reports a byte that is zero.
func anyZero(x uint64) bool { return (x-bytesOne)&^x&bytesSign != 0 }

// putWords writes the 32-bit words of four threads, 16 bytes apart: the bytes of
// even and odd taken in turn, that is even and odd registers of columns 2c, then
// of 2c+1.
func putWords(dst []byte, even, odd uint64) {
	le := binary.LittleEndian
	for c := 0; c < 4; c += 2 {
		pair := apart(uint32(even>>(16*c))) | apart(uint32(odd>>(16*c)))<<8
		le.PutUint32(dst[16*c:], uint32(pair))
		le.PutUint32(dst[16*c+16:], uint32(pair>>32))
	}
}

// apart moves four bytes to the even bytes of eight.
func apart(x uint32) uint64 {
	w := uint64(x)
	w = (w | w<<16) & 0x0000ffff0000ffff
	return (w | w<<8) & 0x00ff00ff00ff00ff
}

// refuse names the value that does not fit.
func (f FormatA) refuse(values []int8) {
	lo, hi := -8, 7
	if f.Bits == 8 {
		lo, hi = -127, 127
	}
	for i, v := range values[:f.Rows*f.Cols] {
		if int(v) < lo || int(v) > hi {
			panic(fmt.Sprintf("tensor: value %d of row %d, column %d does not fit %d bits", v, i/f.Cols, i%f.Cols, f.Bits))
		}
	}
}
