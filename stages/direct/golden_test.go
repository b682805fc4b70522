package direct_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/direct"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

var _ load.Device = (*cpu.Device)(nil)

const goldens = "../../testdata/goldens"

// limits fit every prompt of the goldens eight times over.
var limits = stages.Limits{Tokens: 128, Seqs: 8, LogitRows: 128, Blocks: 80, BlockTokens: 16}

// opened is a model on a device.
type opened struct {
	cfg   *model.Config
	set   *weights.Set
	model *direct.Model
}

// files reads a model folder's config, by the file's name, and opens its weights
// until the test ends.
func files(t testing.TB, dir, config string) (*model.Config, *weights.Set) {
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
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return cfg, set
}

// open loads a model for a test.
func open(t testing.TB, dev load.Device, dir, config string, o load.Options) *opened {
	t.Helper()
	cfg, set := files(t, dir, config)
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

// names are the goldens of every family, mixtures those with experts.
var (
	names    = []string{"deepseek_v2_lite", "deepseek_v2", "qwen2"}
	mixtures = names[:2]
)

// processor is the CPU device, closed when the test ends.
func processor(t testing.TB, threads int) *cpu.Device {
	t.Helper()
	return processorAt(t, threads, level.Auto)
}

// processorAt is processor with an instruction level.
func processorAt(t testing.TB, threads int, l level.Level) *cpu.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: threads, Level: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// short is the part of TestGoldens that the short suite runs: every value once
// or twice.
var short = map[[3]int]bool{{1, 1000, 1}: true, {2, 7, 3}: true, {3, 32, 8}: true, {3, 1, 8}: true}

// TestGoldens compares every layer, operator, router choice, logit and greedy
// token, with the model cut into groups, prompts cut into chunks and prompts
// batched.
func TestGoldens(t *testing.T) {
	dev := processor(t, 2)
	for _, name := range names {
		dir := filepath.Join(goldens, name)
		for groups := 1; groups <= 3; groups++ {
			m := open(t, dev, dir, "config.json", load.Options{Limits: limits, KVType: tensor.F32, Partition: load.Even(3, groups)})
			for _, chunk := range []int{1, 7, 32, 1000} {
				for _, batch := range []int{1, 3, 8} {
					if testing.Short() && !short[[3]int{groups, chunk, batch}] {
						continue
					}
					t.Run(fmt.Sprintf("%s, %d groups, chunk %d, batch %d", name, groups, chunk, batch), func(t *testing.T) {
						agree(t, m, dir, compare.Options{Chunk: chunk, Batch: batch})
					})
				}
			}
		}
	}
}

// TestGoldensAtEveryLevel: each set of kernels by itself meets the goldens.
func TestGoldensAtEveryLevel(t *testing.T) {
	for l := level.Pure; l <= level.Best(); l++ {
		for _, name := range names {
			t.Run(l.String()+" "+name, func(t *testing.T) {
				dir := filepath.Join(goldens, name)
				m := open(t, processorAt(t, 2, l), dir, "config.json", load.Options{Limits: limits, KVType: tensor.F32})
				agree(t, m, dir, compare.Options{})
			})
		}
	}
}

// TestGoldensConfigOfTransformers5 reads the same models from the other config
// style.
func TestGoldensConfigOfTransformers5(t *testing.T) {
	dev := processor(t, 1)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(goldens, name)
			m := open(t, dev, dir, "config.transformers5.json", load.Options{Limits: limits, KVType: tensor.F32})
			agree(t, m, dir, compare.Options{})
		})
	}
}

// TestGoldensOnReference holds the stages themselves against the goldens, on the
// reference operators and a device that defers everything.
func TestGoldensOnReference(t *testing.T) {
	if raceEnabled {
		t.Skip("nothing runs beside anything else there")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(goldens, name)
			m := open(t, refdevice.Device{}, dir, "config.json", load.Options{Limits: limits, KVType: tensor.F32, Partition: []int{1, 2}})
			agree(t, m, dir, compare.Options{Chunk: 7})
		})
	}
}
