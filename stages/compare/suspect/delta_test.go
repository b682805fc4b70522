package suspect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"krater/stages/model"
	"krater/stages/oracle"
	"krater/stages/weights"
	"krater/stages/weights/fused"
)

// TestDeltaNetMistakes: each mistake in gated DeltaNet and in gated attention changes values, and is
// named from them.
func TestDeltaNetMistakes(t *testing.T) {
	for name, full := range map[string]int{"qwen3_next": 3, "qwen3_5": 2} {
		if testing.Short() && name == "qwen3_5" {
			continue // the same operators
		}
		t.Run(name, func(t *testing.T) {
			c := goldenCase(t, name)
			tried := 0
			for layer, ops := range map[int][]string{1: {"delta_conv", "delta_out", "attn"}, full: {"q", "q_pe", "attn"}} {
				c.Layer = layer
				for _, op := range ops {
					c.Op = op
					tried += named(t, c)
				}
			}
			if tried < 35 {
				t.Errorf("%d mistakes tried", tried)
			}
		})
	}
}

// named plants every mistake of c's operator that changes values, and returns how many there are.
func named(t *testing.T, c *Case) (tried int) {
	t.Helper()
	l, err := newLayer(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range l.mistakes(c.Op) {
		want := m.values()
		if l.Err != nil {
			t.Fatal(l.Err)
		}
		if distance(want, l.Define(c.Op)) < 1e-3 { // sizes for which it is none
			continue
		}
		tried++
		c.Want = narrow(want)
		f, err := Find(c)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(f.Suspects, func(s Suspect) bool { return s.What == m.what && s.Op == c.Op }) {
			t.Errorf("layer %d, %s with %s: %d tried, suspects %v", c.Layer, c.Op, m.what, f.Tried, f.Suspects)
		}
	}
	return tried
}

// goldenCase is a golden's model of which nothing is known but one stream that enters any layer.
func goldenCase(t *testing.T, name string) *Case {
	t.Helper()
	dir := filepath.Join("../../../testdata/goldens", name)
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if set, err = fused.View(cfg, set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	weight := func(name string) ([]float32, error) {
		x, ok := set.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
		}
		rows, width := x.Rows()
		out := make([]float32, rows*width)
		return out, x.Floats(out, 0)
	}
	c := &Case{Config: cfg, Weight: weight, IDs: []int32{3, 141, 59, 26, 5, 35, 89, 79, 32}}
	top, err := oracle.New(cfg, weight, c.IDs, -1, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream := narrow(top.Get("embed"))
	c.Seen = func(at int, op string) []float32 {
		if at == c.Layer { // nothing but what enters it is known
			return nil
		}
		return stream
	}
	return c
}

func narrow(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
