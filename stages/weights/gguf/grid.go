package gguf

import "encoding/base64"

// grid is a table whose rows are combinations of values.
type grid struct {
	width  int
	values []float32
}

// row returns the i-th row.
func (g *grid) row(i int) []float32 { return g.values[i*g.width:][:g.width] }

// newGrid unpacks a table from base64: indices into values, the lowest bits of a byte first,
// two bits each or, if there are more than four values, four.
func newGrid(width int, values []float32, packed string) *grid {
	b, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		panic(err) // grids.go is generated
	}
	bits := 2
	if len(values) > 4 {
		bits = 4
	}
	g := &grid{width, make([]float32, 0, len(b)*8/bits)}
	for _, x := range b {
		for s := 0; s < 8; s += bits {
			g.values = append(g.values, values[int(x>>s)&(1<<bits-1)])
		}
	}
	return g
}
