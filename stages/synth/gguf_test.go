//go:build unix

package synth

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"krater/stages/model"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// TestBlocks: random blocks of each type have the spread that was asked for, a mean of nothing beside
// it, and the same bytes whatever the threads and the parts that they are made in.
func TestBlocks(t *testing.T) {
	m := small(t, Options{Seed: 3})
	for _, kind := range BlockTypes() {
		const n = 2000
		b := kind.Block()
		for _, std := range []float64{0.02, 0.003} {
			x := m.blocks("x", kind, std)
			data, values := make([]byte, n*b.Bytes), make([]float32, n*b.Elements)
			x.fill(data, 0, 3)
			parts := make([]byte, len(data))
			for from := 0; from < n; from += 80 {
				x.fill(parts[from*b.Bytes:(from+80)*b.Bytes], uint64(from), 1)
			}
			if !bytes.Equal(data, parts) {
				t.Errorf("%s: other bytes in parts", kind)
			}
			if err := kind.Decode(values, data); err != nil {
				t.Fatal(err)
			}
			var sum, squares float64
			for _, v := range values {
				v *= x.factor
				sum, squares = sum+float64(v), squares+float64(v)*float64(v)
			}
			rms, mean := math.Sqrt(squares/float64(len(values))), sum/float64(len(values))
			if math.Abs(rms/std-1) > 0.06 || math.Abs(mean) > 0.08*std || math.IsNaN(rms) {
				t.Errorf("%s: spread %g, mean %g, want %g and 0", kind, rms, mean, std)
			}
		}
	}
}

// TestWriteGGUF: the folder of a file is the model, and its plain numbers equal the model's
// safetensors.
func TestWriteGGUF(t *testing.T) {
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v3", "deepseek_v32", "gemma4_e", "gemma4_moe", "glm4_moe", "glm_moe_dsa", "gpt_oss", "minimax_m2", "qwen2", "qwen3_moe", "qwen3_next"} {
		config, err := os.ReadFile(filepath.Join("..", "..", "testdata", "goldens", name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := FromConfig(name, config, Options{Seed: 1, Skew: Zipf})
		if err != nil {
			t.Fatal(err)
		}
		f := Folder{Dir: filepath.Join(t.TempDir(), "x"), Threads: 2}
		if err := m.WriteGGUF(context.Background(), f, GGUF{Experts: gguf.Q4_0, Other: gguf.Q8_0}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file, err := gguf.Open(filepath.Join(f.Dir, GGUFFile))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		d, err := folder.New(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := d.Config()
		if err != nil {
			t.Fatal(err)
		}
		got, err := model.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		want := *m.Config
		want.DType, got.DType, want.Foreign, got.Foreign = 0, 0, nil, nil // files of blocks have none
		if got.Family == want.Family+"_text" {                            // files keep nothing of images
			want.Family, want.Placeholders = got.Family, nil
		}
		want.EOS, got.EOS = want.EOS[:min(1, len(want.EOS))], got.EOS[:min(1, len(got.EOS))]
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v\nwant %+v", name, *got, want)
		}
		if err := m.Config.CheckTensors(d.Names(), func(name string) []int { v, _ := d.Tensor(name); return v.Shape }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compareWithFloats(t, m, d)
	}
}

// compareWithFloats holds plain numbers against the recipe, and the spread of blocks.
func compareWithFloats(t *testing.T, m *Model, d *folder.Folder) {
	t.Helper()
	types := map[gguf.Type]int{}
	for _, s := range m.Config.Expected() {
		if s.Part == model.KVB {
			continue // each piece of it is made by itself
		}
		v, _ := d.Tensor(s.Name)
		got := make([]float32, v.Elements())
		if err := v.Floats(got, 0); err != nil {
			t.Fatal(err)
		}
		kind, _ := v.Type()
		types[kind]++
		r := m.floats(s)
		if kind != gguf.F32 && kind != gguf.BF16 {
			sum := 0.0
			for _, x := range got {
				sum += float64(x) * float64(x)
			}
			if rms := math.Sqrt(sum / float64(len(got))); math.Abs(rms/r.std-1) > 0.2 {
				t.Errorf("%s: %s has the spread %g, want %g", m.Shape, s.Name, rms, r.std)
			}
			continue
		}
		w := &writer{m: m}
		b := make([]byte, 4*len(got))
		w.wide(b, &r, 0, r.rows, nil)
		want := make([]float32, len(got))
		if err := gguf.F32.Decode(want, b); err != nil {
			t.Fatal(err)
		}
		for i, x := range got {
			if math.Abs(float64(x-want[i])) > 1e-6 { // 1 + w and exp are rounded
				t.Errorf("%s: value %d of %s is %g, want %g", m.Shape, i, s.Name, x, want[i])
				break
			}
		}
	}
	if types[gguf.Q8_0] == 0 || types[gguf.F32] == 0 || types[gguf.BF16] == 0 || m.Config.MoE.Experts > 0 && types[gguf.Q4_0] == 0 {
		t.Errorf("%s: types %v", m.Shape, types)
	}
}

// TestWriteGGUFRefuses types of which random blocks are no good, and families without a place.
func TestWriteGGUFRefuses(t *testing.T) {
	f := Folder{Dir: filepath.Join(t.TempDir(), "x")}
	if err := small(t, Options{}).WriteGGUF(context.Background(), f, GGUF{Experts: gguf.Q4_K, Other: gguf.F16}); !errors.Is(err, gguf.ErrType) {
		t.Error(err)
	}
	config, err := os.ReadFile(filepath.Join("..", "..", "testdata", "goldens", "mixtral", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := FromConfig("mixtral", config, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WriteGGUF(context.Background(), f, GGUF{Experts: gguf.Q4_K, Other: gguf.Q4_K}); !errors.Is(err, folder.ErrArchitecture) {
		t.Error(err)
	}
	if names := list(t, f.Dir); !slices.Equal(names, []string{"no folder"}) {
		t.Errorf("left %v", names)
	}
}
