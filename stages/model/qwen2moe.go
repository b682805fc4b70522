package model

var _ = register("qwen2_moe", parseQwen2MoE)

// qwen2MoERoles are the names of Qwen2-MoE's tensors.
var qwen2MoERoles = Usual(gqaRoles, Roles{
	"shared.gate": "mlp.shared_expert.gate_proj.weight",
	"shared.up":   "mlp.shared_expert.up_proj.weight",
	"shared.down": "mlp.shared_expert.down_proj.weight",
	"shared_gate": "mlp.shared_expert_gate.weight",
})

// parseQwen2MoE reads the Qwen2-MoE family (Qwen1.5-MoE, Qwen2-57B-A14B; arXiv 2407.10671):
// Qwen2's attention, routed experts, and a shared expert of a width of its own behind a gate.
func parseQwen2MoE(f fields) *Config {
	c, layers := common(f)
	ffn, a := denseFF(f), groupedQuery(f, c)
	a.Bias = f.boolOr("qkv_bias", true)
	fullAttention(f, layers)
	moe := qwenExperts(f, layers)
	moe.SharedFF, moe.SharedGate = f.int("shared_expert_intermediate_size", 1, maxFF), true
	has := qwenSparse(f)
	c.Stack(layers, qwen2MoERoles, mixed(a, ffn, moe, has))
	return c
}
