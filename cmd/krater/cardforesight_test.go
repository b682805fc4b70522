package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/local/predict"
	"krater/cmd/krater/cmdline"
	"krater/kernels/machine"
	"krater/scheduler/planner/rates"
	"krater/stages/expert"
	"krater/stages/model"
	"krater/stages/source"
	"krater/stages/synth"
)

// lookedAt plans a shape for a card that is not there, by its name and memory.
func lookedAt(t *testing.T, shape, card string, memory int64, heat [][]uint32, args ...string) (*plan.Plan, *config.Options) {
	t.Helper()
	return lookedWithin(t, shape, config.Case{Rank: config.RankFacts{Name: card, Memory: memory}, Heat: heat}, args...)
}

// lookedWithin does it for a card as limits have it.
func lookedWithin(t *testing.T, shape string, l config.Case, args ...string) (*plan.Plan, *config.Options) {
	t.Helper()
	var c cli
	if _, _, err := cmdline.Parse(&c, append([]string{"run", "--device", "cuda", "--threads", "16", "hi"}, args...)); err != nil {
		t.Fatal(err)
	}
	config, err := synth.Config(shape, 0)
	if err != nil {
		t.Fatal(err)
	}
	src := &source.Source{Name: shape, Files: source.MemoryFiles{"config.json": config}}
	cfg, _, err := src.Config()
	if err != nil {
		t.Fatal(err)
	}
	f := &c.Run.Options
	o, err := plan.New(cfg, src.Size("tokenizer.json"), *f, l, roomyMachine())
	if err != nil {
		t.Fatal(err)
	}
	return o, f
}

// roomyMachine holds the experts of the shape in either form.
func roomyMachine() *machine.Machine {
	m := goodMachine()
	m.Memory.Total = 64 * gib
	return m
}

const hopperName = "NVIDIA H100 80GB HBM3"

// TestForesight: where a card does not hold all experts, what flags leave open is chosen by the
// forecast of that card, with a line that says why; else the fixed strategies stand.
func TestForesight(t *testing.T) {
	dir := t.TempDir()
	// Beside slow processors a card computes generated tokens by itself.
	slow, err := rates.CPU{Name: "slow", Threads: 16, ReadGBps: 0.5, Experts: rates.Curve{Peak: 0.001}}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	hopper, _ := rates.Named("h100")
	kept := func(name string) string {
		folder := t.TempDir()
		c := hopper
		c.Name = name
		if err := predict.KeepRates(folder, rates.File{Machine: predict.Identity(roomyMachine(), 16), Card: &c, CPU: &slow}); err != nil {
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
		"known":         {hopperName, dir, "", "layer_grouped", "hot_cached_static", "predicted for " + hopperName + " (its description), routing zipf; krater plan has the table"},
		"unknown":       {"NVIDIA Wonder", dir, "", "layer_grouped", "hot_cached_static", "nothing is known of the card NVIDIA Wonder"},
		"measured":      {"NVIDIA Wonder", kept("NVIDIA Wonder"), "", "layer_grouped", "layer_grouped", "predicted for NVIDIA Wonder (measured on this machine)"},
		"another one":   {hopperName, kept("NVIDIA Wonder"), "", "layer_grouped", "layer_grouped", "(its description)"},
		"one is wanted": {hopperName, dir, "--decode-strategy lru", "layer_grouped", "lru", "; decode lru, "},
		"both are":      {hopperName, dir, "--prefill-strategy chunked --decode-strategy lru", "chunked", "lru", ""},
	} {
		o, _ := lookedAt(t, "deepseek-v2-lite", x.card, memory, nil, append(strings.Fields(x.flags), "--cache-dir", x.folder)...)
		if p, d := o.Experts.Prefill.Name(), o.Experts.Decode.Name(); !strings.HasPrefix(p, x.prefill) || !strings.HasPrefix(d, x.decode) {
			t.Errorf("%s: %s and %s: %s", name, p, d, o.Foreseen.Line)
		}
		if !strings.Contains(o.Foreseen.Line, x.line) || (x.line == "") != (o.Foreseen.Line == "") {
			t.Errorf("%s: %q", name, o.Foreseen.Line)
		}
	}
	// With room for all nothing has to be foreseen.
	if o, _ := lookedAt(t, "deepseek-v2-lite", hopperName, 80*gib, nil, "--cache-dir", dir); o.Foreseen != nil || !o.Resident {
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
		o, _ := lookedAt(t, "deepseek-v2-lite", hopperName, 6*gib, counts, "--cache-dir", t.TempDir())
		if !strings.Contains(o.Foreseen.Line, want) {
			t.Errorf("%s: %q", want, o.Foreseen.Line)
		}
	}
	if f := (heatFlags{HeatFile: t.TempDir() + "/none"}); f.counted() != nil {
		t.Error("counts of no file")
	}
}

// TestForesightDamaged: kept rates that cannot be read are as good as none.
func TestForesightDamaged(t *testing.T) {
	dir := t.TempDir()
	path, err := predict.RatesPath(dir, predict.Identity(roomyMachine(), 16))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"krater_rates":1,"card":`), 0o600); err != nil {
		t.Fatal(err)
	}
	o, _ := lookedAt(t, "deepseek-v2-lite", hopperName, 6*gib, nil, "--cache-dir", dir)
	if !strings.Contains(o.Foreseen.Line, "its description") {
		t.Errorf("%q", o.Foreseen.Line)
	}
}

// TestForesightIsQuick: a start does not wait for it.
func TestForesightIsQuick(t *testing.T) {
	o, f := lookedAt(t, "deepseek-v2-lite", hopperName, 6*gib, nil, "--cache-dir", t.TempDir())
	config, err := synth.Config("deepseek-v2-lite", 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := (&source.Source{Files: source.MemoryFiles{"config.json": config}}).Config()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if got := predict.Choose(cfg, f, o.Case, o.Machine, o.HostBits, 256<<20, 1<<30); got.Line == "" {
		t.Error("nothing is foreseen")
	}
	if took := time.Since(begun); took > 2*time.Second { // some ms, on a machine that others use as well
		t.Errorf("it took %v", took)
	} else {
		t.Logf("%v", took)
	}
}

// TestNearRowsOfCard: pools of memory nodes beside a card have room for rows as integers too.
func TestNearRowsOfCard(t *testing.T) {
	o, _ := lookedAt(t, "deepseek-v2-lite", hopperName, 6*gib, nil, "--fake-topology", "2x8", "--decode-strategy", "hot_cached_static", "--cache-dir", t.TempDir())
	config, err := synth.Config("deepseek-v2-lite", 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
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
