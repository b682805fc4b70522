package tensor

import (
	"errors"
	"fmt"
	"slices"
)

// INT4 and INT8 are integers with a bfloat16 scale for each group of columns: a weight is
// value * scale. INT4 has -8 to 7, INT8 -127 to 127.
var (
	INT4 = integers("int4", 4, -8)
	INT8 = integers("int8", 8, -127)
)

func integers(name string, bits int, least int8) *Encoding {
	return register(&Encoding{
		name: name, bits: bits, groups: []int{128, 64, 32, 0}, levels: between(least, 1<<(bits-1)-1),
		packings: [kinds]Packing{CPU: integerTiles{putScale, getScale}, GPU: integerFragments{}}, widen: widenIntegers,
	})
}

// Integers is INT4 or INT8, nil for other bits.
func Integers(bits int) *Encoding {
	switch bits {
	case 4:
		return INT4
	case 8:
		return INT8
	}
	return nil
}

// between are the integers from least to most.
func between(least, most int8) (all []int8) {
	for v := int(least); v <= int(most); v++ {
		all = append(all, int8(v))
	}
	return all
}

func widenIntegers(dst []float32, m *Matrix, r int) {
	values, scales := m.Values[r*m.Cols:(r+1)*m.Cols], m.Scales[r*m.Groups():]
	for c, v := range values {
		dst[c] = float32(v) * scales[c/m.Group]
	}
}

var errGroup = errors.New("groups do not divide the columns")

// refuse names the value of row r that does not fit.
func refuse(m *Matrix, r int) {
	for c, v := range m.Values[r*m.Cols : (r+1)*m.Cols] {
		if !slices.Contains(m.levels, v) {
			panic(fmt.Sprintf("tensor: value %d of row %d, column %d is not one of %s", v, r, c, m.name))
		}
	}
}

// Eight bytes at a time: of each byte, the bits above INT4, the bias, the sign.
const (
	bytesHigh = 0xf0f0f0f0f0f0f0f0
	bytesFour = 0x0808080808080808
	bytesSign = 0x8080808080808080
	bytesOne  = 0x0101010101010101
)

// plusEight adds 8 to every byte.
func plusEight(x uint64) uint64 { return (x&^bytesSign + bytesFour) ^ x&bytesSign }

// anyZero reports a byte that is zero.
func anyZero(x uint64) bool { return (x-bytesOne)&^x&bytesSign != 0 }

// putScale writes a scale as bfloat16, which it is already or is rounded to.
func putScale(dst []byte, scale float32) {
	b := F32ToBF16(scale)
	dst[0], dst[1] = byte(b), byte(b>>8)
}

func getScale(src []byte) float32 { return BF16ToF32(uint16(src[0]) | uint16(src[1])<<8) }
