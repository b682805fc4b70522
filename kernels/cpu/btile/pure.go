package btile

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/amx"
	"krater/kernels/tensor"
)

// pure computes what the unit does, to the bit but for denormal numbers, which the unit takes for zero.
var pure = Funcs{
	single: func(t *Tile) { t.pure(1, 1) },
	one:    func(t *Tile) { t.pure(1, amx.Rows) },
	two:    func(t *Tile) { t.pure(2, amx.Rows) },
	tokens: pureTokens, token: pureToken,
	weigh: pureWeigh,
}

// pure multiplies tiles tiles of width tokens.
func (t *Tile) pure(tiles, width int) {
	words := unsafe.Slice((*uint32)(t.x), t.steps*2*tiles*amx.Rows*width)
	w := unsafe.Add(t.base, 0)
	for b := range t.blocks {
		for n := range WeightRows {
			row := unsafe.Slice((*uint16)(unsafe.Add(w, (b*WeightRows+n)*t.wStride)), t.steps*Columns)
			for m := range t.tokens {
				var sum float32
				for part := range 2 * t.steps { // upper, then lower bits of each step
					from := row[part/2*Columns:][:Columns]
					at := (part*tiles+m/amx.Rows)*amx.Rows*width + m%amx.Rows
					var even, odd float32
					for k := range amx.Rows {
						x := words[at+k*width]
						even = fma(tensor.BF16ToF32(from[2*k]), tensor.BF16ToF32(uint16(x)), even)
						odd = fma(tensor.BF16ToF32(from[2*k+1]), tensor.BF16ToF32(uint16(x>>16)), odd)
					}
					sum += even + odd
				}
				*(*float32)(unsafe.Add(unsafe.Pointer(t.out), m*t.outStride+4*(b*WeightRows+n))) = sum
			}
		}
	}
}

// fma is x*y + z, rounded once: the product is exact in float64, and so is nearly every sum.
func fma(x, y, z float32) float32 { return float32(float64(x)*float64(y) + float64(z)) }

// split cuts a number in two BF16 numbers.
func split(x float32) (upper, lower uint16) {
	upper = round(x)
	return upper, round(x - tensor.BF16ToF32(upper))
}

// round is x rounded to BF16, ties away from zero; x that is infinite or nearly so becomes infinite, NaN becomes NaN or infinite.
func round(x float32) uint16 {
	const nan, sign = 0x7fff0000, 0x80000000
	bits := math.Float32bits(x)
	return uint16((min(bits&^sign+0x8000, nan) | bits&sign) >> 16)
}

// place is the position of column k of a step in packed order (package convert).
func place(k int) int { return k%2*Columns/2 + k/2 }

func pureTokens(b *Block) {
	for row, x := range b.rows {
		for s := range b.steps {
			from := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(x), 4*s*Columns)), Columns)
			for k := range amx.Rows {
				evenUpper, evenLower := split(from[place(2*k)])
				oddUpper, oddLower := split(from[place(2*k+1)])
				at := unsafe.Add(b.out, s*b.next+4*(k*amx.Rows+row))
				*(*uint32)(at) = uint32(evenUpper) | uint32(oddUpper)<<16
				*(*uint32)(unsafe.Add(at, b.low)) = uint32(evenLower) | uint32(oddLower)<<16
			}
		}
	}
}

func pureToken(row, out *float32, steps int) {
	from, to := unsafe.Slice(row, steps*Columns), unsafe.Slice((*uint32)(unsafe.Pointer(out)), steps*Columns)
	for s := range steps {
		for k := range amx.Rows {
			evenUpper, evenLower := split(from[s*Columns+place(2*k)])
			oddUpper, oddLower := split(from[s*Columns+place(2*k+1)])
			to[s*Columns+k] = uint32(evenUpper) | uint32(oddUpper)<<16
			to[s*Columns+amx.Rows+k] = uint32(evenLower) | uint32(oddLower)<<16
		}
	}
}

func pureWeigh(t *Weigh) {
	for m := range t.rows {
		acc := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.acc), m*t.accStride)), t.blocks*WeighColumns)
		part := func(p *uint16) []uint16 {
			return unsafe.Slice((*uint16)(unsafe.Add(unsafe.Pointer(p), m*t.pStride)), t.steps*Columns)
		}
		for c := range acc {
			sum := acc[Place(c)]
			for s := range t.steps {
				for _, p := range [][]uint16{part(t.upper), part(t.lower)} {
					var even, odd float32
					for j := s * Columns; j < (s+1)*Columns; j += 2 {
						even = fma(tensor.BF16ToF32(p[j]), tensor.BF16ToF32(*(*uint16)(unsafe.Add(t.w, j*t.wStride+2*c))), even)
						odd = fma(tensor.BF16ToF32(p[j+1]), tensor.BF16ToF32(*(*uint16)(unsafe.Add(t.w, (j+1)*t.wStride+2*c))), odd)
					}
					sum += even + odd
				}
			}
			acc[Place(c)] = sum
		}
	}
}
