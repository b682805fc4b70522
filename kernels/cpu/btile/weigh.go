package btile

import (
	"unsafe"

	"krater/kernels/cpu/amx"
)

const (
	// WeighColumns is the number of columns of a block of Weigh.
	WeighColumns = 64
	// WeighRows is the most result rows of Weigh.
	WeighRows = amx.Rows
	// Pairs is the float32 values of scratch of Weigh.
	Pairs = 2 * 4 * tile / 4
)

// Weigh is one call of Funcs.Weigh. It is known to the assembly by its offsets.
type Weigh struct {
	config       *amx.Config
	upper, lower *uint16 // factors
	w            unsafe.Pointer
	acc          *float32
	pairs        *float32 // scratch: two places of four tiles
	turn         uintptr  // the sum of the addresses of both
	pStride      int      // bytes from the factors of a row to the next's
	wStride      int      // bytes from a row to the next
	accStride    int      // bytes from a result row to the next
	steps        int      // of 32 rows
	blocks       int      // of 64 columns
	rows         int      // 1..16
}

// weighConfigs has a configuration for each number of result rows.
var weighConfigs = func() (list [WeighRows + 1]*amx.Config) {
	for rows := 1; rows <= WeighRows; rows++ {
		c := amx.NewConfig()
		for t := range amx.Tiles {
			if n := rows; t == 4 || t == 5 {
				c.Set(t, amx.Rows, amx.RowBytes)
			} else {
				c.Set(t, n, amx.RowBytes)
			}
		}
		list[rows] = &c
	}
	return list
}()

// Weigh adds weighted rows of BF16 to rows <= WeighRows result rows: acc[m][Place(c)] += sum over j < n of p[m][j] * w[j][c], of columns
// columns. Factors p are the sum of upper and lower, n of each in natural order, and their rows begin pStride bytes apart. n is a multiple of Columns,
// columns one of WeighColumns. Rows of w begin wStride bytes apart, those of acc accStride values. A result row has the same bits
// whatever the others are. Scratch of Pairs values is aligned to 64 bytes.
func (f *Funcs) Weigh(t *Weigh, acc *float32, accStride int, upper, lower *uint16, pStride, rows, n int, w unsafe.Pointer, wStride, columns int, scratch *float32) {
	*t = Weigh{
		config: weighConfigs[rows], upper: upper, lower: lower, w: w, acc: acc, pairs: scratch,
		pStride: pStride, wStride: wStride, accStride: 4 * accStride, steps: n / Columns, blocks: columns / WeighColumns, rows: rows,
	}
	t.turn = 2*uintptr(unsafe.Pointer(scratch)) + 4*tile
	f.weigh(t)
}

// Place is the position of column c in a result row of Weigh.
func Place(c int) int {
	const vector, half, lane = 32, 4, 8
	return c&^(vector-1) + c%lane/half*(vector/2) + c%vector/lane*half + c%half
}
