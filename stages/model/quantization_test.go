package model

import (
	"fmt"
	"slices"
	"testing"
)

// compressed is a config of compressed-tensors with one group.
func compressed(format, weights string) string {
	return fmt.Sprintf(`{"quant_method":"compressed-tensors","format":%q,"config_groups":{"group_0":{"targets":["Linear"],"weights":{%s}}},"ignore":["lm_head"]}`, format, weights)
}

// TestQuantization: what the configs of releases say.
func TestQuantization(t *testing.T) {
	for config, want := range map[string][]string{
		`{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]}`:                                            {"FP8 128x128 blocks", "f8_e4m3_128x128"}, // DeepSeek-V3
		`{"activation_scheme":"dynamic","fmt":"float8_e4m3fn","quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["gate"]}`: {"FP8 128x128 blocks", "f8_e4m3_128x128"}, // MiniMax-M2
		`{"activation_scheme":"static","quant_method":"fp8","weight_block_size":null}`:                                                               {"FP8 per tensor", "f8_e4m3_tensor"},
		`{"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]}`:                                                                              {"MXFP4", "mxfp4"}, // gpt-oss
		compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"channel","dynamic":false,"symmetric":true`):                           {"FP8 per channel", "f8_e4m3_row"},
		compressed("naive-quantized", `"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]`):                                  {"FP8 128x128 blocks", "f8_e4m3_128x128"},
		compressed("mxfp8-quantized", `"num_bits":8,"type":"float","strategy":"group","group_size":32`):                                              {"FP8 groups of 32", "f8_e4m3_g32"},
		compressed("int-quantized", `"num_bits":8,"type":"int","strategy":"channel"`):                                                                {"INT8 per channel", "int8_row"},
		compressed("pack-quantized", `"num_bits":4,"type":"int","strategy":"group","group_size":32,"actorder":null`):                                 {"INT4 groups of 32", "int4_g32"}, // Kimi K2.5
		compressed("pack-quantized", `"num_bits":4,"group_size":128,"actorder":"static"`):                                                            {"INT4 groups of 128", "int4_g128"},
		compressed("pack-quantized", `"num_bits":4,"group_size":-1,"actorder":false`):                                                                {"INT4 per channel", "int4_row"},
		compressed("pack-quantized", `"num_bits":8`):                                                                                                 {"INT8 per tensor", "int8_tensor"},
		compressed("nvfp4-pack-quantized", `"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16`):                                  {"NVFP4", "nvfp4"},
		compressed("mxfp4-pack-quantized", `"num_bits":4,"type":"float","strategy":"group","group_size":32`):                                         {"MXFP4", "mxfp4"},
		`{"quant_method":"modelopt","quant_algo":"NVFP4","kv_cache_quant_algo":"FP8"}`:                                                               {"NVFP4", "nvfp4"},
		`{"quant_method":"modelopt","quant_algo":"FP8"}`:                                                                                             {"FP8 per tensor", "f8_e4m3_tensor"},
		`{"quant_method":"modelopt","quant_algo":"FP8_PB_WO"}`:                                                                                       {"FP8 128x128 blocks", "f8_e4m3_128x128"},
		`{"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN"}`:                                                                       {"FP8 per channel", "f8_e4m3_row"},
		`{"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{
			"a":{"format":"pack-quantized","weights":{"num_bits":4,"group_size":32}},"b":{"format":"float-quantized","weights":{"num_bits":8,"type":"float"}},
			"c":{"format":"pack-quantized","weights":{"num_bits":4,"group_size":32}},"d":{"input_activations":{}}}}`: {"INT4 groups of 32, FP8 per tensor", "int4_g32 f8_e4m3_tensor"},
		compressed("dense", `"num_bits":4`): {"", ""},
		`null`:                              {"", ""},
	} {
		for _, wrapped := range []string{`{"quantization_config":%s}`, `{"quantization_config":null,"text_config":{"quantization_config":%s}}`} {
			q, err := ParseQuantization(fmt.Appendf(nil, wrapped, config))
			if err != nil {
				t.Errorf("%s: %v", config, err)
				continue
			}
			names := ""
			for i := 0; q != nil && i < len(q.Schemes); i++ {
				if i > 0 {
					names += " "
				}
				names += q.Schemes[i].Encoding()
			}
			if got := []string{q.String(), names}; !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", config, got, want)
			}
		}
	}
}

// TestQuantizationGroup: INT4 in groups of one size, and nothing else, has a group.
func TestQuantizationGroup(t *testing.T) {
	for _, x := range []struct {
		q    *Quantization
		want int
	}{
		{nil, 0},
		{&Quantization{Schemes: []Scheme{{INT4, 1, 32}}}, 32},
		{&Quantization{Schemes: []Scheme{{INT4, 1, 32}, {INT4, 1, 128}}}, 0},
		{&Quantization{Schemes: []Scheme{{INT4, 1, 32}, {FP8, 1, 0}}}, 0},
		{&Quantization{Schemes: []Scheme{{INT4, 1, 0}}}, 0},
		{&Quantization{Schemes: []Scheme{{MXFP4, 1, 32}}}, 32},
		{&Quantization{Schemes: []Scheme{{NVFP4, 1, 16}}}, 0},
	} {
		if got := x.q.Group(); got != x.want {
			t.Errorf("%s: %d, want %d", x.q, got, x.want)
		}
	}
}

// TestQuantizationRefused: what cannot be read is refused, and its field named, no other.
func TestQuantizationRefused(t *testing.T) {
	for config, field := range map[string]string{
		`{}`:                                  "quant_method",
		`{"quant_method":"awq"}`:              "quant_method",
		`{"quant_method":"gptq"}`:             "quant_method",
		`{"quant_method":"bitsandbytes"}`:     "quant_method",
		`{"quant_method":1}`:                  "quant_method",
		`{"quant_method":"fp8","fmt":"e5m2"}`: "fmt",
		`{"quant_method":"fp8","weight_block_size":[128]}`:                                       "weight_block_size",
		`{"quant_method":"fp8","weight_block_size":[128,0]}`:                                     "weight_block_size",
		`{"quant_method":"fp8","weight_block_size":"a"}`:                                         "weight_block_size",
		`{"quant_method":"fp8","weight_block_size":[128,65537]}`:                                 "weight_block_size",
		`{"quant_method":"modelopt"}`:                                                            "quant_algo",
		`{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}`:                                    "quant_algo",
		`{"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32}`:                       "group_size",
		compressed("pack-quantized", `"num_bits":3,"group_size":32`):                             "config_groups.group_0.format",
		compressed("marlin-24", `"num_bits":4,"group_size":32`):                                  "config_groups.group_0.format",
		compressed("pack-quantized", `"num_bits":4,"symmetric":false`):                           "config_groups.group_0.weights.symmetric",
		compressed("pack-quantized", `"num_bits":4,"group_size":32,"actorder":"group"`):          "config_groups.group_0.weights.actorder",
		compressed("pack-quantized", `"num_bits":4,"group_size":32,"actorder":true`):             "config_groups.group_0.weights.actorder",
		compressed("pack-quantized", `"num_bits":4,"strategy":"group"`):                          "config_groups.group_0.weights.group_size",
		compressed("pack-quantized", `"num_bits":4,"group_size":33`):                             "config_groups.group_0.weights.group_size",
		compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"block"`):          "config_groups.group_0.weights.block_structure",
		compressed("float-quantized", `"num_bits":8,"type":"float","dynamic":true`):              "config_groups.group_0.weights.dynamic",
		`{"quant_method":"compressed-tensors","transform_config":{"a":1}}`:                       "transform_config",
		`{"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}}`: "sparsity_config.format",
	} {
		want := "quantization_config." + field
		_, err := ParseQuantization(fmt.Appendf(nil, `{"quantization_config":%s}`, config))
		var got string
		for _, e := range flatten(err) {
			if f, ok := e.(*FieldError); ok {
				got += f.Field
			}
		}
		if got != want {
			t.Errorf("%s: named %q, want %q: %v", config, got, want, err)
		}
	}
}
