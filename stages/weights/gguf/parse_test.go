package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	data := small()
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	tail := data[len(data)-128:]
	for _, w := range []struct {
		name  string
		kind  Type
		shape string
		data  []byte
	}{
		{"scalar", F32, "[]", tail[:4]}, {"q", Q8_0, "[2 32]", tail[32:100]}, {"empty", F16, "[5 0]", nil},
	} {
		g, ok := f.Tensor(w.name)
		if !ok || g.Name != w.name || g.Type != w.kind || fmt.Sprint(g.Shape) != w.shape || !bytes.Equal(g.Data, w.data) {
			t.Errorf("%+v, want %+v", g, w)
		}
		if len(w.data) > 0 && &g.Data[0] != &w.data[0] {
			t.Errorf("%s was copied", w.name)
		}
	}
	if !slices.Equal(f.Names(), []string{"scalar", "q", "empty"}) || f.Bytes() != 72 {
		t.Errorf("%v, %d bytes", f.Names(), f.Bytes())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestMetadata(t *testing.T) {
	f, err := Parse(small())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		key  string
		read func(string) (any, error)
		want string
	}{
		{"general.architecture", into(f.String), "llama <nil>"},
		{"u", into(f.Int), "7 <nil>"},
		{"i", into(f.Int), "-7 <nil>"},
		{"i", into(f.Float), "-7 <nil>"},
		{"f", into(f.Float), "0.5 <nil>"},
		{"b", into(f.Bool), "true <nil>"},
		{"s", into(f.Strings), "[a  \xff] <nil>"},
		{"bools", into(f.Bools), "[true false] <nil>"},
		{"big", into(f.Int), "0 big: metadata value of another type: want a whole number, got uint64"},
		{"f", into(f.Int), "0 f: metadata value of another type: want a whole number, got float32"},
		{"s", into(f.Ints), "[] s: metadata value of another type: want an array of whole numbers, got array of 3 string"},
		{"u", into(f.Floats), "[] u: metadata value of another type: want an array of numbers, got uint32"},
		{"none", into(f.String), " none: metadata key missing"},
	} {
		v, err := x.read(x.key)
		if got := fmt.Sprint(v, " ", err); got != x.want {
			t.Errorf("%s: %q, want %q", x.key, got, x.want)
		}
	}
	nested, _ := f.Value("nested")
	list, ok := nested.Elements()
	if !ok || len(list) != 2 || list[0].Len() != 0 || list[1].Len() != 1 {
		t.Errorf("nested: %v", list)
	}
	if len(f.Keys()) != 9 || !f.Has("nested") || f.Has("none") {
		t.Errorf("%v", f.Keys())
	}
}

// into drops the type of a getter's result.
func into[T any](f func(string) (T, error)) func(string) (any, error) {
	return func(key string) (any, error) { return f(key) }
}

// TestTruncated: a file that is cut anywhere is refused, and is not a panic.
func TestTruncated(t *testing.T) {
	data := small()
	for n := range len(data) - 28 { // the last 28 bytes pad
		_, err := Parse(data[:n:n])
		if !errors.Is(err, ErrTruncated) && (n >= 4 || !errors.Is(err, ErrMagic)) {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
		}
	}
	if _, err := Parse(data[:len(data)-28]); err != nil {
		t.Error(err) // padding behind the last tensor may be missing
	}
}

// hostile is a file that must be refused.
type hostile struct {
	data []byte
	want error
	word string
}

const huge = 1 << 63

// versionFile is a file of a version, countsFile one that announces tensors and keys.
func versionFile(v uint32) []byte {
	b := builder(magic)
	b.u32(v)
	return append(b, make([]byte, 64)...)
}

func countsFile(tensors, keys uint64) []byte {
	b := builder(magic)
	b.u32(3)
	b.u64(tensors)
	b.u64(keys)
	return append(b, make([]byte, 4096)...)
}

// keyFile is a file with one key, listFile one with n tensors and 1024 bytes for them.
func keyFile(fill func(*builder)) []byte { return header(0, 1, fill) }

func listFile(n int, fill func(*builder)) []byte {
	b := builder(header(n, 0, fill))
	b.pad(32)
	return append(b, make([]byte, 1024)...)
}

func tensorFile(fill func(*builder)) []byte { return listFile(1, fill) }

var hostileMetadata = map[string]hostile{
	"empty":             {nil, ErrMagic, "it is empty"},
	"another format":    {[]byte("PK\x03\x04 and more"), ErrMagic, "PK"},
	"before GGUF":       {[]byte("tjgg and more"), ErrMagic, "convert the model again"},
	"version 1":         {versionFile(1), ErrVersion, "convert the model again"},
	"version 4":         {versionFile(4), ErrVersion, "unsupported GGUF version 4"},
	"big endian":        {versionFile(0x03000000), ErrBigEndian, "version 3"},
	"tensors 2^63":      {countsFile(huge, 0), ErrLimit, "9223372036854775808"},
	"tensors 2^20":      {countsFile(1<<20, 0), ErrTruncated, "list of 1048576 tensors"},
	"keys 2^63":         {countsFile(0, huge), ErrLimit, "9223372036854775808"},
	"keys":              {countsFile(0, 60000), ErrTruncated, "metadata keys"},
	"key 2^63 long":     {keyFile(func(b *builder) { b.u64(huge); b.u64(0); b.u64(0) }), ErrLimit, "key 0"},
	"key beyond":        {keyFile(func(b *builder) { b.u64(40000); b.u64(0); b.u64(0) }), ErrTruncated, "key 0"},
	"key empty":         {keyFile(func(b *builder) { b.text(""); b.u64(0); b.u64(0) }), ErrHeader, "key 0"},
	"key not UTF-8":     {keyFile(func(b *builder) { b.pair("\xff\xfe", uint32(1)) }), ErrHeader, "key 0"},
	"key with control":  {keyFile(func(b *builder) { b.pair("a\x1b[31m", uint32(1)) }), ErrHeader, `\x1b`},
	"key twice":         {header(0, 2, func(b *builder) { b.pair("a", uint32(1)); b.pair("a", uint32(1)) }), ErrDuplicate, `"a"`},
	"unknown kind":      {keyFile(func(b *builder) { b.key("a", 13); b.u64(0) }), ErrHeader, "type 13"},
	"bool of 2":         {keyFile(func(b *builder) { b.key("abc", Bool); b.u8(2); b.u64(0) }), ErrHeader, "is 2"},
	"string 2^63":       {keyFile(func(b *builder) { b.key("a", String); b.u64(huge) }), ErrLimit, `"a"`},
	"string beyond":     {keyFile(func(b *builder) { b.key("a", String); b.u64(1000) }), ErrTruncated, "1000 bytes"},
	"array 2^63":        {keyFile(func(b *builder) { b.key("a", Array); b.u32(uint32(Uint8)); b.u64(huge) }), ErrLimit, `"a"`},
	"array beyond":      {keyFile(func(b *builder) { b.key("a", Array); b.u32(uint32(Int64)); b.u64(1 << 20) }), ErrTruncated, "8388608 bytes"},
	"array of strings":  {keyFile(func(b *builder) { b.key("a", Array); b.u32(uint32(String)); b.u64(1 << 20) }), ErrTruncated, "8388608 bytes"},
	"array of unknown":  {keyFile(func(b *builder) { b.key("a", Array); b.u32(99); b.u64(0) }), ErrHeader, "type 99"},
	"nested 10000 deep": {keyFile(nestedArrays(10000)), ErrLimit, "nested"},
	"alignment 0":       {keyFile(func(b *builder) { b.pair(alignmentKey, uint32(0)) }), ErrHeader, "is 0"},
	"alignment 24":      {keyFile(func(b *builder) { b.pair(alignmentKey, uint32(24)) }), ErrHeader, "is 24"},
	"alignment 2^31":    {keyFile(func(b *builder) { b.pair(alignmentKey, uint32(1<<31)) }), ErrHeader, "2147483648"},
	"alignment a text":  {keyFile(func(b *builder) { b.pair(alignmentKey, "32") }), ErrKeyType, "string"},
}

var hostileTensors = map[string]hostile{
	"name 2^63 long":  {tensorFile(func(b *builder) { b.u64(huge); *b = append(*b, make([]byte, 30)...) }), ErrLimit, "tensor 0"},
	"name of 300":     {tensorFile(func(b *builder) { b.tensor(strings.Repeat("n", 300), F32, 0, 1) }), ErrLimit, "300"},
	"name empty":      {tensorFile(func(b *builder) { b.tensor("", F32, 0, 1) }), ErrHeader, "tensor 0"},
	"dims 5":          {tensorFile(func(b *builder) { b.tensor("t", F32, 0, 1, 1, 1, 1, 1) }), ErrShape, "5 dimensions"},
	"dims 2^31":       {tensorFile(func(b *builder) { b.text("t"); b.u32(1 << 31); b.u64(0) }), ErrShape, `"t"`},
	"size 2^63":       {tensorFile(func(b *builder) { b.tensor("t", F32, 0, huge) }), ErrShape, `"t"`},
	"product wraps":   {tensorFile(func(b *builder) { b.tensor("t", F32, 0, 1<<32, 1<<32) }), ErrShape, `"t"`},
	"bytes wrap":      {tensorFile(func(b *builder) { b.tensor("t", F64, 0, 1<<61) }), ErrShape, `"t"`},
	"half a block":    {tensorFile(func(b *builder) { b.tensor("t", Q4_K, 0, 128) }), ErrShape, "blocks of 256"},
	"blocks, scalar":  {tensorFile(func(b *builder) { b.tensor("t", Q4_K, 0) }), ErrShape, "blocks of 256"},
	"type 9":          {tensorFile(func(b *builder) { b.tensor("t", 9, 0, 32) }), ErrType, "9 (Q8_1"},
	"type 31":         {tensorFile(func(b *builder) { b.tensor("t", 31, 0, 32) }), ErrType, "31 (Q4_0_4_4"},
	"type 4000000000": {tensorFile(func(b *builder) { b.tensor("t", 4000000000, 0, 32) }), ErrType, "4000000000"},
	"offset wraps":    {tensorFile(func(b *builder) { b.tensor("t", F32, math.MaxUint64&^31, 16) }), ErrTruncated, "offset 18446744073709551584"},
	"offset 2^63":     {tensorFile(func(b *builder) { b.tensor("t", F32, huge, 1) }), ErrTruncated, "offset 9223372036854775808"},
	"offset beyond":   {tensorFile(func(b *builder) { b.tensor("t", F32, 1024, 1) }), ErrTruncated, "offset 1024"},
	"end beyond":      {tensorFile(func(b *builder) { b.tensor("t", F32, 992, 9) }), ErrTruncated, "36 bytes"},
	"unaligned":       {tensorFile(func(b *builder) { b.tensor("t", F32, 4, 1) }), ErrAlign, "offset 4"},
	"overlap":         {listFile(2, func(b *builder) { b.tensor("t", F32, 0, 9); b.tensor("u", F32, 32, 1) }), ErrOverlap, `"t" ends at 36`},
	"the same bytes":  {listFile(2, func(b *builder) { b.tensor("t", F32, 0, 8); b.tensor("u", F32, 0, 8) }), ErrOverlap, "offset 0"},
	"tensor twice":    {listFile(2, func(b *builder) { b.tensor("t", F32, 0, 8); b.tensor("t", F32, 32, 8) }), ErrDuplicate, `"t"`},
	"a part":          {keyFile(func(b *builder) { b.pair(splitCount, uint16(2)) }), ErrPart, "one of 2"},
}

// TestHostile: what breaks the format is refused by name, without memory for what it claims.
func TestHostile(t *testing.T) {
	for _, list := range []map[string]hostile{hostileMetadata, hostileTensors} {
		for name, x := range list {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse(x.data)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, x.want) || !strings.Contains(fmt.Sprint(err), x.word) {
				t.Errorf("%s: %v", name, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 && n > 20*uint64(len(x.data)) {
				t.Errorf("%s: %d bytes allocated for a file of %d", name, n, len(x.data))
			}
		}
	}
}

// nestedArrays is a value of arrays within arrays.
func nestedArrays(depth int) func(*builder) {
	return func(b *builder) {
		b.key("a", Array)
		for range depth {
			b.u32(uint32(Array))
			b.u64(1)
		}
		b.u32(uint32(Uint8))
		b.u64(0)
	}
}

// TestHeaderLimit: metadata beyond the limit are refused, however large the file is.
func TestHeaderLimit(t *testing.T) {
	s := &scanner{b: make([]byte, 100), n: 1000}
	if err := s.need(101, "x"); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
	if err := s.need(1001, "x"); !errors.Is(err, ErrTruncated) {
		t.Error(err)
	}
}

// TestAlignment: tensors are placed by general.alignment.
func TestAlignment(t *testing.T) {
	b := builder(header(2, 1, func(b *builder) {
		b.pair(alignmentKey, uint32(8))
		b.tensor("t", I8, 0, 5)
		b.tensor("u", I8, 8, 1)
	}))
	b.pad(8)
	b = append(b, 1, 2, 3, 4, 5, 0, 0, 0, 9)
	f, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if u, _ := f.Tensor("u"); !bytes.Equal(u.Data, []byte{9}) {
		t.Error(u.Data)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small())
	f.Add(header(0, 1, nestedArrays(3)))
	f.Add(header(2, 0, func(b *builder) { b.tensor("t", Q4_K, 0, 256); b.tensor("u", F32, 160, 1) }))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		for _, name := range file.Names() {
			x, _ := file.Tensor(name)
			n := 1
			for _, d := range x.Shape {
				n *= d
			}
			if b := x.Type.Block(); n/b.Elements*b.Bytes != len(x.Data) {
				t.Fatalf("%s: %v has %d bytes", name, x.Shape, len(x.Data))
			}
			if n <= 1<<16 {
				if err := x.Type.Decode(make([]float32, n), x.Data); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, key := range file.Keys() {
			v, _ := file.Value(key)
			if v.Kind == Array {
				if _, ok := v.Elements(); !ok {
					t.Fatalf("%s: the elements of a checked array cannot be read", key)
				}
			}
			if fmt.Sprint(v) == "" {
				t.Fatal(key)
			}
		}
	})
}
