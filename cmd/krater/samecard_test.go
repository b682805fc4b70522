//go:build cuda

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/actors/placement"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/scheduler/dispatch"
	"krater/stages/compare/goldens"
	"krater/stages/load"
	"krater/stages/offload"
	"krater/stages/synth"
)

// sameOptions open a GPU for --same-tokens.
var sameOptions = cuda.Options{Invariant: true, Same: true}

// sameModel is a model and a precision whose tokens must not depend on where experts are.
type sameModel struct {
	name      string
	make      func(t *testing.T) *synth.Model
	precision load.Precision
	windows   int
}

func sameModels() []sameModel {
	bits := func(e *tensor.Encoding, group int) load.Precision {
		return load.Precision{Experts: e.By(group), Attention: tensor.INT8.By(64), Shared: tensor.INT8.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT8.By(64)}
	}
	list := []sameModel{{"latent, int4", latentModel, cardPrecisions["int4 g128"], 0}}
	if testing.Short() {
		return list
	}
	return append(list,
		sameModel{"latent, int4 in groups of 32", latentModel, cardPrecisions["int4 g32"], 0},
		sameModel{"latent, int8", latentModel, cardPrecisions["int8 g64"], 0},
		sameModel{"latent, int3", latentModel, bits(tensor.INT3, 64), 0},
		sameModel{"clamped SwiGLU with biases", func(t *testing.T) *synth.Model { return windowModel(t, 20) }, load.Precision{Experts: tensor.INT4.By(32)}, 40},
		sameModel{"GELU", twoHeadsModel, load.Precision{Experts: tensor.INT4.By(64)}, 40},
		sameModel{"several streams", pooledModel, load.Precision{Experts: tensor.INT8.By(64)}, 0},
	)
}

// TestSameTokensOnCard: with --same-tokens every strategy and budget, prompts in one piece and in several,
// before and after other requests, gives the logits that the model has with all experts on the GPU, to the
// bit.
func TestSameTokensOnCard(t *testing.T) {
	for i, x := range sameModels() {
		t.Run(x.name, func(t *testing.T) {
			m := x.make(t)
			prompt, tokens, threshold := randomTokens(70, 1), 4, 30
			if testing.Short() {
				prompt, tokens, threshold = prompt[:20], 3, 14
			}
			var want answered
			t.Run("all of them", func(t *testing.T) {
				want = runOn(t, onCardIn(t, m, x.precision, tensor.BF16, sameOptions, x.windows), prompt, tokens, 0)
			})
			place := besideCardOf(t, m, x.precision, 40, x.windows, sameOptions)
			one, err := offload.SlotBytes(m.Config, x.precision, cuda.Layout{})
			if err != nil {
				t.Fatal(err)
			}
			all := int64((len(m.Config.Layers) - 1) * m.Config.MoE.Experts)
			budgets, strategies := []int64{0, all / 3}, dispatch.All()
			switch {
			case testing.Short():
				budgets, strategies = []int64{all / 3}, []dispatch.Strategy{chosen(t, "hot_cached_static")}
			case i > 0: // other kernels, the same paths
				budgets, strategies = []int64{all / 3}, []dispatch.Strategy{chosen(t, "cpu_only"), chosen(t, "hot_cached_static"), chosen(t, "lru"), chosen(t, "learned")}
			}
			for _, slots := range budgets {
				for _, s := range strategies {
					for _, decode := range []dispatch.Strategy{s, chosen(t, "cpu_only")} {
						if decode.Name() != s.Name() && (testing.Short() || s.Name() != "layer_grouped" && s.Name() != "lru") {
							continue
						}
						t.Run(fmt.Sprintf("%s and %s, %d slots", s.Name(), decode.Name(), slots), func(t *testing.T) {
							p := place(t, placement.Options{Prefill: s, Decode: decode, Threshold: threshold, Budget: max(1, slots*one)})
							for _, chunk := range []int{0, 11} {
								sameAs(t, runOn(t, p.Model, prompt, tokens, chunk), want)
								if testing.Short() {
									return
								}
								runOn(t, p.Model, randomTokens(50, 3), 3, 0) // which changes what is where
							}
						})
					}
				}
			}
		})
	}
}

// sameAs compares answers bit by bit.
func sameAs(t *testing.T, got, want answered) {
	t.Helper()
	if !slices.Equal(got.ids, want.ids) {
		t.Errorf("tokens %v, want %v", got.ids, want.ids)
	}
	for i := range want.rows {
		if !slices.Equal(got.rows[i], want.rows[i]) {
			t.Errorf("the logits of token %d are %g apart", i, apart(got.rows[i], want.rows[i]))
			return
		}
	}
}

// TestSameTokensInCompany: answers of krater-tiny have the bits that they have alone and with all experts
// on the GPU, in any company, wherever experts are and however they move.
func TestSameTokensInCompany(t *testing.T) {
	if testing.Short() {
		t.Skip("some hundred steps of an emulated GPU")
	}
	cardFor(t, cuda.Options{}).Close()
	list, dir := company(3, 3, 2, 40), lessTiny(t)
	for _, g := range list {
		lessOf(g.prompt)
	}
	args := func(more ...string) []string {
		return append([]string{"--same-tokens", "--gpu-expert-bits", "4"}, more...)
	}
	want := cardTable(t, dir, args()...).alone(t, list)
	vram := fmt.Sprint(besideSlots() / 4 * expertTiny)
	for _, c := range [][]string{
		{"--decode-strategy", "learned", "--prefill-strategy", "layer_grouped"},
		{"--decode-strategy", "hot_cached_static", "--prefill-strategy", "hot_cached_static", "--prefill-chunk", "16", "--prefill-share", "7"},
		{"--decode-strategy", "cpu_only", "--prefill-strategy", "cpu_only", "--no-prefix-cache"},
		{"--decode-strategy", "lru", "--prefill-strategy", "chunked", "--block-tokens", "4"},
	} {
		x := cardTable(t, dir, args(append(c, "--expert-vram", vram, "--gpu-prefill-threshold", "20")...)...)
		for _, inTurn := range []bool{false, true} {
			if who := differences(want, x.together(t, list, inTurn)); who != nil {
				t.Errorf("%q, in turn: %v: guests %v are answered something else than alone", c, inTurn, who)
			}
		}
	}
}

// TestSameTokensOfGoldens: the golden models with experts answer with the same logits, to the bit, wherever
// experts are.
func TestSameTokensOfGoldens(t *testing.T) {
	if testing.Short() {
		t.Skip("all golden models on an emulated GPU, several times")
	}
	cardFor(t, cuda.Options{}).Close()
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		_, cfg := goldenPrompts(t, f.Dir)
		if cfg.MoE.Experts == 0 {
			return
		}
		prompt := make([]int32, 24)
		for i := range prompt {
			prompt[i] = int32((i*37 + 5) % cfg.Vocab)
		}
		base := []string{"--device", "cuda", "--same-tokens", "--gpu-expert-bits", "8", "--max-seqs", "4", "--kv-cache", "4MiB", "--no-measure"}
		third := fmt.Sprint(len(cfg.Layers)*cfg.MoE.Experts*cfg.MoE.FF*cfg.Hidden, "B")
		var want answered
		for i, args := range [][]string{
			nil, {"--decode-strategy", "cpu_only", "--prefill-strategy", "cpu_only"},
			{"--decode-strategy", "hot_cached_static", "--prefill-strategy", "layer_grouped", "--expert-vram", third, "--gpu-prefill-threshold", "8"},
			{"--decode-strategy", "learned", "--prefill-strategy", "lru", "--expert-vram", third, "--gpu-prefill-threshold", "8"},
		} {
			t.Run(fmt.Sprint(args), func(t *testing.T) {
				_, p := startedOf(t, f.Dir, append(args, base...)...)
				for _, chunk := range []int{0, 7} {
					got := runOn(t, p, prompt, 5, chunk)
					if i == 0 && chunk == 0 {
						want = got
					}
					sameAs(t, got, want)
				}
			})
		}
	})
}

// TestSameTokensIsRefused: where it could not be kept, by name.
func TestSameTokensIsRefused(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	for why, args := range map[string][]string{
		"--max-seqs is 65": {"bench", "--device", "cuda", "--max-seqs", "65"},
		"--reuse-answers":  {"run", "--reuse-answers", "Hello"},
		"as in the file":   {"run", "--device", "cuda", "--kv-cache", "4MiB", "Hello"},
		"on the CPU": {"run", "--device", "cuda", "--kv-cache", "4MiB", "--gpu-expert-bits", "4", "--cpu-expert-bits", "8", "--expert-vram", fmt.Sprint(20 * expertTiny),
			"--prefill-strategy", "layer_grouped", "--decode-strategy", "cpu_only", "Hello"},
	} {
		o := krater(t, "", append(args, "--same-tokens")...)
		if o.status == 0 || !strings.Contains(o.err, "--same-tokens: ") || !strings.Contains(o.err, why) {
			t.Errorf("%q: %+v", args, o)
		}
	}
}
