package folder

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
)

// again writes a file with some metadata and tensors in place of its own: nil drops one.
func again(t testing.TB, f *gguf.File, meta map[string]any, change map[string][]gguf.Tensor) *gguf.File {
	t.Helper()
	var pairs []gguf.Pair
	for _, key := range f.Keys() {
		v, _ := f.Value(key)
		p := gguf.Pair{Key: key}
		if other, ok := meta[key]; ok {
			p.Value = other
		} else if s, ok := v.Text(); ok {
			p.Value = s
		} else if b, ok := v.Bool(); ok {
			p.Value = b
		} else if n, ok := v.Int(); ok {
			p.Value = uint32(n)
		} else {
			x, _ := v.Float()
			p.Value = float32(x)
		}
		delete(meta, key)
		if p.Value != nil {
			pairs = append(pairs, p)
		}
	}
	for key, v := range meta {
		pairs = append(pairs, gguf.Pair{Key: key, Value: v})
	}
	var list []gguf.Tensor
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		if other, ok := change[name]; ok {
			list = append(list, other...)
		} else {
			list = append(list, x)
		}
	}
	list = append(list, change[""]...)
	var out bytes.Buffer
	if err := gguf.Write(&out, pairs, list); err != nil {
		t.Fatal(err)
	}
	g, err := gguf.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// release makes a stored tensor of tensors of the release, one after the other.
func release(t testing.TB, d *Folder, name string, shape []int, from ...string) gguf.Tensor {
	t.Helper()
	out := gguf.Tensor{Name: name, Shape: shape}
	for _, n := range from {
		v, ok := d.Tensor(n)
		if !ok {
			t.Fatal(n)
		}
		x := make([]float32, v.Elements())
		b := make([]byte, 4*len(x))
		if err := errors.Join(v.Floats(x, 0), gguf.F32.Encode(b, x)); err != nil {
			t.Fatal(err)
		}
		out.Data = append(out.Data, b...)
	}
	return out
}

// sameTensors holds all tensors of two folders against each other.
func sameTensors(t *testing.T, got *gguf.File, want *Folder) {
	t.Helper()
	d, err := New(got)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := slices.Sorted(slices.Values(d.Names())), slices.Sorted(slices.Values(want.Names())); !slices.Equal(a, b) {
		t.Fatalf("%q, want %q", a, b)
	}
	for _, name := range want.Names() {
		v, _ := want.Tensor(name)
		x := make([]float32, v.Elements())
		if err := v.Floats(x, 0); err != nil {
			t.Fatal(err)
		}
		compareView(t, d, name, x, v.Shape)
	}
}

// TestOlderFiles: kv_b_proj as one tensor with the sizes of expanded keys, as files had it before
// llama.cpp's latent attention; and gate and up of all experts in one tensor, as some newer ones.
func TestOlderFiles(t *testing.T) {
	_, f, _ := build(t, "deepseek_v2_lite")
	d, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	meta := map[string]any{
		"deepseek2.attention.key_length": uint32(48), "deepseek2.attention.value_length": uint32(32),
		"deepseek2.attention.key_length_mla": nil, "deepseek2.attention.value_length_mla": nil, "deepseek2.attention.head_count_kv": uint32(4),
	}
	change := map[string][]gguf.Tensor{}
	for l := range 3 {
		name := fmt.Sprintf("model.layers.%d.self_attn.kv_b_proj.weight", l)
		v, _ := d.Tensor(name)
		change[fmt.Sprintf("blk.%d.attn_k_b.weight", l)] = nil
		change[fmt.Sprintf("blk.%d.attn_v_b.weight", l)] = []gguf.Tensor{release(t, d, fmt.Sprintf("blk.%d.attn_kv_b.weight", l), v.Shape, name)}
	}
	gate, _ := f.Tensor("blk.1.ffn_gate_exps.weight")
	var both []string
	for e := range gate.Shape[0] {
		both = append(both, fmt.Sprintf("model.layers.1.mlp.experts.%d.gate_proj.weight", e), fmt.Sprintf("model.layers.1.mlp.experts.%d.up_proj.weight", e))
	}
	change["blk.1.ffn_gate_exps.weight"] = nil
	change["blk.1.ffn_up_exps.weight"] = []gguf.Tensor{release(t, d, "blk.1.ffn_gate_up_exps.weight", []int{gate.Shape[0], 2 * gate.Shape[1], gate.Shape[2]}, both...)}
	old := again(t, f, meta, change)
	sameTensors(t, old, d)
	e, err := New(old)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads"} {
		if e.config[field] != d.config[field] {
			t.Errorf("%s: %v, want %v", field, e.config[field], d.config[field])
		}
	}
}

// TestOldMixtral: experts that are tensors of their own.
func TestOldMixtral(t *testing.T) {
	_, f, _ := build(t, "qwen3_moe")
	d, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	change := map[string][]gguf.Tensor{}
	for l := range 3 {
		for _, m := range []string{"gate", "up", "down"} {
			stored := fmt.Sprintf("blk.%d.ffn_%s_exps.weight", l, m)
			change[stored] = []gguf.Tensor{}
			for e := range 16 {
				name := fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", l, e, m)
				v, _ := d.Tensor(name)
				change[stored] = append(change[stored], release(t, d, fmt.Sprintf("blk.%d.ffn_%s.%d.weight", l, m, e), v.Shape, name))
			}
		}
	}
	sameTensors(t, again(t, f, nil, change), d)
}

// TestScales: NVFP4 tensors have a scale, or one for each expert.
func TestScales(t *testing.T) {
	_, f, _ := build(t, "qwen3_moe")
	d, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	vector := func(name string, x ...float32) gguf.Tensor {
		b := make([]byte, 4*len(x))
		if err := gguf.F32.Encode(b, x); err != nil {
			t.Fatal(err)
		}
		return gguf.Tensor{Name: name, Type: gguf.F32, Shape: []int{len(x)}, Data: b}
	}
	each := make([]float32, 16)
	for e := range each {
		each[e] = float32(e + 2)
	}
	got, err := New(again(t, f, nil, map[string][]gguf.Tensor{"": {vector("blk.0.attn_q.scale", 0.5), vector("blk.0.attn_q.input_scale", 3), vector("output.scale", 0.25),
		vector("blk.1.ffn_up_exps.scale", each...), vector("blk.1.ffn_up_exps.input_scale", each...)}}))
	if err != nil {
		t.Fatal(err)
	}
	for name, scale := range map[string]float32{"lm_head.weight": 0.25, "model.layers.0.self_attn.q_proj.weight": 0.5, "model.layers.0.self_attn.k_proj.weight": 1,
		"model.layers.1.mlp.experts.7.up_proj.weight": 9, "model.layers.1.mlp.experts.7.gate_proj.weight": 1} {
		a, _ := d.Tensor(name)
		b, _ := got.Tensor(name)
		x, y := make([]float32, a.Elements()), make([]float32, b.Elements())
		if err := errors.Join(a.Floats(x, 0), b.Floats(y, 0)); err != nil {
			t.Fatal(err)
		}
		if b.Scale != scale || y[5] != x[5]*scale || x[5] == 0 {
			t.Errorf("%s: scale %g, %g of %g", name, b.Scale, y[5], x[5])
		}
	}
	for _, bad := range []gguf.Tensor{vector("blk.1.ffn_up_exps.scale", 1, 2), vector("blk.0.attn_q.scale", 0), vector("blk.0.attn_q.scale", float32(math.NaN()))} {
		if _, err := New(again(t, f, nil, map[string][]gguf.Tensor{"": {bad}})); !errors.Is(err, ErrTensor) || !strings.Contains(err.Error(), bad.Name) {
			t.Error(err)
		}
	}
}

// TestScaledBlocks: NVFP4 with a scale for the tensor is taken as blocks with a factor, and has its values but
// for the last bit.
func TestScaledBlocks(t *testing.T) {
	_, f, _ := build(t, "qwen3_moe")
	q, _ := f.Tensor("blk.0.attn_q.weight")
	q.Type, q.Data = gguf.NVFP4, kerneltest.Blocks(kerneltest.Rand(1), tensor.NVFP4, q.Shape[0], q.Shape[1], nil)
	scale := gguf.Tensor{Name: "blk.0.attn_q.scale", Type: gguf.F32, Shape: []int{1}, Data: make([]byte, 4)}
	if err := gguf.F32.Encode(scale.Data, []float32{0.37}); err != nil {
		t.Fatal(err)
	}
	d, err := New(again(t, f, nil, map[string][]gguf.Tensor{q.Name: {q}, "": {scale}}))
	if err != nil {
		t.Fatal(err)
	}
	x, _ := d.Set().Tensor("model.layers.0.self_attn.q_proj.weight")
	rows, cols := x.Rows()
	row, values := make([]float32, cols), make([]float32, rows*cols)
	m, err := weights.Exactly(weights.FormatOf(x), cols, x)
	if err := errors.Join(err, x.Floats(values, 0)); err != nil || m == nil || m.Encoding != tensor.NVFP4Scaled {
		t.Fatal(m, err)
	}
	for r := range rows {
		m.Row(row, r)
		for c, v := range values[r*cols:][:cols] {
			if !(math.Abs(float64(row[c]-v)) <= math.Abs(float64(v))/(1<<23)) {
				t.Fatalf("row %d, column %d: %g, want %g", r, c, row[c], v)
			}
		}
	}
}

// TestGeneration: recommended sampling parameters come from generation_config.json.
func TestGeneration(t *testing.T) {
	_, f, _ := build(t, "qwen3")
	d, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	if none, err := d.Generation(); err != nil || none != nil {
		t.Errorf("%s, %v", none, err)
	}
	meta := map[string]any{"general.sampling.temp": float32(0.6), "general.sampling.top_k": int32(20), "general.sampling.top_p": float32(0.95),
		"general.sampling.min_p": float32(0.01), "general.sampling.penalty_repeat": float32(1.05)}
	if d, err = New(again(t, f, meta, nil)); err != nil {
		t.Fatal(err)
	}
	text, err := d.Generation()
	if err != nil {
		t.Fatal(err)
	}
	g, err := model.ParseGeneration(text)
	if want := (model.Generation{Temperature: 0.6, TopP: 0.95, TopK: 20, MinP: 0.01, RepetitionPenalty: 1.05}); err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, %v", g, err)
	}
	if d, err = New(again(t, f, map[string]any{"general.sampling.temp": float32(math.Inf(1))}, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Generation(); !errors.Is(err, ErrMetadata) {
		t.Error(err)
	}
}

// TestRefused: what has no place or does not fit is an error that names it.
func TestRefused(t *testing.T) {
	_, f, _ := build(t, "qwen3_moe")
	small := func(name string, shape ...int) []gguf.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return []gguf.Tensor{{Name: name, Type: gguf.I8, Shape: shape, Data: make([]byte, n)}}
	}
	for name, x := range map[string]struct {
		meta   map[string]any
		change map[string][]gguf.Tensor
		want   error
		word   string
	}{
		"architecture":    {map[string]any{"general.architecture": "gemma9"}, nil, ErrArchitecture, "gemma9"},
		"no architecture": {map[string]any{"general.architecture": nil}, nil, gguf.ErrKeyMissing, "general.architecture"},
		"no layers":       {map[string]any{"qwen3moe.block_count": nil}, nil, gguf.ErrKeyMissing, "block_count"},
		"layers":          {map[string]any{"qwen3moe.block_count": uint32(4000000)}, nil, ErrMetadata, "4000000"},
		"fewer layers":    {map[string]any{"qwen3moe.block_count": uint32(2)}, nil, ErrTensor, "blk.2."},
		"negative layers": {map[string]any{"qwen3moe.nextn_predict_layers": uint32(9)}, nil, ErrMetadata, "block_count"},
		"heads a text":    {map[string]any{"qwen3moe.attention.head_count": "4"}, nil, gguf.ErrKeyType, "head_count"},
		"experts":         {map[string]any{"qwen3moe.expert_count": uint32(15)}, nil, ErrTensor, "for 15 experts"},
		"many experts":    {map[string]any{"qwen3moe.expert_count": uint32(1 << 20)}, nil, ErrMetadata, "1048576"},
		"rope":            {map[string]any{"qwen3moe.rope.scaling.type": "longrope"}, nil, ErrMetadata, "longrope"},
		"rope factors":    {nil, map[string][]gguf.Tensor{"": {{Name: "rope_freqs.weight", Type: gguf.F32, Shape: []int{2}, Data: []byte{0, 0, 0, 64, 0, 0, 128, 63}}}}, ErrTensor, "rope_freqs"},
		"unknown tensor":  {nil, map[string][]gguf.Tensor{"": small("blk.0.ffn_gate_exps.lora", 1)}, ErrTensor, "ffn_gate_exps.lora"},
		"two names":       {nil, map[string][]gguf.Tensor{"": small("blk.0.post_attention_norm.weight", 128)}, ErrTensor, "post_attention_layernorm"},
		"empty tensor":    {nil, map[string][]gguf.Tensor{"": small("blk.0.attn_q.bias", 0)}, ErrTensor, "empty"},
		"no embedding":    {nil, map[string][]gguf.Tensor{"token_embd.weight": nil}, ErrTensor, "token_embd"},
		"half a kv_b":     {nil, map[string][]gguf.Tensor{"": small("blk.0.attn_k_b.weight", 1, 2, 3)}, ErrTensor, "attn_k_b"},
		"half a qkvz":     {nil, map[string][]gguf.Tensor{"": small("blk.0.attn_gate.weight", 1, 2)}, ErrTensor, "attn_gate"},
	} {
		_, err := New(again(t, f, x.meta, x.change))
		if !errors.Is(err, x.want) || !strings.Contains(fmt.Sprint(err), x.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLlama3Rope: the scaling is found in the factors of the released sizes.
func TestLlama3Rope(t *testing.T) {
	for _, s := range []llama3Scaling{{8, 8192, 4}, {32, 8192, 4}, {8, 64, 4}, {16, 4096, 8}} {
		for _, n := range []int{8, 32, 64} {
			if n == 8 && s.high != 4 {
				continue // one factor does not tell both
			}
			factors := make([]float32, n)
			for i := range factors {
				factors[i] = float32(s.factorOf(waveLength(500000, i, n)))
			}
			got := fitLlama3(factors, 500000)
			for i, f := range factors {
				if want := got.factorOf(waveLength(500000, i, n)); math.Abs(want-float64(f)) > 1e-5*want {
					t.Errorf("%+v, %d values: %+v gives %g, want %g", s, n, got, want, f)
				}
			}
			if n >= 32 && got != s {
				t.Errorf("%d values: %+v, want %+v", n, got, s)
			}
		}
	}
}

// seed is a small file of an architecture.
func seed(t testing.TB, arch string, extra []gguf.Pair, shapes map[string][]int) []byte {
	t.Helper()
	meta := append([]gguf.Pair{{Key: "general.architecture", Value: arch}}, extra...)
	for key, v := range map[string]any{"embedding_length": uint32(4), "block_count": uint32(1), "context_length": uint32(9), "attention.head_count": uint32(2),
		"attention.layer_norm_rms_epsilon": float32(1e-6), "feed_forward_length": uint32(2), "rope.dimension_count": uint32(2)} {
		meta = append(meta, gguf.Pair{Key: arch + "." + key, Value: v})
	}
	list := []gguf.Tensor{{Name: "token_embd.weight", Type: gguf.I8, Shape: []int{3, 4}, Data: make([]byte, 12)}}
	for name, shape := range shapes {
		n := 1
		for _, d := range shape {
			n *= d
		}
		list = append(list, gguf.Tensor{Name: "blk.0." + name, Type: gguf.I8, Shape: shape, Data: make([]byte, n)})
	}
	var out bytes.Buffer
	if err := gguf.Write(&out, meta, list); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// FuzzNew: no file makes a panic, and every tensor of a folder has its values.
func FuzzNew(f *testing.F) {
	f.Add(seed(f, "llama", nil, map[string][]int{"attn_q.weight": {4, 4}, "attn_k.bias": {4}, "attn_norm.weight": {4}}))
	f.Add(seed(f, "llama", []gguf.Pair{{Key: "llama.expert_count", Value: uint32(2)}, {Key: "llama.expert_used_count", Value: uint32(1)}},
		map[string][]int{"ffn_gate_exps.weight": {2, 2, 4}, "ffn_up.0.weight": {2, 4}}))
	f.Add(seed(f, "deepseek2", []gguf.Pair{{Key: "deepseek2.attention.kv_lora_rank", Value: uint32(2)}, {Key: "deepseek2.attention.key_length", Value: uint32(4)},
		{Key: "deepseek2.attention.value_length", Value: uint32(2)}}, map[string][]int{"attn_k_b.weight": {2, 2, 2}, "attn_v_b.weight": {2, 2, 2}}))
	f.Add(seed(f, "glm-dsa", sparseMeta("glm-dsa", map[string]any{"attention.indexer.types": []bool{true}}), sparseShapes))
	f.Add(seed(f, "gemma4", gemma4Meta(nil), map[string][]int{"attn_q.weight": {4, 4}, "ffn_gate_inp.scale": {4}, "layer_output_scale.weight": {1}}))
	next := []gguf.Pair{{Key: "qwen3next.expert_count", Value: uint32(2)}}
	for key, v := range map[string]uint32{"expert_used_count": 1, "expert_feed_forward_length": 2, "expert_shared_feed_forward_length": 2, "ssm.conv_kernel": 2,
		"ssm.state_size": 1, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 4} {
		next = append(next, gguf.Pair{Key: "qwen3next." + key, Value: v})
	}
	f.Add(seed(f, "qwen3next", next, map[string][]int{"attn_qkv.weight": {6, 4}, "attn_gate.weight": {4, 4}, "ssm_conv1d.weight": {4, 2}, "ssm_a": {2}, "ffn_gate_up_exps.weight": {2, 4, 4}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		d, err := New(file)
		if err != nil {
			return
		}
		if _, err := d.Config(); err != nil {
			t.Fatal(err)
		}
		for _, name := range d.Names() {
			v, _ := d.Tensor(name)
			kind, plain := v.Type()
			blocks, ok := v.Blocks()
			if n := v.Elements(); n <= 1<<12 {
				if err := v.Floats(make([]float32, n), 0); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if b := kind.Block(); ok != (plain && v.Scale == 1) || ok && n/b.Elements*b.Bytes != len(blocks) {
					t.Fatalf("%s: %d bytes for %v of %s", name, len(blocks), v.Shape, kind)
				}
			}
		}
	})
}
