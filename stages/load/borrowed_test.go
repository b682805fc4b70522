package load

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages"
	"krater/stages/model"
)

// TestBorrowed: a device must have the layers whose keys and values its own use, and all layers of a
// model with rows for single layers.
func TestBorrowed(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "goldens", "gemma4_e", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		first, layers int
		rows          bool // for single layers
		want          string
	}{
		{0, 6, true, ""}, {0, 3, false, ""}, {1, 5, false, ""},
		{0, 5, true, "must be on one device"}, {1, 5, true, "must be on one device"},
		{2, 4, false, "layer 3 uses the keys and values of layer 1"}, {5, 1, false, "layer 5 uses the keys and values of layer 2"},
	} {
		cfg, err := model.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if !x.rows {
			cfg.PerLayer = 0
		}
		o := Options{First: x.first, Layers: x.layers, Limits: stages.Limits{Tokens: 8, Seqs: 2, Blocks: 8, BlockTokens: 4}}
		_, err = o.LimitsFor(cfg)
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}
