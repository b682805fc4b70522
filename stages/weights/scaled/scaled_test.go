package scaled

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

// stored is a tensor of a file.
type stored struct {
	name  string
	dtype string
	shape []int
	data  []byte
}

// open is a set of tensors in a safetensors file.
func open(t testing.TB, list ...stored) *weights.Set {
	t.Helper()
	set, err := weights.FromBytes(map[string][]byte{"model.safetensors": file(list...)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// file writes a safetensors file.
func file(list ...stored) []byte {
	var entries []string
	var data []byte
	for _, x := range list {
		shape, _ := json.Marshal(append([]int{}, x.shape...))
		entries = append(entries, fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, x.name, x.dtype, shape, len(data), len(data)+len(x.data)))
		data = append(data, x.data...)
	}
	head := "{" + strings.Join(entries, ",") + "}"
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), data...)
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

// noNaN clears bits of random numbers as generate.py does.
func noNaN(dtype, end string, b []byte) {
	size, top, mask := 1, 0, byte(0)
	switch dtype {
	case "F8_E4M3":
		mask = 0x7f
	case "U8", "F8_E8M0":
		if mask = 0xff; end == "_blocks" || end == plainEnd || end == packedEnd {
			return
		}
	case "F32":
		size, top, mask = 4, 3, 0x7f
	case "BF16":
		size, top, mask = 2, 1, 0x7f
	case "F16":
		size, top, mask = 2, 1, 0x7c
	default:
		return
	}
	for i := top; i < len(b); i += size {
		if b[i]&mask == mask {
			b[i] &^= mask & -mask
		}
	}
	if end == dividesEnd || end == timesEnd {
		b[3] &= 0x7f
	}
}

// vector is a matrix of the files of testdata/scaled.
type vector struct {
	Encoding string
	Config   json.RawMessage
	Shape    []int
	Tensors  []struct {
		End, Type string
		Shape     []int
		Seed      uint64
		SHA256    string
		Data      []byte // base64
	}
	Values string // the sum of the values
	Data   []byte // or the values themselves
	First  string
}

// tensors are the stored tensors under a name.
func (v *vector) tensors(t testing.TB, name string) (list []stored) {
	t.Helper()
	for _, x := range v.Tensors {
		dtype, _ := tensor.ParseDType(x.Type)
		data := x.Data
		if x.SHA256 != "" {
			n := dtype.Size()
			for _, d := range x.Shape {
				n *= d
			}
			data = randomBytes(x.Seed, n)
			noNaN(x.Type, x.End, data)
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != x.SHA256 {
				t.Fatalf("%s%s: these are not the bytes of the vectors", v.Encoding, x.End)
			}
		}
		list = append(list, stored{name + x.End, x.Type, x.Shape, data})
	}
	return list
}

// quantization reads a quantization_config.
func quantization(t testing.TB, config []byte) *model.Quantization {
	t.Helper()
	q, err := model.ParseQuantization(fmt.Appendf(nil, `{"quantization_config":%s}`, config))
	if err != nil || q == nil {
		t.Fatalf("%s: %v, %v", config, q, err)
	}
	return q
}

func readVectors(t testing.TB, name string) (list []vector) {
	t.Helper()
	data, err := os.ReadFile("../../../testdata/scaled/" + name)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil || len(list) == 0 {
		t.Fatal(name, err)
	}
	return list
}

// view opens a vector's matrix beside a plain tensor.
func (v *vector) view(t testing.TB) weights.Tensor {
	t.Helper()
	list := append(v.tensors(t, "a.b"), stored{"c.weight", "BF16", []int{1}, []byte{0, 0}})
	set, err := View(open(t, list...), quantization(t, v.Config))
	if err != nil {
		t.Fatalf("%s: %v", v.Encoding, err)
	}
	t.Cleanup(func() { set.Close() })
	name := "a.b.weight"
	if strings.HasSuffix(list[0].name, blocksEnd) {
		name = "a.b"
	}
	if want := []string{name, "c.weight"}; !slices.Equal(set.Names(), want) {
		t.Fatalf("%s: tensors %v, want %v", v.Encoding, set.Names(), want)
	}
	x, _ := set.Tensor(name)
	return x
}

// TestVectors: matrices of every format have the values that independent programs give them, to the
// bit, whole and in pieces.
func TestVectors(t *testing.T) {
	for _, name := range []string{"random.json", "compressed.json"} {
		for _, v := range readVectors(t, name) {
			x := v.view(t)
			if x.Encoding() != v.Encoding || !slices.Equal(x.Shape, v.Shape) {
				t.Errorf("%s %s: %s %v, want %v", name, v.Encoding, x.Encoding(), x.Shape, v.Shape)
				continue
			}
			rows, width := x.Rows()
			values := make([]float32, rows*width)
			if err := x.Floats(values, 0); err != nil {
				t.Fatal(err)
			}
			got := bytesOf(values)
			if sum := sha256.Sum256(got); v.Values != "" && hex.EncodeToString(sum[:]) != v.Values || v.Values == "" && !bytes.Equal(got, v.Data) {
				t.Errorf("%s %s %v: other values; the first are %v, want %s", name, v.Encoding, v.Shape, values[:4], v.First)
			}
			piece := make([]float32, max(1, rows/3)*width)
			from := rows - max(1, rows/3)
			if err := x.Floats(piece, from); err != nil || !bytes.Equal(bytesOf(piece), got[4*from*width:]) {
				t.Errorf("%s %s: other values of the last rows, %v", name, v.Encoding, err)
			}
			plain := make([]byte, x.DType.Size()*len(values))
			if err := x.Write(plain, x.DType); err != nil {
				t.Fatal(err)
			}
			again := make([]float32, len(values))
			if err := tensor.Widen(again, x.DType, plain); err != nil || !bytes.Equal(bytesOf(again), got) {
				t.Errorf("%s %s: %s does not hold the values, %v", name, v.Encoding, x.DType, err)
			}
		}
	}
}

// bytesOf are numbers as little-endian bytes.
func bytesOf(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// TestIntegers: matrices that a format of integers has exactly become it without loss, and no others
// do.
func TestIntegers(t *testing.T) {
	formats := []tensor.Format{tensor.INT4.By(128), tensor.INT4.By(64), tensor.INT4.By(32), tensor.INT4.By(0), tensor.INT8.By(32), tensor.INT8.By(64), tensor.INT8.By(0), tensor.Q8_0.By(32), tensor.MXFP4.By(32), tensor.FP8.By(32), tensor.NVFP4Scaled.By(32)}
	for _, name := range []string{"random.json", "compressed.json"} {
		list := readVectors(t, name)
		for _, v := range list {
			if v.Encoding == "nvfp4" {
				list = append(list, v.multiplied())
			}
		}
		for _, v := range list {
			x := v.view(t)
			rows, cols := x.Rows()
			values, row := make([]float32, rows*cols), make([]float32, cols)
			if err := x.Floats(values, 0); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range formats {
				l, err := f.On(tensor.CPU, rows, cols)
				if f.Stored() && err != nil {
					continue // its blocks do not divide the columns
				}
				if err != nil {
					t.Fatal(err)
				}
				dst := weights.IntegersOf(f, cols, x, x)
				if dst == nil {
					continue
				}
				got = append(got, f.String())
				for r := range rows {
					dst.Row(row, rows+r)
					for c, want := range values[r*cols:][:cols] {
						if row[c] != want { // zeros may differ in their sign
							t.Fatalf("%s %s as %s: row %d, column %d is %v, want %v", name, v.Encoding, l.Format, r, c, row[c], want)
						}
					}
				}
			}
			// Most random scales are too small or too large for half precision.
			if key := name + " " + v.Encoding + " " + v.Tensors[min(1, len(v.Tensors)-1)].Type; strings.Join(got, " ") != exactly[key] {
				t.Errorf("%q: %q, want %q", key, strings.Join(got, " "), exactly[key])
			}
		}
	}
}

// multiplied is NVFP4 as ModelOpt stores it: with the factor that divides as one that multiplies.
func (v vector) multiplied() vector {
	v.Config, v.Tensors = json.RawMessage(`{"quant_method":"modelopt","quant_algo":"NVFP4"}`), slices.Clone(v.Tensors)
	for i, x := range v.Tensors {
		switch x.End {
		case packedEnd:
			v.Tensors[i].End = plainEnd
		case dividesEnd:
			v.Tensors[i].End = timesEnd
		}
	}
	return v
}

// exactly are the formats that have a matrix of the vectors exactly, by file, encoding and type of its
// second tensor.
var exactly = map[string]string{
	"random.json f8_e4m3_128x128 BF16": "fp8",
	"random.json f8_e4m3_row F16":      "fp8",
	"random.json f8_e4m3_tensor F16":   "fp8",
	"random.json int8_g64 F16":         "q8_0",
	"random.json int4_g32 BF16":        "int4_g32 int8_g32",
	"random.json int4_g128 F16":        "q8_0",
	"random.json int4_row BF16":        "int4_g128 int4_g64 int4_g32 int4_row int8_g32 int8_g64 int8_row",
	"random.json mxfp4 U8":             "int8_g32 mxfp4",
	"random.json mxfp4 F8_E8M0":        "int8_g32 int8_g64 mxfp4", // 64 does not divide its columns: groups of 32
	"compressed.json int8_row I8":      "int8_g32 int8_g64 int8_row q8_0",
	"compressed.json int4_g32 I32":     "int4_g32 int8_g32 q8_0",
	"compressed.json int4_g128 I32":    "q8_0",
	"compressed.json nvfp4 U8":         "nvfp4_scaled",
	"compressed.json mxfp4 U8":         "int8_g32 q8_0 mxfp4",
}

// TestNative: experts of gpt-oss are taken as blocks of MXFP4, also where the rows of two matrices lie
// in turn, and those of DeepSeek-V3 as FP8, whose last blocks of 128 by 128 are not whole. They have
// their values then.
func TestNative(t *testing.T) {
	for name, want := range map[string]*tensor.Encoding{"gpt_oss_mxfp4": tensor.MXFP4, "deepseek_v3_fp8": tensor.FP8} {
		t.Run(name, func(t *testing.T) { testNative(t, "../../../testdata/goldens/"+name, want.By(tensor.BlockGroup)) })
	}
}

func testNative(t *testing.T, dir string, want tensor.Format) {
	set, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	config, err := os.ReadFile(dir + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	n := cfg.ExpertNames(len(cfg.Layers)-1, 3)
	for _, names := range [][]string{{n.Gate, n.Up}, {n.Down}} {
		var list []weights.Tensor
		var values []float32
		cols := 0
		for _, name := range names {
			x, _ := set.Tensor(name)
			rows, width := x.Rows()
			part := make([]float32, rows*width)
			if err := x.Floats(part, 0); err != nil {
				t.Fatal(err)
			}
			if f := weights.FormatOf(x); f != want {
				t.Errorf("%s is taken as %s", name, f)
			}
			list, values, cols = append(list, x), append(values, part...), width
		}
		m, err := weights.Exactly(want, cols, list...)
		if err != nil || m == nil {
			t.Fatal(names, m, err)
		}
		row := make([]float32, cols)
		for r := range m.Rows {
			m.Row(row, r)
			if !slices.Equal(row, values[r*cols:][:cols]) {
				t.Fatalf("%s: row %d has other values", names, r)
			}
		}
	}
}
