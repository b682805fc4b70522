package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/bench/meter"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/compare/goldens"
	"krater/stages/source"
	"krater/stages/synth"
)

// planned runs krater plan --json on a made-up machine with a cache folder of its own.
func planned(t *testing.T, m *machine.Machine, args ...string) predict.Report {
	t.Helper()
	o := on(t, m, append([]string{"plan", "--json", "--threads", "2", "--cache-dir", t.TempDir()}, args...)...)
	if o.status != 0 || o.err != "" {
		t.Fatalf("status %d\n%s", o.status, o.err)
	}
	return decode[predict.Report](t, o.out)
}

var ten = []string{"cpu_only", "chunked", "active_only", "static_pin", "weighted_pin", "lru", "persistent", "layer_grouped", "hot_cached_static", "learned"}

// TestPlan: a budget is all that has to be said; every strategy is one candidate with
// its name, layer_grouped several.
func TestPlan(t *testing.T) {
	r := planned(t, goodMachine(), "--model", modelDir, "--vram", "16GiB")
	var names []string
	for i := range r.Candidates {
		c := &r.Candidates[i]
		names = append(names, c.Strategy)
		if len(c.Prefill.Points) != 3 && c.Prefill.Fits || c.Prefill.Reason == "" || c.Decode.Reason == "" {
			t.Errorf("%+v", c)
		}
	}
	if got := slices.Compact(slices.Clone(names)); !slices.Equal(got, ten) {
		t.Errorf("%v", names)
	}
	if r.Model != "krater-tiny" || r.Prefill != "persistent" || r.Decode != "persistent" || r.Budget.VRAM != 16*gib {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.Known.Card, "--card") || !strings.Contains(r.Known.CPU, "--measure") || r.Rates.Card.MemoryGiB != 24 {
		t.Errorf("%+v", r.Known)
	}
}

// TestPlanTable checks the printed text: both tables, the chosen lines marked, reasons with numbers,
// and the recommendation.
func TestPlanTable(t *testing.T) {
	o := on(t, goodMachine(), "plan", "--ram", "32GiB", "--shape", "deepseek-v2-lite", "--vram", "6GiB", "--card", "rtx-2000-ada", "--threads", "2", "--cache-dir", t.TempDir())
	if o.status != 0 || o.err != "" {
		t.Fatalf("status %d\n%s", o.status, o.err)
	}
	for _, words := range []string{
		"\ndeepseek-v2-lite on NVIDIA RTX 2000 Ada, 6.0 GiB of its memory, zipf routing",
		"reads 206 GB/s (assumed)", "Good Processor, 2 threads", "Prefill, tok/s by prompt", "Decode, tok/s of all streams at 2048 tokens of context, in the memory that layer_grouped:26 leaves",
		"\n>  layer_grouped:26 ", "\n>  learned ", "no room for all: 1664 experts, 6.9 GiB; 581 fit", "GB at 2048",
		"; decode learned, ", "predicted for NVIDIA RTX 2000 Ada (named by --card)",
		"\n   static_pin, weighted_pin: ",
		"\nflags: --prefill-strategy layer_grouped:26 --decode-strategy learned\n", // which lends its slots
	} {
		if !strings.Contains(strings.ReplaceAll(o.out, "\n  ", " "), words) && !strings.Contains(o.out, words) {
			t.Errorf("it does not say %q:\n%s", words, o.out)
		}
	}
	if !strings.HasPrefix(o.out, "strategies: prefill layer_grouped:26, ") {
		t.Errorf("the conclusion does not come first:\n%s", o.out)
	}
	if n := strings.Count(o.out, "\n> "); n != 2 {
		t.Errorf("%d lines are marked:\n%s", n, o.out)
	}
	for line := range strings.Lines(o.out) {
		if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
			t.Errorf("a line ends in spaces: %q", line)
		}
		if n := len([]rune(line)) - 1; n > 100 {
			t.Errorf("a line has %d columns: %q", n, line)
		}
	}
	// Without a GPU it says at once what it plans for instead.
	o = on(t, goodMachine(), "plan", "--shape", "kimi-k2", "--cache-dir", t.TempDir())
	first, _, _ := strings.Cut(o.out, "\n\n")
	if first = strings.Join(strings.Fields(first), " "); !strings.Contains(first, "predicted for NVIDIA GeForce RTX 4090 (an example, because this machine has no GPU; --card NAME") {
		t.Errorf("%s", o.out)
	}
	// With room for everything groups do not differ.
	o = on(t, goodMachine(), "plan", "--shape", "deepseek-v2-lite", "--card", "h100", "--cache-dir", t.TempDir())
	if !strings.Contains(o.out, "layer_grouped:2-26") || !strings.Contains(o.out, "\n>  persistent ") {
		t.Errorf("%s", o.out)
	}
}

// TestPlanQuantised: the plan of a quantised checkpoint says in what format and size the files are, and
// counts the memory of what is loaded.
func TestPlanQuantised(t *testing.T) {
	args := []string{"--vram", "16GiB", "--model", "../../testdata/goldens/deepseek_v3_fp8"}
	r := planned(t, goodMachine(), args...)
	if r.Files != "FP8 128x128 blocks, 1.2 MiB" || r.Experts != 2*12*3*64*128*4 {
		t.Errorf("%q, experts of %d bytes", r.Files, r.Experts)
	}
	o := on(t, goodMachine(), append([]string{"plan", "--cache-dir", t.TempDir()}, args...)...)
	if !strings.Contains(o.out, "\ndeepseek_v3_fp8 (FP8 128x128 blocks, 1.2 MiB) on NVIDIA") {
		t.Errorf("%s", o.out)
	}
}

// TestPlanNative: experts as blocks of the files take their bytes on a GPU, and as much on the host.
func TestPlanNative(t *testing.T) {
	path, layers := writeGGUF(t, "layered.gguf", goldens.TinyGGUF(t, layered)), int64(0)
	for i := 1; i < 7; i++ {
		for _, part := range []string{"gate", "up", "down"} {
			b := layered(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", i, part)).Block()
			layers += 32 * 64 * 256 / int64(b.Elements) * int64(b.Bytes)
		}
	}
	const mxfp4 = 3 * 8 * (3*32*128*17/32 + 4*(2*32+128)) // with biases
	for _, x := range []struct {
		model          string
		bytes, experts int64
	}{{path, layers, 6 * 32}, {"../../testdata/goldens/gpt_oss_mxfp4", mxfp4, 3 * 8}} {
		for _, flags := range [][]string{
			{"--vram", "16GiB"}, {"--vram", "16GiB", "--expert-vram", "1MiB"}, {"--vram", "16GiB", "--attention-quant", "int8", "--lm-head-quant", "int4", "--kv-dtype", "fp8"},
		} {
			r := planned(t, goodMachine(), append(flags, "--expert-format", "native", "--card", "h200", "--model", x.model)...)
			want := x.bytes / x.experts * x.experts // the sizes of experts are a mean
			if r.Experts != want || r.Prefill == "" || r.Decode == "" {
				t.Errorf("%s %v: experts of %d bytes, want %d; %s, %s", x.model, flags, r.Experts, want, r.Prefill, r.Decode)
			}
			for i := range r.Candidates {
				if c := &r.Candidates[i]; c.Strategy == "cpu_only" && c.Decode.RAM != want && r.Prefill == "persistent" {
					t.Errorf("%s %v: the host takes %d bytes, want %d", x.model, flags, c.Decode.RAM, want)
				}
			}
		}
	}
}

// TestPlanShape: the sizes of DeepSeek-V2-Lite against those counted by hand.
func TestPlanShape(t *testing.T) {
	m, err := synth.New("deepseek-v2-lite", synth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var c cli
	if _, _, err := cmdline.Parse(&c, []string{"plan", "--vram", "16GiB"}); err != nil {
		t.Fatal(err)
	}
	card, _ := rates.Named("h100")
	k, err := predict.NewCase(source.Sizes{Config: m.Config}, &c.Plan.Options, rates.Rates{Card: card}, 16*gib, 64*gib, "zipf", forecast.Usual())
	if err != nil {
		t.Fatal(err)
	}
	s := &k.Shape
	const expert = 3 * 2048 * 1408
	if s.Layers != 27 || s.MoE != 26 || s.Experts != 64 || s.TopK != 6 || s.KVToken != 2*27*576 || k.Work.Chunk != 4096 {
		t.Errorf("%+v, chunks of %d", s, k.Work.Chunk)
	}
	for _, x := range []struct {
		what      string
		got, want float64
	}{
		{"operations of an expert", s.ExpertFLOP, 2 * expert},
		{"an expert on the GPU", float64(s.ExpertCard), 0.515625 * expert},
		{"an expert on the host", float64(s.ExpertHost), 0.515625 * expert},
		{"shared experts", s.SharedFLOP, 2 * 26 * 2 * expert},
		{"shared experts in INT8", float64(s.SharedBytes), 1.015625 * 26 * 2 * expert},
		{"the head", s.HeadFLOP, 2 * 102400 * 2048},
		{"the head in INT8", float64(s.HeadBytes), 1.015625 * 102400 * 2048},
		// Projections of MLA, one dense layer, routers.
		{"the rest", s.FixedFLOP, 2 * (27*(2048*16*192+2048*576+512*16*256+16*128*2048) + 3*2048*10944 + 26*64*2048)},
		{"a pair of a prompt", s.PairFLOP, 2 * 27 * 16 * 320},
		{"a pair of generated rows", s.DecodePair, 2 * 27 * 16 * (576 + 512)},
		{"expanding", s.ExpandFLOP, 2 * 27 * 512 * 16 * 256},
	} {
		if math.Abs(x.got-x.want) > 2e-3*x.want {
			t.Errorf("%s: %g, want %g", x.what, x.got, x.want)
		}
	}
	if k.Skew.Name != "zipf" || k.Budget.RAM != 64*gib || k.Budget.KV < 65_000*s.KVToken || k.Budget.Fixed < 2*gib || k.Budget.Fixed > 4*gib {
		t.Errorf("%+v", k.Budget)
	}
}

// TestPlanRates: a GPU by its name, from a file, of the machine; processors from a file, from an
// earlier measurement, or assumed.
func TestPlanRates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	card := write("card.json", `{"krater_rates":1,"card":{"name":"Mine","memory_gib":12,"memory_gbps":500,"tflops":100,"copy_gbps":10}}`)
	both := write("both.json", `{"krater_rates":1,"card":{"name":"Mine","memory_gib":12,"memory_gbps":500,"tflops":100,"copy_gbps":10},"cpu":{"name":"Theirs","read_gbps":200,"experts":{"peak":5}}}`)
	cpu := write("cpu.json", `{"krater_rates":1,"cpu":{"name":"Given","read_gbps":33,"experts":{"peak":0.7,"half_rows":3}}}`)
	with := goodMachine()
	with.GPUs = []machine.GPU{{Name: "NVIDIA RTX 2000 Ada Generation"}}
	for name, x := range map[string]struct {
		m         *machine.Machine
		args      []string
		card, cpu string
		vram      int64
	}{
		"nothing":   {goodMachine(), nil, "NVIDIA GeForce RTX 4090", "Good Processor", 24 * gib},
		"name":      {with, []string{"--card", "H100"}, "NVIDIA H100 80GB HBM3", "Good Processor", 80 * gib},
		"machine":   {with, nil, "NVIDIA RTX 2000 Ada", "Good Processor", 16 * gib},
		"file":      {with, []string{"--card", card}, "Mine", "Good Processor", 12 * gib},
		"both":      {with, []string{"--card", both}, "Mine", "Theirs", 12 * gib},
		"cpu":       {with, []string{"--card", both, "--cpu", cpu}, "Mine", "Given", 12 * gib},
		"cpu alone": {with, []string{"--cpu", both, "--vram", "3GiB"}, "NVIDIA RTX 2000 Ada", "Theirs", 3 * gib},
	} {
		r := planned(t, x.m, x.args...)
		if r.Rates.Card.Name != x.card || r.Rates.CPU.Name != x.cpu || r.Budget.VRAM != x.vram {
			t.Errorf("%s: %s, %s, %d bytes", name, r.Rates.Card.Name, r.Rates.CPU.Name, r.Budget.VRAM)
		}
	}
	unknown := goodMachine()
	unknown.GPUs = []machine.GPU{{Name: "10de:2330"}}
	if o := on(t, unknown, "plan"); o.status != 1 || !strings.Contains(o.err, "10de:2330") || !strings.Contains(o.err, "rtx-3090") {
		t.Errorf("status %d: %s", o.status, o.err)
	}
	for want, args := range map[string][]string{
		"neither a known GPU (rtx-3090":      {"--card", "voodoo"},
		"it describes no GPU":                {"--card", cpu},
		"it describes no CPUs":               {"--cpu", card},
		"version 7":                          {"--card", write("new.json", `{"krater_rates":7}`)},
		"unexpected end":                     {"--cpu", write("cut.json", `{"krater_rates":1,`)},
		"incomplete description: tflops":     {"--card", write("thin.json", `{"krater_rates":1,"card":{"memory_gib":1,"memory_gbps":1,"copy_gbps":1}}`)},
		"--layers":                           {"--layers", "2"},
		"both name a model":                  {"--model", modelDir, "--shape", "deepseek-v2-lite"},
		"no such shape":                      {"--shape", "deepseek-v9"},
		"impossible sizes: work":             {"--prefill", "0"},
		"impossible sizes: 0 lengths":        {"--prefill", ""},
		"--kv-cache":                         {"--block-tokens", "0"},
		"--precision sets every part":        {"--precision", "int4", "--lm-head-quant", "int8"},
		"impossible sizes: a prompt of 1677": {"--prefill", "16777216", "--prefill-chunk", "1"},
	} {
		if want == "--kv-cache" {
			want = "--block-tokens"
		}
		refuses(t, 1, append([]string{"plan"}, args...), want)
	}
}

// TestPlanSizes: families that cannot be run yet are planned from their sizes, and it is
// said.
func TestPlanSizes(t *testing.T) {
	big := goodMachine()
	big.Memory.Total = 1 << 50
	for name, x := range map[string]struct {
		experts float64 // GB in INT4
		kv      int     // bytes a token
	}{
		"qwen3-30b-a3b":    {0.515625 * 48 * 128 * 3 * 2048 * 768 / 1e9, 2 * 48 * 2 * 4 * 128},
		"qwen3-235b-a22b":  {117.1, 2 * 94 * 2 * 4 * 128},
		"qwen3-coder-next": {39.9, 2 * 12 * 2 * 2 * 256},
		"qwen3.5-35b-a3b":  {0.515625 * 40 * 256 * 3 * 2048 * 512 / 1e9, 2 * 10 * 2 * 2 * 256},
		"kimi-k2":          {523, 2 * 61 * 576},
		"deepseek-v3":      {0.515625 * 58 * 256 * 3 * 7168 * 2048 / 1e9, 2 * 61 * 576},
		"glm-4.5-air":      {0.515625 * 45 * 128 * 3 * 4096 * 1408 / 1e9, 2 * 46 * 2 * 8 * 128},
		"minimax-m2":       {0.515625 * 62 * 256 * 3 * 3072 * 1536 / 1e9, 2 * 62 * 2 * 8 * 128},
	} {
		r := planned(t, big, "--shape", name, "--card", "h100", "--vram", "80GiB")
		if got := float64(r.Experts) / 1e9; math.Abs(got-x.experts) > 0.003*x.experts {
			t.Errorf("%s: %.1f GB of experts, want %.1f", name, got, x.experts)
		}
		if r.Cannot != "" && !strings.Contains(r.Cannot, "model_type") || r.Prefill == "" || r.Budget.KV%int64(x.kv) != 0 {
			t.Errorf("%s: %q, %s, a KV cache of %d bytes", name, r.Cannot, r.Prefill, r.Budget.KV)
		}
	}
	o := on(t, big, "plan", "--shape", "kimi-k2", "--layers", "5", "--cache-dir", t.TempDir())
	if _, err := synth.New("kimi-k2", synth.Options{}); err != nil && !strings.Contains(o.out, "sizes alone: ") {
		t.Errorf("%s%s", o.out, o.err)
	}
}

// TestPlanDense: there is nothing to choose, which is no failure.
func TestPlanDense(t *testing.T) {
	r := planned(t, goodMachine(), "--shape", "qwen2.5-7b")
	if len(r.Candidates) != 0 || r.Note == "" {
		t.Errorf("%+v", r)
	}
	if o := on(t, goodMachine(), "plan", "--shape", "qwen2.5-7b"); o.status != 0 || !strings.Contains(o.out, "no routed experts") {
		t.Errorf("status %d: %s", o.status, o.out)
	}
}

// TestPlanNothingFits: the reason once, and a failure for scripts.
func TestPlanNothingFits(t *testing.T) {
	o := on(t, goodMachine(), "plan", "--vram", "30MiB", "--cache-dir", t.TempDir())
	if o.status != 1 || strings.Count(o.out, "exceed 95 %") != 1 || !strings.Contains(o.out, "strategies: nothing fits: weights and workspace") {
		t.Errorf("status %d\n%s%s", o.status, o.out, o.err)
	}
}

// TestPlanRAM: the host's memory counts where the processors are this machine's.
func TestPlanRAM(t *testing.T) {
	shape := []string{"--shape", "deepseek-v2-lite", "--vram", "6GiB", "--card", "rtx-2000-ada"}
	reason := func(r predict.Report) string { return r.Candidates[0].Decode.Reason }
	if r := planned(t, goodMachine(), shape...); r.Budget.RAM != 8*gib || !strings.Contains(reason(r), "experts take 13.8 GiB of the host's memory, which has 8.0 GiB") {
		t.Errorf("%d bytes: %s", r.Budget.RAM, reason(r))
	}
	if r := planned(t, goodMachine(), append(shape, "--ram", "64GiB")...); r.Budget.RAM != 64*gib || strings.Contains(reason(r), "memory") {
		t.Errorf("%d bytes: %s", r.Budget.RAM, reason(r))
	}
	cpu := filepath.Join(t.TempDir(), "cpu.json")
	if err := os.WriteFile(cpu, []byte(`{"krater_rates":1,"cpu":{"read_gbps":33,"experts":{"peak":0.7}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := planned(t, goodMachine(), append(shape, "--cpu", cpu)...); r.Budget.RAM != 0 || strings.Contains(reason(r), "memory") {
		t.Errorf("%d bytes: %s", r.Budget.RAM, reason(r))
	}
	// Nothing fits, each strategy for a reason of its own: the tables say so.
	o := on(t, goodMachine(), "plan", "--shape", "kimi-k2", "--card", "h100", "--cache-dir", t.TempDir())
	if o.status != 1 || !strings.Contains(o.out, "no room for all: ") || !strings.Contains(o.out, "at 2048 tokens of context\n") || !strings.Contains(o.out, "nothing fits") {
		t.Errorf("status %d\n%s", o.status, o.out)
	}
}

// fakeMeter measures what it is told to.
type fakeMeter struct {
	cpu     rates.CPU
	card    *rates.Card
	err     error
	threads int
	experts tensor.Format
	slow    time.Duration // between two looks
}

func (f *fakeMeter) CPU(threads int, experts tensor.Format, _ int64, tell config.Telling) (rates.CPU, error) {
	f.threads, f.experts = threads, experts
	tell("nothing", 0, 4)
	time.Sleep(f.slow)
	tell("nothing", 1, 4)
	return f.cpu, f.err
}

func (f *fakeMeter) Card(int, config.Telling) (rates.Card, error) {
	if f.card == nil {
		return rates.Card{}, meter.ErrUnmeasured
	}
	return *f.card, nil
}

// TestPlanMeasures: what was measured counts, at once and later, for this machine with
// as many threads and no other.
func TestPlanMeasures(t *testing.T) {
	dir := t.TempDir()
	f := &fakeMeter{cpu: rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}}
	run1 := func(m *machine.Machine, with predict.Meter, args ...string) (predict.Report, outcome) {
		t.Helper()
		var out, errs strings.Builder
		status := run(append([]string{"plan", "--json", "--shape", "deepseek-v2-lite", "--vram", "8GiB", "--cache-dir", dir}, args...),
			&console.Env{Out: &out, Err: &errs, Machine: func() *machine.Machine { return m }, Meter: with})
		var r predict.Report
		if status == 0 {
			if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
				t.Fatal(err)
			}
		}
		return r, outcome{status, out.String(), errs.String()}
	}
	r, o := run1(goodMachine(), f, "--measure", "--threads", "2")
	if o.status != 0 || r.Rates.CPU.Name != "Tried" || f.threads != 2 || f.experts.Encoding != tensor.INT4 || !strings.Contains(o.err, "measuring") {
		t.Fatalf("%+v, %+v, %s", r.Known, f, o.err)
	}
	r, _ = run1(goodMachine(), nil, "--threads", "2")
	if r.Rates.CPU.ReadGBps != 77 || r.Known.CPU != "measured on this machine" {
		t.Errorf("%+v", r.Known)
	}
	other := goodMachine()
	other.CPU.Model = "Another"
	if r, _ = run1(other, nil, "--threads", "2"); r.Rates.CPU.Name != "Another" {
		t.Errorf("another machine has its rates: %+v", r.Known)
	}
	if r, _ = run1(goodMachine(), nil, "--threads", "3"); r.Rates.CPU.Name != "Good Processor" {
		t.Errorf("three threads have the rates of two: %+v", r.Known)
	}
	// A GPU that can be measured is kept as well.
	card, _ := rates.Named("h200")
	card.Name = "Mine, measured"
	f.card = &card
	if r, _ = run1(goodMachine(), f, "--measure", "--threads", "2"); r.Rates.Card.Name != "Mine, measured" {
		t.Errorf("%+v", r.Known)
	}
	if r, _ = run1(goodMachine(), nil, "--threads", "2"); r.Rates.Card.Name != "Mine, measured" {
		t.Errorf("%+v", r.Known)
	}
	// A damaged file is as good as none.
	kept, err := filepath.Glob(filepath.Join(dir, "rates-*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v, %v", kept, err)
	}
	if err := os.WriteFile(kept[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, _ = run1(goodMachine(), nil, "--threads", "2"); r.Rates.CPU.Name != "Good Processor" {
		t.Errorf("%+v", r.Known)
	}
	f.err = errors.New("no time")
	if _, o := run1(goodMachine(), f, "--measure"); o.status != 1 || !strings.Contains(o.err, "--measure: no time") {
		t.Errorf("%+v", o)
	}
	// A folder that cannot be written to costs nothing but the keeping.
	f.err = nil
	dir = filepath.Join(kept[0], "sub")
	if r, o := run1(goodMachine(), f, "--measure", "--threads", "2"); o.status != 0 || r.Rates.CPU.Name != "Tried" || !strings.Contains(o.err, "not kept") {
		t.Errorf("%+v", o)
	}
}

// TestDoctorAdvises in a line where there is a GPU.
func TestDoctorAdvises(t *testing.T) {
	if r := report(t, goodMachine(), 0); r.Strategies != "" {
		t.Errorf("without a GPU: %s", r.Strategies)
	}
	m := goodMachine()
	m.Driver, m.GPUs = "570.1", []machine.GPU{{Name: "NVIDIA GeForce RTX 3090"}}
	if r := report(t, m, 0); !strings.HasPrefix(r.Strategies, "strategies: prefill persistent, ") || !strings.HasSuffix(r.Strategies, "predicted for NVIDIA GeForce RTX 3090; krater plan has the table") {
		t.Errorf("%s", r.Strategies)
	}
	if o := on(t, m, "doctor", "--threads", "2"); !strings.Contains(o.out, "\n\nstrategies: prefill persistent") {
		t.Errorf("%s", o.out)
	}
	m.GPUs[0].Name = "Voodoo"
	if r := report(t, m, 0); !strings.Contains(r.Strategies, "no rates are known for the GPU Voodoo") {
		t.Errorf("%s", r.Strategies)
	}
}

// TestPlannerDocument: the description in docs/planner.md can be read and is complete, and the GPUs
// it lists are those there are.
func TestPlannerDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/planner.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `    {"krater_rates"`)
	block, _, _ := strings.Cut(rest, "\n\n")
	f, err := rates.Parse([]byte(`{"krater_rates"` + block))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Card.Complete(); err != nil {
		t.Error(err)
	}
	if _, err := f.CPU.Complete(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(text), "Known GPUs: "+strings.Join(rates.Cards(), ", ")+".") {
		t.Errorf("the document does not list %s", strings.Join(rates.Cards(), ", "))
	}
}
