package tensor

import (
	"bytes"
	"slices"
	"testing"
)

// TestINT3Lines fixes the layout: kernels and files depend on it. One weight at a time is set to
// the level whose bits are all ones, and the bits that it has must be the documented ones.
func TestINT3Lines(t *testing.T) {
	f := Layout{Format: INT3.By(32), Rows: 16, Cols: 64}
	table := INT3Table()
	if want := [8]int8{0, 3, 7, 12, -16, -10, -6, -3}; table != want {
		t.Fatalf("table %v, want %v", table, want)
	}
	bits := [8][3]int{{0, 1, 2}, {3, 4, 5}, {64*8 + 0, 64*8 + 1, 64*8 + 2}, {64*8 + 3, 64*8 + 4, 64*8 + 5}, {128*8 + 0, 128*8 + 1, 128*8 + 2}, {128*8 + 3, 128*8 + 4, 128*8 + 5},
		{6, 7, 128*8 + 6}, {64*8 + 6, 64*8 + 7, 128*8 + 7}} // of the weights 4n in a step, from the byte of the row and column
	seen := make([]byte, f.ValueBytes())
	for r := range f.Rows {
		for c := range f.Cols {
			m := NewMatrix(f.Format, f.Rows, f.Cols)
			m.Values[r*f.Cols+c] = table[7]
			values, _ := packed(f, m)
			want := make([]byte, len(values))
			for _, b := range bits[c%32/4] {
				want[c/32*192+4*r+c%4+b/8] |= 1 << (b % 8)
			}
			if !bytes.Equal(values, want) {
				t.Fatalf("row %d, column %d: %x, want %x", r, c, values, want)
			}
			for i, b := range values {
				if seen[i]&b != 0 {
					t.Fatalf("row %d, column %d: its bits are another's", r, c)
				}
				seen[i] |= b
			}
		}
	}
	if slices.ContainsFunc(seen, func(b byte) bool { return b != 255 }) {
		t.Error("there are bits without a weight")
	}
}
