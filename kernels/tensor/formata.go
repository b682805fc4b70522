package tensor

import "fmt"

// FormatA is how the GPU keeps an INT4 or INT8 matrix [Rows, Cols]: as the A
// operand of a matrix instruction, ready in the order of its registers. A thread
// loads 16 bytes and has its part of 4 (INT4) or 2 (INT8) steps of 16 columns, as
// wgmma m64nNk16 and mma.sync m16n8k16 want it; tokens are the N side.
//
// The matrix is cut into tiles of 64 rows by 64 columns, a row of tiles after the
// other; what fills up the last ones is zero. Within a tile warp w (0..3) has rows
// 16w..16w+15; its lane 4g+c (g 0..7, c 0..3) has rows g and g+8 of these and, of
// each step of 16 columns, columns 2c, 2c+1, 2c+8 and 2c+9: the four registers
//
//	j = 0: row g, columns 2c, 2c+1      j = 2: row g, columns 2c+8, 2c+9
//	j = 1: row g+8, columns 2c, 2c+1    j = 3: row g+8, columns 2c+8, 2c+9
//
// each a pair of bfloat16 numbers, the even column in the low half.
//
//	INT4  2 KiB a tile, thread t = 32w+4g+c at byte 16t: a 32-bit word (little
//	      endian) for each of the 4 steps. Register j's even column lies in bits
//	      4j..4j+3, the odd one in bits 16+4j..: word>>4j & 0x000f000f is the pair.
//	      Stored as value + 8 (values -8..7)
//	INT8  4 KiB a tile, two halves of 2 steps, thread t at byte 16t of each: two
//	      words a step. Word h has registers 2h (even column in bits 0..7, odd in
//	      16..23) and 2h+1 (8..15 and 24..31): word>>8(j-2h) & 0x00ff00ff is the
//	      pair. Stored as value + 128 (values -127..127)
//
// Joined says that the matrix is gate and up of a SwiGLU network, one after the
// other (rows 0..Rows/2-1 gate). They are then interleaved by 8 rows within every
// 16: rows 0..7 gate, 8..15 up of the same 8 features. So a thread's accumulators
// hold gate (row g) and up (row g+8) of the same feature, and silu(gate) * up
// needs no exchange.
//
// Scales lie apart: bfloat16 pairs [tile row][group][32]: word 8w+g has the scale
// of row 16w+g in its low half and of row 16w+g+8 in its high half. A weight is
// value * scale, the same integers and scales as in FormatB of equal Bits and
// Group.
type FormatA struct {
	Rows, Cols int
	Bits       int // 4 or 8
	Group      int // columns that share a scale: 32, 64, 128, or at least Cols (per channel)
	Joined     bool
}

// TileA is the number of rows, and of columns, of a tile of format A.
const TileA = 64

// Check names the first field that format A cannot have.
func (f FormatA) Check() error {
	switch {
	case f.Rows < 1 || f.Cols < 1:
		return fmt.Errorf("format A: matrix [%d, %d]", f.Rows, f.Cols)
	case f.Bits != 4 && f.Bits != 8:
		return fmt.Errorf("format A: %d bits, want 4 or 8", f.Bits)
	case f.Group != 32 && f.Group != 64 && f.Group != 128 && f.Group < f.Cols:
		return fmt.Errorf("format A: groups of %d of %d columns", f.Group, f.Cols)
	case f.Joined && f.Rows%16 != 0:
		return fmt.Errorf("format A: %d rows of gate and up, want a multiple of 16", f.Rows)
	}
	return nil
}

// TileRows is the number of tiles above one another.
func (f FormatA) TileRows() int { return (f.Rows + TileA - 1) / TileA }

// TileCols is the number of tiles side by side.
func (f FormatA) TileCols() int { return (f.Cols + TileA - 1) / TileA }

// Groups is the number of scales of a row. Groups of 32 are filled up to a whole
// tile of 64 columns, with scales of zero.
func (f FormatA) Groups() int {
	if f.Group >= f.Cols {
		return 1
	}
	return (f.TileCols()*TileA + f.Group - 1) / f.Group
}

// TileBytes is the size of one tile's values.
func (f FormatA) TileBytes() int { return TileA * TileA * f.Bits / 8 }

// ValueBytes is the size of all values.
func (f FormatA) ValueBytes() int { return f.TileRows() * f.TileCols() * f.TileBytes() }

// ScaleBytes is the size of all scales.
func (f FormatA) ScaleBytes() int { return 2 * f.TileRows() * TileA * f.Groups() }

// stored is where a row of the matrix lies.
func (f FormatA) stored(row int) int {
	if !f.Joined {
		return row
	}
	up := 0
	if row >= f.Rows/2 {
		row, up = row-f.Rows/2, 8
	}
	return row/8*16 + row%8 + up
}

// place finds the byte and the shift of a value by its stored row.
func (f FormatA) place(row, col int) (at int, shift uint) {
	at = (row/TileA*f.TileCols() + col/TileA) * f.TileBytes()
	r, k := row%TileA, col%TileA
	thread := r/16*32 + r%8*4 + k%8/2
	half, high, odd, step := r%16/8, k%16/8, k%2, k/16
	if f.Bits == 4 {
		bit := 4*(half+2*high) + 16*odd
		return at + 16*thread + 4*step + bit/8, uint(bit % 8)
	}
	return at + step/2*2048 + 16*thread + 8*(step%2) + 4*high + half + 2*odd, 0
}

// PackScales writes scales [Rows, n] as bfloat16 (rounded already, or rounded
// here) into dst (ScaleBytes long). n is the number of groups that Cols needs;
// what fills up gets 0.
func (f FormatA) PackScales(dst []byte, scales []float32) {
	dst = dst[:f.ScaleBytes()]
	clear(dst)
	n := len(scales) / f.Rows
	for r := range f.Rows {
		for g := range min(n, f.Groups()) {
			b := F32ToBF16(scales[r*n+g])
			at := f.scaleAt(f.stored(r), g)
			dst[at], dst[at+1] = byte(b), byte(b>>8)
		}
	}
}

func (f FormatA) scaleAt(row, group int) int {
	r := row % TileA
	word := r/16*8 + r%8
	return 4*((row/TileA*f.Groups()+group)*TileA/2+word) + r%16/8*2
}

// Value reads one integer of packed values; row counts as in the matrix given to
// Pack.
func (f FormatA) Value(packed []byte, row, col int) int8 {
	at, shift := f.place(f.stored(row), col)
	if f.Bits == 8 {
		return int8(int(packed[at]) - 128)
	}
	return int8(packed[at]>>shift&15) - 8
}

// Scale reads one scale; row counts as in the matrix given to PackScales.
func (f FormatA) Scale(scales []byte, row, group int) float32 {
	at := f.scaleAt(f.stored(row), group)
	return BF16ToF32(uint16(scales[at]) | uint16(scales[at+1])<<8)
}
