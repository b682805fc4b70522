package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"testing"
)

const vectors = "../../../testdata/gguf/"

// readVectors reads a file that testdata/gguf/generate.py made.
func readVectors[T any](t testing.TB, name string) (v T) {
	t.Helper()
	data, err := os.ReadFile(vectors + name)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// randomBytes returns n bytes of splitmix64, as generate.py makes them.
func randomBytes(seed uint64, n int) []byte {
	var b []byte
	for z := seed; len(b) < n; {
		z += 0x9E3779B97F4A7C15
		x := (z ^ z>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		b = binary.LittleEndian.AppendUint64(b, x^x>>31)
	}
	return b[:n]
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// sumFloats is the sum of values as little-endian bytes.
func sumFloats(x []float32) string {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return sum(b)
}

// TestDecode: random blocks of every type decode to what the Python package gguf makes of them,
// to the bit.
func TestDecode(t *testing.T) {
	type vector struct {
		Type           string
		Number         Type
		Elements       int
		Bytes          int
		Finite         [][2]int
		Blocks, Values string
		First          string
	}
	const values = 1 << 16
	var seen []Type
	for _, v := range readVectors[[]vector](t, "blocks.json") {
		seen = append(seen, v.Number)
		kind, ok := ParseType(v.Type)
		if !ok || kind != v.Number || kind.String() != v.Type || kind.Block() != (Block{v.Elements, v.Bytes}) {
			t.Errorf("%s: %d, %v, %v", v.Type, kind, kind, kind.Block())
			continue
		}
		blocks := randomBytes(uint64(kind), values/v.Elements*v.Bytes)
		for i := 0; i < len(blocks); i += v.Bytes {
			for _, f := range v.Finite {
				if b, mask := &blocks[i+f[0]], byte(f[1]); *b&mask == mask {
					*b &^= mask & -mask
				}
			}
		}
		if sum(blocks) != v.Blocks {
			t.Fatalf("%s: these are not the blocks of the vectors", v.Type)
		}
		got := make([]float32, values)
		if err := kind.Decode(got, blocks); err != nil {
			t.Error(err)
		} else if sumFloats(got) != v.Values {
			t.Errorf("%s: other values; the first are %v, want %v", v.Type, got[:4], v.First)
		}
	}
	if !slices.Equal(seen, Types()) {
		t.Errorf("vectors of %v, the types are %v", seen, Types())
	}
}

// TestDecodeSpecial: what the vectors leave out, and what is easy to state.
func TestDecodeSpecial(t *testing.T) {
	one := func(kind Type, src ...byte) float32 {
		b := kind.Block()
		dst := make([]float32, b.Elements)
		if err := kind.Decode(dst, append(src, make([]byte, b.Bytes-len(src))...)); err != nil {
			t.Fatal(err)
		}
		return dst[0]
	}
	for _, x := range []struct {
		kind Type
		src  []byte
		want float32
	}{
		{Q8_0, []byte{0x01, 0x00, 1}, 0x1p-24},              // a subnormal scale
		{Q8_0, []byte{0x00, 0x7c, 1}, float32(math.Inf(1))}, // an infinite one
		{MXFP4, []byte{0, 1}, 0x1p-128},
		{MXFP4, []byte{1, 1}, 0x1p-127},
		{MXFP4, []byte{255, 1}, 0x1p+127},
		{NVFP4, []byte{0x7f, 0, 0, 0, 7}, 0},
		{NVFP4, []byte{0x38, 0, 0, 0, 7}, 6},
		{NVFP4, []byte{0xb8, 0, 0, 0, 7}, 6}, // no sign
		{I64, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, -1},
	} {
		if got := one(x.kind, x.src...); got != x.want {
			t.Errorf("%s of %x: %g, want %g", x.kind, x.src, got, x.want)
		}
	}
	if got := one(Q4_0, 0x00, 0x7e); got == got {
		t.Errorf("a NaN scale: %g", got)
	}
}

// TestDecodeLengths: lengths that do not fit and types that do not exist are errors.
func TestDecodeLengths(t *testing.T) {
	for _, kind := range Types() {
		b := kind.Block()
		for _, x := range [][2]int{{b.Elements, b.Bytes - 1}, {b.Elements, b.Bytes + 1}, {0, 1}, {2 * b.Elements, b.Bytes}, {b.Elements, 2 * b.Bytes}} {
			if err := kind.Decode(make([]float32, x[0]), make([]byte, x[1])); !errors.Is(err, ErrLength) {
				t.Errorf("%s, %d values of %d bytes: %v", kind, x[0], x[1], err)
			}
		}
		if err := kind.Decode(nil, nil); err != nil {
			t.Error(err)
		}
	}
	if err := Type(9).Decode(nil, nil); !errors.Is(err, ErrType) || err.Error() != "unsupported tensor type 9 (Q8_1, which ggml does not store)" {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, kind := range Types() {
		f.Add(uint32(kind), uint16(kind.Block().Elements), randomBytes(1, kind.Block().Bytes))
	}
	f.Fuzz(func(t *testing.T, kind uint32, n uint16, src []byte) {
		err := Type(kind).Decode(make([]float32, n), src)
		b := Type(kind).Block()
		fits := b.Elements > 0 && int(n)%b.Elements == 0 && int(n)/b.Elements*b.Bytes == len(src)
		if fits != (err == nil) {
			t.Errorf("%s: %d values of %d bytes: %v", Type(kind), n, len(src), err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, kind := range Types() {
		b.Run(kind.String(), func(b *testing.B) {
			x := kind.Block()
			dst, src := make([]float32, 1<<14), randomBytes(1, 1<<14/x.Elements*x.Bytes)
			b.SetBytes(int64(4 * len(dst)))
			for b.Loop() {
				if err := kind.Decode(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
