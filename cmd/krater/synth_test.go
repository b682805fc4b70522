package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/bench/serve"
	"krater/cmd/krater/cmdline"
)

// shape is the smallest part of a real shape that has experts and room for the default model's
// tokens.
var shape = []string{"--shape", "deepseek-v2-lite", "--layers", "2", "--vocab", "8192"}

func TestSynthRefuses(t *testing.T) {
	for _, x := range []struct {
		args  string
		words []string
	}{
		{"synth --in-memory", []string{"--shape", "deepseek-v2-lite", "kimi-k2"}},
		{"synth --shape deepseek-v2-lite", []string{"--out", "--in-memory"}},
		{"synth --shape deepseek-v2-lite --in-memory --out x", []string{"--out", "--in-memory"}},
		{"synth --shape deepseek-v3-lite --in-memory", []string{"deepseek-v3-lite", "deepseek-v2-lite"}},
		{"synth --shape deepseek-v2-lite --layers 28 --in-memory", []string{"28 layers", "27"}},
		{"synth --shape deepseek-v2-lite --as gguf --expert-type q9 --out x", []string{"--expert-type", "q9", "iq2_xxs"}},
		{"synth --shape deepseek-v2-lite --as gguf --other-type bf16 --out x", []string{"--other-type", "bf16", "mxfp4"}},
		{"synth --shape qwen2.5-7b --out x", []string{"qwen2.5-7b", "no experts"}},
		{"synth --shape deepseek-v2-lite --cpu-expert-bits 16 --out x", []string{"--cpu-expert-bits", "safetensors"}},
		{"synth --shape deepseek-v2-lite --threads 5000 --out x", []string{"--threads"}},
	} {
		refuses(t, 1, strings.Fields(x.args), x.words...)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refuses(t, 1, append([]string{"synth", "--out", dir}, shape...), dir, "not empty", "mine")
}

// TestSynthInMemory: the parts add up to the model, and the model is no more than it was planned to
// be.
func TestSynthInMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("half a gigabyte of weights: not in the short suite")
	}
	args := append([]string{"synth", "--in-memory", "--precision", "int4", "--json"}, shape...)
	r := decode[synthReport](t, answers(t, "", args...))
	var parts, steps int64
	for _, p := range r.Parts {
		parts += p.Bytes
	}
	for _, s := range r.Steps {
		steps += s.Bytes
	}
	// Experts lie at whole pages: 64 of them.
	if r.Bytes != parts || steps < parts || steps > parts+64*4096 || r.Layers != 2 || !(r.Seconds > 0) {
		t.Errorf("%d bytes, parts of %d, made %d: %+v", r.Bytes, parts, steps, r)
	}
	text := answers(t, "", append([]string{"synth", "--in-memory"}, shape...)...)
	for _, want := range []string{"deepseek-v2-lite, 2 layers", "experts", "head", "GB/s"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

// TestSynthCache: a start uses the cache that was written and answers. One that wants the experts
// otherwise is told what there is.
func TestSynthCache(t *testing.T) {
	if testing.Short() {
		t.Skip("half a gigabyte of weights: not in the short suite")
	}
	dir := filepath.Join(t.TempDir(), "model")
	args := append([]string{"synth", "--out", dir, "--routing-skew", "zipf", "--group-size", "64", "--json"}, shape...)
	r := decode[synthReport](t, answers(t, "", args...))
	file := filepath.Join(dir, ".krater_cache", "experts_cpu_int4_g64.bin")
	info, err := os.Stat(file)
	if err != nil || r.Bytes <= info.Size() || r.Path != dir || r.As != "cache" {
		t.Fatalf("%+v, %v", r, err)
	}
	start := append(strings.Fields(r.Start), "--kv-cache", "8MiB", "--max-seqs", "1")
	o := krater(t, "", append([]string{"run", "--max-tokens", "4", "question"}, start...)...)
	if o.status != 0 || !strings.Contains(o.err, "4 answer tokens") || strings.Contains(o.err, "not used") {
		t.Errorf("status %d: %s", o.status, o.err)
	}
	if now, err := os.Stat(file); err != nil || !now.ModTime().Equal(info.ModTime()) {
		t.Error("the cache was made anew")
	}
	// Nothing is there to make other integers from, or none.
	for _, other := range []string{"--cpu-expert-bits 4 --group-size 128", "--cpu-expert-bits 4 --group-size row", "--cpu-expert-bits 8 --group-size 64", "--cpu-expert-bits 16"} {
		args := append([]string{"run", "question", "--model", dir, "--kv-cache", "8MiB", "--max-seqs", "1"}, strings.Fields(other)...)
		refuses(t, 1, args, "cannot be made", "experts_cpu_int4_g64.bin", "--cpu-expert-bits 4 --group-size 64")
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".krater_cache", "*.part")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestServeShape: a server of random weights is one under load like any other: each token is a
// chunk of its own, without log-probabilities, and its name differs from the model of that shape.
func TestServeShape(t *testing.T) {
	if testing.Short() {
		t.Skip("half a gigabyte of weights: not in the short suite")
	}
	for _, device := range [][]string{{"--device", "cpu"}, {"--device", "hostsim", "--expert-vram", "200MiB", "--no-measure"}} {
		flags := append(append(slices.Clone(device), shape...), "--routing-skew", "zipf", "--kv-cache", "16MiB", "--max-seqs", "4", "--batch-dir", "off")
		s := open(t, flags...)
		r := decode[serve.Report](t, answers(t, "", "bench", "serve", "--url", s.base, "--concurrency", "3", "--requests", "6", "--prompt", "40", "--answer", "9", "--json"))
		p := r.Points[0]
		// A token may be part of a character, which comes with the next one.
		if p.Outcomes[serve.OK] != 6 || p.PromptsOff != 0 || p.AnswerTokens != 54 || p.TTFT.N != 6 || p.ITL.N < 6*8-3 || p.ITL.N > 6*8 {
			t.Errorf("%v: %+v", device, p)
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if told := s.out.String(); !strings.Contains(told, "random") || !strings.Contains(told, "/v1/completions") || strings.Contains(told, "chat") {
			t.Errorf("%v: %s", device, told)
		}
	}
	var c cli
	if _, _, err := cmdline.Parse(&c, append([]string{"serve"}, shape...)); err != nil {
		t.Fatal(err)
	}
	src, err := c.Serve.SourceOr("")
	if err != nil {
		t.Fatal(err)
	}
	if name := c.Serve.servedName(src); name != "deepseek-v2-lite-random" {
		t.Errorf("%q", name)
	}
	refuses(t, 1, strings.Fields("serve --shape deepseek-v2-lite --model ."), "--model", "--shape")
	refuses(t, 1, strings.Fields("serve --layers 2"), "--layers", "--shape")
	refuses(t, 1, strings.Fields("run --shape nothing x"), "nothing", "deepseek-v2-lite")
}
