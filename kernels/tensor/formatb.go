package tensor

import "fmt"

// FormatB is how the CPU keeps an INT4 or INT8 matrix [Rows, Cols]: one layout
// that GEMV, GEMM, AVX2, AVX-512 VNNI and the tile unit (AMX) all read as it lies.
//
// Rows are cut into tiles of 16, the last one filled up with zeros. Within a tile
// a line of 64 bytes holds 4 bytes of each of the 16 rows, row r at byte 4r:
//
//	INT4  line l: columns 8l..8l+7; byte j of a row: column 8l+j in the low nibble,
//	      column 8l+4+j in the high one; stored as value + 8 (values -8..7)
//	INT8  line l: columns 4l..4l+3, one a byte, stored as value + 128 (values -127..127)
//
// Stored values are unsigned so that they are the unsigned operand of VPDPBUSD; a
// kernel starts its sum at -8 (or -128) times the sum of the activations. Columns
// are filled up to a multiple of 32 with zeros.
//
// Scales lie apart: bfloat16 [tile][group][16 rows], one for every Group columns.
// A weight is value * scale.
type FormatB struct {
	Rows, Cols int
	Bits       int // 4 or 8
	Group      int // columns that share a scale: 32, 64, 128, or Cols rounded up to 32 (per channel)
}

// TileRows is the number of matrix rows in a tile of format B.
const TileRows = 16

// lineBytes is the size of a line: 4 bytes for each row of a tile.
const lineBytes = 4 * TileRows

// Check names the first field that format B cannot have.
func (f FormatB) Check() error {
	switch {
	case f.Rows < 1 || f.Cols < 1:
		return fmt.Errorf("format B: matrix [%d, %d]", f.Rows, f.Cols)
	case f.Bits != 4 && f.Bits != 8:
		return fmt.Errorf("format B: %d bits, want 4 or 8", f.Bits)
	case f.Group < 32 || f.Group%32 != 0 || f.PaddedCols()%f.Group != 0:
		return fmt.Errorf("format B: groups of %d do not divide %d columns", f.Group, f.PaddedCols())
	}
	return nil
}

// PaddedCols is Cols rounded up to 32.
func (f FormatB) PaddedCols() int { return (f.Cols + 31) / 32 * 32 }

// Tiles is the number of tiles.
func (f FormatB) Tiles() int { return (f.Rows + TileRows - 1) / TileRows }

// Groups is the number of scales of a row.
func (f FormatB) Groups() int { return f.PaddedCols() / f.Group }

// LineCols is the number of columns in a line: 8 for INT4, 4 for INT8.
func (f FormatB) LineCols() int { return 32 / f.Bits }

// TileBytes is the size of one tile's values.
func (f FormatB) TileBytes() int { return f.PaddedCols() / f.LineCols() * lineBytes }

// ValueBytes is the size of all values.
func (f FormatB) ValueBytes() int { return f.Tiles() * f.TileBytes() }

// ScaleBytes is the size of all scales.
func (f FormatB) ScaleBytes() int { return 2 * f.Tiles() * f.Groups() * TileRows }

// place finds the byte and the shift of a value.
func (f FormatB) place(row, col int) (at int, shift uint) {
	at = row/TileRows*f.TileBytes() + col/f.LineCols()*lineBytes + row%TileRows*4 + col%4
	if f.Bits == 4 && col%8 >= 4 {
		shift = 4
	}
	return at, shift
}

// PackScales writes scales [Rows, Groups] as bfloat16 (rounded already, or rounded
// here) into dst (ScaleBytes long); rows that fill up a tile get 0.
func (f FormatB) PackScales(dst []byte, scales []float32) {
	dst = dst[:f.ScaleBytes()]
	clear(dst)
	groups := f.Groups()
	for r := range f.Rows {
		for g := range groups {
			b := F32ToBF16(scales[r*groups+g])
			at := f.scaleAt(r, g)
			dst[at], dst[at+1] = byte(b), byte(b>>8)
		}
	}
}

func (f FormatB) scaleAt(row, group int) int {
	return 2 * ((row/TileRows*f.Groups()+group)*TileRows + row%TileRows)
}

// Value reads one integer of packed values.
func (f FormatB) Value(packed []byte, row, col int) int8 {
	at, shift := f.place(row, col)
	if f.Bits == 8 {
		return int8(int(packed[at]) - 128)
	}
	return int8(packed[at]>>shift&15) - 8
}

// Scale reads one scale.
func (f FormatB) Scale(scales []byte, row, group int) float32 {
	at := f.scaleAt(row, group)
	return BF16ToF32(uint16(scales[at]) | uint16(scales[at+1])<<8)
}

// Row widens one row [Cols] of a packed matrix: value * scale.
func (f FormatB) Row(dst []float32, packed, scales []byte, row int) {
	for c := range dst[:f.Cols] {
		dst[c] = float32(f.Value(packed, row, c)) * f.Scale(scales, row, c/f.Group)
	}
}
