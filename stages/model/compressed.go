package model

import (
	"math"

	"krater/kernels/device"
)

// Compressed is attention over the newest tokens and, with a Ratio, over entries that stand for Ratio tokens each
// (DeepSeek-V4: CSA with Overlap and an index that chooses entries, else HCA). A row is key and value for all heads, and the last
// RopeDim values of it and of each query head are rotated. The output is rotated back, multiplied by a matrix for each group of heads,
// and then by one for all.
type Compressed struct {
	Heads   int // num_attention_heads
	HeadDim int // head_dim
	RopeDim int // qk_rope_head_dim
	QRank   int // q_lora_rank
	Groups  int // o_groups
	OutRank int // o_lora_rank, of a group
	Window  int // sliding_window: the newest tokens that a token sees, itself among them
	Ratio   int // compress_ratios; 0: no entries
	Overlap bool
	Index   Indexer // chooses entries; zero: a token sees all entries
	NormEps float32
	Rope    *RopeConfig
}

// compressedRoles are the names of the tensors.
var compressedRoles = Roles{
	"q_a":           "attn.wq_a.weight",
	"q_a_norm":      "attn.q_norm.weight",
	"q_b":           "attn.wq_b.weight",
	"kv":            "attn.wkv.weight",
	"kv_norm":       "attn.kv_norm.weight",
	"sinks":         "attn.attn_sink",
	"o_a":           "attn.wo_a.weight",
	"o":             "attn.wo_b.weight",
	"compress_c":    "attn.compressor.wkv.weight",
	"compress_z":    "attn.compressor.wgate.weight",
	"compress_ape":  "attn.compressor.ape",
	"compress_norm": "attn.compressor.norm.weight",
	"index_q":       "attn.indexer.wq_b.weight",
	"index_weights": "attn.indexer.weights_proj.weight",
	"index_c":       "attn.indexer.compressor.wkv.weight",
	"index_z":       "attn.indexer.compressor.wgate.weight",
	"index_ape":     "attn.indexer.compressor.ape",
	"index_norm":    "attn.indexer.compressor.norm.weight",
}

// Compressor returns the sizes by which operators make entries of dim values.
func (m Compressed) Compressor(dim, blockTokens int) device.Compress {
	return device.Compress{Dim: dim, Ratio: m.Ratio, Overlap: m.Overlap, Eps: m.NormEps, Rope: m.Turn(1, dim), BlockTokens: blockTokens}
}

// Turn returns the rotation of the last values of heads.
func (m Compressed) Turn(heads, dim int) device.Rope {
	return device.Rope{Heads: heads, HeadDim: dim, Offset: dim - m.RopeDim, Dim: m.RopeDim, Interleaved: m.Rope.Interleaved}
}

// Sizes returns the sizes that attention takes.
func (m Compressed) Sizes(blockTokens int) device.Compressed {
	return device.Compressed{Heads: m.Heads, Dim: m.HeadDim, Window: m.Window, Ratio: m.Ratio, Scale: m.scale(), BlockTokens: blockTokens}
}

func (m Compressed) scale() float32 { return float32(1 / math.Sqrt(float64(m.HeadDim))) }

// QDim returns the length of all query heads.
func (m Compressed) QDim() int { return m.Heads * m.HeadDim }

// Tensors implements Mixer. What makes entries is as sensitive as a router; so is the matrix for each group of heads, which is
// cut into rows as the files have it.
func (m Compressed) Tensors(h int) []TensorSpec {
	var list []TensorSpec
	add := func(part Part, role string, shape ...int) {
		list = append(list, TensorSpec{Role: role, Shape: shape, Part: part})
	}
	f32 := func(role string, shape ...int) {
		list = append(list, TensorSpec{Role: role, Shape: shape, Part: Router, F32: true})
	}
	add(Attention, "q_a", m.QRank, h)
	add(Attention, "q_a_norm", m.QRank)
	add(Attention, "q_b", m.QDim(), m.QRank)
	add(Attention, "kv", m.HeadDim, h)
	add(Attention, "kv_norm", m.HeadDim)
	f32("sinks", m.Heads)
	compressor := func(prefix string, dim int) {
		parts := m.Compressor(dim, 1).Parts()
		add(Router, prefix+"c", parts*dim, h)
		add(Router, prefix+"z", parts*dim, h)
		f32(prefix+"ape", m.Ratio, parts*dim)
		add(Router, prefix+"norm", dim)
	}
	if m.Ratio > 0 {
		compressor("compress_", m.HeadDim)
	}
	if x := m.Index; x.Own() {
		add(Attention, "index_q", x.Heads*x.Dim, m.QRank)
		add(Router, "index_weights", x.Heads, h)
		compressor("index_", x.Dim)
	}
	add(Router, "o_a", m.Groups*m.OutRank, m.QDim()/m.Groups)
	add(Attention, "o", h, m.Groups*m.OutRank)
	return list
}

// State implements Mixer: the rows of the newest tokens; with entries these, and the raw rows of which the next ones
// will be made; and both once more for an index.
func (m Compressed) State() []State {
	list := []State{{Kind: Paged, Width: m.HeadDim, Group: m.group(m.HeadDim), Window: m.Window}}
	entries := func(dim int) {
		p := m.Compressor(dim, 1)
		list = append(list, State{Kind: Paged, Width: dim, Group: m.group(dim), Per: m.Ratio},
			State{Kind: Paged, Width: p.Width(), Window: p.Parts() * m.Ratio, F32: true})
	}
	if m.Ratio > 0 {
		entries(m.HeadDim)
	}
	if m.Index.Own() {
		entries(m.Index.Dim)
	}
	return list
}

// group is how many values of a row share a scale: they divide what is rotated and what is not.
func (m Compressed) group(dim int) int { return divisor(m.RopeDim, dim-m.RopeDim) }

// Scratch implements Mixer.
func (m Compressed) Scratch() []Scratch {
	list := []Scratch{{m.QRank, true}, {m.QDim(), false}, {m.HeadDim, false}, {m.QDim(), false}, {m.Groups * m.OutRank, true}}
	if m.Ratio > 0 {
		list = append(list, Scratch{m.Compressor(m.HeadDim, 1).Width(), false})
	}
	if x := m.Index; x.Own() {
		list = append(list, Scratch{x.Heads * x.Dim, false}, Scratch{m.Compressor(x.Dim, 1).Width(), false}, Scratch{x.Heads, false})
	}
	return list
}

// Cost implements Mixer. A row that sees fewer tokens than the window, or fewer entries than are chosen, is counted as one that sees enough.
func (m Compressed) Cost() Cost {
	entry, own := 4*float64(m.QDim()), float64(m.Window)
	if m.Ratio == 0 {
		return Cost{Row: entry * own}
	}
	pair := entry / float64(m.Ratio)
	if x := m.Index; x.Own() {
		pair, own = 2*float64(x.Heads*x.Dim)/float64(m.Ratio), own+float64(x.TopK)
	}
	return Cost{Pair: pair, DecodePair: pair, Row: entry * own}
}

// Rotary implements Mixer.
func (m Compressed) Rotary() *RopeConfig { return m.Rope }

// TwoForms implements Mixer.
func (m Compressed) TwoForms() bool { return false }

// Selects implements Mixer.
func (m Compressed) Selects() (topK int, shared bool) { return m.Index.TopK, false }

// Step implements Mixer.
func (m Compressed) Step(s *device.StepSizes, blockTokens int) {
	if m.Index.TopK > s.Index.TopK {
		s.Index = m.Index.Sizes(blockTokens)
		s.Index.Pool, s.Index.Entries = m.Ratio, true
	}
	if c := s.Compressed; m.QDim() > c.Heads*c.Dim || m.QDim() == c.Heads*c.Dim && !m.Index.Own() && m.Ratio > 0 && (c.Ratio == 0 || m.Ratio < c.Ratio) {
		if s.Compressed = m.Sizes(blockTokens); m.Index.Own() { // a row sees the chosen ones alone
			s.Compressed.Ratio = 0
		}
	}
	if m.Ratio > 0 {
		if p := m.Compressor(m.HeadDim, blockTokens); p.Ratio*p.Parts()*p.Dim > s.Compress.Ratio*s.Compress.Parts()*s.Compress.Dim {
			s.Compress = p
		}
	}
}
