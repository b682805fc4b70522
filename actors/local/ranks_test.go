//go:build !race

package local

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/local/config"
	"krater/kernels/hostsim"
	"krater/kernels/machine"
	"krater/models"
	"krater/stages/source"
	"krater/stages/synth"
	"krater/stages/text/tokenizer"
)

// equal is a model of eight equal layers with random weights, and a tokenizer.
type equal struct {
	src *source.Source
	tok *tokenizer.Tokenizer
}

// eightLayers makes the model.
func eightLayers(t *testing.T) *equal { return equalLayers(t, map[string]any{"num_hidden_layers": 8}) }

// equalLayers makes one of equal layers with changes in its config.
func equalLayers(t *testing.T, changes map[string]any) *equal {
	t.Helper()
	files, err := models.Default()
	if err != nil {
		t.Skip(err)
	}
	data, err := fs.ReadFile(files, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	c["vocab_size"], c["first_k_dense_replace"], c["n_routed_experts"] = 512, 0, 8
	maps.Copy(c, changes)
	if data, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	m, err := synth.FromConfig("eight", data, synth.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.WriteSafetensors(context.Background(), synth.Folder{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	src, err := source.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return &equal{src, tok}
}

// inTurn has prompts of a length answered by ranks of simulated devices whose arithmetic and memory have a rate, and returns the virtual
// time and the tokens.
func (x *equal) inTurn(t *testing.T, device config.Kind, rate int64, micro, streams, prompt, tokens int) (took time.Duration, answers [][]int32) {
	t.Helper()
	return x.run(t, func(o *config.Options) { o.Device, o.MicroBatches = device, micro }, func(m *Model) { m.Rates = ratesOf(rate) }, streams, prompt, tokens)
}

// run is inTurn with options and rates that functions set.
func (x *equal) run(t *testing.T, options func(*config.Options), rates func(*Model), streams, prompt, tokens int) (took time.Duration, answers [][]int32) {
	t.Helper()
	c := Config{Source: x.src, Options: config.Default(), Machine: machine.Here()}
	o := &c.Options
	o.MaxSeqs, o.PrefillChunk, o.CacheDir, o.Threads = streams, 32, t.TempDir(), 1
	options(o)
	m, err := Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	rates(m)
	if err := m.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	clock := m.Rank().Device.(*hostsim.Device).Clock()
	ranks, po := m.pipeline(zerolog.Nop())
	p, err := actors.StartVirtual(ranks, po, clock)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	gw := actors.NewGateway(p.Pipeline, actors.GatewayOptions{ID: "test", Tokenizer: x.tok, Vocab: m.Config.Vocab})
	began := clock.Now()
	var open []engine.Stream
	for i := range streams {
		ids := make([]int32, prompt)
		for j := range ids {
			ids[j] = int32((7 + 31*i + 17*j + i*j) % m.Config.Vocab)
		}
		st, err := gw.Submit(context.Background(), &engine.Request{Prompt: engine.Prompt{IDs: ids}, MaxTokens: tokens, IgnoreEOS: true, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1}})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	took = clock.Now() - began
	for _, st := range open {
		answers = append(answers, read(t, st))
	}
	return took, answers
}

// read returns the tokens of an answer.
func read(t *testing.T, st engine.Stream) (ids []int32) {
	t.Helper()
	defer st.Close()
	for {
		e, err := st.Next(context.Background())
		if err == io.EOF {
			return ids
		}
		if err != nil || e.Kind == engine.Failed {
			t.Fatal(err, e.Err)
		}
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
	}
}

// TestRanksOverlap measures two ranks in virtual time. With two micro-batches both compute at the same time: the chunks of one prompt follow
// each other, and streams take turns.
func TestRanksOverlap(t *testing.T) {
	const two, one, rate = "hostsim,hostsim", "hostsim", int64(1e9)
	// gain compares the rates of two measured loads of tokens.
	gain := func(what string, a, b float64, least float64) {
		t.Helper()
		t.Logf("%s: %.2f", what, a/b)
		if a/b < least {
			t.Errorf("%s: %.2f, want %.2f", what, a/b, least)
		}
	}
	const chunks = 16
	x := eightLayers(t)
	apart, want := x.inTurn(t, two, rate, 1, 1, chunks*32, 1)
	both, got := x.inTurn(t, two, rate, 2, 1, chunks*32, 1)
	whole, same := x.inTurn(t, one, 2*rate, 1, 1, chunks*32, 1)
	t.Logf("a prompt of %d chunks: %v with one micro-batch, %v with two, %v on one rank", chunks, apart, both, whole)
	gain("a prompt, with two micro-batches", apart.Seconds(), both.Seconds(), 1.8)
	gain("a prompt, against one rank of the same total rate", whole.Seconds(), both.Seconds(), 0.9)
	if !slices.EqualFunc(want, got, slices.Equal) || !slices.EqualFunc(want, same, slices.Equal) {
		t.Errorf("tokens %v, %v with one micro-batch, %v on one rank", got, want, same)
	}
	// decode returns the generated tokens a second, without the prompts.
	decode := func(device config.Kind, rate int64, micro, streams int) float64 {
		t.Helper()
		const few, many = 4, 12
		short, _ := x.inTurn(t, device, rate, micro, streams, 8, few)
		long, _ := x.inTurn(t, device, rate, micro, streams, 8, many)
		return float64(streams*(many-few)) / (long - short).Seconds()
	}
	const streams = 4
	alone, pair, single := decode(two, rate, 1, streams), decode(two, rate, 2, 2*streams), decode(one, 2*rate, 1, streams)
	t.Logf("decode: %.0f tokens a second with one micro-batch of %d streams, %.0f with two, %.0f on one rank", alone, streams, pair, single)
	gain("decode, with two micro-batches", pair, alone, 1.8)
	gain("decode, against one rank of the same total rate", pair, single, 0.9)
}
