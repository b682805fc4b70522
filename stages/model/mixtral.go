package model

var _ = register("mixtral", parseMixtral)

// mixtralRoles are the names of Mixtral's tensors.
var mixtralRoles = Usual(gqaRoles, Roles{
	"router":      "block_sparse_moe.gate.weight",
	"expert.gate": "block_sparse_moe.experts.*.w1.weight",
	"expert.up":   "block_sparse_moe.experts.*.w3.weight",
	"expert.down": "block_sparse_moe.experts.*.w2.weight",
})

// parseMixtral reads the Mixtral family (arXiv 2401.04088): grouped-query attention, and
// experts in every layer. The weights of the chosen experts always add up to 1; no field
// says so.
func parseMixtral(f fields) *Config {
	c, layers := common(f)
	a := groupedQuery(f, c)
	fullAttention(f, layers)
	a.Window = slidingWindow(f, c)
	moe := softmaxExperts(f, "num_local_experts", "intermediate_size", true, layers)
	c.Stack(layers, mixtralRoles, func(int) (Mixer, FFN) { return a, moe })
	return c
}
