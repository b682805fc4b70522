package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/fused"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// writeGGUF writes a file to a folder of its own.
func writeGGUF(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGoldensAsGGUF: golden folders as the files that llama.cpp's conversion makes of them give the
// recorded values, operator by operator.
func TestGoldensAsGGUF(t *testing.T) {
	described := goldens.GGUFNames(t)
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		for _, name := range described {
			if name != f.Name || name == "mistral" { // a file does not keep mistral's window
				continue
			}
			path := writeGGUF(t, name+".gguf", goldens.NewGGUF(t, name).Data)
			for _, device := range []string{"cpu", "hostsim"} {
				out := answers(t, "", "compare", "--model", path, "--golden", f.Dir, "--device", device, "--chunk", "7", "--batch", "3")
				if !strings.Contains(out, " 0 failed") {
					t.Errorf("%s: %s", device, out)
				}
			}
		}
	})
}

// TestExportedGoldens: golden folders of families that testdata/gguf does not have, as synth would lay them out,
// give the recorded values, operator by operator.
func TestExportedGoldens(t *testing.T) {
	for _, name := range []string{"gemma4_e", "gemma4_moe"} {
		dir := filepath.Join("..", "..", "testdata", "goldens", name)
		out := answers(t, "", "compare", "--model", writeGGUF(t, name+".gguf", exportedGGUF(t, dir)), "--golden", dir, "--chunk", "7", "--batch", "3")
		if !strings.Contains(out, " 0 failed") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// exportedGGUF is a folder as a GGUF file: matrices in BF16, all else in float32.
func exportedGGUF(t testing.TB, dir string) []byte {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if set, err = fused.View(cfg, set); err != nil {
		t.Fatal(err)
	}
	var list []folder.Release
	for _, s := range cfg.Expected() {
		list = append(list, folder.Release{Name: s.Name, Shape: s.Shape})
	}
	meta, places, err := folder.Export(config, list)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []gguf.Tensor
	for _, p := range places {
		x := gguf.Tensor{Name: p.Name, Type: gguf.F32, Shape: p.Shape}
		if len(p.Shape) > 1 {
			x.Type = gguf.BF16
		}
		tensors = append(tensors, x)
	}
	data, err := gguf.Head(meta, tensors)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range places {
		values := p.Values
		for _, name := range p.From {
			x, ok := set.Tensor(name)
			if !ok {
				t.Fatalf("the folder has no %s", name)
			}
			rows, width := x.Rows()
			part := make([]float32, rows*width)
			if err := x.Floats(part, 0); err != nil {
				t.Fatal(err)
			}
			values = append(values, part...)
		}
		n, _ := tensors[i].Size()
		bytes := make([]byte, int(n)+int(gguf.Padding(n)))
		if err := tensors[i].Type.Encode(bytes[:n], values); err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		data = append(data, bytes...)
	}
	return data
}

// plain stores every tensor as in the release.
func plain(string) gguf.Type { return gguf.BF16 }

// mixed stores tensors as one of llama.cpp's mixtures does: norms and routers as numbers, and
// matrices of one layer as several types.
func mixed(name string) gguf.Type {
	switch {
	case strings.Contains(name, "norm") || strings.Contains(name, "gate_inp"):
		return gguf.F32
	case strings.HasPrefix(name, "output") || strings.Contains(name, "ffn_down"):
		return gguf.Q6_K
	}
	return gguf.Q4_K
}

// TestTinyAsGGUF: the default model as a file, as its parts, as the folder that holds it and as a
// repository in the hub's cache answers as it does from its folder.
func TestTinyAsGGUF(t *testing.T) {
	hub := t.TempDir()
	t.Setenv("HF_HUB_CACHE", hub)
	path := writeGGUF(t, "tiny-BF16.gguf", goldens.TinyGGUF(t, plain))
	repo, parts := filepath.Join(hub, "models--acme--tiny", "snapshots", "r1"), t.TempDir()
	if err := os.MkdirAll(repo, 0o700); err != nil {
		t.Fatal(err)
	}
	writeIn(t, repo, "config.json", "{}") // such repositories may have one, for other programs
	for i, data := range goldens.TinyParts(t, 2, mixed) {
		name := fmt.Sprintf("tiny-Q4_K_M-%05d-of-00002.gguf", i+1)
		writeIn(t, parts, name, string(data))
		writeIn(t, repo, name, string(data))
	}
	if err := os.Symlink(path, filepath.Join(repo, "tiny-BF16.gguf")); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(parts, "tiny-Q4_K_M-00001-of-00002.gguf")
	ask := func(model string, args ...string) string {
		t.Helper()
		args = append([]string{"run", "--ids", "--temperature", "0", "--max-tokens", "12"}, args...)
		return answers(t, "", append(args, "--model", model, "Where is the cat?")...)
	}
	want, quantised := ask(modelDir), ask(first)
	for model, want := range map[string]string{
		path: want, filepath.Dir(path): want, "acme/tiny:BF16": want, parts: quantised, filepath.Join(parts, "tiny-Q4_K_M-00002-of-00002.gguf"): quantised, "acme/tiny:Q4_K_M": quantised,
	} {
		if got := ask(model); got != want {
			t.Errorf("%s: %s, want %s", model, got, want)
		}
	}
	for _, args := range [][]string{{"--device", "hostsim"}, {"--attention-quant", "int8", "--lm-head-quant", "int4", "--cache-dir", t.TempDir()}} {
		if want, got := ask(modelDir, args...), ask(path, args...); got != want {
			t.Errorf("%v: %s, want %s", args, got, want)
		}
	}
	refuses(t, 2, []string{"run", "--model", "acme/tiny", "hi"}, "BF16, Q4_K_M")
	listed := answers(t, "", "models", parts)
	for _, line := range []string{"acme/tiny:BF16", "acme/tiny:Q4_K_M", "tiny-Q4_K_M "} {
		if found := grep(listed, line); !strings.Contains(found, "deepseek2") || !strings.Contains(found, "yes, needs") {
			t.Errorf("%s is not in the list, or does not fit:\n%s", line, listed)
		}
	}
}

// layered stores matrices of gate and up as another type in each layer, and down of odd ones as Q4_0.
func layered(name string) gguf.Type {
	layer := 0
	if _, err := fmt.Sscanf(name, "blk.%d.", &layer); err != nil || strings.Contains(name, "norm") || strings.Contains(name, "gate_inp") {
		return gguf.F32
	}
	if strings.Contains(name, "ffn_down") {
		return []gguf.Type{gguf.Q8_0, gguf.Q4_0}[layer%2]
	}
	return []gguf.Type{gguf.Q4_K, gguf.Q6_K, gguf.IQ3_S, gguf.Q8_0, gguf.Q4_0}[layer%5]
}

// TestGGUFCommands: every command that takes a model takes a file, and what is converted is kept
// beside it, apart from other files' weights.
func TestGGUFCommands(t *testing.T) {
	path := writeGGUF(t, "tiny-Q4_K_M.gguf", goldens.TinyGGUF(t, mixed))
	if got := answers(t, "", "plan", "--card", "rtx-4090", "--model", path); !strings.Contains(got, "tiny-Q4_K_M (Q4_K ") || !strings.Contains(got, "Q6_K") {
		t.Errorf("plan does not name the types of the file:\n%.400s", got)
	}
	listed := answers(t, "", "models", path)
	if found := grep(listed, "tiny-Q4_K_M "); !strings.Contains(found, "deepseek2") || !strings.Contains(found, "yes, needs") {
		t.Errorf("models of a file:\n%s", listed)
	}
	refuses(t, 1, []string{"models", modelDir + "/heldout.txt"}, "heldout.txt: it is a file: name the model's folder, or a .gguf file")
	refuses(t, 1, []string{"models", path + "x"}, "no such file or folder")
	for _, args := range [][]string{
		{"plan", "--card", "rtx-4090", "--expert-format", "native"}, {"doctor"}, {"convert", "--precision", "int8"}, {"ppl", "--text", modelDir + "/heldout.txt", "--bytes", "2048"},
		{"bench", "engine", "--decode", "4", "--prefill", "8", "--rounds", "1"}, {"heatmap", "--text", modelDir + "/heldout.txt", "--tokens", "64", "--window", "64"},
	} {
		answers(t, "", append(args, "--model", path)...)
	}
	if want, got := answers(t, "V2hlcmUgaXMgdGhlIGNhdD8=\n", "tokenize", "--model", modelDir), answers(t, "V2hlcmUgaXMgdGhlIGNhdD8=\n", "tokenize", "--model", path); got != want {
		t.Errorf("tokens %s, want %s", got, want)
	}
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".krater_cache", "tiny-Q4_K_M", "*.bin"))
	if err != nil || len(kept) != 2 {
		t.Errorf("kept %v, %v", kept, err)
	}
	s := open(t, "--model", path, "--precision", "int8")
	status, _, body := s.do("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Where is the cat?"}],"max_tokens":8,"temperature":0}`)
	if status != 200 || !strings.Contains(body, "content") {
		t.Errorf("%d %s", status, body)
	}
}

// TestFaultyGGUF: files that are not whole, or not what this program reads, are refused by name.
func TestFaultyGGUF(t *testing.T) {
	good := goldens.TinyGGUF(t, mixed)
	change := func(old, new string) []byte {
		if !bytes.Contains(good, []byte(old)) || len(old) != len(new) {
			t.Fatalf("%q", old)
		}
		return bytes.Replace(good, []byte(old), []byte(new), 1)
	}
	deep := "\x09\x00\x00\x00" // an array
	nested := bytes.Replace(good, []byte("general.architecture\x08\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00deepseek2"),
		[]byte("general.architecture"+strings.Repeat(deep+"\x01\x00\x00\x00\x00\x00\x00\x00", 1000)), 1)
	for name, x := range map[string]struct {
		data  []byte
		words []string
	}{
		"a file that is cut":       {good[:len(good)-99999], []string{"ends too early", "download may not have ended"}},
		"a header that is cut":     {good[:5000], []string{"ends too early"}},
		"an empty file":            {nil, []string{"x.gguf"}},
		"another format":           {change("GGUF", "GGJT"), []string{"not a GGUF file"}},
		"an unknown type":          {change("output_norm.weight\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", "output_norm.weight\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x63\x00"), []string{"output_norm.weight", "99"}},
		"an unknown architecture":  {change("deepseek2", "deepseek9"), []string{"unknown GGUF architecture", "deepseek9", "llama"}},
		"an unknown tensor":        {change("blk.3.attn_norm.weight", "blk.3.attn_nerm.weight"), []string{"blk.3.attn_nerm.weight", "no place"}},
		"a tensor that is missing": {change("blk.3.attn_norm.weight", "blk.9.attn_norm.weight"), []string{"blk.9.attn_norm.weight"}},
		"nested arrays":            {nested, []string{"general.architecture"}},
		"an unknown tokenizer":     {change("gpt2", "wpm2"), []string{"tokenizer.ggml.model", "wpm2"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeGGUF(t, "x.gguf", x.data)
			for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0", "--log-level", "error"}, {"run", "hi"}, {"convert", "--precision", "int8"}, {"tokenize"}} {
				refuses(t, 1, append(args, "--model", path), append(x.words, "x")...)
			}
		})
	}
	dir := t.TempDir()
	writeIn(t, dir, "m-00001-of-00003.gguf", string(goldens.TinyParts(t, 3, mixed)[0]))
	refuses(t, 1, []string{"run", "--model", filepath.Join(dir, "m-00001-of-00003.gguf"), "hi"}, "part missing", "m-00002-of-00003.gguf, m-00003-of-00003.gguf")
	writeIn(t, dir, "n.gguf", "")
	refuses(t, 1, []string{"run", "--model", dir, "hi"}, "several GGUF models", "m-00001-of-00003.gguf, n.gguf")
}

// TestPublicGGUF: a published model answers sensibly, as stored and converted.
func TestPublicGGUF(t *testing.T) {
	path := filepath.Join("..", "..", "build", "public", "SmolLM2-135M-Instruct.Q4_1.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Skip("the model is missing: make public-gguf fetches it")
	}
	for _, args := range [][]string{nil, {"--precision", "int8", "--cache-dir", t.TempDir()}} {
		args = append([]string{"run", "--model", path, "--temperature", "0", "--max-tokens", "30"}, args...)
		if got := answers(t, "", append(args, "What is the capital of France?")...); !strings.Contains(got, "Paris") {
			t.Errorf("%v: %s", args, got)
		}
	}
}

// TestNativeFormat: blocks of a file that are multiplied as they are give about the perplexity of their
// values as floats, on every device and again from the cache.
func TestNativeFormat(t *testing.T) {
	path := writeGGUF(t, "tiny-Q4_K_M.gguf", goldens.TinyGGUF(t, mixed))
	perplexity := func(args ...string) float64 {
		t.Helper()
		var report struct{ Perplexity float64 }
		args = append([]string{"ppl", "--json", "--text", modelDir + "/heldout.txt", "--bytes", "1024", "--model", path}, args...)
		if err := json.Unmarshal([]byte(answers(t, "", args...)), &report); err != nil {
			t.Fatal(err)
		}
		return report.Perplexity
	}
	want := perplexity("--precision", "bf16")
	first := perplexity("--expert-format", "native")
	if !(math.Abs(first/want-1) < 0.01) {
		t.Errorf("perplexity %.4f, of floats %.4f", first, want)
	}
	for _, args := range [][]string{{"--gguf-native"}, {"--gguf-native", "--device", "hostsim"}, {"--gguf-native", "--expert-pools", "2"}} {
		if got := perplexity(args...); got != first {
			t.Errorf("%v: perplexity %.6f, want %.6f", args, got, first)
		}
	}
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".krater_cache", "tiny-Q4_K_M", "dense_cpu_*.bin"))
	if err != nil || len(kept) != 2 {
		t.Errorf("kept %q, %v", kept, err)
	}
	refuses(t, 1, []string{"ppl", "--text", modelDir + "/heldout.txt", "--model", modelDir, "--gguf-native"}, "hold no quantised blocks")
	refuses(t, 1, []string{"ppl", "--text", modelDir + "/heldout.txt", "--model", path, "--gguf-native", "--precision", "int8"}, "--expert-format native")
}

// TestMixedFormat: experts of a file with several types become INT4 and INT8 by them, which is nearer to
// the file than INT4, on every device and again from the cache.
func TestMixedFormat(t *testing.T) {
	path := writeGGUF(t, "tiny-Q4_K_M.gguf", goldens.TinyGGUF(t, mixed))
	args := []string{"ppl", "--json", "--text", modelDir + "/heldout.txt", "--bytes", "512", "--model", path, "--against", "bf16"}
	divergence := func(more ...string) float64 {
		t.Helper()
		var report struct {
			KL float64 `json:"mean_kl"`
		}
		if err := json.Unmarshal([]byte(answers(t, "", append(args[:len(args):len(args)], more...)...)), &report); err != nil {
			t.Fatal(err)
		}
		return report.KL
	}
	four, got := divergence("--cpu-expert-bits", "4"), divergence("--expert-format", "mixed")
	if !(0 < got && got < four) {
		t.Errorf("KL divergence %.5f as INT4, %.5f mixed", four, got)
	}
	for _, more := range [][]string{{"--expert-pools", "2"}, {"--device", "hostsim"}} {
		if again := divergence(append(more, "--expert-format", "mixed")...); again != got {
			t.Errorf("%v: KL divergence %.6f, want %.6f", more, again, got)
		}
	}
	refuses(t, 1, []string{"ppl", "--text", modelDir + "/heldout.txt", "--model", modelDir, "--expert-format", "mixed"}, "hold no quantised blocks")
	refuses(t, 1, []string{"ppl", "--text", modelDir + "/heldout.txt", "--model", path, "--expert-format", "mixed", "--gguf-native"}, "contradict")
}
