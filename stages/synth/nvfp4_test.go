//go:build unix

package synth

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// logits runs a prompt and returns the logits of all its positions.
func logits(t *testing.T, cfg *model.Config, set *weights.Set, p load.Precision) (all []float32) {
	t.Helper()
	dev := processor(t)
	parts, err := load.Model(dev, cfg, set, load.Options{Limits: limits, KVType: tensor.F32, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	defer parts.Close()
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	see := func(_ int, row []float32) { all = append(all, row...) }
	if err := drive.Run(m, []*drive.Sequence{{Prompt: prompt(20, cfg.Vocab, 9), All: true, See: see}}, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNVFP4: matrices of a file of NVFP4 have a scale beside them, are multiplied as blocks with the
// values that they decode to, and the model answers as one of those values.
func TestNVFP4(t *testing.T) {
	config := strings.NewReplacer(`"intermediate_size": 288`, `"intermediate_size": 256`, `"moe_intermediate_size": 80`, `"moe_intermediate_size": 128`).Replace(smallConfig)
	m, err := FromConfig("small", []byte(config), Options{Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	f := Folder{Dir: filepath.Join(t.TempDir(), "x"), Threads: 2}
	if err := m.WriteGGUF(context.Background(), f, GGUF{Experts: gguf.NVFP4, Other: gguf.NVFP4}); err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Open(filepath.Join(f.Dir, GGUFFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	d, err := folder.New(file)
	if err != nil {
		t.Fatal(err)
	}
	set, kinds := d.Set(), map[model.Part]int{}
	for _, s := range m.Config.Expected() {
		x, _ := set.Tensor(s.Name)
		if x.Coded == nil || x.Coded.Encoding() != "nvfp4" {
			continue
		}
		kinds[s.Part]++
		rows, cols := x.Rows()
		q, err := weights.Exactly(weights.FormatOf(x), cols, x)
		if err != nil || q == nil || q.Encoding != tensor.NVFP4Scaled {
			t.Fatalf("%s: %v, %v", s.Name, q, err)
		}
		row, values, squares := make([]float32, cols), make([]float32, rows*cols), 0.0
		if err := x.Floats(values, 0); err != nil {
			t.Fatal(err)
		}
		for r := range rows {
			q.Row(row, r)
			for c, v := range values[r*cols:][:cols] {
				if squares += float64(v) * float64(v); math.Abs(float64(row[c]-v)) > math.Abs(float64(v))/(1<<23) { // the scales' product is rounded
					t.Fatalf("%s, row %d, column %d: %g, want %g", s.Name, r, c, row[c], v)
				}
			}
		}
		if std, want := math.Sqrt(squares/float64(len(values))), m.floats(s).std; math.Abs(std/want-1) > 0.06 {
			t.Errorf("%s has the spread %g, want %g", s.Name, std, want)
		}
	}
	if kinds[model.Experts] != 3*32*3 || kinds[model.Attention] == 0 || kinds[model.Shared] == 0 || kinds[model.DenseFFN] == 0 || kinds[model.Head] != 1 {
		t.Errorf("matrices of NVFP4: %v", kinds)
	}
	m.Config.Types = load.Types(m.Config, set)
	native := tensor.Native.By(tensor.BlockGroup)
	want := logits(t, m.Config, set, load.Precision{})
	got := logits(t, m.Config, set, load.Precision{Experts: native, Attention: native, KVB: native, Shared: native, Dense: native, Head: native})
	var off, all float64
	for i, v := range want {
		off += float64(got[i]-v) * float64(got[i]-v)
		all += float64(v) * float64(v)
	}
	// Activations are rounded to 8 bits: the bound of direct.TestNative is 0.05.
	if loss := math.Sqrt(off / all); !(loss < 0.02) {
		t.Errorf("relative L2 of the logits %.4f", loss)
	} else {
		t.Logf("relative L2 of the logits %.4f", loss)
	}
}
