package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// rotary is the rotation of the first layer.
func rotary(c *Config) *RopeConfig { return c.Ropes()[0] }

// TestParseRelease pins every field for one model with query compression.
func TestParseRelease(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "deepseek_v2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotary(c).InvFreq = nil // held to the golden by TestGoldens
	want := &Config{
		Family: "deepseek_v2", Hidden: 128, Vocab: 512, MaxContext: 163840, NormEps: 1e-6, DType: tensor.BF16,
		BOS: 0, EOS: []int32{1}, Pad: -1,
	}
	mla := MLA{
		Heads: 4, QRank: 64, KVRank: 128, Nope: 32, RopeDim: 16, VDim: 32, LatentEps: 1e-6, Scale: float32(softmaxScale(c)),
		Rope: &RopeConfig{Dim: 16, Theta: 10000, Interleaved: true, CosSinScale: 1},
	}
	moe := MoE{Experts: 12, FF: 32, SharedFF: 64, Router: device.Router{Experts: 12, TopK: 4, Groups: 4, TopGroups: 2, Scale: 16}}
	want.Stack(3, Usual(mlaRoles), func(i int) (Mixer, FFN) {
		if i == 0 {
			return mla, Dense{FF: 128}
		}
		return mla, moe
	})
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestDefaultModel parses the embedded model's files.
func TestDefaultModel(t *testing.T) {
	c, err := Parse(readFile(t, "../../models/krater-tiny/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	a := c.Layers[0].Mixer.(MLA)
	if a.QRank != 0 || a.Rope.CosSinScale != 1 || c.Pad != 2 || len(a.Rope.InvFreq) != 8 ||
		a.Scale != float32(1/math.Sqrt(48)) || c.MoE.Router.Groups != 0 {
		t.Errorf("%+v", c)
	}
	g, err := ParseGeneration(readFile(t, "../../models/krater-tiny/generation_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := Generation{Temperature: 0, TopP: 1, RepetitionPenalty: 1, EOS: []int32{1}}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("got %+v, want %+v", g, want)
	}
}

// edit changes fields of a golden config: a value is JSON text, "" deletes the
// field, a dot goes into an object.
func edit(t testing.TB, base []byte, changes map[string]string) []byte {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal(base, &root); err != nil {
		t.Fatal(err)
	}
	for name, value := range changes {
		obj := root
		for outer, inner, nested := strings.Cut(name, "."); nested; outer, inner, nested = strings.Cut(name, ".") {
			obj, name = obj[outer].(map[string]any), inner
		}
		if value == "" {
			delete(obj, name)
		} else {
			obj[name] = json.RawMessage(value)
		}
	}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// brokenCase is a change of a golden config and the fields that the error names,
// in order.
type brokenCase struct {
	change m
	fields string
}

// m maps fields to their new JSON text.
type m = map[string]string

var brokenRelease = []brokenCase{
	{m{"model_type": ""}, "model_type"},
	{m{"model_type": "7"}, "model_type"},
	{m{"hidden_size": ""}, "hidden_size"},
	{m{"hidden_size": "null"}, "hidden_size"},
	{m{"hidden_size": "0"}, "hidden_size"},
	{m{"hidden_size": "-128"}, "hidden_size"},
	{m{"hidden_size": "128.5"}, "hidden_size"},
	{m{"hidden_size": `"128"`}, "hidden_size"},
	{m{"hidden_size": "99999999999999999999"}, "hidden_size"},
	{m{"hidden_size": "1073741824"}, "hidden_size"},
	{m{"num_hidden_layers": "1000000"}, "num_hidden_layers"},
	{m{"vocab_size": ""}, "vocab_size"},
	{m{"vocab_size": "1"}, "eos_token_id"},
	{m{"intermediate_size": ""}, "intermediate_size"},
	{m{"max_position_embeddings": ""}, "max_position_embeddings"},
	{m{"max_position_embeddings": "2048"}, "max_position_embeddings"},
	{m{"rms_norm_eps": ""}, "rms_norm_eps"},
	{m{"rms_norm_eps": "0"}, "rms_norm_eps"},
	{m{"rms_norm_eps": "1e400"}, "rms_norm_eps"},
	{m{"rms_norm_eps": `"NaN"`}, "rms_norm_eps"},
	{m{"tie_word_embeddings": "1"}, "tie_word_embeddings"},
	{m{"torch_dtype": `"int4"`}, "torch_dtype"},
	{m{"dtype": `"float16"`}, "dtype"},
	{m{"num_attention_heads": ""}, "num_attention_heads"},
	{m{"num_key_value_heads": "2"}, "num_key_value_heads"},
	{m{"q_lora_rank": "0"}, "q_lora_rank"},
	{m{"q_lora_rank": ""}, "q_lora_rank"},
	{m{"kv_lora_rank": "null"}, "kv_lora_rank"},
	{m{"qk_nope_head_dim": ""}, "qk_nope_head_dim"},
	{m{"qk_rope_head_dim": "15"}, "qk_rope_head_dim"},
	{m{"qk_rope_head_dim": ""}, "qk_rope_head_dim"},
	{m{"v_head_dim": "1e3"}, "v_head_dim"},
	{m{"qk_head_dim": "64"}, "qk_head_dim"},
	{m{"n_routed_experts": ""}, "n_routed_experts"},
	{m{"n_routed_experts": "100000"}, "n_routed_experts"},
	{m{"n_routed_experts": "4096", "num_hidden_layers": "100"}, "n_routed_experts"},
	{m{"n_routed_experts": "13"}, "n_group"},
	{m{"n_group": "5"}, "n_group"},
	{m{"n_group": "24"}, "n_group"},
	{m{"n_group": "null"}, "topk_group n_group"},
	{m{"n_group": ""}, "topk_group n_group"},
	{m{"topk_group": "null"}, "topk_group"},
	{m{"topk_group": "5"}, "topk_group"},
	{m{"num_experts_per_tok": "13"}, "num_experts_per_tok"},
	{m{"num_experts_per_tok": "7"}, "num_experts_per_tok"},
	{m{"num_experts_per_tok": "0"}, "num_experts_per_tok"},
	{m{"n_shared_experts": ""}, "n_shared_experts"},
	{m{"n_shared_experts": "-1"}, "n_shared_experts"},
	{m{"moe_intermediate_size": ""}, "moe_intermediate_size"},
	{m{"moe_layer_freq": "0"}, "moe_layer_freq"},
	{m{"first_k_dense_replace": "4"}, "first_k_dense_replace"},
	{m{"routed_scaling_factor": "0"}, "routed_scaling_factor"},
	{m{"routed_scaling_factor": "true"}, "routed_scaling_factor"},
	{m{"norm_topk_prob": `"no"`}, "norm_topk_prob"},
	{m{"scoring_func": `"sigmoid"`}, "scoring_func"},
	{m{"topk_method": `"noaux_tc"`}, "topk_method"},
	{m{"topk_method": "[]"}, "topk_method"},
	{m{"hidden_act": `"gelu"`}, "hidden_act"},
	{m{"attention_bias": "true"}, "attention_bias"},
	{m{"mlp_bias": "true"}, "mlp_bias"},
	{m{"quantization_config": `{"quant_method":"gptq"}`}, "quantization_config.quant_method"},
	{m{"bos_token_id": "512"}, "bos_token_id"},
	{m{"eos_token_id": "[1,512]"}, "eos_token_id"},
	{m{"eos_token_id": "[[1]]"}, "eos_token_id"},
	{m{"eos_token_id": "-1"}, "eos_token_id"},
	{m{"eos_token_id": "1.5"}, "eos_token_id"},
	{m{"pad_token_id": "-2"}, "pad_token_id"},
	{m{"rope_theta": ""}, "rope_theta"},
	{m{"rope_theta": "1"}, "rope_theta"},
	{m{"rope_scaling": "[]"}, "rope_scaling"},
	{m{"rope_scaling.type": ""}, "rope_scaling.type"},
	{m{"rope_scaling.type": `"dynamic"`}, "rope_scaling.type"},
	{m{"rope_scaling.rope_type": `"linear"`, "rope_scaling.mscale": "", "rope_scaling.mscale_all_dim": "",
		"rope_scaling.beta_fast": "", "rope_scaling.beta_slow": ""}, "rope_scaling.type"},
	{m{"rope_scaling.type": `"linear"`, "rope_scaling.mscale": "", "rope_scaling.beta_fast": "", "rope_scaling.beta_slow": ""}, "rope_scaling.mscale_all_dim"},
	{m{"rope_scaling.factor": ""}, "rope_scaling.factor"},
	{m{"rope_scaling.factor": "0.5"}, "rope_scaling.factor"},
	{m{"rope_scaling.original_max_position_embeddings": ""}, "rope_scaling.original_max_position_embeddings"},
	{m{"rope_scaling.beta_fast": "0.5"}, "rope_scaling.beta_fast"},
	{m{"rope_scaling.mscale": `"a"`}, "rope_scaling.mscale"},
	{m{"rope_parameters": `{"rope_type":"default","rope_theta":10000}`}, "rope_scaling"},
	{m{"hidden_size": "", "rope_scaling.factor": "0", "v_head_dim": "null"}, "hidden_size v_head_dim rope_scaling.factor"},
}

var brokenV5 = []brokenCase{
	{m{"rope_parameters.rope_theta": ""}, "rope_theta"},
	{m{"rope_parameters": ""}, "rope_theta"},
	{m{"rope_theta": "50000"}, "rope_theta"},
	{m{"rope_parameters.rope_type": `"longrope"`}, "rope_parameters.rope_type"},
	{m{"rope_parameters.type": `"linear"`}, "rope_parameters.type"},
	{m{"torch_dtype": `"float32"`}, "dtype"},
	{m{"qk_head_dim": "47"}, "qk_head_dim"},
}

// TestBroken: every fault is refused and its field named, no other.
func TestBroken(t *testing.T) {
	for file, tests := range map[string][]brokenCase{"config.json": brokenRelease, "config.transformers5.json": brokenV5} {
		base := readFile(t, goldens, "deepseek_v2", file)
		for _, tt := range tests {
			t.Run(fmt.Sprint(file, tt.change), func(t *testing.T) { checkFields(t, edit(t, base, tt.change), tt.fields) })
		}
	}
}

// checkFields expects Parse to refuse and to name exactly the given fields.
func checkFields(t *testing.T, config []byte, fields string) {
	t.Helper()
	_, err := Parse(config)
	if err == nil {
		t.Fatal("accepted")
	}
	var got []string
	for _, e := range flatten(err) {
		var field *FieldError
		if errors.As(e, &field) {
			got = append(got, field.Field)
		}
	}
	if strings.Join(got, " ") != fields {
		t.Errorf("named %q, want %q: %v", got, fields, err)
	}
}

// flatten lists the errors of a joined one.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

func TestNotAConfig(t *testing.T) {
	tests := []struct {
		text string
		want error
	}{
		{"", ErrSyntax},
		{"null", ErrSyntax},
		{"[]", ErrSyntax},
		{`{"a":1}{}`, ErrSyntax},
		{`{"hidden_size":1,"hidden_size":2}`, ErrSyntax},
		{`{"rope_scaling":{"factor":1,"factor":2}}`, ErrSyntax},
		{`{"rms_norm_eps":NaN}`, ErrSyntax},
		{"{\"a\":\"\xff\"}", ErrSyntax},
		{`{"a":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}", ErrSyntax},
		{strings.Repeat(" ", maxConfigBytes+1), ErrTooLarge},
		{`{"model_type":"gpt2"}`, ErrFamily},
		{`{"model_type":"wrapper","text_config":{"model_type":"gpt2"}}`, ErrFamily},
	}
	for _, tt := range tests {
		if _, err := Parse([]byte(tt.text)); !errors.Is(err, tt.want) {
			t.Errorf("Parse(%s) = %v, want %v", clip(tt.text), err, tt.want)
		}
	}
}

// TestUnknownFamily: the message has the name and the list of known ones.
func TestUnknownFamily(t *testing.T) {
	_, err := Parse([]byte(`{"model_type":"wrap","text_config":{"model_type":"gpt_neo"}}`))
	for _, want := range []string{"text_config.model_type", `"gpt_neo"`, "deepseek_v2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// TestTextConfig reads a wrapped language model and names fields with the path.
func TestTextConfig(t *testing.T) {
	inner := readFile(t, goldens, "deepseek_v2_lite", "config.json")
	want, err := Parse(inner)
	if err != nil {
		t.Fatal(err)
	}
	wrap := func(b []byte) []byte {
		return []byte(`{"model_type":"some_vl","vision_config":{},"text_config":` + string(b) + `}`)
	}
	if got, err := Parse(wrap(inner)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	checkFields(t, wrap(edit(t, inner, map[string]string{"hidden_size": ""})), "text_config.hidden_size")
	checkFields(t, wrap(edit(t, inner, map[string]string{"rope_scaling.factor": "0"})), "text_config.rope_scaling.factor")
}

// TestVariants checks settings no golden has.
func TestVariants(t *testing.T) {
	base := readFile(t, goldens, "deepseek_v2", "config.json")
	tests := []struct {
		name   string
		change m
		ok     func(c *Config) bool
	}{
		{"normalised weights are not scaled", m{"norm_topk_prob": "true"},
			func(c *Config) bool { return c.MoE.Router.Normalize && c.MoE.Router.Scale == 1 }},
		{"one expert is never normalised", m{"norm_topk_prob": "true", "num_experts_per_tok": "1"},
			func(c *Config) bool { return !c.MoE.Router.Normalize && c.MoE.Router.Scale == 16 }},
		{"greedy has no groups", m{"topk_method": `"greedy"`, "num_experts_per_tok": "12"},
			func(c *Config) bool { return c.MoE.Router.Groups == 0 && c.MoE.Router.TopK == 12 }},
		{"no shared expert", m{"n_shared_experts": "null"}, func(c *Config) bool { return c.MoE.SharedFF == 0 }},
		{"dense", m{"n_routed_experts": "null"}, func(c *Config) bool { return c.MoE.Experts == 0 && !c.MoELayer(2) }},
		{"every second layer", m{"moe_layer_freq": "2"}, func(c *Config) bool { return !c.MoELayer(1) && c.MoELayer(2) }},
		{"several end tokens", m{"eos_token_id": "[1,3,1]"}, func(c *Config) bool { return reflect.DeepEqual(c.EOS, []int32{1, 3}) }},
		{"no end token", m{"eos_token_id": "null"}, func(c *Config) bool { return c.EOS == nil }},
		{"no begin token", m{"bos_token_id": ""}, func(c *Config) bool { return c.BOS == -1 }},
		{"no dtype", m{"torch_dtype": ""}, func(c *Config) bool { return c.DType == tensor.Invalid }},
		{"plain rope", m{"rope_scaling": "null"}, func(c *Config) bool {
			return rotary(c).InvFreq[1] == math.Pow(10000, -2.0/16) && rotary(c).CosSinScale == 1 && softmaxScale(c) == softmax(48)
		}},
		{"linear", m{"rope_scaling": `{"type":"linear","factor":4}`}, func(c *Config) bool {
			return rotary(c).InvFreq[0] == 0.25 && softmaxScale(c) == softmax(48)
		}},
		// mscale only: on cos and sin, not on the softmax scale; and the reverse.
		{"mscale without mscale_all_dim", m{"rope_scaling.mscale_all_dim": ""}, func(c *Config) bool {
			return near(rotary(c).CosSinScale, 0.1*0.707*math.Log(40)+1) && softmaxScale(c) == softmax(48)
		}},
		{"mscale_all_dim with default mscale", m{"rope_scaling.mscale": ""}, func(c *Config) bool {
			return near(rotary(c).CosSinScale, (0.1*math.Log(40)+1)/(0.1*0.707*math.Log(40)+1))
		}},
		{"attention_factor", m{"rope_scaling.attention_factor": "1.25"}, func(c *Config) bool { return rotary(c).CosSinScale == 1.25 }},
		{"factor 1 changes nothing", m{"rope_scaling.factor": "1"}, func(c *Config) bool {
			return near(rotary(c).InvFreq[7], math.Pow(10000, -14.0/16)) && rotary(c).CosSinScale == 1
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(edit(t, base, tt.change))
			if err != nil {
				t.Fatal(err)
			}
			if !tt.ok(c) {
				t.Errorf("%+v", c)
			}
		})
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12*math.Abs(b) }

func FuzzParse(f *testing.F) {
	for _, arch := range goldenArchs(f) {
		f.Add(readFile(f, goldens, arch, "config.json"))
		f.Add(readFile(f, goldens, arch, "config.transformers5.json"))
	}
	f.Add([]byte(`{"model_type":"x","text_config":{"model_type":"deepseek_v2"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = ParseGeneration(data)
		c, err := Parse(data)
		if err != nil {
			if err.Error() == "" || c != nil {
				t.Errorf("config %v with error %q", c, err)
			}
			return
		}
		var turns []float64
		if len(c.Ropes()) > 0 { // other layers may have frequencies of zero
			turns = append(append(turns, rotary(c).InvFreq...), rotary(c).CosSinScale)
		}
		for _, x := range append(turns, softmaxScale(c), float64(c.NormEps), float64(c.MoE.Router.Scale)) {
			if x > 0 == false || math.IsInf(x, 0) && c.MoE.Experts > 0 {
				if x == 0 && c.MoE.Experts == 0 { // the router of a dense model
					continue
				}
				t.Errorf("not a positive number: %v in %+v", x, c)
			}
		}
		for _, s := range c.Expected() {
			n := 1
			for _, d := range s.Shape {
				if d <= 0 || n > math.MaxInt/8/d {
					t.Fatalf("%s %v", s.Name, s.Shape)
				}
				n *= d
			}
		}
	})
}
