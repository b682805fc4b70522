// Package grid has the tables of GGUF's IQ types: eight or four weights at a time are a row of a
// table of good combinations.
package grid

import "encoding/base64"

// Grid is a table whose rows are combinations of values.
type Grid struct {
	Width  int
	Values []float32 // whole numbers, a row after the other
}

// Row returns the i-th row.
func (g *Grid) Row(i int) []float32 { return g.Values[i*g.Width:][:g.Width] }

// Rows is the number of rows.
func (g *Grid) Rows() int { return len(g.Values) / g.Width }

// newGrid unpacks a table from base64: indices into values, the lowest bits of a byte first,
// two bits each or, if there are more than four values, four.
func newGrid(width int, values []float32, packed string) *Grid {
	b, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		panic(err) // grids.go is generated
	}
	bits := 2
	if len(values) > 4 {
		bits = 4
	}
	g := &Grid{width, make([]float32, 0, len(b)*8/bits)}
	for _, x := range b {
		for s := 0; s < 8; s += bits {
			g.Values = append(g.Values, values[int(x>>s)&(1<<bits-1)])
		}
	}
	return g
}
