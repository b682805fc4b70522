package oracle_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"krater/stages/compare"
	"krater/stages/model"
	"krater/stages/oracle"
	"krater/stages/weights"
)

// TestOracle holds the oracle itself against the goldens' last logits.
func TestOracle(t *testing.T) {
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v2", "qwen2"} {
		dir := filepath.Join("../../testdata/goldens", name)
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
		defer set.Close()
		g, err := compare.ReadGolden(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range g.Prompts {
			if len(p.IDs) > 17 {
				continue // for speed
			}
			logits, err := oracle.Logits(cfg, compare.Weights(set), p.IDs)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range p.Last {
				if got := logits[len(p.IDs)-1][i]; !(math.Abs(got-float64(want)) <= 1e-4) {
					t.Fatalf("%s, %s: logit %d is %v, the golden has %v", name, p.Name, i, got, want)
				}
			}
		}
	}
}
