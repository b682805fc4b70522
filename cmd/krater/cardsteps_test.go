//go:build cuda

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"krater/kernels/cuda"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
)

// TestRepeatedStepsOnCard: steps that are repeated as graphs give what steps give whose
// operators are launched one by one, across the border where attention gets more items.
func TestRepeatedStepsOnCard(t *testing.T) {
	m, p := latentModel(t), cardPrecisions["int4 g128"]
	plain := onCardBy(t, m, p, tensor.BF16, cuda.Options{Graphs: -1})
	graphs := onCardBy(t, m, p, tensor.BF16, cuda.Options{Graphs: 2})
	n := 14
	if testing.Short() {
		n = 10
	}
	batches := [][]int{{20, 60, 7}, {120}, {20, 60, 7}}
	if testing.Short() {
		batches = batches[:2]
	}
	for _, lengths := range batches {
		run := func(d *direct.Model) [][]int32 {
			var seqs []*drive.Sequence
			for i, tokens := range lengths {
				seqs = append(seqs, &drive.Sequence{Prompt: randomTokens(tokens, i), New: n})
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

// TestServeOnCard: answers generated together, on a GPU a step ahead of what the scheduler knows,
// equal the answers of the CPU. One of them stops, one is cut, and one needs its logits on the host.
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
		{"prompt": "A lighthouse is", "max_tokens": 16, "ignore_eos": true, "temperature": 0.7, "seed": 7, "repetition_penalty": 1.3, "presence_penalty": 0.4,
			"frequency_penalty": 0.2, "logit_bias": map[string]int{"300": 3, "17": -100}, "min_tokens": 6, "stop_token_ids": []int{8191}},
		{"prompt": "The river", "max_tokens": 4, "repetition_penalty": 1.2, "logprobs": 2}, // its tokens are the host's to choose
	}
	if testing.Short() {
		requests[0]["max_tokens"], requests[3]["max_tokens"], requests[4]["max_tokens"] = 8, 6, 8
	}
	dir := fewLayers(t)
	all := func(args ...string) (texts []string, s *site) {
		s = open(t, append(args, "--model", dir)...)
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
	parts := "1" // an emulated GPU, two pools that look for its calls, and the rest are too much for two cores
	if trueSizes {
		parts, beside = "2", append(beside, "--expert-pools", "2")
	}
	more := [][]string{{"2"}}
	if !testing.Short() { // TestActorsBesideCard has a smaller model
		more = append(more, []string{"1"}, append([]string{parts}, beside...))
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
		const changes = 5 // the request whose logits are changed in every way
		before := s.metrics()["krater:steps_ahead_total"]
		body := map[string]any{"model": "krater-tiny"}
		maps.Copy(body, requests[changes])
		one := post200[reply](t, s, "/v1/completions", body)
		if text := fmt.Sprintf("%q %s", one.Choices[0].Text, one.Choices[0].Finish); text != want[changes] {
			t.Errorf("%s micro-batches, alone: %s, want %s", parts, text, want[changes])
		}
		if n := s.metrics()["krater:steps_ahead_total"] - before; n < 12 {
			t.Errorf("%s micro-batches: %v steps of 15 were made ahead", parts, n)
		}
	}
}

// TestPlacedRunsAheadOnCard: where copies of experts submit parts of a step, the next one still takes
// the token that this one chooses.
func TestPlacedRunsAheadOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	ask := []string{"run", "--model", fewLayers(t), "--ids", "--temperature", "0", "--max-tokens", "12", "A lighthouse is"}
	want := answers(t, "", ask...)
	for _, placed := range [][]string{
		{"--expert-vram", fmt.Sprint(besideSlots() * expertTiny), "--prefill-strategy", "persistent", "--decode-strategy", "persistent"},
		{"--expert-vram", fmt.Sprint(besideSlots() * 3 / 4 * expertTiny), "--prefill-strategy", "cpu_only", "--decode-strategy", "lru"},
	} {
		if got := answers(t, "", append(append([]string{"run", "--device", "cuda", "--rows", "f32"}, placed...), ask[1:]...)...); got != want {
			t.Errorf("%v: %s, the processor wrote %s", placed, got, want)
		}
	}
}

// TestChainOnCard: steps enqueued ahead of the tokens that they take choose the tokens that
// steps one by one do, over many of them and with several rows, graphs made on the way.
func TestChainOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), load.Precision{Experts: tensor.INT4.By(32)}, tensor.BF16, false)
	const n = 12
	for _, rows := range []int{3, 1} {
		if testing.Short() && rows == 1 {
			continue // TestServeOnCard has steps of one row ahead
		}
		var batch stages.Step
		for i := range rows {
			prompt := randomTokens(20+i, i)
			sp := stages.Span{Seq: uint64(i), Span: device.Span{Len: len(prompt), Blocks: []int32{int32(3 * i), int32(3*i + 1), int32(3*i + 2)}}}
			if err := d.Step(&stages.Step{Tokens: prompt, Spans: []stages.Span{sp}}, nil, nil); err != nil {
				t.Fatal(err)
			}
			sp.Row, sp.Pos, sp.Len, sp.Decode, sp.Want = i, len(prompt), 1, true, true
			batch.Tokens, batch.Spans, batch.Draws = append(batch.Tokens, 5), append(batch.Spans, sp), append(batch.Draws, device.Draw{TopP: 1})
		}
		ids := func(st *stages.State) (out []int32) {
			for i := range rows {
				id, ok := st.ChosenID(i)
				if !ok {
					t.Fatal("the GPU has not chosen")
				}
				out = append(out, id)
			}
			return out
		}
		var want, got [][]int32
		alone := stages.Step{Tokens: slices.Clone(batch.Tokens), Spans: slices.Clone(batch.Spans), Draws: batch.Draws}
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

// rowEach is a generated row for each sequence, which has one token before pos at most.
func rowEach(seqs []int, pos int, tokens []int32) *stages.Step {
	b := &stages.Step{Tokens: tokens}
	for i, q := range seqs {
		b.Spans = append(b.Spans, stages.Span{Seq: uint64(q), Decode: true, Want: true,
			Span: device.Span{Row: i, Len: 1, Pos: pos, Blocks: []int32{int32(q)}}})
		b.Draws = append(b.Draws, device.Draw{TopP: 1})
	}
	return b
}

// TestTakesFromMoreRowsOnCard: a step that is repeated takes the tokens it is told to, also
// from a step that has more rows than the one had with which it became a graph, as it is
// when streams end.
func TestTakesFromMoreRowsOnCard(t *testing.T) {
	d := onCard(t, latentModel(t), load.Precision{Experts: tensor.INT4.By(32)}, tensor.BF16, false)
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
		t.Cleanup(x.stream.Close)
		return x
	}
	step := func(x side, b *stages.Step) (ids []int32) {
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
				t.Fatal("the GPU has not chosen")
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
		first := step(one, rowEach(c.seqs, 0, tokens))
		var seqs []int
		var known []int32
		for _, k := range c.take {
			seqs, known = append(seqs, c.seqs[k]), append(known, first[k])
		}
		want := step(plain, rowEach(seqs, 1, known))
		b := rowEach(seqs, 1, make([]int32, len(seqs)))
		b.From, b.Take = one.state, c.take
		if got := step(two, b); !slices.Equal(got, want) {
			t.Errorf("step %d takes %v of %v: %v, want %v", i, c.take, first, got, want)
		}
		if i == 4 && !two.state.Repeated() {
			t.Error("the last step is no graph, which shows nothing")
		}
	}
}
