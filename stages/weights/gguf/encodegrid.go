package gguf

import (
	"encoding/binary"
	"math"

	"krater/kernels/tensor/grid"
)

// gridCode is an IQ type that keeps seven signs of each eight values: the eighth makes the number of
// minus signs even.
type gridCode struct {
	grid  *grid.Grid
	group int     // values that share a scale
	unit  float32 // the scale of a group is d * unit * (0.5 + s)
}

// gridCoded is a superblock.
type gridCoded struct {
	scales [superblock / 16]byte    // s of each group, four bits
	rows   [superblock / 4]int      // of the grid
	signs  [superblock / 8]uint32   // the first seven of each eight values
	x      [superblock]float32      // the values without their signs
	ones   [superblock / 32]float32 // weights that count errors alike
}

// encode writes d and finds the rest. Where the number of minus signs is odd, the value nearest to
// zero changes its sign.
func (c gridCode) encode(dst []byte, src []float32) *gridCoded {
	b := &gridCoded{}
	for i := range b.ones {
		b.ones[i] = 1
	}
	for i, v := range src {
		b.x[i] = float32(math.Abs(float64(v)))
		if v < 0 {
			b.signs[i/8] |= 1 << (i % 8)
		}
	}
	for i := range b.signs {
		x := b.x[8*i:][:8]
		if all := b.signs[i]; signs(all) != byte(all) { // the eighth sign would come out wrong
			least := 0
			for j, v := range x {
				if v < x[least] {
					least = j
				}
			}
			x[least] = -x[least]
			b.signs[i] ^= 1 << least
		}
		b.signs[i] &= 127
	}
	groups := superblock / c.group
	var scales [superblock / 16]float32
	for g := range groups {
		scales[g] = c.scale(b, b.x[g*c.group:][:c.group])
	}
	d := putHalf(dst, extreme(scales[:groups])/(15.5*c.unit))
	for g := range groups {
		s := min(max(round(scales[g]*inverse(d*c.unit)-0.5), 0), 15)
		b.scales[g] = byte(s)
		inv := inverse(d * c.unit * (0.5 + float32(s)))
		for k := g * c.group; k < (g+1)*c.group; k += c.grid.Width {
			b.rows[k/c.grid.Width] = c.nearest(b, b.x[k:][:c.grid.Width], inv)
		}
	}
	return b
}

// nearest returns the row that is nearest to x times inv.
func (c gridCode) nearest(b *gridCoded, x []float32, inv float32) int {
	var t [8]float32
	for j, v := range x {
		t[j] = v * inv
	}
	return nearestRow(c.grid, t[:len(x)], b.ones[:])
}

// scale returns the scale of a group with the least squared error among those tried.
func (c gridCode) scale(b *gridCoded, x []float32) (best float32) {
	top, most := extreme(x), extreme(c.grid.Values)
	var gain float32
	for i := range 16 {
		inv := inverse(top) * most * (0.5 + 0.06*float32(i)) // the largest becomes 0.5 to 1.4 of the grid's
		var xq, qq float32
		for k := 0; k < len(x); k += c.grid.Width {
			for j, q := range c.grid.Row(c.nearest(b, x[k:][:c.grid.Width], inv)) {
				xq += x[k+j] * q
				qq += q * q
			}
		}
		if xq > 0 && xq*xq > gain*qq {
			gain, best = xq*xq/qq, xq/qq
		}
	}
	return best
}

// words are the words of IQ2_XXS and IQ3_XXS: four times seven signs, and a scale.
func (b *gridCoded) word(g int) (w uint32) {
	for k := range 4 {
		w |= b.signs[4*g+k] << (7 * k)
	}
	return w | uint32(b.scales[g])<<28
}

func encodeIQ2_XXS(dst []byte, src []float32) {
	b := gridCode{grid.IQ2_XXS, 32, 0.25}.encode(dst, src)
	for g := range 8 {
		for k := range 4 {
			dst[2+8*g+k] = byte(b.rows[4*g+k])
		}
		binary.LittleEndian.PutUint32(dst[6+8*g:], b.word(g))
	}
}

func encodeIQ2_XS(dst []byte, src []float32) {
	b := gridCode{grid.IQ2_XS, 16, 0.25}.encode(dst, src)
	for g := range 32 {
		binary.LittleEndian.PutUint16(dst[2+2*g:], uint16(b.rows[g])|uint16(b.signs[g])<<9)
	}
	for g := range 8 {
		dst[66+g] = b.scales[2*g] | b.scales[2*g+1]<<4
	}
}

func encodeIQ3_XXS(dst []byte, src []float32) {
	b := gridCode{grid.IQ3_XXS, 32, 0.5}.encode(dst, src)
	for i, row := range b.rows {
		dst[2+i] = byte(row)
	}
	for g := range 8 {
		binary.LittleEndian.PutUint32(dst[66+4*g:], b.word(g))
	}
}
