package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// product of 256 bits, as the printer writes it.
var product = regexp.MustCompile(`(?m)^\tVPDPBUSD +Y(\d+), Y(\d+), Y(\d+)$`)

// shortVNNI writes VPDPBUSD as bytes, with the VEX prefix of AVX-VNNI. Go's assembler knows it with
// the EVEX prefix of AVX-512 only.
func shortVNNI(text []byte) []byte {
	return product.ReplaceAllFunc(text, func(line []byte) []byte {
		var r [3]byte // the signed operand, the unsigned one, the sum
		for i, n := range product.FindSubmatch(line)[1:] {
			v, err := strconv.ParseUint(string(n), 10, 4)
			if err != nil {
				panic(err)
			}
			r[i] = byte(v)
		}
		x, w, sum := r[0], r[1], r[2]
		code := []byte{0xc4, 0x42 | (1-sum>>3)<<7 | (1-x>>3)<<5, 0x05 | (^w&15)<<3, 0x50, 0xc0 | sum&7<<3 | x&7}
		var b strings.Builder
		for _, c := range code {
			fmt.Fprintf(&b, "BYTE $0x%02x; ", c)
		}
		return []byte("\t" + b.String() + "// " + strings.Join(strings.Fields(string(line)), " "))
	})
}
