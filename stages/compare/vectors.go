package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vectors compares everything the golden holds about the traced prompt. A
// vector it does not know is an error, so that nothing is left out silently.
func (c *comparison) vectors(p *Prompt, seen *capture, logits []float32) error {
	prefix := p.Name + "."
	for _, name := range c.golden.names() {
		v := c.golden.vectors[name]
		if name == "rope.inv_freq" {
			c.wants[name] = v.F32
			c.report.add(floats(name, -1, "inv_freq", c.frequencies(), v.F32, c.op))
			continue
		}
		short, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if err := c.vector(name, short, v, seen, logits); err != nil {
			return fmt.Errorf("compare: %s: %w", name, err)
		}
	}
	// In the order of the computation, so that the first line that fails names
	// the culprit.
	slices.SortStableFunc(c.report.Checks, func(a, b Check) int { return c.rank(a) - c.rank(b) })
	return nil
}

// vector compares one vector of the traced prompt; short is its name without
// the prompt's.
func (c *comparison) vector(name, short string, v Vector, seen *capture, logits []float32) error {
	part := strings.Split(short, ".")
	if c.wants[name] = v.F32; v.I32 != nil {
		c.wants[name] = numbers(v.I32)
	}
	switch {
	case short == "input_ids", short == "greedy_ids", short == "greedy_margin", short == "logits_last":
		return nil // compared with the continuation
	case short == "logits":
		c.report.add(c.floats(name, -1, "logits", logits, v.F32, c.hidden))
	case short == "logits_f64":
		c.report.add(c.floats(name, -1, "logits_f64", logits, v.F32, c.hidden))
	case short == "embed", short == "final_norm":
		c.observed(name, key{-1, short}, v, seen, c.hidden)
	case short == "hidden":
		return c.layers(name, v, seen)
	case part[0] == "router" && len(part) == 3:
		return c.router(name, part[1], part[2], v, seen)
	case part[0] == "ops" && len(part) == 3:
		layer, err := c.layer(part[1])
		if err != nil {
			return err
		}
		return c.operator(name, layer, part[2], v, seen)
	default:
		return fmt.Errorf("unknown vector")
	}
	return nil
}

// layers compares the residual stream after each layer, [L, T, H].
func (c *comparison) layers(name string, v Vector, seen *capture) error {
	n := seen.n * c.cfg.Hidden
	if len(v.F32) != len(c.cfg.Layers)*n {
		return fmt.Errorf("%d elements, the model has %d layers of %d", len(v.F32), len(c.cfg.Layers), n)
	}
	for i := range c.cfg.Layers {
		part, name := Vector{F32: v.F32[i*n : (i+1)*n]}, fmt.Sprintf("%s[%d]", name, i)
		c.wants[name] = part.F32
		c.observed(name, key{i, "layer_out"}, part, seen, c.hidden)
	}
	return nil
}

func (c *comparison) router(name, number, what string, v Vector, seen *capture) error {
	layer, err := c.layer(number)
	if err != nil {
		return err
	}
	switch what {
	case "margin": // how close the choice was: no output of a model
	case "ids", "weights", "logits":
		c.observed(name, key{layer, "router_" + what}, v, seen, c.op)
	default:
		return fmt.Errorf("unknown vector")
	}
	return nil
}

func (c *comparison) operator(name string, layer int, op string, v Vector, seen *capture) error {
	switch op {
	case "kv_b":
		got, err := c.keysValues(layer, seen)
		if err != nil {
			return err
		}
		c.virtual[key{layer, op}] = got
		c.report.add(c.floats(name, layer, op, got, v.F32, c.op))
	case "attn_probs":
		got, err := c.probabilities(layer, seen)
		if err != nil {
			return err
		}
		c.virtual[key{layer, op}] = got
		c.report.add(c.floats(name, layer, op, got, v.F32, c.op))
	default:
		c.observed(name, key{layer, op}, v, seen, c.op)
	}
	return nil
}

// observed compares what the probe saw.
func (c *comparison) observed(name string, k key, v Vector, seen *capture, allowed float64) {
	var check Check
	switch {
	case v.I32 != nil && c.o.Relative > 0:
		check = sets(name, k.layer, k.op, seen.i32[k], v.I32, c.cfg.MoE.Router.TopK)
	case v.I32 != nil:
		check = ids(name, k.layer, k.op, seen.i32[k], v.I32)
	default:
		check = c.floats(name, k.layer, k.op, seen.f32[k], v.F32, allowed)
	}
	if err := seen.complete(k); err != nil {
		check.Passed, check.Detail = false, err.Error()
	}
	c.report.add(check)
}

// frequencies is the table that the model is run with.
func (c *comparison) frequencies() []float32 {
	rope := c.cfg.Layers[0].Mixer.Rotary()
	got := make([]float32, len(rope.InvFreq))
	for i, f := range rope.InvFreq {
		got[i] = float32(f)
	}
	return got
}

func (c *comparison) layer(number string) (int, error) {
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(c.cfg.Layers) {
		return 0, fmt.Errorf("layer %q of %d", number, len(c.cfg.Layers))
	}
	return i, nil
}

// opOrder is the order of the operators of a layer.
var opOrder = []string{"input_norm", "q_a", "q", "k", "v", "q_pe", "kv_a", "kv_norm", "k_pe", "kv_b", "attn_probs", "attn", "mixer_out",
	"post_norm", "router_logits", "router_ids", "router_weights", "experts_out", "shared_out", "mlp_out", "layer_out"}

// rank orders checks by where their vector is computed.
func (c *comparison) rank(k Check) int {
	switch {
	case k.Layer >= 0:
		return 10 + len(opOrder)*k.Layer + slices.Index(opOrder, k.Op)
	case k.Op == "inv_freq":
		return 0
	case k.Op == "embed":
		return 1
	}
	return 10 + len(opOrder)*len(c.cfg.Layers)
}
