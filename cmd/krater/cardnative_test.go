//go:build cuda

package main

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"krater/kernels/cuda"
	"krater/stages/compare/goldens"
)

// TestNativeOnCard: experts as blocks of a file on a GPU, all of them or some, give the perplexity of
// their values as floats, and about that of the CPU, which rounds activations to 8 bits.
func TestNativeOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	path := writeGGUF(t, "tiny.gguf", goldens.TinyGGUF(t, layered))
	bytes := "200"
	if testing.Short() {
		bytes = "90"
	}
	perplexity := func(args ...string) float64 {
		t.Helper()
		var report struct{ Perplexity float64 }
		args = append([]string{"ppl", "--json", "--text", modelDir + "/heldout.txt", "--bytes", bytes, "--model", path, "--cache-dir", filepath.Dir(path)}, args...)
		if err := json.Unmarshal([]byte(answers(t, "", args...)), &report); err != nil {
			t.Fatal(err)
		}
		return report.Perplexity
	}
	want := perplexity("--precision", "bf16", "--device", "cuda", "--rows", "f32")
	for _, x := range []struct {
		args  []string
		bound float64
		long  bool
	}{
		{[]string{"--device", "cuda", "--rows", "f32"}, 1e-5, false},
		{nil, 0.01, true},
		{[]string{"--device", "cuda"}, 0.01, true},
		{[]string{"--device", "cuda", "--batch-invariant"}, 0.01, true},
		{[]string{"--device", "cuda", "--decode-strategy", "hot_cached_static", "--prefill-strategy", "hot_cached_static", "--expert-vram", "1MiB"}, 0.01, false},
		{[]string{"--device", "cuda", "--decode-strategy", "layer_grouped", "--prefill-strategy", "layer_grouped"}, 0.01, true},
	} {
		if x.long && testing.Short() {
			continue
		}
		if got := perplexity(append([]string{"--expert-format", "native"}, x.args...)...); !(math.Abs(got/want-1) < x.bound) {
			t.Errorf("%v: perplexity %.6f, of floats %.6f", x.args, got, want)
		}
	}
	refuses(t, 1, []string{"run", "--model", path, "--device", "cuda", "--attention-quant", "q8_0", "hi"}, "attention as q8_0", "a GPU multiplies only routed experts")
}

// TestNativeGoldenOnCard: the golden models whose experts are MXFP4 and FP8 give the recorded values with
// their blocks as they are.
func TestNativeGoldenOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	for _, name := range []string{"gpt_oss_mxfp4", "deepseek_v3_fp8", "deepseek_v4_fp4"} {
		dir := filepath.Join("..", "..", "testdata", "goldens", name)
		golden := dir
		if testing.Short() {
			golden = fewerGoldens(t, goldens.Folder{Name: name, Dir: dir})
		}
		out := answers(t, "", "compare", "--model", dir, "--golden", golden, "--device", "cuda", "--rows", "f32", "--expert-format", "native", "--chunk", "7", "--batch", "3")
		if !strings.Contains(out, " 0 failed") {
			t.Errorf("%s: %s", name, out)
		}
	}
}
