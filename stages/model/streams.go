package model

import "krater/kernels/device"

// Streams describes the residual streams of a model that has several, and how a block reads and
// changes them (hyper-connections, arXiv 2409.19606, in Qwen4-Exp's form). Each stream is normed.
// With all normed streams side by side as N,
//
//	input  = mean over the streams of sigmoid(up silu(down N / Count)) * N
//	inject = 2 sigmoid(inject N / Count), by which each stream takes the block's output
//
// With Iterations they have the form of DeepSeek-V4 and GLM-5.3 (device.StreamMix): a block reads the norm of a weighted sum
// of the streams, and the streams are mixed with each other when the block's output is added.
//
// The zero value means one stream: a block reads its norm and adds to it.
type Streams struct {
	Count      int     // hc_count, hc_mult
	Rank       int     // hc_lowrank
	Iterations int     // hc_sinkhorn_iters; 0: the streams are not mixed
	Eps        float32 // hc_eps
	MeanEnd    bool    // the head reads the norm of the mean of the streams
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

// mixedRoles are the names of the tensors if streams are mixed, as in DeepSeek-V4 and GLM-5.3.
var mixedRoles = Roles{
	"attn_hc_fn": "hc_attn_fn", "attn_hc_base": "hc_attn_base", "attn_hc_scale": "hc_attn_scale",
	"mlp_hc_fn": "hc_ffn_fn", "mlp_hc_base": "hc_ffn_base", "mlp_hc_scale": "hc_ffn_scale",
}

// Mixed reports whether the streams are mixed with each other.
func (s Streams) Mixed() bool { return s.Iterations > 0 }

// Mix returns the sizes by which operators make the weights of mixed streams.
func (s Streams) Mix(normEps float32) device.StreamMix {
	return device.StreamMix{Streams: s.Count, Iterations: s.Iterations, Eps: s.Eps, NormEps: normEps}
}

// Several reports whether the model has several streams.
func (s Streams) Several() bool { return s.Count > 0 }

// Width returns the number of values of all streams of a token.
func (s Streams) Width(hidden int) int { return max(1, s.Count) * hidden }

// StreamScratch holds the numbers of values in the rows of stages.Mixing.
type StreamScratch struct{ Normed, Low, Inject int }

// Joined returns the width of Low and Inject side by side, as one product makes them: a multiple of 8. It is 0 if Inject is not a product.
func (s StreamScratch) Joined() int {
	if s.Inject == 0 {
		return 0
	}
	return (s.Low + s.Inject + 7) &^ 7
}

// Scratch returns the sizes of the matrices that a batch needs for the streams.
func (s Streams) Scratch(hidden int) StreamScratch {
	if s.Mixed() {
		return StreamScratch{Low: s.Mix(0).Width()}
	}
	return StreamScratch{Normed: s.Width(hidden), Low: s.Rank, Inject: s.Count}
}

// tensors lists what makes the streams the input of a block: the norm with the given role or, of several
// streams, the tensors whose roles begin with prefix.
func (s Streams) tensors(norm, prefix string, hidden int) []TensorSpec {
	if !s.Several() {
		return []TensorSpec{{Role: norm, Shape: []int{hidden}, Part: Router, Norm: true}}
	}
	width := s.Width(hidden)
	if s.Mixed() {
		return s.mixed(norm, prefix, hidden)
	}
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

// mixed is tensors of streams that are mixed.
func (s Streams) mixed(norm, prefix string, hidden int) []TensorSpec {
	list := []TensorSpec{{Role: norm, Shape: []int{hidden}, Part: Router, Norm: true}}
	n, scales := s.Mix(0).Width(), 3
	if prefix == endRoles {
		n, scales = s.Count, 1
		if s.MeanEnd {
			return list
		}
	}
	return append(list,
		TensorSpec{Role: prefix + "hc_fn", Shape: []int{n, s.Width(hidden)}, Part: Router, F32: true},
		TensorSpec{Role: prefix + "hc_base", Shape: []int{n}, Part: Router, F32: true},
		TensorSpec{Role: prefix + "hc_scale", Shape: []int{scales}, Part: Router, F32: true})
}

// Outer lists the tensors after the layers, except the head.
func (c *Config) Outer() []TensorSpec {
	list := c.Streams.tensors("norm", endRoles, c.Hidden)
	for i := range list {
		list[i].Name = c.Roles[list[i].Role]
	}
	return list
}

// StreamWidth returns the number of values of all residual streams of a token.
func (c *Config) StreamWidth() int { return c.Streams.Width(c.Hidden) }
