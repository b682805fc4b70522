package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// TestChunkByMemory: --prefill-chunk where it is left open.
func TestChunkByMemory(t *testing.T) {
	for _, c := range []struct {
		given, want int
		card        int64
	}{{0, 2048, 0}, {0, 2048, 8 << 30}, {0, 4096, 24 << 30}, {0, 8192, 80 << 30}, {512, 512, 80 << 30}} {
		f := Options{PrefillChunk: c.given}
		if got := f.Chunk(c.card); got != c.want {
			t.Errorf("%d given, %d bytes: %d, want %d", c.given, c.card, got, c.want)
		}
	}
}

// TestPrecisionOnCard: --precision sets every part that a GPU keeps as integers, and
// leaves kv_b_proj, which it does not, as it is; asking for that part by name still does.
func TestPrecisionOnCard(t *testing.T) {
	cfg := &model.Config{Hidden: 64}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return model.MLA{}, model.MoE{Experts: 4, SharedFF: 1} })
	for _, c := range []struct {
		flags PrecisionOptions
		card  bool
		kvb   tensor.Format
	}{
		{PrecisionOptions{Precision: "int4", GroupSize: "64"}, true, tensor.Format{}},
		{PrecisionOptions{Precision: "int4", GroupSize: "64"}, false, tensor.INT4.By(64)},
		{PrecisionOptions{Precision: "mixed", GroupSize: "64", KVBProjQuant: "int8"}, true, tensor.INT8.By(64)},
	} {
		p, err := c.flags.Resolve(cfg, false, c.card)
		if err != nil || p.KVB != c.kvb || c.flags.Precision == "int4" && (p.Experts != tensor.INT4.By(64) || p.Attention != p.Experts || p.Shared != p.Experts || p.Head != p.Experts) {
			t.Errorf("%+v, card %v: %+v, %v", c.flags, c.card, p, err)
		}
	}
}

// TestPrecisionOfCoded: attention that the file has encoded is INT8 unless a flag says otherwise;
// a GPU keeps kv_b_proj as decoded.
func TestPrecisionOfCoded(t *testing.T) {
	cfg := &model.Config{Hidden: 64, Vocab: 16 << 20, Types: map[model.Part]tensor.DType{model.Attention: tensor.F32, model.KVB: tensor.F32}}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return model.MLA{}, model.MoE{Experts: 4, SharedFF: 1} })
	int8 := tensor.INT8.By(64)
	f := Default().PrecisionOptions
	f.GroupSize = "64"
	for _, card := range []bool{false, true} {
		p, err := f.Resolve(cfg, false, card)
		if err != nil || p.Attention != int8 || p.KVB.Zero() != card {
			t.Errorf("card %v: %+v, %v", card, p, err)
		}
	}
	f.AttentionQuant, f.KVBProjQuant = "bf16", "bf16"
	if p, err := f.Resolve(cfg, false, false); err != nil || !p.Attention.Zero() || !p.KVB.Zero() {
		t.Errorf("asked for floats: %+v, %v", p, err)
	}
	f = Default().PrecisionOptions
	if p, err := f.Resolve(cfg, true, false); err != nil || !p.Attention.Zero() {
		t.Errorf("a model that stays as it is: %+v, %v", p, err)
	}
}

// TestGroupOfFiles: without a flag INT4 has the groups that the files have it in, where there are such.
func TestGroupOfFiles(t *testing.T) {
	cfg := &model.Config{Hidden: 64, Vocab: 16 << 20}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return model.MLA{}, model.MoE{Experts: 4} })
	for group, want := range map[int]int{0: 128, 16: 128, 32: 32, 128: 128} {
		if cfg.Quantization = nil; group > 0 {
			cfg.Quantization = &model.Quantization{Schemes: []model.Scheme{{Codes: model.INT4, Rows: 1, Cols: group}}}
		}
		f := Default().PrecisionOptions
		if p, err := f.Resolve(cfg, false, false); err != nil || p.Experts != tensor.INT4.By(want) || p.Head != tensor.INT8.By(want) {
			t.Errorf("groups of %d in the files: %+v, %v", group, p, err)
		}
		f.GroupSize = "64"
		if p, err := f.Resolve(cfg, false, false); err != nil || p.Experts != tensor.INT4.By(64) {
			t.Errorf("--group-size 64 with groups of %d in the files: %+v, %v", group, p, err)
		}
	}
}

// TestBlocksOfFiles: experts in MXFP4 are multiplied as they are on a CPU, unless an option says
// otherwise.
func TestBlocksOfFiles(t *testing.T) {
	cfg := &model.Config{Hidden: 64, Vocab: 16 << 20, Native: map[string]tensor.Format{"x": tensor.MXFP4.By(32)}}
	cfg.Quantization = &model.Quantization{Schemes: []model.Scheme{{Codes: model.MXFP4, Rows: 1, Cols: 32}}}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return model.MLA{}, model.MoE{Experts: 4} })
	for _, x := range []struct {
		bits, group string
		whole, card bool
		want        tensor.Format
	}{
		{"auto", "auto", false, false, tensor.Native.By(32)}, {"auto", "32", false, false, tensor.Native.By(32)},
		{"auto", "auto", false, true, tensor.INT4.By(32)}, {"auto", "auto", true, false, tensor.Format{}},
		{"4", "auto", false, false, tensor.INT4.By(32)}, {"8", "auto", false, false, tensor.INT8.By(32)}, {"auto", "128", false, false, tensor.INT4.By(128)},
	} {
		f := Default().PrecisionOptions
		f.CPUExpertBits, f.GroupSize = x.bits, x.group
		p, err := f.Resolve(cfg, x.whole, x.card)
		if err != nil || p.Experts != x.want || !x.whole && x.group == "auto" && p.Head != tensor.INT8.By(32) {
			t.Errorf("%+v: %+v, %v", x, p, err)
		}
	}
}

// TestFormatsOfFlags: flags offer every encoding, and each value is a format.
func TestFormatsOfFlags(t *testing.T) {
	f := PrecisionOptions{GroupSize: "64"}
	for field := range reflect.TypeFor[PrecisionOptions]().Fields() {
		values := strings.Split(field.Tag.Get("enum"), ",")
		if field.Name != "Precision" && !strings.HasSuffix(field.Name, "Quant") {
			continue
		}
		names := values[2:] // after auto or mixed, and bf16
		if slices.Sort(names); !slices.Equal(names, tensor.Encodings()) {
			t.Errorf("%s offers %v, there are %v", field.Name, names, tensor.Encodings())
		}
		for _, name := range names {
			if got, err := f.formatOf(&model.Config{}, name); err != nil || got.Name() != name {
				t.Errorf("%s: %s is %s, %v", field.Name, name, got, err)
			}
		}
	}
}

// TestOtherNames: the flags of old stand for strategies.
func TestOtherNames(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "persistent persistent",
		"--no-gpu-decode":                    "persistent cpu_only",
		"--expert-divisor 0":                 "chunked chunked",
		"--expert-divisor 1":                 "persistent persistent",
		"--expert-divisor 4":                 "layer_grouped:4 layer_grouped:4",
		"--cache-strategy lru":               "lru lru",
		"--cache-strategy 9":                 "hot_cached_static hot_cached_static",
		"--prefill-strategy 8":               "layer_grouped persistent",
		"--decode-strategy lru":              "persistent lru",
		"--expert-divisor 2 --no-gpu-decode": "layer_grouped:2 cpu_only",
		"--expert-divisor 2 --cache-strategy hot_cached_static":   "layer_grouped:2 hot_cached_static",
		"--expert-divisor 2 --decode-strategy hot_cached_static":  "layer_grouped:2 hot_cached_static",
		"--prefill-strategy chunked --cache-strategy static_pin":  "chunked static_pin",
		"--prefill-strategy chunked --no-gpu-decode":              "chunked cpu_only",
		"--prefill-strategy layer_grouped:3 --decode-strategy 3":  "layer_grouped:3 active_only",
		"--no-gpu-decode --decode-strategy cpu_only":              "persistent cpu_only",
		"--cache-strategy active_only --decode-strategy 3":        "refused",
		"--cache-strategy active_only --prefill-strategy chunked": "chunked active_only",
	} {
		f := parsed(t, append([]string{"--device", "hostsim"}, strings.Fields(text)...)...)
		prefill, decode, err := f.Named(Persistent, Persistent)
		got := "refused"
		if err == nil {
			got = prefill.Name() + " " + decode.Name()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestCheckRefuses strategies and sizes that cannot be, by the flag.
func TestCheckRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"no memory of its own":                  {"--vram", "1GiB"},
		"want 2 to 32767":                       {"--device", "hostsim", "--prefill-strategy", "layer_grouped:1"},
		"--expert-divisor -2":                   {"--device", "hostsim", "--expert-divisor=-2"},
		"--cache-strategy: no such strategy":    {"--device", "hostsim", "--cache-strategy", "fast"},
		"another flag that says lru":            {"--device", "hostsim", "--cache-strategy", "lru", "--decode-strategy", "chunked"},
		"another flag that says chunked":        {"--device", "hostsim", "--expert-divisor", "0", "--prefill-strategy", "lru"},
		"another flag that says cpu_only":       {"--device", "hostsim", "--no-gpu-decode", "--decode-strategy", "lru"},
		"prompts go through all layers at once": {"--prefill-pass", "4096"},
		"--prefill-pass -1":                     {"--device", "hostsim", "--prefill-pass=-1"},
		"there are 1 cpu_only":                  {"--device", "hostsim", "--decode-strategy", "fastest"},
		"--gpu-prefill-threshold 0":             {"--device", "hostsim", "--gpu-prefill-threshold", "0"},
	} {
		o := parsed(t, args...)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
