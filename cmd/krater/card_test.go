//go:build cuda

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cuda"
	"krater/kernels/cuda/gemv"
	"krater/kernels/tensor"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/synth"
)

// TestFastKernelsAgreeWithPlain: a model of the sizes that the fast kernels are made for,
// by them in bfloat16 and by the plain ones in float32, over a prompt and what follows.
func TestFastKernelsAgreeWithPlain(t *testing.T) {
	m := latentModel(t)
	for name, p := range cardPrecisions {
		if testing.Short() && (name == "int4 g32" || name == "int8 g64") { // packages gemm and gemv have them
			continue
		}
		tokens := 150
		if testing.Short() {
			tokens = 70
		}
		t.Run(name, func(t *testing.T) { agreesWithPlain(t, m, p, tokens) })
	}
}

// TestWindowsAgreeWithPlain: the same with windows, sinks and biases.
func TestWindowsAgreeWithPlain(t *testing.T) {
	tokens := 150
	if testing.Short() {
		tokens = 70
	}
	agreesWithPlain(t, windowModel(t, 40), cardPrecisions["int4 g128"], tokens)
}

// TestTwoHeadSizesOnCard: the same with heads of 256 in a window and of 512, and experts with GELU.
func TestTwoHeadSizesOnCard(t *testing.T) {
	m := twoHeadsModel(t)
	for name, p := range map[string]load.Precision{
		"int4": cardPrecisions["int4 g128"],
		"int3": {Experts: tensor.INT3.By(64)},
		"int8": {Experts: tensor.INT8.By(64)},
	} {
		tokens := 150
		switch {
		case testing.Short() && name == "int8": // package gemv has it
			continue
		case testing.Short() && name == "int4":
			tokens = 70
		case testing.Short():
			tokens = 20
		}
		t.Run(name, func(t *testing.T) { agreesWithPlain(t, m, p, tokens) })
	}
}

// TestPooledModelOnCard: the same with Kimi Delta Attention, pools and mixed streams.
func TestPooledModelOnCard(t *testing.T) {
	tokens := 150
	if testing.Short() {
		tokens = 40
	}
	agreesWithPlain(t, pooledModel(t), cardPrecisions["int4 g128"], tokens)
}

func agreesWithPlain(t *testing.T, m *synth.Model, p load.Precision, tokens int) {
	t.Helper()
	prompt := randomTokens(tokens, 1)
	want := runOn(t, onCard(t, m, p, tensor.BF16, true), prompt, 3, 0)
	got := runOn(t, onCard(t, m, p, tensor.BF16, false), prompt, 3, 0)
	for i := range want.rows {
		if !slices.Equal(got.ids[:i], want.ids[:i]) {
			break // from here on they answer different questions
		}
		e := apart(got.rows[i], want.rows[i])
		t.Logf("token %d: logits are %.4f apart", i, e)
		if !(e < 0.03) {
			t.Errorf("token %d: logits are %.4f apart", i, e)
		}
	}
}

// TestChunksOnCard: however a prompt is cut, the same tokens.
func TestChunksOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.BF16, false)
	prompt, n := randomTokens(100, 2), 6
	if testing.Short() {
		prompt, n = prompt[:70], 3
	}
	want := runOn(t, d, prompt, n, 0)
	for _, chunk := range []int{1, 7, 64} {
		if chunk == 1 && testing.Short() {
			continue
		}
		got := runOn(t, d, prompt, n, chunk)
		if !slices.Equal(got.ids, want.ids) {
			t.Errorf("chunks of %d: %v, want %v", chunk, got.ids, want.ids)
		}
		if e := apart(got.rows[0], want.rows[0]); !(e < 0.02) {
			t.Errorf("chunks of %d: logits are %.4f apart", chunk, e)
		}
	}
}

// TestThresholdsOnCard: prompts of one token less, as many and one more than where other
// kernels take over, as one piece and with the last token by itself, give the same tokens.
func TestThresholdsOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.BF16, false)
	lengths := []int{3, 4, 5, 8, 9, gemv.MaxRows - 1, gemv.MaxRows, gemv.MaxRows + 1, 127, 128, 129}
	if testing.Short() { // whose cut runs have as many
		lengths = []int{5, 9, gemv.MaxRows + 1, 129}
	}
	for _, n := range lengths {
		prompt := randomTokens(n, n)
		whole, cut := runOn(t, d, prompt, 3, 0), runOn(t, d, prompt, 3, n-1)
		if !slices.Equal(cut.ids, whole.ids) {
			t.Errorf("%d tokens: %v, the last one by itself %v", n, whole.ids, cut.ids)
		}
		if e := apart(cut.rows[0], whole.rows[0]); !(e < 0.02) {
			t.Errorf("%d tokens: logits are %.4f apart", n, e)
		}
	}
}

// TestRunsAreEqualOnCard: the same batch gives the same bytes every time.
func TestRunsAreEqualOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.F8E4M3, false)
	runs := 20
	if !trueSizes {
		runs = 3
	}
	var want answered
	for i := range runs {
		got := runOn(t, d, randomTokens(70, 3), 4, 0)
		if i == 0 {
			want = got
			continue
		}
		for r := range want.rows {
			if !slices.Equal(got.rows[r], want.rows[r]) {
				t.Fatalf("run %d: row %d of logits differs", i, r)
			}
		}
	}
}

// TestWindowBlocksOnCard: a model has the same logits, to the bit, whether its layers with a window have
// few window blocks or keep all rows. The prompt comes in chunks, and steps of generated rows are
// replayed as graphs.
func TestWindowBlocksOnCard(t *testing.T) {
	m, prompt, chunk, windows := windowModel(t, 40), randomTokens(200, 5), 96, 10
	if testing.Short() {
		prompt, chunk, windows = prompt[:140], 66, 8
	}
	for i, x := range []struct {
		kv tensor.DType
		o  cuda.Options
	}{{tensor.BF16, cuda.Options{}}, {tensor.I8, cuda.Options{}}, {tensor.BF16, cuda.Options{F32: true}}} {
		if testing.Short() && i > 0 {
			continue
		}
		want := runOn(t, onCardBy(t, m, load.Precision{}, x.kv, x.o), prompt, 6, chunk)
		got := runOn(t, onCardIn(t, m, load.Precision{}, x.kv, x.o, windows), prompt, 6, chunk)
		if !slices.EqualFunc(got.rows, want.rows, slices.Equal) {
			t.Errorf("KV %s, %+v: the rows have other bits", x.kv, x.o)
		}
	}
}

// TestCacheTypesOnCard: what is stored in 8 bits changes logits by little.
func TestCacheTypesOnCard(t *testing.T) {
	m := latentModel(t)
	want := runOn(t, onCard(t, m, load.Precision{}, tensor.BF16, false), randomTokens(90, 4), 2, 0)
	for _, kv := range []tensor.DType{tensor.F8E4M3, tensor.I8} {
		got := runOn(t, onCard(t, m, load.Precision{}, kv, false), randomTokens(90, 4), 2, 0)
		if e := apart(got.rows[0], want.rows[0]); !(e < 0.05) {
			t.Errorf("%s: logits are %.4f apart", kv, e)
		}
	}
}

// TestBatchesOnCard: several sequences at once get what each gets alone.
func TestBatchesOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.BF16, false)
	var seqs []*drive.Sequence
	var want [][]int32
	for i := range 5 {
		prompt := randomTokens(5+9*i, i)
		want = append(want, runOn(t, d, prompt, 5, 0).ids)
		seqs = append(seqs, &drive.Sequence{Prompt: prompt, New: 5})
	}
	if err := drive.Run(d, seqs, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	for i, s := range seqs {
		if !slices.Equal(s.Out, want[i]) {
			t.Errorf("sequence %d: %v, alone %v", i, s.Out, want[i])
		}
	}
}

// codedGoldens are golden models that are others with coded weights, which a processor decodes. TestNativeGoldenOnCard
// has three of them as they are.
var codedGoldens = map[string]bool{"deepseek_v3_fp8": true, "deepseek_v4_fp4": true, "gpt_oss_mxfp4": true, "qwen3_5_moe_fp8": true}

// TestGoldensOnCard: the golden models through the program, in float32 exactly and in
// bfloat16 within what that loses.
func TestGoldensOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		_, cfg := goldenPrompts(t, f.Dir)
		topK, _ := cfg.Selection()
		for i, args := range [][]string{
			{"--rows", "f32"}, {"--rows", "bf16"}, {"--rows", "f32", "--batch", "3", "--chunk", "7", "--layer-groups", "2"},
			{"--rows", "f32", "--chunk", "1", "--layer-groups", "2"}, {"--rows", "f32", "--batch", "3", "--chunk", "64"},
		} {
			short := testing.Short() && !goldens.Everything()
			if topK > 0 && args[1] == "bf16" {
				continue // the scores of two positions may be nearer than bfloat16 rounds them, and another choice is no fault
			}
			if short && (i > 0 || codedGoldens[f.Name]) {
				continue
			}
			golden := f.Dir
			if short || i == 3 { // a step a token takes long
				golden = fewerGoldens(t, f)
			}
			t.Run(fmt.Sprint(args), func(t *testing.T) {
				answers(t, "", append([]string{"compare", "--device", "cuda", "--model", f.Dir, "--golden", golden}, args...)...)
			})
		}
	})
}

// TestChosenRowsOnHost: rows that sparse attention chooses from may lie in host memory. Prompts read them from a
// copy of their blocks, generated rows in place; what a model computes stays the same, to the last digit of every logit.
func TestChosenRowsOnHost(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		_, cfg := goldenPrompts(t, f.Dir)
		if n, _ := cfg.ChosenTokenBytes(tensor.BF16); n == 0 || testing.Short() && f.Name != "deepseek_v32" {
			return
		}
		golden := fewerGoldens(t, f)
		args := []string{"compare", "--device", "cuda", "--rows", "f32", "--chunk", "7", "--batch", "3", "--model", f.Dir, "--golden", golden}
		want := answers(t, "", args...)
		if got := answers(t, "", append(args, "--sparse-kv", "host", "--kv-ram", "64MiB")...); got != want {
			t.Errorf("with rows on the host:\n%s\nwithout:\n%s", got, want)
		}
	})
}

// TestGGUFOnCard: rows that a file has in another order, and encoded matrices of several types, come
// to a GPU as they do to the CPU.
func TestGGUFOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	path := writeGGUF(t, "llama3.gguf", goldens.NewGGUF(t, "llama3").Data)
	golden := filepath.Join("..", "..", "testdata", "goldens", "llama3")
	if testing.Short() {
		golden = fewerGoldens(t, goldens.Folder{Name: "llama3 as GGUF", Dir: golden})
	}
	answers(t, "", "compare", "--device", "cuda", "--rows", "f32", "--model", path, "--golden", golden)
	ask := []string{"run", "--ids", "--temperature", "0", "--max-tokens", "6", "--model", writeGGUF(t, "tiny.gguf", goldens.TinyGGUF(t, mixed)), "Where is the cat?"}
	want := answers(t, "", ask...)
	for _, strategy := range []string{"persistent", "lru"} {
		if got := answers(t, "", append(ask, "--device", "cuda", "--rows", "f32", "--decode-strategy", strategy)...); got != want {
			t.Errorf("%s: %s, want %s", strategy, got, want)
		}
	}
}

// TestProbesOnCard: a probe sees the sum of all experts of a layer, those that the host computes
// and those whose sum a kernel computes with them.
func TestProbesOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	for golden, args := range map[string][]string{
		"deepseek_v2_lite": {"--rows", "f32", "--decode-strategy", "cpu_only"},
		"mixtral":          {"--rows", "bf16"},
	} {
		dir := filepath.Join("..", "..", "testdata", "goldens", golden)
		from := dir
		if testing.Short() {
			from = fewerGoldens(t, goldens.Folder{Dir: dir}) // without the longest prompt
		}
		answers(t, "", append([]string{"compare", "--device", "cuda", "--model", dir, "--golden", from}, args...)...)
	}
}

// TestInt4GoldenOnCard: with experts of four bits krater-tiny's logits are others, and its
// greedy answers still the golden ones, to their ends.
func TestInt4GoldenOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	dir := filepath.Join("..", "..", "models", "krater-tiny")
	if _, err := os.Stat(filepath.Join(dir, "golden.json")); err != nil {
		t.Skip(err)
	}
	golden, prompts := dir, 3
	if testing.Short() {
		golden, prompts = onePrompt(t, dir), 1
	}
	o := krater(t, "", "compare", "--device", "cuda", "--model", dir, "--golden", golden, "--rows", "f32", "--gpu-expert-bits", "4")
	greedy := 0
	for line := range strings.Lines(o.out) {
		if f := strings.Fields(line); len(f) > 6 && f[1] == "greedy" {
			greedy++
			if f[6] != "ok" {
				t.Error(line)
			}
		}
	}
	if greedy != prompts {
		t.Errorf("%d greedy answers compared, want %d\n%s%s", greedy, prompts, o.out, o.err)
	}
}

// TestInt3OnCard: krater-tiny with experts of three bits gives on a GPU what it gives on the CPU, by
// the plain kernels in float32 and by the fast ones, in one piece and in several.
func TestInt3OnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	if _, err := os.Stat(filepath.Join(modelDir, "golden.json")); err != nil {
		t.Skip(err)
	}
	g, err := compare.ReadGolden(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	dir := lessTiny(t)
	prompt := lessOf(slices.Concat(g.Prompts[0].IDs, g.Prompts[0].Greedy, g.Prompts[1].IDs, g.Prompts[1].Greedy))
	if testing.Short() {
		prompt = prompt[:gemv.MaxRows+6]
	}
	run := func(chunk int, args ...string) answered {
		return runOn(t, pipelineFor(t, dir, 0, append(args, "--group-size", "64")...), prompt, 4, chunk)
	}
	want := run(0, "--cpu-expert-bits", "3")
	for _, x := range []struct {
		rows  string
		chunk int
	}{{"f32", 0}, {"bf16", 0}, {"bf16", 20}} {
		if testing.Short() && x.chunk > 0 {
			continue // tokens after the prompt have the kernels of few rows, too
		}
		got := run(x.chunk, "--device", "cuda", "--gpu-expert-bits", "3", "--rows", x.rows)
		for i := range want.rows {
			if !slices.Equal(got.ids[:i], want.ids[:i]) {
				break // from here on they answer different questions
			}
			e := apart(got.rows[i], want.rows[i])
			t.Logf("%s, pieces of %d, token %d: logits are %.4f apart", x.rows, x.chunk, i, e)
			if !(e < 0.03) {
				t.Errorf("%s, pieces of %d, token %d: logits are %.4f apart", x.rows, x.chunk, i, e)
			}
		}
	}
}
