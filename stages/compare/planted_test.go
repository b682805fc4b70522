package compare

import (
	"bytes"
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/weights"
)

const (
	qwen      = "qwen2"       // dense, grouped-query attention with biases
	deepseek  = "deepseek_v2" // latent attention, experts from layer 1 on
	deepseek3 = "deepseek_v3" // the same with a router of sigmoids
	glm       = "glm4_moe"    // grouped-query attention with norms, half of each head is rotated
)

// fault is something that is done wrongly, and how it is named.
type fault struct {
	name  string
	model string
	// One of them is wrong: the weights that the engine has, its device, its config.
	weights spoil
	dev     func() load.Device
	config  map[string]any

	layer int
	op    string // the first that differs
	what  string // part of the first suspect's What
	files string // the same where the files have the fault too; "": as what
	// lone says that the residual stream alone, without dumped operators, does not tell it from
	// other mistakes, or shows it in a later layer.
	lone bool
}

var faults = []fault{
	{name: "q transposed", model: qwen, weights: transposedWeight("q_proj.weight"), op: "q", what: "self_attn.q_proj.weight transposed"},
	{name: "k transposed", model: qwen, weights: transposedWeight("k_proj.weight"), op: "k", what: "self_attn.k_proj.weight transposed"},
	{name: "o transposed", model: deepseek, weights: transposedWeight("o_proj.weight"), op: "mixer_out", what: "self_attn.o_proj.weight transposed"},
	{name: "kv_b transposed", model: deepseek, weights: transposedWeight("kv_b_proj.weight"), op: "attn", what: "self_attn.kv_b_proj.weight transposed"},
	{name: "down transposed", model: qwen, weights: transposedWeight("mlp.down_proj.weight"), op: "mlp_out", what: "network's down_proj transposed"},
	{name: "router transposed", model: deepseek, weights: transposedWeight("mlp.gate.weight"), layer: 1, op: "router_logits", what: "mlp.gate.weight transposed"},
	{name: "head transposed", model: deepseek, weights: transposedWeight("lm_head.weight"), layer: -1, op: "logits", what: "lm_head.weight transposed"},
	{name: "embedding transposed", model: deepseek, weights: transposedWeight("embed_tokens.weight"), layer: -1, op: "embed", what: "embed_tokens.weight transposed"},

	{name: "gate and up swapped", model: qwen, weights: exchanged("mlp.gate_proj.weight", "mlp.up_proj.weight"), op: "mlp_out", what: "network's gate and up swapped"},
	{name: "gate and up of experts swapped", model: deepseek, weights: exchangedExperts, layer: 1, op: "experts_out", what: "experts' gate and up swapped"},
	{name: "gate and up of the shared expert swapped", model: deepseek, weights: exchanged("shared_experts.gate_proj.weight", "shared_experts.up_proj.weight"), layer: 1, op: "shared_out", what: "shared expert's gate and up swapped"},
	{name: "keys and values swapped", model: qwen, weights: exchanged("k_proj.weight", "v_proj.weight"), op: "k", what: "v_proj.weight in the place of self_attn.k_proj.weight", lone: true},
	{name: "norms swapped", model: deepseek, weights: exchanged("input_layernorm.weight", "post_attention_layernorm.weight"), op: "input_norm", what: "post_attention_layernorm.weight in the place of input_layernorm.weight"},

	{name: "rope over pairs, not halves", model: qwen, dev: func() load.Device { return swappedRope{} }, op: "q_pe", what: "rope over neighbouring values (halves and interleaved pairs swapped)"},
	{name: "rope over halves, not pairs", model: deepseek, dev: func() load.Device { return swappedRope{} }, op: "q_pe", what: "rope over halves of a head (halves and interleaved pairs swapped)"},
	{name: "rows of k for rope", model: qwen, weights: permuted("k_proj.weight", 32, 0), op: "k", what: "self_attn.k_proj.weight with rows for rope in"},
	{name: "rows of kv_a for rope", model: deepseek, weights: permuted("kv_a_proj_with_mqa.weight", 144, 128), op: "kv_a", what: "kv_a_proj_with_mqa.weight with rows for rope in"},
	{name: "rope_theta", model: qwen, config: map[string]any{"rope_theta": 1e4}, op: "q_pe", what: "rope_theta 1e+06"},

	{name: "missing residual", model: qwen, dev: func() load.Device { return noResidual{} }, op: "post_norm", what: "the residual around attention missing"},
	{name: "missing residual before experts", model: deepseek, dev: func() load.Device { return noResidual{} }, op: "post_norm", what: "the residual around attention missing"},
	{name: "missing residual around the network", model: qwen, dev: func() load.Device { return &noResidualOf{skip: 1} }, op: "layer_out", what: "the residual around the network missing"},

	{name: "head count doubled", model: qwen, config: map[string]any{"num_attention_heads": 8, "num_key_value_heads": 4}, op: "q_pe", what: "a wrong head count: 4 heads of 32 and 2 for keys, not 8 of 16 and 4"},
	{name: "head count halved", model: qwen, config: map[string]any{"num_attention_heads": 2, "num_key_value_heads": 1}, op: "q_pe", what: "a wrong head count: 4 heads of 32 and 2 for keys, not 2 of 64 and 1"},

	{name: "row 0", model: qwen, dev: func() load.Device { return rowZero{} }, layer: -1, op: "embed", what: "row 0 of the embedding"},
	{name: "row 0 in another model", model: deepseek, dev: func() load.Device { return rowZero{} }, layer: -1, op: "embed", what: "row 0 of the embedding"},
	{name: "ids off by one", model: qwen, weights: nextRow, layer: -1, op: "embed", what: "ids one too"},

	{name: "bias missing", model: qwen, weights: without("q_proj.bias"), op: "q", what: "self_attn.q_proj.bias missing", files: "a bias that the files do not have"},
	{name: "norm plus 1", model: deepseek, weights: plusOne("input_layernorm.weight"), op: "input_norm", what: "input_layernorm.weight plus 1", files: "input_layernorm.weight minus 1"},
	{name: "a scale", model: deepseek, weights: times("kv_a_proj_with_mqa.weight", 0.25), op: "kv_a", what: "a scale missing or applied twice"},
	{name: "the shared expert's gate missing", model: "qwen2_moe", dev: func() load.Device { return noGate{} }, op: "shared_out", what: "the shared expert's gate missing"},
	{name: "sinks missing", model: "gpt_oss", dev: func() load.Device { return noSinks{} }, op: "attn", what: "the sinks missing"},
	{name: "plus 1 missing", model: "gpt_oss", dev: func() load.Device { return noShift{} }, op: "experts_out", what: "experts' plus 1 of up missing"},
	{name: "window", model: "mistral", config: map[string]any{"sliding_window": 7}, op: "attn", what: "a sliding window one too long"},
	{name: "heads normed one by one", model: "olmoe", dev: func() load.Device { return headNorms{} }, op: "q_norm", what: "each head normed by itself"},
	{name: "all heads normed as one row", model: glm, dev: func() load.Device { return wideNorms{} }, op: "q_norm", what: "all heads normed as one row"},
	{name: "whole heads rotated", model: glm, dev: func() load.Device { return wholeRope{} }, op: "q_pe", what: "rope over whole heads"},
	{name: "the last values rotated", model: glm, dev: func() load.Device { return lastRope{} }, op: "q_pe", what: "rope over the last values of a head"},
	{name: "the part with the frequencies of whole heads", model: glm, dev: func() load.Device { return wholeRope{part: true} }, op: "q_pe", what: "frequencies of whole heads for a part of each"},
	{name: "no mscale", model: deepseek3, dev: func() load.Device { return rescaled{by: 1} }, op: "attn", what: "scores scaled by 1/sqrt(head size) alone"},
	{name: "mscale once", model: deepseek3, dev: func() load.Device { return rescaled{by: 0.1*math.Log(40) + 1} }, op: "attn", what: "scores scaled by mscale once"},
	{name: "softmax for the sigmoid", model: deepseek3, dev: routed(func(c *choice) { c.Scoring = device.ScoreSoftmax }), layer: 1, op: "router_ids", what: "softmax in the place of the sigmoid"},
	{name: "groups by their best expert", model: deepseek3, dev: routed(func(c *choice) { c.GroupScore = device.GroupMax }), layer: 1, op: "router_ids", what: "groups rated by their best expert"},
	{name: "groups by their two best experts", model: deepseek, dev: routed(func(c *choice) { c.GroupScore = device.GroupTop2Sum }), layer: 1, op: "router_ids", what: "groups rated by the sum of their two best"},
	{name: "no groups", model: deepseek3, dev: routed(func(c *choice) { c.Groups = 0 }), layer: 1, op: "router_ids", what: "the choice not limited to groups"},
	{name: "correction missing", model: deepseek3, dev: routed(func(c *choice) { c.missing = true }), layer: 1, op: "router_ids", what: "mlp.gate.e_score_correction_bias missing"},
	{name: "correction in the weights", model: "minimax_m2", dev: routed(func(c *choice) { c.weighs = true }), op: "router_weights", what: "block_sparse_moe.e_score_correction_bias added to the weights too"},
	{name: "weights not normalised", model: glm, dev: routed(func(c *choice) { c.Normalize = false }), layer: 1, op: "router_weights", what: "router weights not divided by their sum"},
	{name: "gate of DeltaNet missing", model: "qwen3_next", dev: func() load.Device { return noDeltaGate{} }, op: "attn", what: "the gate of the output missing"},
	{name: "key heads read flat", model: "qwen3_next", dev: func() load.Device { return flatColumns{} }, op: "delta_conv", what: "columns of key heads read one kind after the other"},
	{name: "taps reversed", model: "qwen3_next", weights: reversedRows("conv1d.weight"), op: "delta_conv", what: "taps in the reverse order", files: "taps in the reverse order"},
	{name: "gate of attention missing", model: "qwen3_next", dev: func() load.Device { return noOutputGate{} }, layer: 3, op: "attn", what: "the gate of attention's output missing"},
	{name: "index keys normed as RMSNorm does", model: "deepseek_v32", dev: func() load.Device { return rmsKeys{} }, op: "indexer_keys", what: "RMSNorm in the place of the LayerNorm of index keys", lone: true},
	{name: "all tokens attended to", model: "glm_moe_dsa", dev: func() load.Device { return dense{} }, op: "attn", what: "all tokens attended to"},
	{name: "routed_scaling_factor", model: deepseek, config: map[string]any{"routed_scaling_factor": 1.0}, layer: 1, op: "router_weights", what: "routed_scaling_factor", lone: true},
}

// TestPlantedFaultsAreNamed loads each fault and holds it against a dump of the right model: every
// operator of every layer, or the residual stream alone. A fault of the weights is the engine's
// where the files are right, and the files' where they have it too.
func TestPlantedFaultsAreNamed(t *testing.T) {
	rigs := map[string]*rig{}
	for _, f := range faults {
		r := rigs[f.model]
		if r == nil {
			r = newRig(t, f.model)
			rigs[f.model] = r
		}
		t.Run(f.name, func(t *testing.T) {
			right := r.model(t, refdevice.Device{}, r.cfg, r.set)
			set := r.set
			if f.weights != nil {
				set = f.weights(t, r)
			}
			cfg := r.config(t, f.config)
			who := "engine"
			if f.config != nil {
				who = "reference"
			}
			run := func(ops bool, files *weights.Set, who, op, what string) {
				t.Helper()
				dev := load.Device(refdevice.Device{})
				if f.dev != nil {
					dev = f.dev()
				}
				wrong := r.model(t, dev, cfg, set)
				report, err := Run(wrong, cfg, r.dump(t, right, ops), Weights(files), Options{})
				if err != nil {
					t.Fatal(err)
				}
				d := report.Divergence
				if d == nil || d.Op != op || d.Layer != f.layer {
					t.Fatalf("operators %v: got %+v, want %s of layer %d", ops, d, op, f.layer)
				}
				if len(d.Suspects) == 0 || d.Suspects[0].Who != who || !strings.Contains(d.Suspects[0].What, what) {
					t.Fatalf("operators %v, %s: tried %d, own %q, note %q; got %v", ops, who, d.Tried, d.Own, d.Note, d.Suspects)
				}
				var out bytes.Buffer
				if err := report.Text(&out); err != nil || !strings.Contains(out.String(), d.Suspects[0].String()) {
					t.Errorf("%v: the report does not name it:\n%s", err, out.String())
				}
			}
			run(true, r.set, who, f.op, f.what)
			if f.weights != nil {
				run(true, set, "reference", f.op, cmp.Or(f.files, f.what))
			}
			if f.lone {
				return
			}
			whole := "layer_out"
			if f.layer < 0 {
				whole = f.op
			}
			run(false, r.set, who, whole, f.what)
		})
	}
}

// TestNothingIsSuspectedWhereNothingIsWrong holds models against their own dumps.
func TestNothingIsSuspectedWhereNothingIsWrong(t *testing.T) {
	for _, name := range []string{qwen, deepseek} {
		r := newRig(t, name)
		m := r.model(t, refdevice.Device{}, r.cfg, r.set)
		report, err := Run(m, r.cfg, r.dump(t, m, true), Weights(r.set), Options{Chunk: 4})
		if err != nil {
			t.Fatal(err)
		}
		if !report.OK() || report.Divergence != nil || report.Passed < 40 {
			t.Errorf("%s: %d passed, %d failed, %+v", name, report.Passed, report.Failed, report.Divergence)
		}
	}
}

// TestUnexplainedIsNotBlamed: noise, and a weight that has nothing to do with the right one, are
// found and put down to no mistake.
func TestUnexplainedIsNotBlamed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{qwen, deepseek} {
		r := newRig(t, name)
		m := r.model(t, refdevice.Device{}, r.cfg, r.set)
		for _, op := range []string{"q", "attn", "mixer_out", "post_norm", "mlp_out", "layer_out"} {
			for _, size := range []float64{0.01, 1} {
				g := r.dump(t, m, true)
				key := "p.ops.0." + op
				v := g.vectors[key]
				v.F32 = slices.Clone(v.F32)
				for i := range v.F32 {
					v.F32[i] += float32(size * rnd.NormFloat64())
				}
				g.vectors[key] = v
				report, err := Run(m, r.cfg, g, Weights(r.set), Options{})
				if err != nil {
					t.Fatal(err)
				}
				d := report.Divergence
				if d == nil || d.Op != op || d.Own != "" || len(d.Suspects) != 0 || d.Tried == 0 {
					t.Errorf("%s, %s, noise of %v: got %+v", name, op, size, d)
				}
			}
		}
		other := r.changed(t, func(name string, w []float32, _ []int) []float32 {
			if !strings.HasSuffix(name, "o_proj.weight") {
				return nil
			}
			for i := range w {
				w[i] = float32(rnd.NormFloat64())
			}
			return w
		})
		wrong := r.model(t, refdevice.Device{}, r.cfg, other)
		report, err := Run(wrong, r.cfg, r.dump(t, m, true), Weights(r.set), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d := report.Divergence; d == nil || d.Own != "mixer_out" || len(d.Suspects) != 0 {
			t.Errorf("%s: another o_proj: got %+v", name, d)
		}
	}
}

// TestFaultsAreNamedInRoundedDumps: a dump whose values are off by 0.4 %, as in bfloat16, and
// relative tolerances.
func TestFaultsAreNamedInRoundedDumps(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	r := newRig(t, deepseek)
	g := r.dump(t, r.model(t, refdevice.Device{}, r.cfg, r.set), true)
	for name, v := range g.vectors {
		v.F32 = slices.Clone(v.F32)
		for i := range v.F32 {
			v.F32[i] *= 1 + float32(0.004*rnd.NormFloat64())
		}
		g.vectors[name] = v
	}
	right := r.model(t, refdevice.Device{}, r.cfg, r.set)
	report, err := Run(right, r.cfg, g, Weights(r.set), Options{Relative: 0.06})
	if err != nil || report.Divergence != nil {
		t.Fatalf("%v: the rounded dump itself: %+v", err, report.Divergence)
	}
	for _, f := range []struct {
		spoil
		op, what string
	}{
		{transposedWeight("o_proj.weight"), "mixer_out", "self_attn.o_proj.weight transposed"},
		{exchangedExperts, "experts_out", "experts' gate and up swapped"},
		{permuted("kv_a_proj_with_mqa.weight", 144, 128), "k_pe", "rows for rope in"},
	} {
		set := f.spoil(t, r)
		wrong := r.model(t, refdevice.Device{}, r.cfg, set)
		for _, files := range []*weights.Set{r.set, set} {
			report, err := Run(wrong, r.cfg, g, Weights(files), Options{Relative: 0.06})
			if err != nil {
				t.Fatal(err)
			}
			d := report.Divergence
			if d == nil || len(d.Suspects) == 0 || !strings.Contains(d.Suspects[0].What, f.what) {
				t.Errorf("%s: got %+v", f.what, d)
			}
		}
	}
}

// TestACloseChoiceIsNoMistake: a router that chose others for one token, its logits being right, is
// not put down to what was computed before them.
func TestACloseChoiceIsNoMistake(t *testing.T) {
	r := newRig(t, deepseek)
	m := r.model(t, refdevice.Device{}, r.cfg, r.set)
	all, g := r.dump(t, m, true), r.dump(t, m, false)
	for _, what := range []string{"logits", "ids"} {
		name := "p.router.2." + what
		v := all.vectors[name]
		if v.I32 != nil {
			v.I32 = slices.Clone(v.I32)
			for i := range r.cfg.MoE.Router.TopK {
				v.I32[i] = (v.I32[i] + 1) % int32(r.cfg.MoE.Experts)
			}
		}
		g.vectors[name] = v
	}
	report, err := Run(m, r.cfg, g, Weights(r.set), Options{Relative: 0.06})
	if err != nil {
		t.Fatal(err)
	}
	d := report.Divergence
	if d == nil || d.Op != "router_ids" || len(d.Suspects) != 0 || d.Tried > 5 || d.Note == "" {
		t.Errorf("got %+v", d)
	}
}
