package load_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

const dir = "../../testdata/goldens/deepseek_v2"

var limits = stages.Limits{Tokens: 8, Seqs: 2, Blocks: 4, BlockTokens: 4}

// config is the golden's config with some text replaced.
func config(t *testing.T, replace ...string) *model.Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !bytes.Contains(data, []byte(replace[i])) {
			t.Fatalf("no %s in the config", replace[i])
		}
		data = bytes.ReplaceAll(data, []byte(replace[i]), []byte(replace[i+1]))
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func set(t *testing.T) *weights.Set {
	t.Helper()
	s, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func processor(t *testing.T, budget int64) *cpu.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 1, Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

func TestModel(t *testing.T) {
	dev, ws := processor(t, 0), set(t)
	p, err := load.Model(dev, config(t), ws, load.Options{Limits: limits, Partition: []int{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Groups) != 2 || p.Groups[0].First != 0 || p.Groups[0].Last != 1 || p.Groups[1].First != 1 || p.Groups[1].Last != 3 {
		t.Errorf("groups %+v", p.Groups)
	}
	if p.Groups[0].MoE(0) || !p.Groups[1].MoE(1) || len(p.Groups[1].Bank(2).Routed) != 12 {
		t.Error("experts in the wrong layers")
	}
	if p.WeightBytes != ws.Bytes() {
		t.Errorf("%d bytes bound, the files hold %d", p.WeightBytes, ws.Bytes())
	}
	// BF16 by default: 16 slots of 144 values in each layer.
	if n := p.Groups[0].KVBytes() + p.Groups[1].KVBytes(); n != 3*16*144*2 {
		t.Errorf("KV cache of %d bytes", n)
	}
	if p.Limits.Context != 16 || p.Limits.LogitRows != 2 {
		t.Errorf("limits %+v", p.Limits)
	}
	p.Close()
	if used := dev.Memory().Used; used != 0 {
		t.Errorf("%d bytes left after Close", used)
	}
}

// TestDenseModel binds a model without experts: grouped-query attention, biases,
// a tied head.
func TestDenseModel(t *testing.T) {
	const dir = "../../testdata/goldens/qwen2"
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	dev := processor(t, 0)
	o := load.Options{Limits: limits, Partition: []int{2, 1}}
	p, err := load.Model(dev, cfg, ws, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.Groups[0].MoE(0) || p.Groups[1].MoE(2) {
		t.Error("a dense layer has experts")
	}
	want := ws.Bytes()
	for _, x := range cfg.Expected() {
		if tensor, ok := ws.Tensor(x.Name); ok && x.F32 { // the biases
			want += int64(x.Shape[0] * (4 - tensor.DType.Size()))
		}
	}
	if p.WeightBytes != want {
		t.Errorf("%d bytes bound, want %d", p.WeightBytes, want)
	}
	// 16 slots of keys and values of two heads of 32 in each layer, BF16.
	if n := p.Groups[0].KVBytes() + p.Groups[1].KVBytes(); n != 3*16*2*2*32*2 {
		t.Errorf("KV cache of %d bytes", n)
	}
	if p.Head.Proj.F != p.Embed.Table {
		t.Error("lm_head is not the embedding")
	}
	need := dev.Memory().Used
	p.Close()
	for _, budget := range []int64{1, need / 2, need - 1} {
		dev := processor(t, budget)
		if _, err := load.Model(dev, cfg, ws, o); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("budget %d of %d: got %v", budget, need, err)
		}
		if used := dev.Memory().Used; used != 0 {
			t.Errorf("budget %d: %d bytes left", budget, used)
		}
	}
}

func TestTiedHeadUsesTheEmbedding(t *testing.T) {
	cfg := config(t, `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
	p, err := load.Model(processor(t, 0), cfg, set(t), load.Options{Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Head.Proj.F != p.Embed.Table {
		t.Error("lm_head is not the embedding")
	}
}

func TestModelNamesTheTensor(t *testing.T) {
	for _, x := range []struct {
		from, to string
		err      error
		name     string
	}{
		{`"num_hidden_layers": 3`, `"num_hidden_layers": 4`, model.ErrTensorMissing, "model.layers.3.self_attn.kv_b_proj.weight"},
		{`"num_hidden_layers": 3`, `"num_hidden_layers": 2`, model.ErrTensorStray, "model.layers.2.input_layernorm.weight"},
		{`"vocab_size": 512`, `"vocab_size": 500`, model.ErrTensorShape, "lm_head.weight"},
	} {
		_, err := load.Model(processor(t, 0), config(t, x.from, x.to), set(t), load.Options{Limits: limits})
		if !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.name) {
			t.Errorf("%s: got %v", x.to, err)
		}
	}
}

func TestModelRefusesOtherWeightTypes(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	ws, err := weights.FromBytes(map[string][]byte{"model.safetensors": bytes.ReplaceAll(data, []byte(`"BF16"`), []byte(`"I16" `))})
	if err != nil {
		t.Fatal(err)
	}
	dev := processor(t, 0)
	_, err = load.Model(dev, config(t), ws, load.Options{Limits: limits})
	if err == nil || !strings.Contains(err.Error(), "model.embed_tokens.weight: it is I16") {
		t.Errorf("got %v", err)
	}
	if used := dev.Memory().Used; used != 0 {
		t.Errorf("%d bytes left", used)
	}
}

// TestF16Weights: the plan knows that F16 weights are kept as F32.
func TestF16Weights(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	ws, err := weights.FromBytes(map[string][]byte{"model.safetensors": bytes.ReplaceAll(data, []byte(`"BF16"`), []byte(`"F16" `))})
	if err != nil {
		t.Fatal(err)
	}
	dev, cfg, o := processor(t, 0), config(t, `"bfloat16"`, `"float16"`), load.Options{Limits: limits}
	needs, err := load.Plan(cfg, o, load.Use{})
	if err != nil {
		t.Fatal(err)
	}
	planned := int64(0)
	for _, n := range needs {
		if n.Part.Weight() {
			planned += n.Bytes
		}
	}
	p, err := load.Model(dev, cfg, ws, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.WeightBytes != planned || p.MadeBytes != planned || planned != 2*ws.Bytes() {
		t.Errorf("%d bytes planned, %d bound, %d made; the files hold %d", planned, p.WeightBytes, p.MadeBytes, ws.Bytes())
	}
	p.Close()
	if used := dev.Memory().Used; used != 0 {
		t.Errorf("%d bytes left", used)
	}
}

// TestModelOutOfMemory: wherever the budget ends, the error says so and nothing stays.
func TestModelOutOfMemory(t *testing.T) {
	dev := processor(t, 0)
	p, err := load.Model(dev, config(t), set(t), load.Options{Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	need := dev.Memory().Used
	p.Close()
	for _, budget := range []int64{1, need / 4, need / 2, need - 1} {
		dev := processor(t, budget)
		_, err := load.Model(dev, config(t), set(t), load.Options{Limits: limits})
		named := err != nil && (strings.Contains(err.Error(), "rope table") || strings.Contains(err.Error(), "scratch memory") || strings.Contains(err.Error(), "KV cache of layer"))
		if !errors.Is(err, device.ErrOutOfMemory) || !named {
			t.Errorf("budget %d of %d: got %v", budget, need, err)
		}
		if used := dev.Memory().Used; used != 0 {
			t.Errorf("budget %d: %d bytes left", budget, used)
		}
	}
	dev = processor(t, 10_000)
	if _, err := stages.NewState(dev, config(t), limits); !errors.Is(err, device.ErrOutOfMemory) || dev.Memory().Used != 0 {
		t.Errorf("state: got %v, %d bytes left", err, dev.Memory().Used)
	}
}

func TestModelRefusesOptions(t *testing.T) {
	for name, o := range map[string]load.Options{
		"no limits":   {},
		"partition":   {Limits: limits, Partition: []int{1, 1}},
		"empty group": {Limits: limits, Partition: []int{3, 0}},
		"KV type":     {Limits: limits, KVType: tensor.F16},
	} {
		if _, err := load.Model(processor(t, 0), config(t), set(t), o); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestEven(t *testing.T) {
	for _, x := range []struct {
		layers, groups int
		want           []int
	}{{7, 1, []int{7}}, {7, 3, []int{3, 2, 2}}, {3, 3, []int{1, 1, 1}}, {2, 9, []int{1, 1}}, {4, 0, []int{4}}} {
		if got := load.Even(x.layers, x.groups); !slices.Equal(got, x.want) {
			t.Errorf("%d in %d: got %v", x.layers, x.groups, got)
		}
	}
}
