package gguf

// The types of -1, 0 and 1 with one scale for a superblock.

// decodeTQ1_0: 52 bytes of five values each in base 3 (the last 4 of four values), d. A byte
// is a fraction of 256: multiplied by a power of 3 without its whole part, it has the next
// digit in front.
func decodeTQ1_0(dst []float32, src []byte) {
	d := half(src[52:])
	at := 0
	for _, run := range []struct{ from, to, digits int }{{0, 32, 5}, {32, 48, 5}, {48, 52, 4}} {
		pow := byte(1)
		for range run.digits {
			for _, b := range src[run.from:run.to] {
				digit := int(b*pow) * 3 >> 8
				dst[at] = d * float32(digit-1)
				at++
			}
			pow *= 3
		}
	}
}

// decodeTQ2_0: 64 bytes of four values each, d.
func decodeTQ2_0(dst []float32, src []byte) {
	d := half(src[64:])
	for r := range 8 { // runs of 32
		for j, b := range src[r/4*32:][:32] {
			dst[r*32+j] = d * float32(int(b>>(r%4*2)&3)-1)
		}
	}
}
