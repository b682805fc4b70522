//go:build unix

package cache_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

var _ load.Store = (*cache.Matrices)(nil)

// heard is a store that notes what another gives.
type heard struct {
	*cache.Matrices
	given map[string][]byte // values and scales
}

func (h *heard) Matrix(name string, f tensor.Layout, make func() (*tensor.Matrix, error)) (device.QMat, error) {
	q, err := h.Matrices.Matrix(name, f, make)
	if err == nil {
		h.given[name] = append(bytes.Clone(q.Values.Host()[q.ValueAt:][:f.ValueBytes()]), q.Scales.Host()[q.ScaleAt:][:f.ScaleBytes()]...)
	}
	return q, err
}

// TestTinyLoad loads the default model with every part that is no expert as
// integers: what the first load makes, the second has from the file.
func TestTinyLoad(t *testing.T) {
	const dir = "../../../models/krater-tiny"
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	print, err := cache.MatrixFingerprintOf(config, cfg, set)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	o := cache.MatrixOptions{Source: print, Dir: t.TempDir(), Precision: "INT4, lm_head INT8"}
	run := func() (*heard, int64) {
		m, err := cache.OpenMatrices(t.Context(), dev, o)
		if err != nil {
			t.Fatal(err)
		}
		h := &heard{m, map[string][]byte{}}
		parts, err := load.Model(dev, cfg, set, load.Options{
			Limits: stages.Limits{Tokens: 16, Seqs: 2, Blocks: 4, BlockTokens: 16, LogitRows: 2, Context: 32}, Store: h,
			Precision: load.Precision{Attention: tensor.INT4.By(32), KVB: tensor.INT4.By(32), Shared: tensor.INT4.By(32), Dense: tensor.INT4.By(32), Head: tensor.INT8.By(32)},
		})
		if err != nil {
			t.Fatal(err)
		}
		bytes := parts.WeightBytes
		parts.Close()
		if err := m.Seal(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		return h, bytes
	}
	first, size := run()
	if first.Made != len(first.given) || first.Made < 20 || first.Found {
		t.Errorf("made %d of %d", first.Made, len(first.given))
	}
	for _, o.Copy = range []bool{false, true} {
		second, again := run()
		if second.Made != 0 || second.Taken != len(first.given) || !second.Found || again != size {
			t.Errorf("made %d, taken %d of %d; %d bytes, first %d", second.Made, second.Taken, len(first.given), again, size)
		}
		for name, want := range first.given {
			if !bytes.Equal(second.given[name], want) {
				t.Errorf("%s differs", name)
			}
		}
	}
	t.Logf("%d matrices", len(first.given))
}
