package folder

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"krater/stages/weights/gguf"
)

// outer are the tensors outside the layers, and their names in the release.
var outer = [][2]string{
	{"token_embd.weight", "model.embed_tokens.weight"}, {"output_norm.weight", "model.norm.weight"}, {"output.weight", "lm_head.weight"},
}

// usual are the tensors of a layer as stored, without the layer, and their names in most
// releases. A star stands for an expert.
var usual = [][2]string{
	{"attn_norm.weight", "input_layernorm.weight"},
	{"attn_q.weight", "self_attn.q_proj.weight"},
	{"attn_q.bias", "self_attn.q_proj.bias"},
	{"attn_k.weight", "self_attn.k_proj.weight"},
	{"attn_k.bias", "self_attn.k_proj.bias"},
	{"attn_v.weight", "self_attn.v_proj.weight"},
	{"attn_v.bias", "self_attn.v_proj.bias"},
	{"attn_output.weight", "self_attn.o_proj.weight"},
	{"attn_output.bias", "self_attn.o_proj.bias"},
	{"attn_q_norm.weight", "self_attn.q_norm.weight"},
	{"attn_k_norm.weight", "self_attn.k_norm.weight"},
	{"attn_sinks.weight", "self_attn.sinks"},
	{"attn_q_a.weight", "self_attn.q_a_proj.weight"},
	{"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
	{"attn_q_b.weight", "self_attn.q_b_proj.weight"},
	{"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
	{"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
	{"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
	{"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"}, // older files
	{"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
	{"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
	{"ssm_a", "linear_attn.A_log"},
	{"ssm_dt.bias", "linear_attn.dt_bias"},
	{"ssm_norm.weight", "linear_attn.norm.weight"},
	{"ssm_out.weight", "linear_attn.out_proj.weight"},
	{"ffn_norm.weight", "post_attention_layernorm.weight"},
	{"post_attention_norm.weight", "post_attention_layernorm.weight"},
	{"ffn_gate.weight", "mlp.gate_proj.weight"},
	{"ffn_up.weight", "mlp.up_proj.weight"},
	{"ffn_down.weight", "mlp.down_proj.weight"},
	{"ffn_gate_inp.weight", "mlp.gate.weight"},
	{"ffn_gate_inp.bias", "mlp.gate.bias"},
	{"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
	{"ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight"},
	{"ffn_gate_exps.bias", "mlp.experts.*.gate_proj.bias"},
	{"ffn_up_exps.weight", "mlp.experts.*.up_proj.weight"},
	{"ffn_up_exps.bias", "mlp.experts.*.up_proj.bias"},
	{"ffn_down_exps.weight", "mlp.experts.*.down_proj.weight"},
	{"ffn_down_exps.bias", "mlp.experts.*.down_proj.bias"},
	{"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
	{"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
	{"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
	{"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
}

// binder gives the stored tensors to those of the release.
type binder struct {
	*reader
	d      *Folder
	family *family
	layers int
	used   map[string]bool
}

func newBinder(d *Folder, r *reader, f *family) *binder {
	return &binder{reader: r, d: d, family: f, layers: int(d.config["num_hidden_layers"].(int64)), used: map[string]bool{}}
}

// take returns a stored tensor and notes that it has a place.
func (b *binder) take(name string) (gguf.Tensor, bool) {
	t, ok := b.file.Tensor(name)
	b.used[name] = b.used[name] || ok
	return t, ok
}

func (b *binder) bind() error {
	for _, name := range b.file.Names() {
		if t, _ := b.file.Tensor(name); len(t.Data) == 0 {
			return fmt.Errorf("%w: %q has the shape %v: it is empty", ErrTensor, name, t.Shape)
		}
	}
	for _, o := range slices.Concat(outer, b.family.outer) {
		if t, ok := b.take(o[0]); ok {
			scales, err := b.scales("", o[0])
			if err != nil {
				return err
			}
			v := b.plain(t)
			v.Scale = scales.of(0)
			b.d.add(o[1], v)
		}
	}
	for l := range b.layers {
		if err := b.layer(l); err != nil {
			return err
		}
		if len(b.d.names) > maxTensors {
			return fmt.Errorf("%w: the model has more than %d tensors", ErrTensor, maxTensors)
		}
	}
	var left []string
	for _, name := range b.file.Names() {
		if !b.used[name] && !b.ignored(name) {
			left = append(left, name)
		}
	}
	if len(left) > 0 {
		const shown = 5
		return fmt.Errorf("%w: %.200q has no place in a model of the architecture %s, nor have %d others", ErrTensor, left[:min(shown, len(left))], b.arch, max(0, len(left)-shown))
	}
	return nil
}

// ignored reports whether a tensor may be there without being used: frequencies that rope_scaling
// gives, and layers that predict further tokens.
func (b *binder) ignored(name string) bool {
	if name == "rope_freqs.weight" {
		return true
	}
	rest, ok := strings.CutPrefix(name, "blk.")
	var l int
	if n, _ := fmt.Sscanf(rest, "%d.", &l); !ok || n != 1 {
		return false
	}
	return l >= b.layers && l < b.layers+int(b.intOr("nextn_predict_layers", 0, maxLayers))
}

// plain returns a tensor that is stored as the release has it, but for the one that norms may hold.
func (b *binder) plain(t gguf.Tensor) View {
	v := View{Shape: t.Shape, pieces: []piece{{from: t, rows: height(t)}}}
	if b.family.addOne && strings.HasSuffix(t.Name, "norm.weight") && !strings.HasSuffix(t.Name, "ssm_norm.weight") {
		v.change = plusOne
	}
	return v
}

// layer binds the tensors of one layer.
func (b *binder) layer(l int) error {
	stored, release := fmt.Sprintf("blk.%d.", l), fmt.Sprintf("model.layers.%d.", l)
	if err := errorsOf(
		func() error { return b.latent(stored, release) },
		func() error { return b.linear(stored, release) },
	); err != nil {
		return err
	}
	for _, u := range slices.Concat(usual, b.family.own) {
		t, ok := b.take(stored + u[0])
		if !ok {
			continue
		}
		name := release + u[1]
		if other, ok := b.family.renamed[u[0]]; ok {
			name = release + other
		}
		if _, twice := b.d.views[b.d.named(name)]; twice {
			return fmt.Errorf("%w: %q and another tensor are both %s", ErrTensor, t.Name, name)
		}
		scales, err := b.scales(stored, u[0])
		switch {
		case err != nil:
		case b.tiled(u[0]):
			err = b.untiled(u[0], t, name, scales)
		case strings.Contains(name, "*"):
			err = b.experts(t, name, scales)
		case b.family.permute && (strings.HasPrefix(u[0], "attn_q.") || strings.HasPrefix(u[0], "attn_k.")):
			err = b.permuted(t, name, u[0][:6] == "attn_q", scales)
		default:
			v := b.changed(u[0], t)
			v.Scale = scales.of(0)
			b.d.add(name, v)
		}
		if err != nil {
			return err
		}
	}
	return b.oldExperts(stored, release)
}

// scales are the factors of a tensor: none, one number, or one for each expert.
type scales []float32

// of returns the scale of an expert.
func (s scales) of(expert int) float32 {
	switch len(s) {
	case 0:
		return 1
	case 1:
		return s[0]
	}
	return s[expert]
}

// scales reads the scales that NVFP4 tensors have beside them. Those of activations are not
// needed: activations are not quantised to four bits here.
func (b *binder) scales(stored, suffix string) (scales, error) {
	suffix, matrix := strings.CutSuffix(suffix, ".weight")
	name := stored + suffix
	b.take(name + ".input_scale")
	if slices.ContainsFunc(b.family.own, func(o [2]string) bool { return o[0] == suffix+".scale" }) {
		return nil, nil // another tensor of the family
	}
	t, ok := b.take(name + ".scale")
	if !ok {
		return nil, nil
	}
	n := 1
	if matrix && strings.HasSuffix(suffix, "_exps") && height(t)*width(t) != 1 {
		n = int(b.intOr("expert_count", 0, maxExperts))
	}
	out := make(scales, n)
	if height(t)*width(t) != n || t.Type.Decode(out, t.Data) != nil {
		return nil, fmt.Errorf("%w: %q has the shape %v, want %d numbers", ErrTensor, t.Name, t.Shape, n)
	}
	for i, x := range out {
		if !(x > 0 && x <= math.MaxFloat32) {
			return nil, fmt.Errorf("%w: scale %d of %q is %g", ErrTensor, i, t.Name, x)
		}
	}
	return out, nil
}

// errorsOf calls functions until one fails.
func errorsOf(list ...func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// changed is plain with the changes of single tensors.
func (b *binder) changed(suffix string, t gguf.Tensor) View {
	v := b.plain(t)
	switch {
	case suffix == "ssm_a":
		v.change = negExp
	case suffix == "ssm_conv1d.weight" && len(t.Shape) == 2:
		v.Shape = []int{t.Shape[0], 1, t.Shape[1]}
	case suffix == "ffn_gate_inp_shexp.weight" && len(t.Shape) == 1:
		v.Shape = []int{1, t.Shape[0]}
	}
	return v
}

// experts cuts a tensor of all experts into those of one each.
func (b *binder) experts(t gguf.Tensor, pattern string, scales scales) error {
	n := int(b.intOr("expert_count", 0, maxExperts))
	if len(t.Shape) < 2 || t.Shape[0] != n {
		return fmt.Errorf("%w: %q has the shape %v for %d experts", ErrTensor, t.Name, t.Shape, n)
	}
	rows := height(t) / max(1, n)
	for e := range n {
		b.d.add(strings.Replace(pattern, "*", fmt.Sprint(e), 1), View{Shape: t.Shape[1:], Scale: scales.of(e), pieces: []piece{{from: t, first: e * rows, rows: rows}}})
	}
	return nil
}

// oldExperts binds experts that are stored one by one, as older conversions of Mixtral have them,
// and gate and up in one tensor, as some newer conversions do.
func (b *binder) oldExperts(stored, release string) error {
	n := int(b.intOr("expert_count", 0, maxExperts))
	rename := func(suffix, usual string) string {
		if other, ok := b.family.renamed[suffix]; ok {
			usual = other
		}
		return release + usual
	}
	for _, m := range []string{"gate", "up", "down"} {
		pattern := rename("ffn_"+m+"_exps.weight", "mlp.experts.*."+m+"_proj.weight")
		for e := range n {
			t, ok := b.take(fmt.Sprintf("%sffn_%s.%d.weight", stored, m, e))
			if !ok {
				break
			}
			b.d.add(strings.Replace(pattern, "*", fmt.Sprint(e), 1), b.plain(t))
		}
	}
	t, ok := b.take(stored + "ffn_gate_up_exps.weight")
	if !ok {
		return nil
	}
	if len(t.Shape) != 3 || t.Shape[0] != n || t.Shape[1]%2 != 0 {
		return fmt.Errorf("%w: %q has the shape %v for %d experts", ErrTensor, t.Name, t.Shape, n)
	}
	half := t.Shape[1] / 2
	for e := range n {
		for i, m := range []string{"gate", "up"} {
			pattern := rename("ffn_"+m+"_exps.weight", "mlp.experts.*."+m+"_proj.weight")
			b.d.add(strings.Replace(pattern, "*", fmt.Sprint(e), 1),
				View{Shape: []int{half, t.Shape[2]}, pieces: []piece{{from: t, first: (2*e + i) * half, rows: half}}})
		}
	}
	return nil
}

// permuted undoes llama.cpp's order of the rows of a head: it takes turns between the two halves
// that the release has one after the other.
func (b *binder) permuted(t gguf.Tensor, name string, query bool, scales scales) error {
	heads := b.d.config["num_key_value_heads"].(int64)
	if query {
		heads = b.d.config["num_attention_heads"].(int64)
	}
	from := t
	if len(t.Shape) == 1 { // a bias: one value a row
		from.Shape = []int{t.Shape[0], 1}
	}
	rows := height(from)
	if heads < 1 || int64(rows)%(2*heads) != 0 || from.Type.Block().Elements > width(from) {
		return fmt.Errorf("%w: %q has %d rows for %d heads", ErrTensor, t.Name, rows, heads)
	}
	b.d.add(name, View{Shape: t.Shape, Scale: scales.of(0), pieces: []piece{{from: from, rows: rows, head: rows / int(heads)}}})
	return nil
}

// latent joins the two halves of kv_b_proj: llama.cpp has keys transposed, and values, each for
// all heads; the release has both of a head together.
func (b *binder) latent(stored, release string) error {
	k, hasK := b.take(stored + "attn_k_b.weight")
	v, hasV := b.take(stored + "attn_v_b.weight")
	if !hasK && !hasV {
		return nil
	}
	if len(k.Shape) != 3 || len(v.Shape) != 3 || k.Shape[0] != v.Shape[0] || k.Shape[1] != v.Shape[2] {
		return fmt.Errorf("%w: %sattn_k_b.weight has the shape %v and attn_v_b.weight %v", ErrTensor, stored, k.Shape, v.Shape)
	}
	heads, rank, nope, values := k.Shape[0], k.Shape[1], k.Shape[2], v.Shape[1]
	if int64(heads) != b.d.config["num_attention_heads"].(int64) {
		return fmt.Errorf("%w: %q has %d heads", ErrTensor, k.Name, heads)
	}
	view := View{Shape: []int{heads * (nope + values), rank}}
	for h := range heads {
		view.pieces = append(view.pieces, piece{from: k, first: h * rank, rows: nope, transposed: rank}, piece{from: v, first: h * values, rows: values})
	}
	b.d.add(release+"self_attn.kv_b_proj.weight", view)
	return nil
}

// linear joins the projections of Qwen3-Next's linear attention: llama.cpp has all queries, then
// all keys and all values, and the gates apart; the release has the four of a key head together.
func (b *binder) linear(stored, release string) error {
	if b.family.tiled {
		return nil
	}
	qkv, ok := b.take(stored + "attn_qkv.weight")
	z, hasZ := b.take(stored + "attn_gate.weight")
	if !ok && !hasZ {
		return nil
	}
	size := func(field string) int {
		n, _ := b.d.config[field].(int64)
		return int(n)
	}
	heads, key := size("linear_num_key_heads"), size("linear_key_head_dim")
	values := size("linear_num_value_heads") * size("linear_value_head_dim")
	if heads < 1 || values%heads != 0 || len(qkv.Shape) != 2 || len(z.Shape) != 2 || qkv.Shape[0] != 2*heads*key+values || z.Shape[0] != values || qkv.Shape[1] != z.Shape[1] {
		return fmt.Errorf("%w: %sattn_qkv.weight has the shape %v and attn_gate.weight %v", ErrTensor, stored, qkv.Shape, z.Shape)
	}
	view, value := View{Shape: []int{2 * (heads*key + values), qkv.Shape[1]}}, values/heads
	for h := range heads {
		view.pieces = append(view.pieces,
			piece{from: qkv, first: h * key, rows: key}, piece{from: qkv, first: (heads + h) * key, rows: key},
			piece{from: qkv, first: 2*heads*key + h*value, rows: value}, piece{from: z, first: h * value, rows: value})
	}
	view.pieces = slices.Clip(view.pieces)
	b.d.add(release+"linear_attn.in_proj_qkvz.weight", view)
	return nil
}
