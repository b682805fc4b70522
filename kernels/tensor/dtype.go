// Package tensor holds what every layer above agrees on about numbers in
// memory: element types, their sizes and the conversions between them. It
// depends on the standard library only and never allocates device memory.
package tensor

import "fmt"

// DType is the element type of a tensor as stored.
type DType uint8

// The element types a weight file or an activation can have. The names follow
// the safetensors format.
const (
	Invalid DType = iota
	Bool          // 1 byte, 0 or 1
	U8
	I8
	F8E4M3 // 1 sign, 4 exponent (bias 7), 3 mantissa; no infinities, NaN = 0x7f/0xff ("fn")
	F8E5M2 // 1 sign, 5 exponent (bias 15), 2 mantissa; IEEE-like
	F8E8M0 // exponent only, 2^(x-127); 0xff = NaN
	U16
	I16
	F16  // IEEE binary16
	BF16 // the upper half of a binary32
	U32
	I32
	F32
	U64
	I64
	F64
)

var dtypes = [...]struct {
	name string
	size int // bytes per element
}{
	Invalid: {"INVALID", 0},
	Bool:    {"BOOL", 1},
	U8:      {"U8", 1},
	I8:      {"I8", 1},
	F8E4M3:  {"F8_E4M3", 1},
	F8E5M2:  {"F8_E5M2", 1},
	F8E8M0:  {"F8_E8M0", 1},
	U16:     {"U16", 2},
	I16:     {"I16", 2},
	F16:     {"F16", 2},
	BF16:    {"BF16", 2},
	U32:     {"U32", 4},
	I32:     {"I32", 4},
	F32:     {"F32", 4},
	U64:     {"U64", 8},
	I64:     {"I64", 8},
	F64:     {"F64", 8},
}

// Size is the number of bytes one element takes; 0 for Invalid.
func (d DType) Size() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].size
}

// String is the safetensors name, for example "BF16" or "F8_E4M3".
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType is the inverse of String for every type but Invalid.
func ParseDType(name string) (DType, bool) {
	for d := Bool; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, true
		}
	}
	return Invalid, false
}
