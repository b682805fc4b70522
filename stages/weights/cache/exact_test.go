package cache

import (
	"os"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights/scaled"
)

// TestExactExperts: experts that a checkpoint has as INT4 in groups of 32 keep their integers and
// scales in INT4 and INT8 of such groups; in larger groups they are rounded again.
func TestExactExperts(t *testing.T) {
	const dir = "../../../testdata/goldens/kimi_k25"
	config, err := os.ReadFile(dir + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	set, err := scaled.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, x := range []struct {
		format tensor.Format
		exact  bool
	}{{tensor.INT4.By(32), true}, {tensor.INT8.By(32), true}, {tensor.INT4.By(64), false}} {
		w := &Weights{Config: cfg, Set: set, Format: x.format, Method: Search}
		for e := range cfg.MoE.Experts {
			w13, w2, err := w.Expert(1, e)
			if err != nil {
				t.Fatal(err)
			}
			n := cfg.ExpertNames(1, e)
			at, same := 0, true
			for _, m := range []struct {
				of   *tensor.Matrix
				name string
			}{{w13, n.Gate}, {w13, n.Up}, {w2, n.Down}} {
				want, _ := set.Tensor(m.name)
				rows, cols := want.Rows()
				if m.of == w2 {
					at = 0
				}
				values, row := make([]float32, rows*cols), make([]float32, cols)
				if err := want.Floats(values, 0); err != nil {
					t.Fatal(err)
				}
				for r := range rows {
					m.of.Row(row, at+r)
					for c, v := range row {
						same = same && v == values[r*cols+c]
					}
				}
				at += rows
			}
			if same != x.exact {
				t.Errorf("expert %d as %s: exact %v, want %v", e, x.format, same, x.exact)
			}
		}
	}
}
