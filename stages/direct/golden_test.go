package direct_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/direct"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

const goldens = "../../testdata/goldens"

// limits fit every prompt of the goldens eight times over.
var limits = stages.Limits{Tokens: 128, Seqs: 8, LogitRows: 128, Blocks: 80, BlockTokens: 16}

// opened is a model on a device.
type opened struct {
	cfg   *model.Config
	set   *weights.Set
	model *direct.Model
}

// open loads a model for a test.
func open(t testing.TB, dev load.Device, dir, config string, o load.Options) *opened {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, config))
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
	parts, err := load.Model(dev, cfg, set, o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		parts.Close()
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return &opened{cfg, set, m}
}

// agree compares a model with its golden.
func agree(t *testing.T, m *opened, dir string, o compare.Options) {
	t.Helper()
	g, err := compare.ReadGolden(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := compare.Run(m.model, m.cfg, g, compare.Weights(m.set), o)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Errorf("\n%s", text.String())
	} else if testing.Verbose() {
		t.Logf("\n%s", text.String())
	}
}

// TestGoldensOnReference holds the stages themselves against the goldens, on the
// reference operators and a device that defers everything.
func TestGoldensOnReference(t *testing.T) {
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v2"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(goldens, name)
			m := open(t, refdevice.Device{}, dir, "config.json", load.Options{Limits: limits, KVType: tensor.F32, Partition: []int{1, 2}})
			agree(t, m, dir, compare.Options{Chunk: 7})
		})
	}
}
