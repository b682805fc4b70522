package load_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

// planned are the models whose plans are held against what is taken.
var planned = []string{"../../models/krater-tiny", "../../testdata/goldens/deepseek_v2", "../../testdata/goldens/deepseek_v2_lite", "../../testdata/goldens/qwen2", "../../testdata/goldens/qwen2_moe", "../../testdata/goldens/qwen3_moe"}

// openModel reads a model folder.
func openModel(t *testing.T, dir string) (*model.Config, *weights.Set) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	s, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return cfg, s
}

// sums adds up a plan: weights, what the device allocates, scratch.
func sums(needs []load.Need) (weights, allocated, scratch int64) {
	for _, n := range needs {
		switch {
		case n.Part.Weight():
			weights += n.Bytes
		case n.Part.Allocated():
			allocated += n.Bytes
		default:
			scratch += n.Bytes
		}
	}
	return weights, allocated, scratch
}

// near reports whether got is within a part of want.
func near(got, want int64, part float64) bool {
	return math.Abs(float64(got-want)) <= part*float64(want)
}

// TestPlan: loading takes the memory planned from the config, for any cut, cache and number of
// batches. After some steps the scratch is within its bound, and the bound is not far above it.
func TestPlan(t *testing.T) {
	for _, dir := range planned {
		cfg, ws := openModel(t, dir)
		for _, x := range []struct {
			groups, states int
			o              load.Options
		}{
			{1, 1, load.Options{Limits: stages.Limits{Tokens: 40, Seqs: 4, Blocks: 16, BlockTokens: 8}}},
			{2, 3, load.Options{Limits: stages.Limits{Tokens: 300, Seqs: 7, LogitRows: 300, Blocks: 33, BlockTokens: 16, Context: 90}, KVType: tensor.F32}},
			{len(cfg.Layers), 0, load.Options{Limits: stages.Limits{Tokens: 1, Seqs: 1, Blocks: 1, BlockTokens: 1}, KVType: tensor.BF16}},
			{2, 2, load.Options{Limits: stages.Limits{Tokens: 90, Seqs: 3, LogitRows: 20, Blocks: 16, BlockTokens: 8}, KVType: tensor.I8,
				Precision: load.Precision{Attention: tensor.INT8.By(64), Shared: tensor.INT4.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT4.By(64)}}},
			{1, 1, load.Options{Limits: stages.Limits{Tokens: 9, Seqs: 3, Blocks: 16, BlockTokens: 8}, KVType: tensor.F8E4M3,
				Precision: load.Precision{Attention: tensor.Q8_0.By(32), KVB: tensor.INT3.By(32), Dense: tensor.INT3.By(32), Head: tensor.INT8.By(32)}}},
			{1, 1, load.Options{Limits: stages.Limits{Tokens: 9, Seqs: 3, Blocks: 16, BlockTokens: 8}, KVType: tensor.F8E4M3,
				Precision: load.Precision{Attention: tensor.INT4.By(0), KVB: tensor.INT8.By(0), Dense: tensor.INT4.By(0), Head: tensor.INT8.By(0)}}},
		} {
			x.o.Partition = load.Even(len(cfg.Layers), x.groups)
			needs, err := load.Plan(cfg, x.o, load.Use{States: x.states, Streams: 1, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			bound, allocated, _ := sums(needs)
			dev := processor(t, 0)
			var told []int64
			x.o.Progress = func(phase string, done, all int64) {
				if phase != "load weights" || done > all || len(told) > 0 && done < told[len(told)-1] {
					t.Errorf("%s: %d of %d after %v", phase, done, all, told)
				}
				told = append(told, done)
			}
			p, err := load.Model(dev, cfg, ws, x.o)
			if err != nil {
				t.Fatal(err)
			}
			// The last one is topped up; what was counted before it has to come near.
			if n := len(told); n < len(cfg.Layers) || !near(told[n-1], told[n-2], 0.01) || !near(told[n-1], bound, 0.01) {
				t.Errorf("%s: progress %v, %d bytes planned", dir, told, bound)
			}
			for range x.states {
				st, err := stages.NewState(dev, cfg, p.Limits)
				if err != nil {
					t.Fatal(err)
				}
				defer st.Close()
			}
			if used := dev.Memory().Used - p.MadeBytes; !near(allocated, used, 0.01) {
				t.Errorf("%s in %d groups: %d bytes planned, %d allocated", dir, x.groups, allocated, used)
			}
			if !near(bound, p.WeightBytes, 0.01) {
				t.Errorf("%s: %d bytes of weights planned, %d bound", dir, bound, p.WeightBytes)
			}
			p.Close()
		}
	}
}

// TestPlanParts: the weights of each part, counted by hand.
func TestPlanParts(t *testing.T) {
	cfg := config(t)
	needs, err := load.Plan(cfg, load.Options{Limits: limits}, load.Use{States: 1, Streams: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	h, e, ff := int64(cfg.Hidden), int64(cfg.MoE.Experts), int64(cfg.MoE.FF)
	moe := int64(0)
	for i := range cfg.Layers {
		if cfg.MoELayer(i) {
			moe++
		}
	}
	a, layers := cfg.Layers[0].Mixer.(model.MLA), int64(len(cfg.Layers))
	attention := int64(a.QRank)*(h+1+int64(a.Heads*a.QKDim())) + int64(a.KVWidth())*h + int64(a.KVRank)*int64(1+a.Heads*(a.Nope+a.VDim)) + h*int64(a.Heads*a.VDim)
	for part, want := range map[load.Part]int64{
		load.Embedding: h * int64(cfg.Vocab), load.Head: h * int64(cfg.Vocab),
		load.Attention: layers * attention,
		load.Dense:     (layers - moe) * 3 * h * int64(cfg.DenseFF()),
		load.Experts:   moe * e * 3 * h * ff,
		load.Shared:    moe * 3 * h * int64(cfg.MoE.SharedFF),
		load.Router:    moe*h*e + (2*layers+1)*h,
	} {
		if n := needs[part]; n.Part != part || n.Bytes != 2*want || want == 0 {
			t.Errorf("%s: %d bytes, want %d", part, n.Bytes, 2*want)
		}
	}
	tied := config(t, `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
	if needs, err = load.Plan(tied, load.Options{Limits: limits}, load.Use{}); err != nil || needs[load.Head].Bytes != 0 {
		t.Errorf("a tied head takes %d bytes, %v", needs[load.Head].Bytes, err)
	}
}

// TestPlanScratch: prompts and decoding of every kind stay within the bound.
func TestPlanScratch(t *testing.T) {
	for _, dir := range planned {
		cfg, ws := openModel(t, dir)
		o := load.Options{Limits: stages.Limits{Tokens: 256, Seqs: 4, Blocks: 80, BlockTokens: 16}}
		dev, err := cpu.New(cpu.Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		needs, err := load.Plan(cfg, o, load.Use{States: 1, Streams: 1, Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		p, err := load.Model(dev, cfg, ws, o)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		m, err := direct.New(dev, p)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		prompt := make([]int32, 200)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range prompt {
			prompt[i] = int32(rng.IntN(cfg.Vocab))
		}
		seqs := []*drive.Sequence{{Prompt: prompt, New: 3}, {Prompt: prompt[:50], New: 5}}
		if err := drive.Run(m, seqs, drive.Options{}); err != nil {
			t.Fatal(err)
		}
		_, _, bound := sums(needs)
		if got := dev.Scratch(); got > bound || got < bound/8 {
			t.Errorf("%s: %d bytes of scratch held, at most %d planned", dir, got, bound)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	cfg := config(t)
	for name, x := range map[string]struct {
		o load.Options
		u load.Use
	}{
		"no limits": {load.Options{}, load.Use{}},
		"partition": {load.Options{Limits: limits, Partition: []int{1}}, load.Use{}},
		"use":       {load.Options{Limits: limits}, load.Use{States: -1}},
	} {
		if _, err := load.Plan(cfg, x.o, x.u); err == nil {
			t.Errorf("%s: planned", name)
		}
	}
}

// TestPlanOfTheImpossible: sizes beyond an integer stay the largest.
func TestPlanOfTheImpossible(t *testing.T) {
	cfg := config(t)
	cfg.MaxContext = math.MaxInt32
	o := load.Options{Limits: stages.Limits{Tokens: 1 << 20, Seqs: 1, Blocks: math.MaxInt32, BlockTokens: 1}}
	cfg.Hidden = 1 << 40
	needs, err := load.Plan(cfg, o, load.Use{States: 1 << 40, Streams: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range needs {
		if n.Bytes < 0 {
			t.Errorf("%s: %d bytes", n.Part, n.Bytes)
		}
	}
}

// touching is a device that writes all memory it hands out and reads all it is
// given, so that the system has to find it.
type touching struct{ *cpu.Device }

const page = 4096

func (d touching) Alloc(n int) (device.Buffer, error) {
	b, err := d.Device.Alloc(n)
	if err == nil {
		host := b.Host()
		for i := 0; i < len(host); i += page {
			host[i] = 0
		}
	}
	return b, err
}

var readSum byte

func (d touching) Wrap(b []byte) (device.Buffer, error) {
	for i := 0; i < len(b); i += page {
		readSum += b[i]
	}
	return d.Device.Wrap(b)
}

// asLoader makes the test binary load a model and tell what that took.
const asLoader = "TEST_AS_LOADER"

// resident is VmRSS in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("the system does not tell what is resident")
	}
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kb, err := strconv.ParseInt(string(bytes.Fields(value)[0]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// residentOptions are large enough for the process's own needs to be small.
func residentOptions(cfg *model.Config) (load.Options, int) {
	return load.Options{Limits: stages.Limits{Tokens: 1024, Seqs: 32, Blocks: 4096, BlockTokens: 32}, Partition: load.Even(len(cfg.Layers), 2)}, 2
}

// TestPlanIsResident: a process that loads a model and uses all of the memory
// grows by what was planned, within 10 %.
func TestPlanIsResident(t *testing.T) {
	dir := planned[0]
	cfg, ws := openModel(t, dir)
	o, states := residentOptions(cfg)
	if os.Getenv(asLoader) != "" {
		dev := touching{processor(t, 0)}
		before := resident(t)
		p, err := load.Model(dev, cfg, ws, o)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for range states {
			st, err := stages.NewState(dev, cfg, p.Limits)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
		}
		fmt.Printf("grown %d\n", resident(t)-before)
		return
	}
	needs, err := load.Plan(cfg, o, load.Use{States: states})
	if err != nil {
		t.Fatal(err)
	}
	w, allocated, _ := sums(needs)
	resident(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestPlanIsResident$")
	cmd.Env = append(os.Environ(), asLoader+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), "grown ")
	text, _, _ := strings.Cut(rest, "\n")
	grown, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d bytes planned, grown by %d", w+allocated, grown)
	if !near(w+allocated, grown, 0.1) {
		t.Errorf("%d bytes planned, the process grew by %d", w+allocated, grown)
	}
}
