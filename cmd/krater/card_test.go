//go:build cuda

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/cuda/gemv"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/synth"
)

// These run on a card, or on the emulated one (make test-cuda); without either they are
// skipped.

// trueSizes has the models of these tests made as wide as DeepSeek-V2-Lite is: for a
// card.
var trueSizes = os.Getenv("KRATER_TRUE_SIZES") != ""

// cardFor opens the card.
func cardFor(t *testing.T, o cuda.Options) card {
	t.Helper()
	c, err := openCard(o)
	if errors.Is(err, errNoCard) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// latentModel is a random model with the head sizes of DeepSeek-V2, which the fast
// kernels are made for, and otherwise small.
func latentModel(t *testing.T) *synth.Model {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "stages", "synth", "shapes", "deepseek-v2-lite.json"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	sizes := map[string]any{"num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "vocab_size": 512}
	if !trueSizes {
		for k, v := range map[string]any{"hidden_size": 256, "intermediate_size": 320, "moe_intermediate_size": 64,
			"num_attention_heads": 2, "num_key_value_heads": 2} {
			sizes[k] = v
		}
	}
	for k, v := range sizes {
		fields[k] = v
	}
	for _, k := range []string{"bos_token_id", "eos_token_id"} {
		delete(fields, k)
	}
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	m, err := synth.FromConfig("latent", data, synth.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// onCard is the model on a card in a precision.
func onCard(t *testing.T, m *synth.Model, p load.Precision, kv tensor.DType, f32 bool) *direct.Model {
	t.Helper()
	return onCardBy(t, m, p, kv, cuda.Options{F32: f32})
}

func onCardBy(t *testing.T, m *synth.Model, p load.Precision, kv tensor.DType, o cuda.Options) *direct.Model {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	c := cardFor(t, o)
	l, err := m.LoadCard(c, host, load.Options{
		Limits: stages.Limits{Tokens: 257, Seqs: 9, LogitRows: 66, Blocks: 64, BlockTokens: 16}, KVType: kv, Precision: p,
	}, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	d, err := direct.New(c, l.Parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// randomTokens are n tokens of the model's vocabulary.
func randomTokens(n, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7 + i*31 + seed*97 + 11) % 509)
	}
	return ids
}

// answer is the logits after each token of a prompt, and what is generated after it.
type answered struct {
	rows [][]float32 // of the prompt's last position and of every generated one
	ids  []int32
}

func runOn(t *testing.T, r drive.Runner, prompt []int32, n, chunk int) answered {
	t.Helper()
	var a answered
	s := &drive.Sequence{Prompt: prompt, New: n, See: func(pos int, row []float32) {
		if pos >= len(prompt)-1 {
			a.rows = append(a.rows, slices.Clone(row))
		}
	}}
	if err := drive.Run(r, []*drive.Sequence{s}, drive.Options{Chunk: chunk}); err != nil {
		t.Fatal(err)
	}
	a.ids = s.Out
	return a
}

// apart is the relative L2 error of got.
func apart(got, want []float32) float64 {
	var d, n float64
	for i := range want {
		x := float64(got[i]) - float64(want[i])
		d += x * x
		n += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(d / n)
}

var cardPrecisions = map[string]load.Precision{
	"bf16":      {},
	"int4 g128": {Experts: 4, Attention: 8, Shared: 8, Dense: 8, Head: 8, Group: 128},
	"int4 g32":  {Experts: 4, Attention: 4, Shared: 4, Dense: 4, Head: 4, Group: 32},
	"int8 g64":  {Experts: 8, Attention: 8, Shared: 8, Dense: 8, Head: 8, Group: 64},
}

// TestFastKernelsAgreeWithPlain: a model of the sizes that the fast kernels are made for,
// by them in bfloat16 and by the plain ones in float32, over a prompt and what follows.
func TestFastKernelsAgreeWithPlain(t *testing.T) {
	m := latentModel(t)
	prompt := randomTokens(150, 1)
	for name, p := range cardPrecisions {
		t.Run(name, func(t *testing.T) {
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
		})
	}
}

// TestChunksOnCard: however a prompt is cut, the same tokens.
func TestChunksOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.BF16, false)
	prompt := randomTokens(100, 2)
	want := runOn(t, d, prompt, 6, 0)
	for _, chunk := range []int{1, 7, 64} {
		if chunk == 1 && testing.Short() {
			continue
		}
		got := runOn(t, d, prompt, 6, chunk)
		if !slices.Equal(got.ids, want.ids) {
			t.Errorf("chunks of %d: %v, want %v", chunk, got.ids, want.ids)
		}
		if e := apart(got.rows[0], want.rows[0]); !(e < 0.02) {
			t.Errorf("chunks of %d: logits are %.4f apart", chunk, e)
		}
	}
}

// TestThresholdsOnCard: prompts of one token less, as many and one more than where other
// kernels take over, as one piece and with the last token by itself, give the same tokens
// (CASES 1).
func TestThresholdsOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), cardPrecisions["int4 g128"], tensor.BF16, false)
	for _, n := range []int{3, 4, 5, 8, 9, gemv.MaxRows - 1, gemv.MaxRows, gemv.MaxRows + 1, 127, 128, 129} {
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

// TestRepeatedStepsOnCard: steps that are repeated as graphs give what steps give whose
// operators are launched one by one, across the border where attention gets more items.
func TestRepeatedStepsOnCard(t *testing.T) {
	m, p := latentModel(t), cardPrecisions["int4 g128"]
	plain := onCardBy(t, m, p, tensor.BF16, cuda.Options{Graphs: -1})
	graphs := onCardBy(t, m, p, tensor.BF16, cuda.Options{Graphs: 2})
	for _, lengths := range [][]int{{120}, {20, 60, 7}, {120}} {
		run := func(d *direct.Model) [][]int32 {
			var seqs []*drive.Sequence
			for i, n := range lengths {
				seqs = append(seqs, &drive.Sequence{Prompt: randomTokens(n, i), New: 14})
			}
			if err := drive.Run(d, seqs, drive.Options{}); err != nil {
				t.Fatal(err)
			}
			var out [][]int32
			for _, s := range seqs {
				out = append(out, s.Out)
			}
			return out
		}
		want, got := run(plain), run(graphs)
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("prompts of %v, sequence %d: %v, want %v", lengths, i, got[i], want[i])
			}
		}
	}
}

// TestGoldensOnCard: the golden models through the program, in float32 exactly and in
// bfloat16 within what that loses.
func TestGoldensOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	for _, golden := range []string{"deepseek_v2_lite", "deepseek_v2", "qwen2"} {
		dir := filepath.Join("..", "..", "testdata", "goldens", golden)
		for _, args := range [][]string{{"--rows", "f32"}, {"--rows", "bf16"}, {"--rows", "f32", "--batch", "3", "--chunk", "7", "--layer-groups", "2"}} {
			if testing.Short() && len(args) > 2 {
				continue
			}
			t.Run(fmt.Sprint(golden, args), func(t *testing.T) {
				answers(t, "", append([]string{"compare", "--device", "cuda", "--model", dir, "--golden", dir}, args...)...)
			})
		}
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
	o := krater(t, "", "compare", "--device", "cuda", "--model", dir, "--golden", dir, "--rows", "f32", "--gpu-expert-bits", "4")
	greedy := 0
	for line := range strings.Lines(o.out) {
		if f := strings.Fields(line); len(f) > 6 && f[1] == "greedy" {
			greedy++
			if f[6] != "ok" {
				t.Error(line)
			}
		}
	}
	if greedy != 3 {
		t.Errorf("%d greedy answers compared, want 3\n%s%s", greedy, o.out, o.err)
	}
}

// TestServeOnCard: answers written together, on a card a step ahead of what the scheduler
// knows, are those that the processor writes; one that stops, one that is cut, one whose
// logits the host has to see among them.
func TestServeOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	type reply struct {
		Choices []struct {
			Text   string
			Finish string `json:"finish_reason"`
		}
	}
	requests := []map[string]any{
		{"prompt": "A lighthouse is", "max_tokens": 24}, {"prompt": "The river", "max_tokens": 9}, {"prompt": "Bread", "max_tokens": 16, "stop": "a"},
		{"prompt": "What are you", "max_tokens": 12, "frequency_penalty": 0.5}, {"prompt": "Rain is", "max_tokens": 20, "temperature": 0.9, "seed": 5},
	}
	all := func(args ...string) (texts []string, s *site) {
		s = open(t, append(args, "--model", filepath.Join("..", "..", "models", "krater-tiny"))...)
		texts = make([]string, len(requests))
		var wg sync.WaitGroup
		for i, r := range requests {
			body := map[string]any{"model": "krater-tiny", "temperature": 0}
			maps.Copy(body, r)
			wg.Go(func() {
				got := post200[reply](t, s, "/v1/completions", body)
				texts[i] = fmt.Sprintf("%q %s", got.Choices[0].Text, got.Choices[0].Finish)
			})
		}
		wg.Wait()
		return texts, s
	}
	want, _ := all()
	beside := []string{"--expert-vram", "5MiB", "--prefill-strategy", "layer_grouped", "--decode-strategy", "hot_cached_static", "--gpu-prefill-threshold", "5"}
	parts := "1" // an emulated card, two pools that look for its letters, and the rest are too much for two cores
	if trueSizes {
		parts, beside = "2", append(beside, "--expert-pools", "2")
	}
	more := [][]string{{"1"}, {"2"}}
	if !testing.Short() { // TestActorsBesideCard has a smaller model
		more = append(more, append([]string{parts}, beside...))
	}
	for _, more := range more {
		parts := strings.Join(more, " ")
		// In float32, so that both compute the same.
		got, s := all(append([]string{"--device", "cuda", "--rows", "f32", "--micro-batches"}, more...)...)
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s micro-batches, request %d: %s, the processor wrote %s", parts, i, got[i], want[i])
			}
		}
		before := s.metrics()["krater:steps_ahead_total"]
		one := post200[reply](t, s, "/v1/completions", map[string]any{"model": "krater-tiny", "prompt": "A lighthouse is", "max_tokens": 24, "temperature": 0})
		if text := fmt.Sprintf("%q %s", one.Choices[0].Text, one.Choices[0].Finish); text != want[0] {
			t.Errorf("%s micro-batches, alone: %s, want %s", parts, text, want[0])
		}
		if n := s.metrics()["krater:steps_ahead_total"] - before; n < 20 {
			t.Errorf("%s micro-batches: %v steps of 23 were made ahead", parts, n)
		}
	}
}

// TestChainOnCard: steps enqueued ahead of the tokens that they take choose the tokens that
// steps one by one do, over many of them and with several rows, graphs made on the way.
func TestChainOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), load.Precision{Experts: 4, Group: 32}, tensor.BF16, false)
	const n = 12
	for _, rows := range []int{1, 3} {
		var batch stages.Batch
		for i := range rows {
			prompt := randomTokens(20+i, i)
			sp := stages.Span{Seq: uint64(i), Span: device.Span{Len: len(prompt), Blocks: []int32{int32(3 * i), int32(3*i + 1), int32(3*i + 2)}}}
			if err := d.Step(&stages.Batch{Tokens: prompt, Spans: []stages.Span{sp}}, nil, nil); err != nil {
				t.Fatal(err)
			}
			sp.Row, sp.Pos, sp.Len, sp.Decode, sp.Want = i, len(prompt), 1, true, true
			batch.Tokens, batch.Spans, batch.Draws = append(batch.Tokens, 5), append(batch.Spans, sp), append(batch.Draws, device.Draw{TopP: 1})
		}
		ids := func(st *stages.State) (out []int32) {
			for i := range rows {
				id, ok := st.ChosenID(i)
				if !ok {
					t.Fatal("the card has not chosen")
				}
				out = append(out, id)
			}
			return out
		}
		var want, got [][]int32
		alone := stages.Batch{Tokens: slices.Clone(batch.Tokens), Spans: slices.Clone(batch.Spans), Draws: batch.Draws}
		for range n {
			if err := d.Step(&alone, nil, func(st *stages.State) error {
				want = append(want, ids(st))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			alone.Tokens = want[len(want)-1]
			for i := range alone.Spans {
				alone.Spans[i].Pos++
			}
		}
		if err := d.Chain(&batch, n, func(_ int, st *stages.State) error {
			got = append(got, ids(st))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d rows: %v in a chain, %v one by one", rows, got, want)
		}
		if slices.EqualFunc(want[1:], want[:n-1], slices.Equal) {
			t.Errorf("%d rows: always the same tokens, which shows little: %v", rows, want)
		}
	}
}

// TestTakesFromMoreRowsOnCard: a step that is repeated takes the tokens it is told to, also
// from a step that has more rows than the one had with which it became a graph, as it is
// when streams end.
func TestTakesFromMoreRowsOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), load.Precision{Experts: 4, Group: 32}, tensor.BF16, false)
	type side struct {
		stream device.Stream
		state  *stages.State
	}
	dev := d.Device()
	open := func() (x side) {
		var err error
		if x.stream, err = dev.NewStream(); err != nil {
			t.Fatal(err)
		}
		if x.state, err = stages.NewState(dev, d.Parts.Config, d.Parts.Limits); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.state.Close)
		return x
	}
	// rows of sequences that have seen nothing: a token each, at position 0 or 1
	batch := func(seqs []int, pos int, tokens []int32) *stages.Batch {
		b := &stages.Batch{Tokens: tokens}
		for i, q := range seqs {
			b.Spans = append(b.Spans, stages.Span{Seq: uint64(q), Decode: true, Want: true,
				Span: device.Span{Row: i, Len: 1, Pos: pos, Blocks: []int32{int32(q)}}})
			b.Draws = append(b.Draws, device.Draw{TopP: 1})
		}
		return b
	}
	step := func(x side, b *stages.Batch) (ids []int32) {
		t.Helper()
		if err := x.state.Fill(x.stream, b); err != nil {
			t.Fatal(err)
		}
		if err := direct.Forward(x.stream, d.Parts, x.state, nil); err != nil {
			t.Fatal(err)
		}
		for i := range b.Spans {
			id, ok := x.state.ChosenID(i)
			if !ok {
				t.Fatal("the card has not chosen")
			}
			ids = append(ids, id)
		}
		return ids
	}
	one, two, plain := open(), open(), open()
	for i, c := range []struct {
		seqs []int
		take []int32
	}{{[]int{0, 1}, []int32{0, 1}}, {[]int{0, 1}, []int32{0, 1}}, {[]int{0, 1}, []int32{1, 0}}, {[]int{0, 1, 2, 3}, []int32{1, 3}}, {[]int{0, 1, 2, 3}, []int32{3, 2}}} {
		tokens := make([]int32, len(c.seqs))
		for j := range tokens {
			tokens[j] = int32(17*i + 31*j + 5)
		}
		first := step(one, batch(c.seqs, 0, tokens))
		var seqs []int
		var known []int32
		for _, k := range c.take {
			seqs, known = append(seqs, c.seqs[k]), append(known, first[k])
		}
		want := step(plain, batch(seqs, 1, known))
		b := batch(seqs, 1, make([]int32, len(seqs)))
		b.From, b.Take = one.state, c.take
		if got := step(two, b); !slices.Equal(got, want) {
			t.Errorf("step %d takes %v of %v: %v, want %v", i, c.take, first, got, want)
		}
		if i == 4 && !two.state.Repeated() {
			t.Error("the last step is no graph, which shows nothing")
		}
	}
}
