package direct_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

// stored is a matrix of blocks as a file has it.
type stored struct {
	e *tensor.Encoding
	*tensor.Matrix
	data []byte
}

func (s stored) Encoding() string       { return s.e.Name() }
func (s stored) Blocks() ([]byte, bool) { return s.data, true }
func (s stored) Stored() [][]byte       { return [][]byte{s.data} }
func (s stored) Floats(dst []float32, firstRow int) error {
	for r := range len(dst) / s.Cols {
		s.Row(dst[r*s.Cols:(r+1)*s.Cols], firstRow+r)
	}
	return nil
}

// newStored is random blocks whose values have about the given size.
func newStored(t *testing.T, r *rand.Rand, e *tensor.Encoding, rows, cols int, size float64) stored {
	t.Helper()
	if e == tensor.Q8_0 {
		data := make([]byte, rows*cols/32*tensor.Q8Block)
		for i := range data {
			data[i] = byte(r.Uint32())
			if i%tensor.Q8Block == 0 {
				binary.LittleEndian.PutUint16(data[i:], tensor.F32ToF16(float32(size)/74))
			} else if i%tensor.Q8Block == 1 {
				data[i] = byte(tensor.F32ToF16(float32(size)/74) >> 8)
			}
		}
		m, err := tensor.Q8Blocks(data, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		return stored{e, m, data}
	}
	data := kerneltest.ScaledBlocks(r, e, rows, cols, size)
	m, err := e.FromBlocks(data, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	return stored{e, m, data}
}

// wideConfig is a golden's config with rows of whole superblocks.
func wideConfig(t *testing.T, name string) *model.Config {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder(name), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, field := range []string{"hidden_size", "intermediate_size", "moe_intermediate_size"} {
		for _, n := range []string{"128", "32"} {
			text = strings.ReplaceAll(text, `"`+field+`": `+n+`,`, `"`+field+`": 256,`)
		}
	}
	cfg, err := model.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Hidden != 256 || cfg.MoE.FF != 256 {
		t.Fatalf("%s: %d, %d", name, cfg.Hidden, cfg.MoE.FF)
	}
	return cfg
}

// nativeSet is random weights of a model: those that a file quantises in the encoding that choose
// gives, the others as F32.
func nativeSet(t *testing.T, cfg *model.Config, seed uint64, choose func(i int) *tensor.Encoding) *weights.Set {
	t.Helper()
	r := kerneltest.Rand(seed)
	var list []weights.Named
	for i, x := range cfg.Expected() {
		named := weights.Named{Name: x.Name, Tensor: weights.Tensor{DType: tensor.F32, Shape: x.Shape}}
		switch {
		case len(x.Shape) == 2 && x.Part != model.Embedding && x.Part != model.Router:
			named.Coded = newStored(t, r, choose(i), x.Shape[0], x.Shape[1], 0.06)
		default:
			values := 1
			for _, n := range x.Shape {
				values *= n
			}
			for range values {
				v := float32(r.NormFloat64())
				if len(x.Shape) == 1 {
					v = 1
				}
				named.Data = binary.LittleEndian.AppendUint32(named.Data, math.Float32bits(v))
			}
		}
		list = append(list, named)
	}
	return weights.Of(list, nil, nil)
}

// nativeLogits runs a model in a precision and holds its plan against it.
func nativeLogits(t *testing.T, cfg *model.Config, set *weights.Set, p load.Precision) (all []float32) {
	t.Helper()
	dev, o := processor(t, 2), load.Options{Limits: limits, Precision: p}
	parts, err := load.Model(dev, cfg, set, o)
	if err != nil {
		t.Fatal(err)
	}
	defer parts.Close()
	needs, err := load.Plan(cfg, o, load.Use{})
	if err != nil {
		t.Fatal(err)
	}
	planned := int64(0)
	for _, n := range needs {
		if n.Part.Weight() {
			planned += n.Bytes
		}
	}
	if planned != parts.WeightBytes {
		t.Errorf("%s: planned %d bytes of weights, there are %d", p.Any(), planned, parts.WeightBytes)
	}
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	see := func(_ int, x []float32) { all = append(all, x...) }
	if err := drive.Run(m, []*drive.Sequence{{Prompt: []int32{1, 5, 9, 300, 77, 6, 8, 2, 11}, All: true, See: see}}, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNative: a model whose blocks are multiplied as they are answers as one of the same values in
// float32, but for what activations of 8 bits lose.
func TestNative(t *testing.T) {
	native := tensor.Native.By(tensor.BlockGroup)
	p := load.Precision{Experts: native, Attention: native, KVB: native, Shared: native, Dense: native, Head: native}
	names := append(tensor.StoredEncodings(), "q8_0")
	choices := map[string]func(i int) *tensor.Encoding{"mixed": func(i int) *tensor.Encoding { return tensor.EncodingOf(names[i*i%len(names)]) }}
	for _, name := range names {
		choices[name] = func(int) *tensor.Encoding { return tensor.EncodingOf(name) }
	}
	families := []string{"qwen3_moe", "mixtral"}
	for i, name := range append([]string{"mixed"}, names...) {
		choose := choices[name]
		if testing.Short() && i%3 != 0 {
			continue
		}
		for _, family := range families[i%2 : min(2, i%2+1+(len(names)-i)/len(names))] {
			cfg := wideConfig(t, family)
			set := nativeSet(t, cfg, 5, choose)
			cfg.Types = load.Types(cfg, set)
			want, got := nativeLogits(t, cfg, set, load.Precision{}), nativeLogits(t, cfg, set, p)
			loss := distance(got, want)
			t.Logf("%s, %s: relative L2 %.4f", family, name, loss)
			if !(loss < 0.05) || len(want) == 0 {
				t.Errorf("%s, %s: relative L2 %.4f", family, name, loss)
			}
			if lines := load.Converted(cfg, set, p); (len(lines) == 0) != (name != "mixed") {
				t.Errorf("%s, %s: %q", family, name, lines)
			}
		}
	}
}

// distance is the relative L2 distance.
func distance(got, want []float32) float64 {
	var d, n float64
	for i, v := range want {
		d += float64(got[i]-v) * float64(got[i]-v)
		n += float64(v) * float64(v)
	}
	return math.Sqrt(d / n)
}
