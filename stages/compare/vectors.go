package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"krater/stages/model"
	"krater/stages/oracle"
)

// vectors compares everything that the golden has of the traced prompt. An unknown vector is an
// error, so that nothing is skipped silently.
func (c *comparison) vectors(p *Prompt, seen *capture) error {
	prefix := p.Name + "."
	for _, name := range c.golden.names() {
		v := c.golden.vectors[name]
		if kind, ok := strings.CutPrefix(name, "rope.inv_freq"); ok {
			c.wants[name] = v.F32
			c.report.add(floats(name, -1, "inv_freq", c.frequencies(kind), v.F32, c.op))
			continue
		}
		short, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if err := c.vector(p, name, short, v, seen); err != nil {
			return fmt.Errorf("compare: %s: %w", name, err)
		}
	}
	// In the order of the computation, so that the first line that fails names the culprit.
	order := make([][]string, len(c.cfg.Layers))
	for i := range order {
		order[i] = oracle.Operators(c.cfg, i)
	}
	slices.SortStableFunc(c.report.Checks, func(a, b Check) int { return cmp.Compare(rank(a, order), rank(b, order)) })
	return nil
}

// vector compares one vector of the traced prompt; short is its name without the prompt's.
func (c *comparison) vector(p *Prompt, name, short string, v Vector, seen *capture) error {
	part := strings.Split(short, ".")
	if c.wants[name] = v.F32; v.I32 != nil {
		c.wants[name] = numbers(v.I32)
	}
	switch {
	case short == "input_ids", short == "greedy_ids", short == "greedy_margin", short == "logits_last":
		return nil // compared with the continuation
	case short == "logits":
		c.report.add(c.floats(name, -1, "logits", c.logits, v.F32, c.hidden))
	case short == "logits_f64":
		c.report.add(c.floats(name, -1, "logits_f64", c.logits, v.F32, c.hidden))
	case short == "logits_before_softcap":
		c.observed(name, key{-1, short}, v, seen, c.hidden)
	case short == "ops.model.per_layer_inputs":
		c.observed(name, key{-1, "per_layer_inputs"}, v, seen, c.op)
	case short == "embed", short == "final_norm":
		c.observed(name, key{-1, short}, v, seen, c.hidden)
	case short == "hidden":
		return c.layers(name, v, seen)
	case part[0] == "router" && len(part) == 3:
		return c.router(name, part[1], part[2], v, seen)
	case strings.HasPrefix(part[0], "indexer") && len(part) == 3:
		head := -1 // of heads that choose for themselves
		if number := part[0][len("indexer"):]; number != "" {
			var err error
			if head, err = strconv.Atoi(number); err != nil || head < 0 {
				return fmt.Errorf("unknown vector")
			}
		}
		return c.indexer(p, name, head, part[1], part[2], v, seen)
	case part[0] == "mtp": // of the draft layer, which stages/direct compares
	case part[0] == "ops" && len(part) == 3:
		layer, err := c.layer(part[1])
		if err != nil {
			return err
		}
		return c.operator(p, name, key{layer, part[2]}, v, seen)
	default:
		return fmt.Errorf("unknown vector")
	}
	return nil
}

// layers compares the residual streams after each layer, [L, T, H] or [L, T, n, H].
func (c *comparison) layers(name string, v Vector, seen *capture) error {
	n := seen.n * c.cfg.StreamWidth()
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

// indexer compares what an indexer, or a head of it, has chosen, and its scores.
func (c *comparison) indexer(p *Prompt, name string, head int, number, what string, v Vector, seen *capture) error {
	layer, err := c.layer(number)
	if err != nil {
		return err
	}
	l, err := oracle.New(c.cfg, c.weight, p.IDs, layer, func(layer int, op string) []float64 { return oracle.Widen(c.engine(seen, layer, op)) })
	if err != nil {
		return err
	}
	k, at := key{layer, "indexer_" + what}, key{layer, "indexer_positions"}
	switch x := l.Blocks; {
	case head >= 0 && (x.Local == 0 || head >= x.Heads):
		return fmt.Errorf("head %d, the index has none such", head)
	case what == "margin": // how close the choice was: no output of a model
	case what == "selected" && head > 0: // compared with head 0
	case what == "selected" && head == 0:
		if v.I32, err = c.localBlocks(name, l); err != nil {
			return err
		}
		seen.i32[k], seen.rows[k], c.wants[name] = localBlocksOf(seen.i32[at], x), seen.rows[at], numbers(v.I32)
		c.observed(name, k, v, seen, c.op)
	case what == "selected" && x.Chooses():
		seen.i32[k], seen.rows[k] = blocksOf(seen.i32[at], x.Block, x.Chosen), seen.rows[at]
		c.observed(name, k, v, seen, c.op)
	case what == "selected" && l.Indexer.Pool > 0:
		k.op = what
		seen.i32[k], seen.rows[k] = blocksOf(seen.i32[at], l.Indexer.Pool, l.Indexer.TopK), seen.rows[at]
		c.observed(name, k, v, seen, c.op)
	case what == "selected":
		c.observed(name, key{layer, what}, v, seen, c.op)
	case what == "scores" && head >= 0:
		check := c.floats(name, layer, k.op, localScores(l, head), v.F32, c.op)
		c.report.add(check)
		return l.Err
	case what == "scores":
		return c.operator(p, name, k, v, seen)
	default:
		return fmt.Errorf("unknown vector")
	}
	return nil
}

// localBlocks returns all blocks that heads attend to by the golden, for each token [heads, Chosen], with -1 behind them: the vectors of heads,
// of which name is the first one's, have those that were chosen by their scores.
func (c *comparison) localBlocks(name string, l *oracle.Layer) (out []int32, err error) {
	x := l.Blocks
	for row := range l.T * x.Heads {
		t, head, free := row/x.Heads, row%x.Heads, x.Chosen-x.Local
		own := strings.Replace(name, ".indexer0.", fmt.Sprintf(".indexer%d.", head), 1)
		v := c.golden.vectors[own].I32
		if len(v) != l.T*free {
			return nil, fmt.Errorf("%s has %d numbers, want %d for each token", own, len(v), free)
		}
		list := slices.DeleteFunc(slices.Clone(v[t*free:][:free]), func(b int32) bool { return b < 0 })
		for b := max(0, t/x.Block+1-x.Local); b <= t/x.Block; b++ {
			list = append(list, int32(b))
		}
		for len(list) < x.Chosen {
			list = append(list, -1)
		}
		out = append(out, list...)
	}
	return out, nil
}

// blocksOf returns the complete blocks of n tokens, or pools, that the rows of a prompt attend to, with -1 behind them, for
// each token [chosen]. A block of which a row lists other than all tokens in their order becomes -2.
func blocksOf(positions []int32, n, chosen int) (out []int32) {
	width := (chosen+1)*n - 1
	for t := range len(positions) / width {
		list, row := positions[t*width:][:width], []int32{}
		for i := 0; i < width && list[i] >= 0 && int(list[i]) < (t+1)/n*n; i += n {
			block := list[i] / int32(n)
			for j := range n {
				if i+j >= width || list[i+j] != block*int32(n)+int32(j) {
					block = -2
					break
				}
			}
			row = append(row, block)
		}
		for len(row) < chosen {
			row = append(row, -1)
		}
		out = append(out, row...)
	}
	return out
}

// localBlocksOf returns the blocks that heads attend to, rising, with -1 behind them, for each token [heads, Chosen]. A block up to the
// token of which a head lists other than all tokens in their order becomes -2.
func localBlocksOf(positions []int32, x model.BlockIndex) (out []int32) {
	width := x.Sizes(1).Positions()
	for row := range len(positions) / width {
		list, t, n := positions[row*width:][:width], row/x.Heads, 0
		for i := 0; i < width && list[i] >= 0 && n < x.Chosen; n++ {
			block := int(list[i]) / x.Block
			count := min(x.Block, t+1-block*x.Block, width-i)
			whole := count == min(x.Block, t+1-block*x.Block) && count > 0
			for j := range max(0, count) {
				whole = whole && int(list[i+j]) == block*x.Block+j
			}
			if !whole {
				block, i = -2, width
			}
			out, i = append(out, int32(block)), i+count
		}
		for ; n < x.Chosen; n++ {
			out = append(out, -1)
		}
	}
	return out
}

// localScores returns the scores of the blocks among which a head chooses, [T, blocks], 0 of others.
func localScores(l *oracle.Layer, head int) []float32 {
	x, all := l.Blocks, l.Get("indexer_scores")
	blocks := len(all) / max(1, l.T*x.Heads)
	out := make([]float32, l.T*blocks)
	for t := range l.T {
		for b := range max(0, t/x.Block+1-x.Local) {
			out[t*blocks+b] = float32(all[(t*x.Heads+head)*blocks+b])
		}
	}
	return out
}

// derived reports whether the engine does not have op as such: it is computed from what the
// probe saw.
func derived(op string) bool {
	switch op {
	case "kv_b", "attn_probs", "shared_gate_logit", "gate", "indexer_weights", "indexer_scores", "conv_state", "delta_query", "delta_key", "delta_value", "delta_g", "delta_beta", "delta_state",
		"ple_conv_state", "indexer_key_raw", "indexer_block_keys", "compressed_kv", "index_entries":
		return true
	}
	return false
}

// renamed are the names of operators that some goldens call otherwise.
var renamed = map[string]string{"q_rope": "q_pe", "k_rope": "k_pe", "conv_in": "in_proj_qkv", "gate_z": "in_proj_z", "dense_out": "shared_out"}

// unmixed are the same where streams are not mixed.
var unmixed = map[string]string{"attn_hc_in": "input_norm", "mlp_hc_in": "post_norm"}

// operator compares an operator of a layer.
func (c *comparison) operator(p *Prompt, name string, k key, v Vector, seen *capture) error {
	if op, ok := renamed[k.op]; ok {
		k.op = op
	}
	if op, ok := unmixed[k.op]; ok && !c.cfg.Streams.Mixed() {
		k.op = op
	}
	if n, _ := c.cfg.Layers[k.layer].Mixer.Selects(); n > 0 && k.op == "indexer_key_raw" { // normed already
		k.op = "indexer_keys"
	}
	if ratio, _ := oracle.Entries(c.cfg, k.layer); ratio > 0 && k.op == "indexer_keys" {
		k.op = "index_entries"
	}
	if k.op == "q_pe" && len(v.F32) == len(seen.f32[key{k.layer, "q"}]) { // the golden has whole heads
		if rotated := oracle.RotatedPart(c.cfg, k.layer, v.F32); len(rotated) < len(v.F32) {
			c.unrotated(name, k.layer, v, seen)
			v.F32, c.wants[name] = rotated, rotated
		}
	}
	if derived(k.op) {
		var missing error
		l, err := oracle.New(c.cfg, c.weight, p.IDs, k.layer, func(layer int, op string) []float64 {
			v := c.engine(seen, layer, op)
			if v == nil && !derived(op) {
				missing = fmt.Errorf("%s: %w", op, seen.complete(key{layer, op}))
			}
			return oracle.Widen(v)
		})
		if err != nil {
			return err
		}
		got := make([]float32, 0, len(v.F32))
		for _, x := range l.Get(k.op) {
			got = append(got, float32(x))
		}
		if err := cmp.Or(missing, l.Err); err != nil {
			return err
		}
		seen.f32[k], seen.rows[k] = got, seen.n
	}
	if k.op == "k_pe" || k.op == "v_norm" { // those that the layer borrows
		k.layer = c.cfg.Layers[k.layer].KV
	}
	c.observed(name, k, v, seen, c.op)
	return nil
}

// unrotated compares the part of whole query heads that is not rotated: it is that of q.
func (c *comparison) unrotated(name string, layer int, v Vector, seen *capture) {
	k := key{layer, "q"}
	check := c.floats(name+", not rotated", layer, "q", oracle.UnrotatedPart(c.cfg, layer, seen.f32[k]), oracle.UnrotatedPart(c.cfg, layer, v.F32), c.op)
	if err := seen.complete(k); err != nil {
		check.Passed, check.Detail = false, err.Error()
	}
	c.report.add(check)
}

// observed compares what the probe saw.
func (c *comparison) observed(name string, k key, v Vector, seen *capture, allowed float64) {
	var check Check
	switch {
	case v.I32 != nil && c.o.Relative > 0:
		check = sets(name, k.layer, k.op, seen.i32[k], v.I32, len(v.I32)/max(1, seen.n))
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

// frequencies returns the table that the model is run with: of layers with a window ("_sliding"), of those with compressed
// entries ("_compress"), or of those without either if there are such.
func (c *comparison) frequencies(kind string) []float32 {
	var rope *model.RopeConfig
	for i := range c.cfg.Layers {
		m := c.cfg.Layers[i].Mixer
		for _, s := range m.State() {
			is := map[bool]string{true: "_sliding"}[s.Window > 0]
			if ratio, ok := oracle.Entries(c.cfg, i); ok {
				is = map[bool]string{true: "_compress"}[ratio > 0]
			}
			if r := m.Rotary(); r != nil && (rope == nil || is == kind) {
				rope = r
			}
		}
	}
	var got []float32
	if rope != nil {
		for _, f := range rope.InvFreq {
			got = append(got, float32(f))
		}
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

// rank orders checks by where their vector is computed; order are the operators of each layer.
func rank(k Check, order [][]string) int {
	const most = 100 // operators of a layer
	switch {
	case k.Layer >= 0:
		return most*(k.Layer+1) + slices.Index(order[k.Layer], k.Op)
	case k.Op == "inv_freq":
		return 0
	case k.Op == "embed":
		return 1
	case k.Op == "per_layer_inputs":
		return 2
	}
	return math.MaxInt
}
