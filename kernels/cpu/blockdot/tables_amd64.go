//go:build amd64 && !purego

package blockdot

import (
	"slices"
	"unsafe"

	"krater/kernels/tensor"
	"krater/kernels/tensor/grid"
)

// gridOf is the table of an encoding, and what the assembly adds to its values.
type gridOf struct {
	*grid.Grid
	offset int
}

var grids = map[*tensor.Encoding]gridOf{
	tensor.IQ2_XXS: {grid.IQ2_XXS, 64}, tensor.IQ2_XS: {grid.IQ2_XS, 64}, tensor.IQ3_XXS: {grid.IQ3_XXS, 64}, tensor.IQ3_S: {grid.IQ3_S, 16},
}

// gathered is a table for AVX2: a byte a column. nil: the encoding has none.
func gathered(e *tensor.Encoding) unsafe.Pointer {
	g, ok := grids[e]
	if !ok {
		return nil
	}
	b := aligned(len(g.Values))
	for i, v := range g.Values {
		b[i] = byte(v)
	}
	return unsafe.Pointer(&b[0])
}

// planes is a table for AVX-512 (kernels/cpu/_gen/blockgrid.go): codes of the first half of the
// columns, a byte for each row, those of the second half, then what a code of each place stands
// for, 64 bytes each.
func planes(e *tensor.Encoding) unsafe.Pointer {
	g, ok := grids[e]
	if !ok {
		return nil
	}
	values := slices.Clone(g.Values)
	slices.Sort(values)
	values = slices.Compact(values)
	bits, half, rows := uint(2), g.Width/2, g.Rows()
	if g.Width == 4 {
		bits = 3
	}
	places := 6 / int(bits)
	b := aligned(2*rows + 64*places)
	for r := range rows {
		for c, v := range g.Row(r) {
			code, _ := slices.BinarySearch(values, v)
			b[c/half*rows+r] |= byte(code << (bits * uint(c%half)))
		}
	}
	for p := range places {
		for i := range 64 {
			code := i >> (bits * uint(p)) & (1<<bits - 1)
			if code < len(values) {
				b[2*rows+64*p+i] = byte(int(values[code]) + g.offset)
			}
		}
	}
	return unsafe.Pointer(&b[0])
}

// aligned is n bytes that begin at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+63)
	return b[-uintptr(unsafe.Pointer(&b[0]))%64:][:n]
}
