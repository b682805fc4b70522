package tensor

import "math"

// FMA is x*y + z with a single rounding, as the fused instructions of vector
// units do it. math.FMA rounds to float64, and a second rounding to float32
// would differ from that now and then.
func FMA(x, y, z float32) float32 {
	p := float64(x) * float64(y) // exact: 48 bits
	s := p + float64(z)
	// Rounding to odd: when s is not exact, take the neighbour whose last bit is
	// 1, so that rounding to float32 sees that something follows.
	t := s - p
	rest := (p - (s - t)) + (float64(z) - t)
	if b := math.Float64bits(s); b&1 == 0 && (rest > 0 || rest < 0) {
		if (rest > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}
