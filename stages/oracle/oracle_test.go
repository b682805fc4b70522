package oracle_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/model"
	"krater/stages/oracle"
	"krater/stages/weights/scaled"
)

// TestOracle holds the oracle itself against the goldens' last logits.
func TestOracle(t *testing.T) {
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		data, err := os.ReadFile(filepath.Join(f.Dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		set, err := scaled.Open(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		g, err := compare.ReadGolden(f.Dir)
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
					t.Fatalf("%s: logit %d is %v, the golden has %v", p.Name, i, got, want)
				}
			}
		}
	})
}
