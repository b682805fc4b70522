// Package model describes models as data: a list of layers, each a mixer and a
// feed-forward network (LayerSpec). A family is one file that turns its config.json into
// that list and names the tensors.
package model

import (
	"krater/kernels/tensor"
)

// Config holds the properties of a model that the other packages use. Sizes are numbers of elements.
// The comment of a field names the field of config.json that it comes from.
type Config struct {
	Family     string // the model_type: "deepseek_v2", "qwen2"
	Hidden     int    // hidden_size
	Vocab      int    // vocab_size
	MaxContext int    // max_position_embeddings
	NormEps    float32
	TieEmbed   bool // tie_word_embeddings
	// CentredNorms says that the files hold the weights of norms (TensorSpec.Norm) as differences from 1.
	CentredNorms bool
	// EmbedScale is a factor of the rows of the embedding; 0: none.
	EmbedScale float32
	// Softcap c makes c * tanh(x / c) of each logit x; 0: none (final_logit_softcapping).
	Softcap float32
	// PerLayer is LayerSpec.PerLayer of all layers; 0: they have none. A token's rows, [layers, PerLayer],
	// are made from a row of a separate embedding and from the scaled embedding x (roles "per_layer_embed", "_model_proj" and "_model_norm"):
	// (norm(proj x / sqrt(Hidden)) + row * sqrt(PerLayer)) / sqrt(2), with the norm over the values of one layer.
	PerLayer int
	// Placeholders are ids that stand for an image or a sound in the text; their embedding is that of
	// Pad.
	Placeholders []int32
	DType        tensor.DType // torch_dtype or dtype, the type of most weights; Invalid if it is absent
	// Types has the types of a part's weights after decoding. Parts without an entry have DType. It is
	// nil unless the files hold encoded weights.
	Types map[Part]tensor.DType

	// Native has the format in which a tensor is kept if tensor.Native asks for the files' format. Tensors
	// without an entry are kept as plain numbers. It is nil unless the files hold encoded weights.
	Native map[string]tensor.Format
	// Mixed has INT4 or INT8 for a tensor of a routed expert if tensor.Mixed asks for it. It is nil unless
	// the files hold encoded weights.
	Mixed map[string]*tensor.Encoding

	// Quantization describes how the files store quantised weights (quantization_config); nil: they have
	// none.
	Quantization *Quantization

	Layers  []LayerSpec
	Streams Streams // residual streams of all layers, if there are several
	MoE     MoE     // of the layers with experts, which are all alike
	Roles   Roles   // the names of the tensors
	// Foreign lists prefixes of names of tensors that the files may have and the language model does not
	// use, such as layers that predict tokens further ahead, or a vision tower.
	Foreign []string
	// Draft is the layer that predicts one token further ahead; nil: there is none. Files may lack its tensors.
	Draft *Draft
	// Joined says that this is the config of a draft layer (DraftModel).
	Joined bool
	// Fused lists tensors that the files may have in place of the tensors of a layer's experts. nil: each
	// expert has tensors of its own.
	Fused []Fused

	BOS int32   // bos_token_id, -1 when absent
	EOS []int32 // eos_token_id, one or several
	Pad int32   // -1 when absent
}

// RopeConfig holds the inputs of the cos/sin tables.
type RopeConfig struct {
	Dim         int
	Theta       float64
	Interleaved bool
	InvFreq     []float64 // [Dim/2], after scaling (YaRN, linear, NTK)
	CosSinScale float64   // attention factor on cos and sin
}
