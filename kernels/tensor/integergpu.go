package tensor

import (
	"encoding/binary"
	"fmt"
)

// integerFragments is the layout of INT3, INT4 and INT8 on a GPU: the A operand of a matrix
// instruction, in the order of its registers. A thread loads 16 bytes (INT3: 8 and 4) and has its
// part of 4 or 2 (INT8) steps of 16 columns, as wgmma m64nNk16 and mma.sync m16n8k16 want it;
// tokens are the N side.
//
// A band is a row of tiles of 64 rows by 64 columns; what fills up the last ones is zero.
// Within a tile warp w (0..3) has rows 16w..16w+15; its lane 4g+c (g 0..7, c 0..3) has rows g
// and g+8 of these and, of each step of 16 columns, columns 2c, 2c+1, 2c+8 and 2c+9: the four
// registers
//
//	j = 0: row g, columns 2c, 2c+1      j = 2: row g, columns 2c+8, 2c+9
//	j = 1: row g+8, columns 2c, 2c+1    j = 3: row g+8, columns 2c+8, 2c+9
//
// each a pair of bfloat16 numbers, the even column in the low half.
//
//	INT4  2 KiB a tile, thread t = 32w+4g+c at byte 16t: a 32-bit word (little
//	      endian) for each of the 4 steps. Register j's even column lies in bits
//	      4j..4j+3, the odd one in bits 16+4j..: word>>4j & 0x000f000f is the pair.
//	      Stored as value + 8
//	INT8  4 KiB a tile, two halves of 2 steps, thread t at byte 16t of each: two
//	      words a step. Word h has registers 2h (even column in bits 0..7, odd in
//	      16..23) and 2h+1 (8..15 and 24..31): word>>8(j-2h) & 0x00ff00ff is the
//	      pair. Stored as value + 128
//	INT3  1.5 KiB a tile: words 0 and 1 of thread t at byte 8t, word 2 at byte 1024+4t.
//	      Bits 0..2 of nibble n of word i are the three stored bits (INT3Table) of a
//	      weight of step i: n = j%2+4(j/2) is register j's even column, n+2 its odd one.
//	      Step 3 has bit i of each weight in bit 3 of word i's nibble. So a word, or bits
//	      3 of all, are the selectors of two byte permutations, which look 4 weights up
//
// Rows of a joined matrix are interleaved by 8 within every 16: rows 0..7 gate, 8..15 up of
// the same 8 features. So a thread's accumulators hold gate (row g) and up (row g+8) of the
// same feature, and silu(gate) * up needs no exchange.
//
// Scales are bfloat16 pairs [band][group][32]: word 8w+g has the scale of row 16w+g in its
// low half and of row 16w+g+8 in its high half. Groups of 32 are filled up to a whole tile of
// 64 columns, with scales of zero.
type integerFragments struct{}

func (integerFragments) Check(l Layout) error {
	switch {
	case l.Group != 32 && l.Group != 64 && l.Group != 128 && l.Group < l.Cols:
		return fmt.Errorf("%w: %d of %d", errGroup, l.Group, l.Cols)
	case l.Joined && l.Rows%16 != 0:
		return fmt.Errorf("%d rows of gate and up, want a multiple of 16", l.Rows)
	}
	return nil
}

// tileBytes is the size of one tile's values.
func (integerFragments) tileBytes(l *Layout) int { return TileA * TileA * l.bits / 8 }

func (p integerFragments) BandBytes(l Layout) (values, scales int) {
	return l.PaddedCols() / TileA * p.tileBytes(&l), 2 * TileA * l.Groups()
}

// stored is where a row of the matrix lies.
func (l *Layout) stored(row int) int {
	if !l.Joined {
		return row
	}
	up := 0
	if row >= l.Rows/2 {
		row, up = row-l.Rows/2, 8
	}
	return row/8*16 + row%8 + up
}

// source is the row of the matrix that is stored as a row, -1 for a filler.
func (l *Layout) source(stored int) int {
	switch {
	case stored >= l.Rows:
		return -1
	case !l.Joined:
		return stored
	}
	return stored/16*8 + stored%8 + stored%16/8*(l.Rows/2)
}

// place finds the byte and the shift of a value in the band of its stored row.
func (p integerFragments) place(l *Layout, row, col int) (at int, shift uint) {
	at = col / TileA * p.tileBytes(l)
	r, k := row%TileA, col%TileA
	thread := r/16*32 + r%8*4 + k%8/2
	half, high, odd, step := r%16/8, k%16/8, k%2, k/16
	if l.bits == 4 {
		bit := 4*(half+2*high) + 16*odd
		return at + 16*thread + 4*step + bit/8, uint(bit % 8)
	}
	return at + step/2*2048 + 16*thread + 8*(step%2) + 4*high + half + 2*odd, 0
}

// scaleAt finds a scale in the band of its stored row.
func (integerFragments) scaleAt(row, group int) int {
	r := row % TileA
	return 4*(group*TileA/2+r/16*8+r%8) + r%16/8*2
}

func (p integerFragments) Pack(l Layout, values, scales []byte, m *Matrix, band int) {
	var row [2][]int8 // stored rows g and g+8
	tile, n := p.tileBytes(&l), m.Groups()
	clear(scales)
	for r := 0; r < TileA; r += 16 {
		for g := range 8 {
			for half := range row {
				row[half] = nil
				stored := band*TileA + r + g + 8*half
				at := l.source(stored)
				if at < 0 {
					continue
				}
				row[half] = m.Values[at*l.Cols : (at+1)*l.Cols]
				for i, s := range m.Scales[at*n : at*n+min(n, l.Groups())] {
					putScale(scales[p.scaleAt(stored, i):], s)
				}
			}
			thread := r/16*32 + g*4
			for k := range l.PaddedCols() / TileA {
				if p.packPair(&l, values[k*tile:(k+1)*tile], &row, k*TileA, thread) {
					for i := range l.Rows {
						refuse(m, i)
					}
				}
			}
		}
	}
}

// packPair writes 64 columns, from col on, of two rows that are 8 apart: the parts of threads
// thread..thread+3. bad: a value does not fit.
func (integerFragments) packPair(l *Layout, tile []byte, row *[2][]int8, col, thread int) (bad bool) {
	if l.bits == 3 {
		return int3PackPair(tile, row, col, thread)
	}
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
		if l.bits == 4 {
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

// putWords writes the 32-bit words of four threads, 16 bytes apart: the bytes of even and odd
// taken in turn, that is even and odd registers of columns 2c, then of 2c+1.
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

func (p integerFragments) Unpack(l Layout, values, scales []byte, r int, m *Matrix, to int) {
	row, rowScales := m.row(to)
	v, s := p.BandBytes(l)
	stored := l.stored(r)
	values, scales = values[stored/TileA*v:][:v], scales[stored/TileA*s:][:s]
	for c := range row {
		if l.bits == 3 {
			row[c] = int3Value(values, stored, c)
			continue
		}
		at, shift := p.place(&l, stored, c)
		b := values[at]
		if l.bits == 4 {
			b = b>>shift&15 + 0x78
		}
		row[c] = int8(b ^ 0x80)
	}
	for g := range min(len(rowScales), l.Groups()) {
		rowScales[g] = getScale(scales[p.scaleAt(stored, g):])
	}
}
