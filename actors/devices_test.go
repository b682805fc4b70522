package actors

import (
	"context"
	"slices"
	"testing"

	"krater/actors/engine"
)

// TestSamplingOnDevices: with penalties, biases and end tokens that may not come yet, several
// requests at once get the tokens on every device that they get alone on the processor.
func TestSamplingOnDevices(t *testing.T) {
	seed := uint64(3)
	list := []engine.Sampling{
		{TopP: 1, RepetitionPenalty: 1.4, LogitBias: map[int32]float32{5: 4, 6: -100}},
		{TopP: 0.9, RepetitionPenalty: 1, PresencePenalty: 0.6, FrequencyPenalty: 0.3, Temperature: 1, Seed: &seed},
		{TopP: 1, RepetitionPenalty: 1.1, FrequencyPenalty: -0.4, Temperature: 0.7, TopK: 20, MinP: 0.01, Seed: &seed},
	}
	ask := func(gw *Gateway, i int) engine.Stream {
		t.Helper()
		s, err := gw.Submit(context.Background(), &engine.Request{ID: "test", Prompt: engine.Prompt{IDs: []int32{3, 1, 4, 1, 5, int32(i)}},
			MaxTokens: 12, MinTokens: 8, StopIDs: []int32{7, 8, 9}, Sampling: list[i]})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var want [][]int32
	for _, simulated := range []bool{false, true} {
		gw := newRig(t, setup{dir: golden("deepseek_v2_lite"), groups: 2, simulated: simulated}).gateway(t)
		for i := range list {
			if simulated {
				break
			}
			ids, _, err := collect(ask(gw, i))
			if err != nil || len(ids) < 8 {
				t.Fatal(ids, err)
			}
			want = append(want, ids)
		}
		var streams []engine.Stream
		for i := range list {
			streams = append(streams, ask(gw, i))
		}
		for i, s := range streams {
			if ids, _, err := collect(s); err != nil || !slices.Equal(ids, want[i]) {
				t.Errorf("simulated %v, request %d: %v, %v, want %v", simulated, i, ids, err, want[i])
			}
		}
	}
}
