package model

import "math"

var (
	_ = register("qwen4_exp", parseQwen4)
	_ = register("qwen4_exp_text", parseQwen4Text)
)

// Names of Qwen4-Exp's tensors: of layers with full attention, and of those with DeltaNet.
var (
	qwen4Roles      = Usual(qwen3NextRoles, streamRoles, blockIndexRoles)
	qwen4DeltaRoles = Usual(qwen3DeltaRoles, streamRoles, ngramRoles)
)

// Bounds of the streams and the tables. Released models have 4 streams of rank 320, 16 heads of n-grams and 20
// million rows for each.
const (
	maxStreams     = 64
	maxOrder       = 16
	maxNGramHeads  = 256
	maxNGramTables = 16
	maxNGramRows   = 1 << 30
	maxNGramShards = 1 << 12
	maxIndexBlock  = 1 << 10
	maxIndexBudget = 1 << 16
)

// parseQwen4 reads the Qwen4-Exp family (released as Qwen3.8-Flash-Next): Qwen3.5's layers with several residual
// streams in the place of norms, attention over blocks that an index chooses, and tables of n-grams in some layers
// with DeltaNet. The draft head (mtp) is not run.
func parseQwen4(f fields) *Config { return qwen35Text(f, "qwen4_exp_text", parseQwen4Text) }

// parseQwen4Text reads a model that is stored without the part for images.
func parseQwen4Text(f fields) *Config {
	c, layers := common(f)
	const gate = "attn_output_gate"
	if !f.boolOr(gate, true) {
		f.fail(gate, "false is not supported: the output of attention has gates")
	}
	c.CentredNorms, c.Foreign = true, []string{"mtp."}
	c.Streams = Streams{Count: f.int("hc_count", 1, maxStreams), Rank: f.int("hc_lowrank", 1, maxRank)}
	a := gatedAttention(f, c)
	a.Index = blockIndex(f, a)
	linear := DeltaNet{Sizes: deltaSizes(f), NormEps: c.NormEps}
	linear.Sizes.SigmoidGate = f.oneOf("output_gate_type", "silu", "sigmoid", "silu", "swish") == "sigmoid"
	moe := fusedExperts(f, c, layers, f.boolOr("norm_topk_prob", true))
	full := linearLayers(f, layers, "indexed_attention") // transformers' name
	c.hybrid(layers, full, a, qwen4Roles, linear, qwen4DeltaRoles, moe)
	ngramLayers(f, c, full)
	return c
}

// blockIndex reads the index of attention, which rotates its heads as attention does.
func blockIndex(f fields, a GQA) BlockIndex {
	const budget, block = "indexer_budget", "indexer_compress_ratio"
	x := BlockIndex{
		Heads: f.int("indexer_n_heads", 1, maxHeads), Dim: f.int("indexer_head_dim", 2, maxHeadDim),
		Block: f.int(block, 1, maxIndexBlock), NormEps: a.NormEps,
	}
	n := f.int(budget, 1, maxIndexBudget)
	x.Chosen = max(1, n/x.Block)
	if n%x.Block != 0 {
		f.clash(budget, []string{block}, "%d is no multiple of %s %d", n, block, x.Block)
	}
	if f.intOr("indexer_kv_heads", 1, 1, maxHeads) != 1 {
		f.clash("indexer_kv_heads", nil, "only 1 is supported: the index has one key")
	}
	if x.Dim < a.Rope.Dim {
		f.clash("indexer_head_dim", []string{"head_dim"}, "%d is less than the %d values that are rotated", x.Dim, a.Rope.Dim)
	}
	return x
}

// ngramLayers reads the tables of n-grams, and gives them to their layers.
func ngramLayers(f fields, c *Config, full func(layer int) bool) {
	const ids = "ple_layer_ids"
	list := f.numbers(ids, "layer", maxNGramTables)
	if len(list) == 0 || f.failed() {
		return
	}
	order, per := f.int("ngram_size", 2, maxOrder), f.int("heads_per_ngram", 1, maxNGramHeads)
	base, divisor := f.int("ngram_vocab_size_base", 2, maxNGramRows), f.intOr("make_ngram_vocab_size_divisible_by", 1, 1, maxNGramRows)
	shards, width := f.int("split_ngram_parts", 1, maxNGramShards), f.int("ple_embed_dim", 1, maxHidden)
	taps, seed := f.int("ple_conv_kernel_size", 1, maxTaps), f.int("seed", 0, 1<<62)
	heads := (order - 1) * per
	switch {
	case heads > maxNGramHeads:
		f.clash("heads_per_ngram", []string{"ngram_size"}, "%d heads of n-grams: over %d", heads, maxNGramHeads)
	case width%heads != 0:
		f.clash("ple_embed_dim", []string{"heads_per_ngram", "ngram_size"}, "%d is no multiple of %d heads", width, heads)
	case len(c.EOS) == 0:
		f.clash("eos_token_id", nil, "is missing: n-grams begin with it")
	}
	if f.failed() {
		return
	}
	for which, id := range list {
		i := int(id) - 1
		if i < 0 || i >= len(c.Layers) || full(i) {
			f.clash(ids, []string{"num_hidden_layers", "layer_types"}, "%d is not a layer with linear attention, counted from 1", id)
			return
		}
		sizes := ngrams(which, order, per, width/heads, c.Vocab, base, uint64(seed), c.EOS[0])
		if sizes.Rows() > math.MaxInt32 {
			f.clash("ngram_vocab_size_base", []string{"heads_per_ngram", "ngram_size"}, "a table of %d rows: over %d", sizes.Rows(), math.MaxInt32)
			return
		}
		rows := int(sizes.Rows()+uint64(divisor)-1) / divisor * divisor
		if rows%shards != 0 {
			f.clash("split_ngram_parts", []string{"ngram_vocab_size_base"}, "%d does not divide a table of %d rows", shards, rows)
			return
		}
		l := &c.Layers[i]
		l.NGrams = &NGrams{Sizes: sizes, Shards: shards, Rows: rows, Taps: taps, Streams: c.Streams, NormEps: c.NormEps}
		for _, name := range ngramFacts {
			c.Foreign = append(c.Foreign, l.Prefix+"ple.ple_embedding."+name)
		}
	}
}
