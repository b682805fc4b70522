package direct_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

// qwen25 are the sizes of Qwen2.5 0.5B and 7B, the latter with four of its 28
// layers and a small vocabulary, so that it fits where the tests run.
var qwen25 = map[string]map[string]any{
	"0.5b": {"num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
		"vocab_size": 151936, "tie_word_embeddings": true},
	"7b, 4 layers": {"num_hidden_layers": 4, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
		"vocab_size": 1024, "tie_word_embeddings": false},
}

// filled makes BF16 weights for a config from a megabyte of random numbers: what
// they are does not matter for speed.
func filled(b *testing.B, cfg *model.Config) *weights.Set {
	b.Helper()
	pattern, _ := kerneltest.BF16(kerneltest.Normal(kerneltest.Rand(1), 1<<19, 0.02))
	header, total := map[string]any{}, 0
	for _, spec := range cfg.Expected() {
		n := 2
		for _, d := range spec.Shape {
			n *= d
		}
		header[spec.Name] = map[string]any{"dtype": "BF16", "shape": spec.Shape, "data_offsets": []int{total, total + n}}
		total += n
	}
	head, err := json.Marshal(header)
	if err != nil {
		b.Fatal(err)
	}
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	file := make([]byte, 0, 8+len(head)+total)
	file = append(binary.LittleEndian.AppendUint64(file, uint64(len(head))), head...)
	for random := kerneltest.Bytes(pattern); total > 0; total -= min(total, len(random)) {
		file = append(file, random[:min(total, len(random))]...)
	}
	set, err := weights.FromBytes(map[string][]byte{"model.safetensors": file})
	if err != nil {
		b.Fatal(err)
	}
	return set
}

// clock is the processor with the time of its operators.
type clock struct {
	*cpu.Device
	spent map[string]time.Duration
	vocab int
}

// timeOf are the names of operators in the report.
var timeOf = map[device.Kind]string{device.OpAdd: "norm", device.OpRMSNorm: "norm", device.OpMatMul: "projections", device.OpAddBias: "bias", device.OpRope: "rope",
	device.OpStoreRows: "store", device.OpGQA: "gqa", device.OpFFN: "ffn"}

func (c *clock) Run(s device.Stream, l device.List) {
	for part := range l.Parts(c.Device) {
		o := &part.Ops[0]
		name := timeOf[o.Kind]
		if o.Kind == device.OpMatMul && o.Out.Cols == c.vocab {
			name = "head"
		}
		start := time.Now()
		c.Device.Run(s, part)
		if name != "" {
			c.spent[name] += time.Since(start)
		}
	}
}

// BenchmarkDense is a step of a Qwen2.5 model of random weights: decode at
// position 500, and the prompt of 26 tokens for which others publish a table of
// operators. The operators' shares of the time are reported, and for decode the
// share of the memory's read rate, measured in turn with it.
func BenchmarkDense(b *testing.B) {
	for _, size := range []string{"0.5b", "7b, 4 layers"} {
		cfg := parsed(b, map[string]any{"model_type": "qwen2", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}, qwen25[size])
		set := filled(b, cfg)
		for _, threads := range []int{1, 2} {
			dev := &clock{Device: processor(b, threads), vocab: cfg.Vocab}
			parts, err := load.Model(dev, cfg, set, load.Options{Limits: benchLimits})
			if err != nil {
				b.Fatal(err)
			}
			m, err := direct.New(dev, parts)
			if err != nil {
				b.Fatal(err)
			}
			for _, c := range []struct {
				name      string
				rows, pos int
			}{{"decode", 1, 500}, {"prefill26", 26, 0}, {"prefill512", 512, 0}} {
				b.Run(fmt.Sprintf("%s/threads=%d/%s", size, threads, c.name), func(b *testing.B) { dense(b, dev, m, cfg, threads, c.rows, c.pos) })
			}
			m.Close()
			parts.Close()
		}
	}
}

func dense(b *testing.B, dev *clock, m *direct.Model, cfg *model.Config, threads, rows, pos int) {
	batch := &stages.Step{Tokens: make([]int32, rows), Spans: []stages.Span{{Decode: rows == 1, Want: true,
		Span: device.Span{Len: rows, Pos: pos, Blocks: table(0)}}}}
	var times, rates []float64
	dev.spent = map[string]time.Duration{}
	for b.Loop() {
		start := time.Now()
		if err := m.Step(batch, nil, nil); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(start).Seconds())
		if rows == 1 {
			rate, err := dev.ReadBandwidth(threads)
			if err != nil {
				b.Fatal(err)
			}
			rates = append(rates, rate.Median)
		}
	}
	var all time.Duration
	for _, d := range dev.spent {
		all += d
	}
	for op, d := range dev.spent {
		b.ReportMetric(100*float64(d)/float64(all), op+"-%")
	}
	slices.Sort(times)
	slices.Sort(rates)
	median := times[len(times)/2]
	b.ReportMetric(1e3*median, "P50-ms")
	b.ReportMetric(float64(rows)/median, "tok/s")
	if rows == 1 {
		kv := cfg.KVBlockBytes(1, tensor.BF16) * int64(pos)
		rate := float64(cfg.BytesPerToken()+kv) / median
		b.ReportMetric(rate/1e9, "GB/s")
		b.ReportMetric(rate/rates[len(rates)/2], "share-of-READ")
	}
}
