package direct_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/direct"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/scaled"
)

var _ load.Device = (*cpu.Device)(nil)

// limits fit every prompt of the goldens eight times over.
var limits = stages.Limits{Tokens: 128, Seqs: 8, LogitRows: 128, Blocks: 160, BlockTokens: 16}

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
	if config != "config.json" {
		data = goldens.Wrapped(t, dir, data)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := scaled.Open(dir)
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
	if o.Precision.Experts.PerTensor() {
		cfg.Types = load.Types(cfg, set)
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
	})
	return &opened{cfg, set, m}
}

// halves are the layer groups of a golden's model in two.
func halves(t testing.TB, dir string) []int {
	t.Helper()
	cfg, _ := files(t, dir, "config.json")
	return load.Even(len(cfg.Layers), 2)
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

// turn reports whether the case at index i of n is the turn of a golden. The short suite gives each
// golden one case, and the goldens together have all; in full each golden has all.
func turn(golden, i, n int) bool { return !testing.Short() || golden%n == i }

// mixtures are the golden folders of models with experts.
func mixtures(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(goldens.Names(t), func(name string) bool {
		cfg, _ := files(t, folder(name), "config.json")
		return cfg.MoE.Experts == 0
	})
}

// folder is where a golden, or krater-tiny, is.
func folder(name string) string {
	if name == "krater-tiny" {
		return tiny
	}
	return filepath.Join("../../testdata/goldens", name)
}

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

// target is a device that TestGoldens runs on.
type target struct {
	name string
	make func(testing.TB) load.Device
}

// targets are the CPU with each set of kernels that this machine has, the simulated
// device, and the reference operators on a device that defers everything. The reference is
// left out under the race detector, which makes it thirty times slower.
func targets() []target {
	list := []target{{"hostsim", func(t testing.TB) load.Device {
		dev, err := hostsim.New(hostsim.Options{CPU: processor(t, 2)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dev.Close(); err != nil || dev.Streams() != 0 {
				t.Errorf("%v, %d streams are not closed", err, dev.Streams())
			}
		})
		return dev
	}}}
	if !raceEnabled {
		list = append(list, target{"reference", func(testing.TB) load.Device { return refdevice.Device{} }})
	}
	for _, l := range level.Available() {
		list = append(list, target{"cpu " + l.String(), func(t testing.TB) load.Device { return processorAt(t, 2, l) }})
	}
	return list
}

// TestGoldens compares every layer, operator, router choice, logit and greedy token of
// every golden folder, on each device, with the model cut into groups, prompts cut into
// chunks and prompts batched: each value of each at least once, all combinations with
// KRATER_GOLDENS=all. Short tests run a golden on one of the two slow devices: the reference, or the
// CPU without vector instructions, whose recorded bits TestBits has for every golden.
func TestGoldens(t *testing.T) {
	chunks, batches, devices := []int{7, 1, 1000, 32}, []int{3, 1, 8}, targets()
	slow := []string{"reference", "cpu pure"}
	golden := 0
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		cfg, _ := files(t, f.Dir, "config.json")
		golden++
		for i, s := range goldens.Settings(min(3, len(cfg.Layers)), len(chunks), len(batches), len(devices)) {
			if !goldens.Everything() {
				s[3] = (i + golden) % len(devices) // all devices have all chunks and batches
			}
			groups, chunk, batch, dev := 1+s[0], chunks[s[1]], batches[s[2]], devices[s[3]]
			if testing.Short() && !goldens.Everything() && (dev.name == slow[golden%2] || (i+golden/len(devices))%2 > 0) {
				continue // other models have it; TestBits has all of them on the processor
			}
			t.Run(fmt.Sprintf("%s, %d groups, chunk %d, batch %d", dev.name, groups, chunk, batch), func(t *testing.T) {
				m := open(t, dev.make(t), f.Dir, "config.json", load.Options{Limits: limits, KVType: tensor.F32, Partition: load.Even(len(cfg.Layers), groups)})
				agree(t, m, f.Dir, compare.Options{Chunk: chunk, Batch: batch})
			})
		}
	})
}

// TestGoldensConfigOfTransformers5 reads the same models from the other config
// style.
func TestGoldensConfigOfTransformers5(t *testing.T) {
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		m := open(t, processor(t, 1), f.Dir, "config.transformers5.json", load.Options{Limits: limits, KVType: tensor.F32})
		agree(t, m, f.Dir, compare.Options{})
	})
}
