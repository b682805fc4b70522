package sample

import "math/bits"

// philox is Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011):
// ten rounds of multiplication and exchange turn a counter and a key into random bits. It has no
// state, so any token of any sequence can be drawn anywhere and in any order, with the same result.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		mul0, mul1 = 0xd2511f53, 0xcd9e8d57
		key0, key1 = 0x9e3779b9, 0xbb67ae85 // golden ratio, sqrt(3) - 1
	)
	c := counter
	for range 10 {
		hi0, lo0 := bits.Mul32(mul0, c[0])
		hi1, lo1 := bits.Mul32(mul1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += key0
		key[1] += key1
	}
	return c
}

// uniform returns the random number in [0, 1), a multiple of 2^-53, of the n-th choice of a
// sequence with this seed.
func uniform(seed, n uint64) float64 {
	r := philox([4]uint32{uint32(n), uint32(n >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64(uint64(r[0])<<21|uint64(r[1])>>11) * 0x1p-53
}
