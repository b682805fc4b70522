package plan

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
	"krater/stages/expert"
	"krater/stages/model"
	"krater/stages/synth"
)

// plannedAt plans a shape for a GPU that is not there, by its name and memory.
func plannedAt(t *testing.T, card string, memory int64, heat [][]uint32, args ...string) *Plan {
	t.Helper()
	return plannedFor(t, config.Case{Rank: config.RankFacts{Name: card, Memory: memory}, Heat: heat}, args...)
}

// shape is the model of these tests.
func shape(t *testing.T) *model.Config {
	t.Helper()
	data, err := synth.Config("deepseek-v2-lite", 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// plannedFor plans it for a case.
func plannedFor(t *testing.T, c config.Case, args ...string) *Plan {
	t.Helper()
	var o config.Options
	p, err := kong.New(&o)
	if err == nil {
		_, err = p.Parse(append([]string{"--device", "cuda", "--threads", "16"}, args...))
	}
	if err != nil {
		t.Fatal(err)
	}
	made, err := New(shape(t), 0, o, c, roomy())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

const gib = 1 << 30

// roomy is a machine that holds the experts of the shape in either form.
func roomy() *machine.Machine {
	return &machine.Machine{
		CPU: machine.CPU{
			Model: "Good Processor", Online: []int{0, 1, 2, 3}, Allowed: []int{0, 1, 2, 3}, Cores: 4, Sockets: 1,
			Siblings: [][]int{{0}, {1}, {2}, {3}}, Features: machine.Features{AVX2: true, AVX512: true, AVX512VNNI: true},
		},
		Nodes:  []machine.Node{{CPUs: []int{0, 1, 2, 3}, Total: 8 * gib, Free: 7 * gib}},
		Memory: machine.Memory{Total: 64 * gib, Free: 6 * gib, Available: 7 * gib},
	}
}

const hopperName = "NVIDIA H100 80GB HBM3"

// TestForesight: where a GPU does not hold all experts, what flags leave open is chosen by the
// forecast of that GPU, with a line that says why; else the fixed strategies stand.
func TestForesight(t *testing.T) {
	dir := t.TempDir()
	// Beside slow processors a GPU computes generated tokens by itself.
	slow, err := rates.CPU{Name: "slow", Threads: 16, ReadGBps: 0.5, Experts: rates.Curve{Peak: 0.001}}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	hopper, _ := rates.Named("h100")
	kept := func(name string) string {
		folder := t.TempDir()
		c := hopper
		c.Name = name
		if err := predict.KeepRates(folder, rates.File{Machine: predict.Identity(roomy(), 16), Card: &c, CPU: &slow}); err != nil {
			t.Fatal(err)
		}
		return folder
	}
	const memory = 6 * gib
	for name, x := range map[string]struct {
		card, folder, flags string
		prefill, decode     string // what either begins with
		line                string // a part of it; "": none
	}{
		"known":         {hopperName, dir, "", "layer_grouped", "learned", "predicted for " + hopperName + " (its description), routing zipf; krater plan has the table"},
		"unknown":       {"NVIDIA Wonder", dir, "", "layer_grouped", "learned", "the rates of the GPU NVIDIA Wonder are unknown"},
		"measured":      {"NVIDIA Wonder", kept("NVIDIA Wonder"), "", "layer_grouped", "layer_grouped", "predicted for NVIDIA Wonder (measured on this machine)"},
		"another one":   {hopperName, kept("NVIDIA Wonder"), "", "layer_grouped", "layer_grouped", "(its description)"},
		"one is wanted": {hopperName, dir, "--decode-strategy lru", "layer_grouped", "lru", "; decode lru, "},
		"both are":      {hopperName, dir, "--prefill-strategy chunked --decode-strategy lru", "chunked", "lru", ""},
	} {
		o := plannedAt(t, x.card, memory, nil, append(strings.Fields(x.flags), "--cache-dir", x.folder)...)
		if p, d := o.Experts.Prefill.Name(), o.Experts.Decode.Name(); !strings.HasPrefix(p, x.prefill) || !strings.HasPrefix(d, x.decode) {
			t.Errorf("%s: %s and %s: %s", name, p, d, o.Foreseen.Line)
		}
		if !strings.Contains(o.Foreseen.Line, x.line) || (x.line == "") != (o.Foreseen.Line == "") {
			t.Errorf("%s: %q", name, o.Foreseen.Line)
		}
	}
	// With room for all nothing has to be foreseen.
	if o := plannedAt(t, hopperName, 80*gib, nil, "--cache-dir", dir); o.Foreseen != nil || !o.Resident {
		t.Errorf("%+v", o.Foreseen)
	}
}

// TestForesightHeat: counts of routers stand in for the usual skew; those of another model do
// not.
func TestForesightHeat(t *testing.T) {
	heat := make([][]uint32, 26)
	for l := range heat {
		heat[l] = make([]uint32, 64)
		for e := range 8 {
			heat[l][e] = 1000
		}
	}
	for want, counts := range map[string][][]uint32{"routing counted": heat, "routing zipf": {{1, 2}}} {
		o := plannedAt(t, hopperName, 6*gib, counts, "--cache-dir", t.TempDir())
		if !strings.Contains(o.Foreseen.Line, want) {
			t.Errorf("%s: %q", want, o.Foreseen.Line)
		}
	}
}

// TestForesightDamaged: kept rates that cannot be read are as good as none.
func TestForesightDamaged(t *testing.T) {
	dir := t.TempDir()
	path, err := predict.RatesPath(dir, predict.Identity(roomy(), 16))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"krater_rates":1,"card":`), 0o600); err != nil {
		t.Fatal(err)
	}
	o := plannedAt(t, hopperName, 6*gib, nil, "--cache-dir", dir)
	if !strings.Contains(o.Foreseen.Line, "its description") {
		t.Errorf("%q", o.Foreseen.Line)
	}
}

// TestForesightIsQuick: a start does not wait for it.
func TestForesightIsQuick(t *testing.T) {
	o := plannedAt(t, hopperName, 6*gib, nil, "--cache-dir", t.TempDir())
	cfg := shape(t)
	begun := time.Now()
	if got := predict.Choose(cfg, &o.Options, o.Case, o.Machine, o.HostExperts, 256<<20, 1<<30); got.Line == "" {
		t.Error("nothing is foreseen")
	}
	if took := time.Since(begun); took > 2*time.Second { // some ms, on a machine that others use as well
		t.Errorf("it took %v", took)
	} else {
		t.Logf("%v", took)
	}
}

// TestNearRowsOfCard: pools of memory nodes beside a GPU have room for rows as integers too.
func TestNearRowsOfCard(t *testing.T) {
	o := plannedAt(t, hopperName, 6*gib, nil, "--fake-topology", "2x8", "--decode-strategy", "learned", "--cache-dir", t.TempDir())
	cfg := shape(t)
	lim, err := o.Load.LimitsFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	plain := int64(o.Pools) * expert.NearBytes(lim, cfg.Hidden)
	lim.QuantGroup = 128
	want := int64(o.Pools) * expert.NearBytes(lim, cfg.Hidden)
	for _, c := range o.Memory.Devices[0].Components {
		if c.Name == "rows of pools" && c.Bytes == want && want > plain {
			return
		}
	}
	t.Errorf("no rows of pools of %d bytes: %+v", want, o.Memory.Devices[0].Components)
}

// TestForesightMeasures: a plan for an open GPU asks who measures, where a strategy is left open
// and not all experts fit.
func TestForesightMeasures(t *testing.T) {
	card, _ := rates.Named("rtx-4090")
	card.Name = "NVIDIA Mine"
	asked := 0
	for _, x := range []struct {
		memory int64
		flags  string
		want   int
	}{
		{6 * gib, "", 1},
		{6 * gib, "--prefill-strategy chunked --decode-strategy lru", 0},
		{80 * gib, "", 0},
	} {
		asked = 0
		o := plannedFor(t, config.Case{Rank: config.RankFacts{Name: card.Name, Memory: x.memory}, Measure: func(tensor.Format) *rates.File {
			asked++
			return &rates.File{Card: &card}
		}}, append(strings.Fields(x.flags), "--cache-dir", t.TempDir())...)
		if asked != x.want {
			t.Errorf("%d bytes, %s: asked %d times", x.memory, x.flags, asked)
		}
		if x.want > 0 && !strings.Contains(o.Foreseen.Line, "predicted for NVIDIA Mine (measured on this machine)") {
			t.Errorf("%s", o.Foreseen.Line)
		}
	}
}

// TestGPURefusesConfig: sizes that no kernel of a GPU takes are refused by the plan, which reads
// nothing but the config; a CPU takes them.
func TestGPURefusesConfig(t *testing.T) {
	data, err := synth.Config("qwen3-coder-next", 4)
	if err != nil {
		t.Fatal(err)
	}
	for keys, refused := range map[string]string{"128": "", "129": "gated DeltaNet: key heads of 129", "256": "gated DeltaNet: key heads of 256"} {
		changed := regexp.MustCompile(`("linear_key_head_dim": *)\d+`).ReplaceAll(data, []byte("${1}"+keys))
		cfg, err := model.Parse(changed)
		if err != nil {
			t.Fatal(err)
		}
		for _, device := range []config.Kind{config.CUDA, config.CPU} {
			o := config.Default()
			o.Device, o.CacheDir = device, t.TempDir()
			_, err := New(cfg, 0, o, config.Case{Rank: config.RankFacts{Name: hopperName, Memory: 80 * gib}}, roomy())
			if want := refused != "" && device == config.CUDA; (err != nil) != want || want && !strings.Contains(err.Error(), refused) {
				t.Errorf("key heads of %s on %s: %v", keys, device, err)
			}
		}
	}
}
