package model

import "krater/kernels/device"

// MLA is multi-head latent attention (arXiv 2405.04434, section 2.1). It caches one
// compressed row per token for all heads.
type MLA struct {
	Heads     int         // num_attention_heads
	QRank     int         // q_lora_rank, 0 = direct q_proj
	KVRank    int         // kv_lora_rank
	Nope      int         // qk_nope_head_dim
	RopeDim   int         // qk_rope_head_dim
	VDim      int         // v_head_dim
	LatentEps float32     // eps of q_a_layernorm and kv_a_layernorm
	Scale     float32     // softmax scale with YaRN's mscale(mscale_all_dim)^2
	Rope      *RopeConfig // of the last RopeDim values of a head; nil: there are none, and no positions
	Index     Indexer     // chooses the tokens that are attended to
}

// mlaRoles are the usual names of the tensors.
var mlaRoles = Roles{
	"q":         "self_attn.q_proj.weight",
	"q_a":       "self_attn.q_a_proj.weight",
	"q_a_norm":  "self_attn.q_a_layernorm.weight",
	"q_b":       "self_attn.q_b_proj.weight",
	"kv_a":      "self_attn.kv_a_proj_with_mqa.weight",
	"kv_a_norm": "self_attn.kv_a_layernorm.weight",
	"kv_b":      "self_attn.kv_b_proj.weight",
	"o":         "self_attn.o_proj.weight",
}

// QKDim returns the length of a query or key head.
func (m MLA) QKDim() int { return m.Nope + m.RopeDim }

// KVWidth returns the number of values of a cached row.
func (m MLA) KVWidth() int { return m.KVRank + m.RopeDim }

// OutDim returns the length of the output that o_proj takes.
func (m MLA) OutDim() int { return m.Heads * m.VDim }

// Sizes returns the sizes that operators take.
func (m MLA) Sizes(blockTokens int) device.MLA {
	return device.MLA{Heads: m.Heads, Nope: m.Nope, Rope: m.RopeDim, V: m.VDim, Rank: m.KVRank, Scale: m.Scale, BlockTokens: blockTokens}
}

// Tensors implements Mixer.
func (m MLA) Tensors(h int) []TensorSpec {
	q := []TensorSpec{{Role: "q", Shape: []int{m.Heads * m.QKDim(), h}, Part: Attention}}
	if m.QRank > 0 {
		q = []TensorSpec{
			{Role: "q_a", Shape: []int{m.QRank, h}, Part: Attention},
			{Role: "q_a_norm", Shape: []int{m.QRank}, Part: Attention},
			{Role: "q_b", Shape: []int{m.Heads * m.QKDim(), m.QRank}, Part: Attention},
		}
	}
	q = append(q, m.Index.tensors(h, m.QRank)...)
	return append(q, []TensorSpec{
		{Role: "kv_a", Shape: []int{m.KVWidth(), h}, Part: Attention},
		{Role: "kv_a_norm", Shape: []int{m.KVRank}, Part: Attention},
		// As integers every head has its keys transposed, and its values.
		{Role: "kv_b", Shape: []int{m.Heads * (m.Nope + m.VDim), m.KVRank}, Part: KVB,
			Cut: []Cut{{m.Heads, m.KVRank, m.Nope}, {m.Heads, m.VDim, m.KVRank}}},
		{Role: "o", Shape: []int{h, m.OutDim()}, Part: Attention},
	}...)
}

// State implements Mixer: the compressed rows, and the keys of an indexer. A scale is shared by what
// divides both the rotated part of a row and the other.
func (m MLA) State() []State {
	return append([]State{{Kind: Paged, Width: m.KVWidth(), Group: divisor(m.KVRank, m.RopeDim), Chosen: m.Index.TopK > 0}}, m.Index.state(m.RopeDim)...)
}

// divisor is the greatest common divisor.
func divisor(x, y int) int {
	for y != 0 {
		x, y = y, x%y
	}
	return x
}

// Scratch implements Mixer.
func (m MLA) Scratch() []Scratch {
	list := []Scratch{{m.QRank, true}, {m.Heads * m.QKDim(), false}, {m.KVWidth(), false}, {m.OutDim(), true}}
	return append(list, m.Index.scratch()...)
}

// Cost implements Mixer: generated rows stay in the latent space, chunks of a prompt expand
// what is cached. With an indexer a row attends to as many tokens whatever it sees, and only index keys
// are scored; a row that sees fewer is counted as one that sees enough.
func (m MLA) Cost() Cost {
	heads := float64(m.Heads)
	if x := m.Index; x.TopK > 0 {
		score := 2 * float64(x.Heads) * float64(x.Dim) / float64(max(1, x.Pool))
		return Cost{Pair: score, DecodePair: score, Row: 2 * heads * float64(2*m.KVRank+m.RopeDim) * float64(x.Positions())}
	}
	return Cost{
		Pair:       2 * heads * float64(m.QKDim()+m.VDim),
		DecodePair: 2 * heads * float64(2*m.KVRank+m.RopeDim),
		Expand:     2 * float64(m.KVRank) * heads * float64(m.Nope+m.VDim),
	}
}

// Rotary implements Mixer.
func (m MLA) Rotary() *RopeConfig { return m.Rope }

// TwoForms implements Mixer: decoding absorbs kv_b_proj, a prompt expands it.
func (m MLA) TwoForms() bool { return true }

// Step implements Mixer.
func (m MLA) Step(s *device.StepSizes, blockTokens int) {
	if n, _ := m.Selects(); n > s.Index.Positions() {
		s.Index = m.Index.Sizes(blockTokens)
	}
	if m.Heads*(m.QKDim()+m.KVWidth()) > s.MLA.Heads*(s.MLA.Nope+s.MLA.Rank+2*s.MLA.Rope) {
		s.MLA = m.Sizes(blockTokens)
	}
}
