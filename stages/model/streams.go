package model

// Streams describes the residual streams of a model that has several, and how a block reads and
// changes them (hyper-connections, arXiv 2409.19606, in Qwen4-Exp's form). Each stream is
// normed, with N all of them side by side
//
//	input  = mean over the streams of sigmoid(up silu(down N / Count)) * N
//	inject = 2 sigmoid(inject N / Count), by which each stream takes the block's output
//
// The zero value is one stream: a block reads its norm and adds to it.
type Streams struct {
	Count int // hc_count
	Rank  int // hc_lowrank
}

// endRoles are the roles of the tensors by which the streams become the input of the head.
const endRoles = "end_"

// streamRoles are the names of the tensors.
var streamRoles = Roles{
	"attn_hc_norm":   "attn_hyper_connection.hc_norm.weight",
	"attn_hc_down":   "attn_hyper_connection.input_mix_weight_down.weight",
	"attn_hc_up":     "attn_hyper_connection.input_mix_weight_up.weight",
	"attn_hc_inject": "attn_hyper_connection.block_inject_weight.weight",
	"mlp_hc_norm":    "mlp_hyper_connection.hc_norm.weight",
	"mlp_hc_down":    "mlp_hyper_connection.input_mix_weight_down.weight",
	"mlp_hc_up":      "mlp_hyper_connection.input_mix_weight_up.weight",
	"mlp_hc_inject":  "mlp_hyper_connection.block_inject_weight.weight",
	"end_hc_norm":    "model.hyper_connection_mixer.hc_norm.weight",
	"end_hc_down":    "model.hyper_connection_mixer.input_mix_weight_down.weight",
	"end_hc_up":      "model.hyper_connection_mixer.input_mix_weight_up.weight",
}

// Several reports whether there is more than the one stream of other models.
func (s Streams) Several() bool { return s.Count > 0 }

// Width is the values of all streams of a token.
func (s Streams) Width(hidden int) int { return max(1, s.Count) * hidden }

// tensors lists what makes the streams the input of a block: the norm with the given role or, of several
// streams, the tensors whose roles begin with prefix.
func (s Streams) tensors(norm, prefix string, hidden int) []TensorSpec {
	if !s.Several() {
		return []TensorSpec{{Role: norm, Shape: []int{hidden}, Part: Router, Norm: true}}
	}
	width := s.Width(hidden)
	list := []TensorSpec{
		{Role: prefix + "hc_norm", Shape: []int{width}, Part: Router, Norm: true},
		{Role: prefix + "hc_down", Shape: []int{s.Rank, width}, Part: Router},
		{Role: prefix + "hc_up", Shape: []int{width, s.Rank}, Part: Router},
	}
	if prefix != endRoles {
		list = append(list, TensorSpec{Role: prefix + "hc_inject", Shape: []int{s.Count, width}, Part: Router})
	}
	return list
}

// Outer lists the tensors behind the layers, but for the head.
func (c *Config) Outer() []TensorSpec {
	list := c.Streams.tensors("norm", endRoles, c.Hidden)
	for i := range list {
		list[i].Name = c.Roles[list[i].Role]
	}
	return list
}

// StreamWidth is the values of all residual streams of a token.
func (c *Config) StreamWidth() int { return c.Streams.Width(c.Hidden) }
