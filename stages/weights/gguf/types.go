package gguf

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Type is how the elements of a tensor are stored: numbers, or blocks of quantised ones.
type Type uint32

// The types, by their numbers in the file. Those of ggml that are missing were removed, or
// are only made while it computes.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
)

// Block is the unit of a type: Elements of a row take Bytes. Plain numbers are blocks of one.
type Block struct{ Elements, Bytes int }

// traits holds the properties of a type.
type traits struct {
	name string
	Block
	decode func(dst []float32, src []byte) // of one block; of any number of plain numbers
}

// superblock is the block length of the K and IQ types.
const superblock = 256

var types = map[Type]traits{
	F32:     {"F32", Block{1, 4}, decodeF32},
	F16:     {"F16", Block{1, 2}, decodeF16},
	BF16:    {"BF16", Block{1, 2}, decodeBF16},
	F64:     {"F64", Block{1, 8}, decodeF64},
	I8:      {"I8", Block{1, 1}, decodeI8},
	I16:     {"I16", Block{1, 2}, decodeI16},
	I32:     {"I32", Block{1, 4}, decodeI32},
	I64:     {"I64", Block{1, 8}, decodeI64},
	Q4_0:    {"Q4_0", Block{32, 18}, decodeQ4_0},
	Q4_1:    {"Q4_1", Block{32, 20}, decodeQ4_1},
	Q5_0:    {"Q5_0", Block{32, 22}, decodeQ5_0},
	Q5_1:    {"Q5_1", Block{32, 24}, decodeQ5_1},
	Q8_0:    {"Q8_0", Block{32, 34}, decodeQ8_0},
	Q2_K:    {"Q2_K", Block{superblock, 84}, decodeQ2_K},
	Q3_K:    {"Q3_K", Block{superblock, 110}, decodeQ3_K},
	Q4_K:    {"Q4_K", Block{superblock, 144}, decodeQ4_K},
	Q5_K:    {"Q5_K", Block{superblock, 176}, decodeQ5_K},
	Q6_K:    {"Q6_K", Block{superblock, 210}, decodeQ6_K},
	Q8_K:    {"Q8_K", Block{superblock, 292}, decodeQ8_K},
	IQ1_S:   {"IQ1_S", Block{superblock, 50}, decodeIQ1_S},
	IQ1_M:   {"IQ1_M", Block{superblock, 56}, decodeIQ1_M},
	IQ2_XXS: {"IQ2_XXS", Block{superblock, 66}, decodeIQ2_XXS},
	IQ2_XS:  {"IQ2_XS", Block{superblock, 74}, decodeIQ2_XS},
	IQ2_S:   {"IQ2_S", Block{superblock, 82}, decodeIQ2_S},
	IQ3_XXS: {"IQ3_XXS", Block{superblock, 98}, decodeIQ3_XXS},
	IQ3_S:   {"IQ3_S", Block{superblock, 110}, decodeIQ3_S},
	IQ4_NL:  {"IQ4_NL", Block{32, 18}, decodeIQ4_NL},
	IQ4_XS:  {"IQ4_XS", Block{superblock, 136}, decodeIQ4_XS},
	TQ1_0:   {"TQ1_0", Block{superblock, 54}, decodeTQ1_0},
	TQ2_0:   {"TQ2_0", Block{superblock, 66}, decodeTQ2_0},
	MXFP4:   {"MXFP4", Block{32, 17}, decodeMXFP4},
	NVFP4:   {"NVFP4", Block{64, 36}, decodeNVFP4},
}

// unsupported names types that are refused, for the message.
var unsupported = map[Type]string{
	4: "Q4_2, which ggml removed", 5: "Q4_3, which ggml removed", 9: "Q8_1, which ggml does not store",
	31: "Q4_0_4_4, which ggml removed: quantize to Q4_0", 32: "Q4_0_4_8, which ggml removed: quantize to Q4_0", 33: "Q4_0_8_8, which ggml removed: quantize to Q4_0",
	36: "IQ4_NL_4_4, which ggml removed: quantize to IQ4_NL", 37: "IQ4_NL_4_8, which ggml removed: quantize to IQ4_NL", 38: "IQ4_NL_8_8, which ggml removed: quantize to IQ4_NL",
	41: "Q1_0", 42: "Q2_0",
}

// Types lists the types that can be read, in the order of their numbers.
func Types() []Type { return slices.Sorted(maps.Keys(types)) }

// ParseType is the inverse of Type.String for the types that can be read, in any case.
func ParseType(name string) (Type, bool) {
	for t, x := range types {
		if strings.EqualFold(x.name, name) {
			return t, true
		}
	}
	return 0, false
}

func (t Type) known() bool {
	_, ok := types[t]
	return ok
}

// String is ggml's name of a type, for example "Q4_K", with the number where it cannot be read.
func (t Type) String() string {
	if x, ok := types[t]; ok {
		return x.name
	}
	if name, ok := unsupported[t]; ok {
		return fmt.Sprintf("%d (%s)", uint32(t), name)
	}
	return fmt.Sprintf("%d", uint32(t))
}

// Block returns the unit of a type; the zero Block of one that cannot be read.
func (t Type) Block() Block { return types[t].Block }

// Decode widens whole blocks to float32. The lengths of dst and src must fit each other.
func (t Type) Decode(dst []float32, src []byte) error {
	x, ok := types[t]
	if !ok {
		return fmt.Errorf("%w %s", ErrType, t)
	}
	n := len(dst) / x.Elements
	if len(dst)%x.Elements != 0 || len(src) != n*x.Bytes {
		return fmt.Errorf("%w: %d bytes of %s for %d values; a block of %d takes %d", ErrLength, len(src), t, len(dst), x.Elements, x.Bytes)
	}
	if x.Elements == 1 {
		x.decode(dst, src)
		return nil
	}
	for i := range n {
		x.decode(dst[i*x.Elements:][:x.Elements:x.Elements], src[i*x.Bytes:][:x.Bytes:x.Bytes])
	}
	return nil
}
