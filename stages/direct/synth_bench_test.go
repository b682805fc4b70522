package direct_test

import (
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/load"
	"krater/stages/synth"
)

// BenchmarkSynth decodes with a few layers of DeepSeek-V2-Lite's true sizes and
// random integer weights: what a profile of a step is made from.
func BenchmarkSynth(b *testing.B) {
	m, err := synth.New("deepseek-v2-lite", synth.Options{Layers: 4, Vocab: 32000})
	if err != nil {
		b.Fatal(err)
	}
	dev := processor(b, 2)
	l, err := m.Load(dev, load.Options{
		Limits: stages.Limits{Tokens: 512, Seqs: 8, Blocks: 80, BlockTokens: 32}, KVType: tensor.BF16,
		Precision: load.Precision{Experts: tensor.INT4.By(128), Attention: tensor.INT4.By(128), Shared: tensor.INT4.By(128), Dense: tensor.INT4.By(128), Head: tensor.INT4.By(128)},
	}, 2)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	d, err := direct.New(dev, l.Parts)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	b.Run("prefill512", func(b *testing.B) {
		tokens := make([]int32, 512)
		for i := range tokens {
			tokens[i] = int32(i * 37 % 32000)
		}
		batch := &stages.Step{Tokens: tokens, Spans: []stages.Span{{Span: device.Span{Len: 512, Blocks: table(0)}, Want: true}}}
		for b.Loop() {
			if err := d.Step(batch, nil, func(*stages.State) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		batch := &stages.Step{Tokens: []int32{1}, Spans: []stages.Span{{Span: device.Span{Len: 1, Blocks: table(0)}, Want: true, Decode: true}}}
		step := 0
		for b.Loop() {
			batch.Tokens[0], batch.Spans[0].Pos = int32(step*37%32000), 16+step%64
			step++
			if err := d.Step(batch, nil, func(*stages.State) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
