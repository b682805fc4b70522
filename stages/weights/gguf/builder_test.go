package gguf

import (
	"encoding/binary"
	"math"
)

// builder writes a header field by field, right or wrong.
type builder []byte

func (b *builder) u8(x byte)     { *b = append(*b, x) }
func (b *builder) u16(x uint16)  { *b = binary.LittleEndian.AppendUint16(*b, x) }
func (b *builder) u32(x uint32)  { *b = binary.LittleEndian.AppendUint32(*b, x) }
func (b *builder) u64(x uint64)  { *b = binary.LittleEndian.AppendUint64(*b, x) }
func (b *builder) text(s string) { b.u64(uint64(len(s))); *b = append(*b, s...) }
func (b *builder) start(t, k int) {
	*b = append(*b, magic...)
	b.u32(3)
	b.u64(uint64(t))
	b.u64(uint64(k))
}

// tensor writes an entry of the list; the sizes are in the order of the file.
func (b *builder) tensor(name string, kind Type, offset uint64, dims ...uint64) {
	b.text(name)
	b.u32(uint32(len(dims)))
	for _, d := range dims {
		b.u64(d)
	}
	b.u32(uint32(kind))
	b.u64(offset)
}

// key writes a metadata key and the type of its value.
func (b *builder) key(name string, kind Kind) {
	b.text(name)
	b.u32(uint32(kind))
}

// pair writes a key and its value.
func (b *builder) pair(name string, value any) {
	if x, ok := value.(uint16); ok {
		b.key(name, Uint16)
		b.u16(x)
		return
	}
	out, err := appendValue(appendText(*b, name), value)
	if err != nil {
		panic(err)
	}
	*b = out
}

// pad fills up to a multiple of n.
func (b *builder) pad(n int) {
	for len(*b)%n != 0 {
		b.u8(0)
	}
}

// header is the start of a file with some metadata and tensors.
func header(tensors, keys int, rest ...func(*builder)) []byte {
	var b builder
	b.start(tensors, keys)
	for _, f := range rest {
		f(&b)
	}
	return b
}

// small is a whole file with one value of most kinds and three tensors.
func small() []byte {
	b := builder(header(3, 9, func(b *builder) {
		b.pair("general.architecture", "llama")
		b.pair("u", uint32(7))
		b.pair("i", int32(-7))
		b.pair("f", float32(0.5))
		b.pair("b", true)
		b.pair("s", []string{"a", "", "\xff"})
		b.pair("big", uint64(math.MaxUint64))
		b.key("nested", Array)
		b.u32(uint32(Array))
		b.u64(2)
		for i := range 2 {
			b.u32(uint32(Uint8))
			b.u64(uint64(i))
			*b = append(*b, make([]byte, i)...)
		}
		b.key("bools", Array)
		b.u32(uint32(Bool))
		b.u64(2)
		b.u8(1)
		b.u8(0)
		b.tensor("q", Q8_0, 32, 32, 2)
		b.tensor("scalar", F32, 0)
		b.tensor("empty", F16, 128, 0, 5)
	}))
	b.pad(32)
	data := make([]byte, 32+68)
	for i := range data {
		data[i] = byte(i)
	}
	b = append(b, data...)
	b.pad(32)
	return b
}
