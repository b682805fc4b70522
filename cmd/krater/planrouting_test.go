package main

import (
	"path/filepath"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/cmd/krater/console"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
)

// TestPlanServed: what this machine's GPU served of a model with learned corrects the plan of learned for that model,
// and of no other strategy, model or format.
func TestPlanServed(t *testing.T) {
	dir := t.TempDir()
	card, _ := rates.Named("h200")
	card.Name = "Mine"
	f := &fakeMeter{cpu: rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}, card: &card}
	plan := func(args ...string) (r predict.Report, seconds map[string]float64) {
		t.Helper()
		o := on(t, goodMachine(), append([]string{"plan", "--json", "--shape", "deepseek-v2-lite", "--vram", "8GiB", "--threads", "2", "--cache-dir", dir}, args...)...)
		r, seconds = decode[predict.Report](t, o.out), map[string]float64{}
		for _, c := range r.Candidates {
			seconds[c.Name()] = c.Decode.Decides.Seconds
		}
		return r, seconds
	}
	var out strings.Builder
	if status := run([]string{"plan", "--shape", "deepseek-v2-lite", "--threads", "2", "--cache-dir", dir, "--measure"},
		&console.Env{Out: &out, Err: &out, Machine: goodMachine, Meter: f}); status != 0 {
		t.Fatal(out.String())
	}
	o := config.Default()
	o.CacheDir, o.Threads = dir, 2
	served := predict.ServedFile{Model: "deepseek-v2-lite", Layers: 26, Experts: 64, Bytes: 33 * 3 * 2048 * 1408 / 64,
		Served: forecast.Served{Tokens: 200, Places: 0.4, Rows: 1, Seconds: 0.05, HitRate: 0.7}}
	keep := func(x predict.ServedFile, name string) {
		t.Helper()
		if err := predict.KeepServed(&o, goodMachine(), config.RankFacts{Name: name}, x); err != nil {
			t.Fatal(err)
		}
	}
	few, other, wide := served, served, served
	few.Tokens, other.Layers, wide.Bytes = 10, 25, 2*served.Bytes
	keep(served, "Another")
	keep(few, "Mine")
	_, before := plan()
	for _, x := range []predict.ServedFile{other, wide} {
		keep(x, "Mine")
		if r, _ := plan(); r.Served != nil {
			t.Errorf("%+v corrects the plan", x)
		}
	}
	keep(served, "Mine")
	r, after := plan()
	if r.Served == nil || r.Served.Tokens != 200 || after["learned"] < 1.5*before["learned"] || after["hot_cached_static"] != before["hot_cached_static"] {
		t.Errorf("%+v: %v, before %v", r.Served, after, before)
	}
	if text := on(t, goodMachine(), "plan", "--shape", "deepseek-v2-lite", "--vram", "8GiB", "--threads", "2", "--cache-dir", dir).out; !strings.Contains(text, "corrected by 200 tokens") {
		t.Error(text)
	}
	if r, _ := plan("--shape", "qwen3-30b-a3b"); r.Served != nil {
		t.Errorf("another model: %+v", r.Served)
	}
}

// TestPlanRouting: recorded choices say what learned finds, and a heat map what is hot; those of another model are refused.
func TestPlanRouting(t *testing.T) {
	trace, heatMap := filepath.Join(t.TempDir(), "trace"), filepath.Join(t.TempDir(), "map")
	answers(t, "", "heatmap", "--tokens", "400", "--record", trace, "--save", heatMap)
	hits := func(file string) map[string]float64 {
		t.Helper()
		r := decode[predict.Report](t, answers(t, "", "plan", "--json", "--card", "rtx-4090", "--expert-vram", "8MiB", "--routing", file))
		list := map[string]float64{}
		for _, c := range r.Candidates {
			list[c.Strategy] = c.Decode.Decides.HitRate
		}
		return list
	}
	replayed, counted := hits(trace), hits(heatMap)
	if counted["learned"] != counted["hot_cached_static"] || counted["hot_cached_static"] != replayed["hot_cached_static"] {
		t.Errorf("a heat map: %v, a recording: %v", counted, replayed)
	}
	if x := replayed["learned"]; x == replayed["hot_cached_static"] || x < 0.1 || x > 0.95 {
		t.Errorf("recorded choices: %v", replayed)
	}
	for _, file := range []string{trace, heatMap} {
		refuses(t, 1, []string{"plan", "--shape", "deepseek-v2-lite", "--card", "rtx-4090", "--routing", file}, "of a model of 6 layers with 32 experts")
	}
	refuses(t, 1, []string{"plan", "--card", "rtx-4090", "--routing", filepath.Join(modelDir, "config.json")}, "neither recorded choices nor a heat map")
}
