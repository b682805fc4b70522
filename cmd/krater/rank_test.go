package main

import (
	"strings"
	"testing"
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
			{"--vram", "512MiB"}, {"--vram", "512MiB", "--expert-vram", "4KiB"}, {"--layer-groups", "2", "--inline-below", "0s", "--fake-topology", "2x1", "--decode-strategy", "cpu_only"},
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
		"no memory of its own":      {"run", "--vram", "1GiB", "Hello"},
		"has only cpu_only":         {"run", "--decode-strategy", "persistent", "Hello"},
		"layer_grouped":             {"run", "--device", "hostsim", "--prefill-strategy", "layer_grouped", "Hello"},
		"there are 1 cpu_only":      {"run", "--device", "hostsim", "--decode-strategy", "fastest", "Hello"},
		"out of memory":             {"run", "--device", "hostsim", "--vram", "1MiB", "Hello"},
		"persistent":                {"run", "--device", "hostsim", "--expert-vram", "1KiB", "--prefill-strategy", "persistent", "--decode-strategy", "persistent", "Hello"},
		"--gpu-prefill-threshold 0": {"run", "--device", "hostsim", "--gpu-prefill-threshold", "0", "Hello"},
		"measures the processor":    {"bench", "--device", "hostsim"},
	} {
		if o := krater(t, "", args...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", args, o.status, o.err)
		}
	}
}
