package gguf

import (
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/tensor"
)

// TestStoredEncodings: what a matrix of a file's blocks is widened to has the bits that the type is
// decoded to.
func TestStoredEncodings(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, name := range tensor.StoredEncodings() {
		e := tensor.EncodingOf(name)
		kind, ok := ParseType(name)
		if !ok {
			continue // no type of GGUF
		}
		columns, size := e.Block()
		if b := kind.Block(); b != (Block{columns, size}) {
			t.Fatalf("%s: blocks of %d in %d bytes, GGUF's are %v", name, columns, size, b)
		}
		const rows = 40
		data := make([]byte, rows*size)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		m, err := e.FromBlocks(data, rows, columns)
		if err != nil {
			t.Fatal(err)
		}
		want, got := make([]float32, columns), make([]float32, columns)
		for i := range rows {
			row := data[i*size:][:size]
			if e.CheckBlocks(row, columns) != nil {
				continue
			}
			if err := kind.Decode(want, row); err != nil {
				t.Fatal(err)
			}
			m.Row(got, i)
			for c, v := range got {
				if math.Float32bits(v) != math.Float32bits(want[c]) && v != want[c] {
					t.Fatalf("%s: row %d, column %d is %g, want %g", name, i, c, v, want[c])
				}
			}
		}
	}
}
