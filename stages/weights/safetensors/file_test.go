package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"krater/kernels/tensor"
)

// file puts a header before data, padded with spaces to a multiple of 8.
func file(header string, data int) []byte {
	for len(header)%8 != 0 {
		header += " "
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i))
	}
	return b
}

// one is the header field of a tensor.
func one(name, dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}

func TestParse(t *testing.T) {
	b := file("{"+one("b", "F32", "[1,2]", 4, 12)+",\n\t"+one("a", "BF16", "[2]", 0, 4)+","+one("empty", "F64", "[3,0]", 12, 12)+","+
		one("scalar", "I64", "[]", 16, 24)+","+one("f8", "F8_E8M0", "[4]", 12, 16)+`,"__metadata__":{"format":"pt","a":"b\"\\u00e9"}}`, 24)
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name       string
		dtype      tensor.DType
		shape      string
		begin, end int
	}{
		{"a", tensor.BF16, "[2]", 0, 4}, {"b", tensor.F32, "[1 2]", 4, 12}, {"empty", tensor.F64, "[3 0]", 12, 12},
		{"f8", tensor.F8E8M0, "[4]", 12, 16}, {"scalar", tensor.I64, "[]", 16, 24},
	}
	if len(got) != len(want) {
		t.Fatalf("%d tensors, want %d", len(got), len(want))
	}
	data := b[len(b)-24:]
	for i, w := range want {
		g := got[i]
		if g.Name != w.name || g.DType != w.dtype || fmt.Sprint(g.Shape) != w.shape || string(g.Data) != string(data[w.begin:w.end]) {
			t.Errorf("%d: %+v, want %+v", i, g, w)
		}
		if len(g.Data) > 0 && &g.Data[0] != &data[w.begin] {
			t.Errorf("%s was copied", g.Name)
		}
	}
}

// TestEveryDType: each type of the tensor package is read under its name.
func TestEveryDType(t *testing.T) {
	n := 0
	for dt := tensor.Bool; dt.Size() > 0; dt++ {
		got, err := Parse(file("{"+one("x", dt.String(), "[3]", 0, 3*dt.Size())+"}", 3*dt.Size()))
		if err != nil || got[0].DType != dt || len(got[0].Data) != 3*dt.Size() {
			t.Errorf("%s: %v, %v", dt, got, err)
		}
		n++
	}
	if n < 16 {
		t.Errorf("only %d types tried", n)
	}
}

func TestEscapedName(t *testing.T) {
	got, err := Parse(file(`{"a\u0062\"\\\/\n`+"é"+`":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	if err != nil || got[0].Name != "ab\"\\/\né" {
		t.Errorf("%+v, %v", got, err)
	}
}

// brokenFile is a file that is refused; says is part of the message.
type brokenFile struct {
	name string
	file []byte
	want error
	says string
}

func brokenFiles() []brokenFile {
	huge := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), "{}"...) }
	a := one("a", "U8", "[2]", 0, 2)
	wrap := func(s string, data int) []byte { return file("{"+s+"}", data) }
	return []brokenFile{
		{"empty", nil, ErrTooShort, ""},
		{"seven bytes", make([]byte, 7), ErrTooShort, ""},
		{"header beyond the file", huge(3), ErrHeaderSize, ""},
		{"header of 2^64-1", huge(math.MaxUint64), ErrHeaderSize, ""},
		{"header of 2^63", huge(1 << 63), ErrHeaderSize, ""},
		{"header over the cap", huge(MaxHeader + 1), ErrHeaderSize, ""},
		{"no header", huge(0), ErrHeader, ""},
		{"not an object", file("[]", 0), ErrHeader, "byte 0"},
		{"cut off", file(`{"a":{"dtype":"U8"`, 0), ErrHeader, ""},
		{"cut in a string", file(`{"a`, 0), ErrHeader, ""},
		{"cut after a backslash", append(binary.LittleEndian.AppendUint64(nil, 3), `{"\`...), ErrHeader, ""},
		{"text after the object", file("{}x", 0), ErrHeader, ""},
		{"two objects", file("{}{}", 0), ErrHeader, ""},
		{"trailing comma", wrap(a+",", 2), ErrHeader, ""},
		{"deep nesting", file(strings.Repeat("[", 1<<20), 0), ErrHeader, ""},
		{"deep nesting in an entry", file(`{"a":`+strings.Repeat("{", 1<<20), 0), ErrHeader, `"a"`},
		{"control character", file("{\"a\x01\":1}", 0), ErrHeader, ""},
		{"invalid UTF-8", file("{\"a\xff\":1}", 0), ErrHeader, ""},
		{"half a surrogate", file(`{"\ud800":1}`, 0), ErrHeader, ""},
		{"bad escape", file(`{"\x":1}`, 0), ErrHeader, ""},
		{"metadata not strings", file(`{"__metadata__":{"a":1}}`, 0), ErrHeader, ""},
		{"metadata key twice", file(`{"__metadata__":{"a":"1","a":"2"}}`, 0), ErrHeader, ""},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), ErrDuplicate, "__metadata__"},
		{"duplicate name", wrap(a+","+one("a", "U8", "[2]", 2, 4), 4), ErrDuplicate, `"a"`},
		{"duplicate name, escaped", wrap(a+`,"\u0061":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}`, 4), ErrDuplicate, `"a"`},
		{"field missing", file(`{"a":{"dtype":"U8","shape":[2]}}`, 2), ErrHeader, `"a"`},
		{"field twice", file(`{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2), ErrHeader, "dtype"},
		{"field unknown", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}}`, 2), ErrHeader, `"x"`},
		{"dtype unknown", wrap(one("a", "Q4_K", "[2]", 0, 2), 2), ErrDType, `"Q4_K"`},
		{"dtype invalid", wrap(one("a", "INVALID", "[2]", 0, 2), 2), ErrDType, ""},
		{"shape negative", wrap(one("a", "U8", "[-2]", 0, 2), 2), ErrHeader, ""},
		{"shape fraction", wrap(one("a", "U8", "[2.0]", 0, 2), 2), ErrHeader, ""},
		{"shape leading zero", wrap(one("a", "U8", "[02]", 0, 2), 2), ErrHeader, ""},
		{"shape overflow", wrap(one("a", "F32", "[4294967296,4294967296]", 0, 2), 2), ErrShape, `"a"`},
		{"shape overflow by dtype", wrap(one("a", "F64", "[2305843009213693952]", 0, 0), 0), ErrShape, ""},
		{"shape over an int", wrap(one("a", "U8", "[9223372036854775808]", 0, 2), 2), ErrHeader, "too large"},
		{"too many dimensions", wrap(one("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1), 1), ErrShape, ""},
		{"one offset", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}}`, 2), ErrHeader, ""},
		{"three offsets", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}`, 2), ErrHeader, ""},
		{"range reversed", wrap(one("a", "U8", "[2]", 2, 0), 2), ErrSize, `"a"`},
		{"range too long", wrap(one("a", "U8", "[2]", 0, 3), 3), ErrSize, ""},
		{"short file", wrap(one("a", "F32", "[2]", 0, 8), 7), ErrTruncated, `"a"`},
		{"far beyond", wrap(one("a", "U8", "[9223372036854775807]", 0, math.MaxInt), 7), ErrTruncated, ""},
		{"overlap", wrap(a+","+one("b", "U8", "[2]", 1, 3), 3), ErrOverlap, `"b"`},
		{"same range", wrap(a+","+one("b", "U8", "[2]", 0, 2), 2), ErrOverlap, `"b"`},
		{"hole", wrap(a+","+one("b", "U8", "[2]", 3, 5), 5), ErrHole, `"b"`},
		{"hole at the start", wrap(one("a", "U8", "[2]", 1, 3), 3), ErrHole, ""},
		{"trailing bytes", wrap(a, 3), ErrTrailing, ""},
		{"bytes without a tensor", file("{}", 1), ErrTrailing, ""},
	}
}

// TestUnaligned: the format asks for no alignment. A header without padding, or a short tensor
// before one of larger elements, is read.
func TestUnaligned(t *testing.T) {
	for _, dtype := range []string{"BF16", "F16", "F32", "F64"} {
		size := map[string]int{"BF16": 2, "F16": 2, "F32": 4, "F64": 8}[dtype]
		for first := range 9 {
			head := "{" + one("a", "U8", fmt.Sprintf("[%d]", first), 0, first) + "," + one("b", dtype, "[1]", first, first+size) + "}"
			for pad := range 8 {
				text := head + strings.Repeat(" ", pad)
				file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
				file = append(append(file, text...), "0123456789abcdefg"[:first+size]...)
				got, err := Parse(file)
				if err != nil || len(got) != 2 || string(got[1].Data) != "0123456789abcdefg"[first:first+size] {
					t.Fatalf("%s behind %d bytes, %d spaces: %v, %v", dtype, first, pad, got, err)
				}
			}
		}
	}
}

func TestBroken(t *testing.T) {
	for _, tt := range brokenFiles() {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.file)
			if !errors.Is(err, tt.want) || got != nil {
				t.Fatalf("%v, %v; want %v", got, err, tt.want)
			}
			if !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 400 {
				t.Errorf("%v does not say %s, or is too long", err, tt.says)
			}
		})
	}
}

// TestCutEverywhere: no prefix of a good file is accepted.
func TestCutEverywhere(t *testing.T) {
	b := file("{"+one("a", "F32", "[2]", 0, 8)+","+one("b", "U8", "[8]", 8, 16)+"}", 16)
	if _, err := Parse(b); err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, err := Parse(b[:n:n]); err == nil {
			t.Errorf("accepted %d of %d bytes", n, len(b))
		}
	}
}

// TestRealFiles reads the goldens and holds names and shapes to a general JSON
// decoder.
func TestRealFiles(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/goldens/*/*.safetensors")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		checkAgainstJSON(t, b)
	}
}

// checkAgainstJSON parses b, which has to be accepted, and compares.
func checkAgainstJSON(t *testing.T, b []byte) {
	t.Helper()
	got, err := Parse(b)
	if err != nil {
		t.Error(err)
		return
	}
	n := binary.LittleEndian.Uint64(b)
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &raw); err != nil {
		t.Errorf("accepted what encoding/json refuses: %v", err)
		return
	}
	delete(raw, "__metadata__")
	if len(raw) != len(got) {
		t.Errorf("%d tensors, want %d", len(got), len(raw))
	}
	total := 0
	for _, g := range got {
		var want struct {
			DType   string `json:"dtype"`
			Shape   []int
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw[g.Name], &want); err != nil {
			t.Errorf("%q: %v", g.Name, err)
			continue
		}
		elems := 1
		for _, d := range g.Shape {
			elems *= d
		}
		if g.DType.String() != want.DType || fmt.Sprint(g.Shape) != fmt.Sprint(want.Shape) || len(g.Data) != elems*g.DType.Size() ||
			len(g.Data) > 0 && &g.Data[0] != &b[8+int(n)+want.Offsets[0]] {
			t.Errorf("%q: %v %v %d bytes, want %+v", g.Name, g.DType, g.Shape, len(g.Data), want)
		}
		total += len(g.Data)
	}
	if total != len(b)-8-int(n) {
		t.Errorf("tensors hold %d bytes, the file %d", total, len(b)-8-int(n))
	}
}

// manyTensors is a file of n experts' matrices.
func manyTensors(n int) []byte {
	var sb strings.Builder
	sb.WriteByte('{')
	for i := range n {
		if i > 0 {
			sb.WriteByte(',')
		}
		sb.WriteString(one(fmt.Sprintf("model.layers.%d.mlp.experts.%d.gate_proj.weight", i/256, i%256), "BF16", "[2,2]", 8*i, 8*i+8))
	}
	sb.WriteByte('}')
	return file(sb.String(), 8*n)
}

// TestManyTensors bounds the memory for 50,000 tensors: names, shapes and the
// table, not a multiple of the header.
func TestManyTensors(t *testing.T) {
	b := manyTensors(50_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	got, err := Parse(b)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil || len(got) != 50_000 {
		t.Fatalf("%d tensors, %v", len(got), err)
	}
	header := binary.LittleEndian.Uint64(b)
	if used := after.TotalAlloc - before.TotalAlloc; used > 5*header {
		t.Errorf("%d bytes allocated for a header of %d", used, header)
	}
	t.Logf("%d bytes of header in %v, %d KB allocated", header, took, (after.TotalAlloc-before.TotalAlloc)>>10)
}

func BenchmarkParse50k(b *testing.B) {
	data := manyTensors(50_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file("{"+one("b", "F32", "[1,2]", 4, 12)+","+one("a", "BF16", "[2]", 0, 4)+`,"__metadata__":{"a":"b"}}`, 12))
	f.Add(file(`{"a\u0062":{"shape":[],"dtype":"U8","data_offsets":[0,1]}}`, 1))
	f.Add(file("{}", 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The reader refuses memory that is not aligned as files are.
		b := make([]byte, len(data), len(data)+8)
		copy(b, data)
		if _, err := Parse(b); err == nil {
			checkAgainstJSON(t, b)
		} else if len(err.Error()) > 2000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
