package main

import (
	"slices"
	"strings"
	"testing"

	"krater/actors/local"
	"krater/actors/local/plan"
	"krater/kernels/hostsim"
	"krater/stages/drive"
	"krater/stages/load"
)

// TestSimulatedRank: the answer of the golden, wherever the layers and the experts
// are.
func TestSimulatedRank(t *testing.T) {
	g := readGolden(t)
	question, dir := g.Prompts[0].Messages[0].Content, t.TempDir()
	ask := func(args ...string) string {
		t.Helper()
		return answers(t, "", append(append([]string{"run", "--ids", "--temperature", "0", "--cache-dir", dir}, args...), question)...)
	}
	for i, precision := range [][]string{{"--cpu-expert-bits", "8", "--lm-head-quant", "int8", "--attention-quant", "int8"}, {"--cpu-expert-bits", "4"}, nil} {
		if i > 0 && testing.Short() {
			break
		}
		want := ask(precision...)
		for _, rank := range [][]string{
			nil, {"--prefill-strategy", "cpu_only", "--decode-strategy", "1"}, {"--prefill-strategy", "7", "--decode-strategy", "cpu_only"},
			{"--vram", "512MiB"}, {"--vram", "512MiB", "--expert-vram", "4KiB"},
			{"--prefill-strategy", "layer_grouped", "--decode-strategy", "hot_cached_static", "--expert-vram", "3MiB", "--prefill-expert-vram", "2MiB"},
			{"--cache-strategy", "static_pin", "--expert-divisor", "0", "--expert-vram", "2MiB", "--fake-topology", "2x1"}, {"--layer-groups", "2", "--inline-below", "0s", "--fake-topology", "2x1", "--decode-strategy", "cpu_only"},
		} {
			if got := ask(append(append([]string{"--device", "hostsim", "--gpu-prefill-threshold", "4"}, rank...), precision...)...); got != want {
				t.Errorf("%v %v: %s, want %s", rank, precision, got, want)
			}
		}
	}
}

// TestRankGolden: operator by operator on the simulated device.
func TestRankGolden(t *testing.T) {
	out := answers(t, "", "compare", "--model", goldenDir, "--golden", goldenDir, "--device", "hostsim")
	if !strings.Contains(out, " 0 failed") {
		t.Errorf("%s", out)
	}
}

// TestRankRefuses what cannot be.
func TestRankRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"has only the strategy cpu_only":                {"run", "--decode-strategy", "persistent", "Hello"},
		"DOES NOT FIT: over 95 % of 1.0 MiB":            {"run", "--device", "hostsim", "--vram", "1MiB", "Hello"},
		"4194304 bytes asked, 131072 of 1048576 in use": {"run", "--device", "hostsim", "--vram", "1MiB", "--force", "Hello"},
		"measures only cpu and cuda":                    {"bench", "--device", "hostsim"},
	} {
		if o := krater(t, "", args...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", args, o.status, o.err)
		}
	}
}

// TestStrategiesTakeEffect: the experts on the rank after a load, and the bytes that a prompt and some
// tokens move between it and the host, follow from the strategies, and the memory is as planned on
// both devices.
func TestStrategiesTakeEffect(t *testing.T) {
	answer := func(args ...string) (*local.Model, hostsim.Counters) {
		t.Helper()
		s, p := started(t, append([]string{"--device", "hostsim", "--gpu-prefill-threshold", "4"}, args...)...)
		sim := s.Rank().Device.(*hostsim.Device)
		before := sim.Counters()
		q := &drive.Sequence{Prompt: []int32{1, 5, 9, 14, 20, 7, 3, 2}, New: 4}
		if err := drive.Run(p, []*drive.Sequence{q}, drive.Options{}); err != nil {
			t.Fatal(err)
		}
		if u := s.MemoryUse(); u.Allocated != u.Promised || u.Allocated == 0 {
			t.Errorf("%v: %d bytes promised, %d allocated", args, u.Promised, u.Allocated)
		}
		return s, sim.Counters().Since(before)
	}
	here, moved := answer("--prefill-strategy", "cpu_only", "--decode-strategy", "cpu_only")
	there, still := answer()
	if a, b := here.Rank().Memory().Used, there.Rank().Memory().Used; b-a != 6*32*3*64*256*2 {
		t.Errorf("%d bytes on the rank with the experts elsewhere, %d with them there", a, b)
	}
	if moved.Launches["Experts"] != 0 || still.Launches["Experts"] == 0 {
		t.Errorf("expert operators on the rank: %d, and %d when they are resident", moved.Launches["Experts"], still.Launches["Experts"])
	}
	if moved.BytesUp <= still.BytesUp || moved.BytesDown <= still.BytesDown {
		t.Errorf("copied up %d and down %d bytes, with resident experts %d and %d", moved.BytesUp, moved.BytesDown, still.BytesUp, still.BytesDown)
	}
	// One micro-batch unless more are asked for.
	small, _ := answer("--vram", "60MiB")
	if !small.Plan.Experts.Here() || small.Plan.Needs[statesAt(small.Plan)].Detail != "1 batch of 2080 tokens" {
		t.Errorf("with no room for the experts: %s, %+v", &small.Plan.Experts, small.Plan.Needs)
	}
	wide, _ := answer("--decode-strategy", "cpu_only", "--micro-batches", "2")
	if d := wide.Plan.Needs[statesAt(wide.Plan)].Detail; d != "2 batches of 2080 tokens" {
		t.Errorf("experts on the host: %s", d)
	}
	if d := there.Plan.Needs[statesAt(there.Plan)].Detail; d != "1 batch of 2080 tokens" {
		t.Errorf("experts on the rank: %s", d)
	}
}

// statesAt is where a plan has the batches.
func statesAt(o *plan.Plan) int {
	return slices.IndexFunc(o.Needs, func(n load.Need) bool { return n.Part == load.States })
}

// TestServeOnRanks: the server's start and an answer with made-up nodes and on the
// simulated device, memory as planned.
func TestServeOnRanks(t *testing.T) {
	want := ""
	for _, args := range [][]string{
		nil, {"--fake-topology", "2x1", "--inline-below=-1s"}, {"--fake-topology", "4x1", "--expert-pools", "16", "--inline-below=-1s"},
		{"--device", "hostsim"}, {"--device", "hostsim", "--decode-strategy", "cpu_only", "--fake-topology", "2x1", "--inline-below=-1s"},
	} {
		s := open(t, args...)
		got := post200[struct{ Choices []struct{ Text string } }](t, s, "/v1/completions", map[string]any{"model": "krater-tiny", "prompt": "A lighthouse is", "temperature": 0, "max_tokens": 12})
		if len(got.Choices) != 1 || got.Choices[0].Text == "" || want != "" && got.Choices[0].Text != want {
			t.Errorf("%v: %+v, want %q", args, got, want)
			continue
		}
		want = got.Choices[0].Text
	}
}
