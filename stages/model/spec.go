package model

import (
	"slices"
	"strconv"
	"strings"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// LayerSpec describes one layer: a mixer, which lets a token see the tokens before it, and
// a feed-forward network. Each takes the norm of the residual stream as its input and adds its
// output to the stream, or mixes and changes several streams.
type LayerSpec struct {
	Mixer   Mixer
	FFN     FFN
	Streams Streams
	NGrams  *NGrams // a table whose rows are added to the streams before the mixer; nil: none

	// KV is the layer that keeps the state which the mixer reads: this one, or one before it.
	KV int
	// NormsAfter says that the outputs of mixer and network are normed before they are added (roles
	// "mixer_norm" and "ffn_norm").
	NormsAfter bool
	// PerLayer is the width of a row that each token has for this layer alone; 0: none. After the
	// network the layer adds norm(proj(gelu(gate x) * row)), by the roles "per_layer_gate",
	// "per_layer_proj" and "per_layer_norm".
	PerLayer int
	// Scalar says that the layer finally multiplies the residual stream by a number (role "scalar").
	Scalar bool

	Prefix string // prefix of the names of the layer's tensors
	Roles  Roles
}

// Mixer describes one kind of attention, or of an operation in its place, with its sizes. It must be
// comparable: layers with equal mixers share scratch memory. All code that depends on the kind is in the
// mixer or in the stage that stages/attention registers for its type.
type Mixer interface {
	// Tensors lists the tensors in the order of use, by role and without names.
	Tensors(hidden int) []TensorSpec
	// State lists the rows that the mixer keeps for a sequence.
	State() []State
	// Scratch lists the matrices that a batch needs in the mixer, with a row for each token.
	Scratch() []Scratch
	// Cost returns the computation of attention besides the products with the weights.
	Cost() Cost
	// Rotary returns the rotation of queries and keys, nil if they are not rotated.
	Rotary() *RopeConfig
	// TwoForms reports whether generated rows are computed differently from the rows of a
	// prompt, so that the same row may have other bits.
	TwoForms() bool
	// Selects returns the number of positions that an indexer chooses for a row, 0 if there is no
	// indexer, and whether the layer uses the choice of the layer before it.
	Selects() (positions int, shared bool)
	// Step writes to s the sizes by which a device plans scratch memory or refuses the model.
	Step(s *device.StepSizes, blockTokens int)
}

// FFN describes a feed-forward network: Dense or MoE.
type FFN interface {
	// Tensors lists the tensors in the order of use, by role and without names. For routed experts it
	// lists the tensors of one expert.
	Tensors(hidden int) []TensorSpec
	// Routed returns the number of routed experts, 0 in a dense network.
	Routed() int
	// Activation returns the activation of the networks.
	Activation() device.Activation
}

// Part is the part of the model that a tensor belongs to. Each part has its own precision.
type Part uint8

const (
	Embedding Part = iota
	Attention      // every tensor of a mixer but those of KVB
	DenseFFN
	Experts // routed ones
	Shared  // shared experts
	Router  // and the norms outside the mixers
	Head
	KVB    // the matrix that expands cached rows: kv_b_proj
	Tables // of n-grams, read by row where the files have them
)

// TensorSpec is a tensor that the model needs. Shapes are [out, in], [n], or [channels, 1, taps] of
// a convolution.
type TensorSpec struct {
	Name  string // in the files
	Shape []int
	Role  string // "q", "router": unique in a layer; a stage asks for the tensor by its role
	Part  Part
	F32   bool  // float32 once loaded, whatever the files have
	Cut   []Cut // the matrices it becomes when it is kept as integers; nil: one of Shape
	Norm  bool  // the weight of a norm, to which Config.CentredNorms applies
}

// Cut is Count matrices [Rows, Cols].
type Cut struct{ Count, Rows, Cols int }

// StateKind is the way in which the state of a sequence is kept.
type StateKind uint8

const (
	// Paged state has a row for every token, in blocks that the scheduler allocates.
	Paged StateKind = iota
	// Ring state has the rows of the newest Rows tokens. The row of the token at position p is
	// row p modulo Rows.
	Ring
	// Recurrent state has Rows rows of F32, which each token changes. They are zeros before the first
	// token.
	Recurrent
)

// State describes the rows that a mixer keeps for a sequence in one layer.
type State struct {
	Kind  StateKind
	Width int // values of a row
	Group int // values of a row that share a scale in an INT8 cache; nothing to Recurrent
	Rows  int // of a sequence; nothing to Paged
	// Window is the number of the newest rows that a token reads, including its own; 0: all. It applies
	// to Paged state only.
	Window int
	F32    bool // kept as F32, whatever the type of the KV cache is
	// Chosen says that a token reads only the rows that an index over other state chooses. It applies to Paged state only.
	Chosen bool
	// Per is the number of tokens for which a row of Paged state without a Window stands; 0: one.
	Per int
}

// BlockRows returns the rows of Paged state in a KV block of that many tokens.
func (s State) BlockRows(tokens int) int { return device.EntryRows(tokens, max(1, s.Per)) }

// Type returns the type of the rows if the KV cache has type t.
func (s State) Type(t tensor.DType) tensor.DType {
	if s.Kind == Recurrent || s.F32 {
		return tensor.F32
	}
	return t
}

// Bytes returns the size of a row, in bytes, if the KV cache has type t.
func (s State) Bytes(t tensor.DType) int { return device.KVRowBytes(s.Type(t), s.Width, s.Group) }

// Scratch is a matrix of a batch with Width values in a row.
type Scratch struct {
	Width   int
	Product bool // it is multiplied with a weight, and also kept as integers if the weight is
}

// Cost is the computation of attention in one layer, in floating-point operations, with the properties
// that decide which kernels compute it.
type Cost struct {
	Pair       float64 // for a row of a prompt and one token that it sees
	DecodePair float64 // for a generated row and one token that it sees
	Expand     float64 // for a cached token, each time a chunk of a prompt sees it
	Row        float64 // for a row, independent of the tokens that it sees
	Heads      int     // size of heads that share keys and values; 0: other attention
	Window     int     // largest number of tokens that a row sees; 0: all
	Small      int     // number of operators that read no weights, in addition to the usual ones
}

// Roles gives the name of a tensor in the files by its role. "layer" is the prefix of a
// layer, where "*" stands for its number; in the names of routed experts "*" stands for the
// number of the expert. Names of a layer's tensors lack the prefix.
type Roles map[string]string

// Name returns the name of the tensor with a role, "" if the family has none.
func (l *LayerSpec) Name(role string) string {
	if name, ok := l.Roles[role]; ok {
		return l.Prefix + name
	}
	return ""
}

// Expert returns the name of a routed expert's tensor with a role.
func (l *LayerSpec) Expert(role string, expert int) string {
	return strings.Replace(l.Name(role), "*", strconv.Itoa(expert), 1)
}

// Tensors lists the tensors of the layer in the order of use.
func (l *LayerSpec) Tensors(hidden int) []TensorSpec {
	list := l.Streams.tensors("input_norm", "attn_", hidden)
	list = append(list, l.Mixer.Tensors(hidden)...)
	list = append(list, l.Streams.tensors("post_norm", "mlp_", hidden)...)
	list = append(list, l.Others(hidden)...)
	ffn := l.FFN.Tensors(hidden)
	out := slices.Grow(l.NGrams.tensors(l, hidden), len(list)+len(ffn)*max(1, l.FFN.Routed()))
	for _, t := range list {
		t.Name = l.Name(t.Role)
		out = append(out, t)
	}
	for i := 0; i < len(ffn); {
		n := i
		for n < len(ffn) && ffn[n].Part == Experts {
			n++
		}
		if n == i {
			ffn[i].Name = l.Name(ffn[i].Role)
			out = append(out, ffn[i])
			i++
			continue
		}
		for e := range l.FFN.Routed() {
			for _, t := range ffn[i:n] {
				t.Name = l.Expert(t.Role, e)
				out = append(out, t)
			}
		}
		i = n
	}
	return out
}

// Others lists the tensors of the layer that belong to neither its mixer nor its network, but for the
// norms before these, by role and without names.
func (l *LayerSpec) Others(hidden int) (list []TensorSpec) {
	norm := func(role string) {
		list = append(list, TensorSpec{Role: role, Shape: []int{hidden}, Part: Router, Norm: true})
	}
	if l.NormsAfter {
		norm("mixer_norm")
		norm("ffn_norm")
	}
	if l.PerLayer > 0 {
		list = append(list, TensorSpec{Role: "per_layer_gate", Shape: []int{l.PerLayer, hidden}, Part: Router},
			TensorSpec{Role: "per_layer_proj", Shape: []int{hidden, l.PerLayer}, Part: Router})
		norm("per_layer_norm")
	}
	if l.Scalar {
		list = append(list, TensorSpec{Role: "scalar", Shape: []int{1}, Part: Router})
	}
	return list
}

// Blocks lists the tensors around the mixer and the network: norms, or the tensors that mix the streams, and
// the tensors of the table of n-grams except the table itself.
func (l *LayerSpec) Blocks(hidden int) []TensorSpec {
	list := append(l.Streams.tensors("input_norm", "attn_", hidden), l.Streams.tensors("post_norm", "mlp_", hidden)...)
	return slices.DeleteFunc(slices.Concat(list, l.Others(hidden), l.NGrams.tensors(l, hidden)), func(t TensorSpec) bool { return t.Part == Tables })
}

// State lists the rows that the layer keeps for a sequence: first the mixer's, then those of the table of n-grams.
func (l *LayerSpec) State(hidden int) []State {
	return append(l.Mixer.State(), l.NGrams.state(hidden)...)
}

// Stack gives the model n layers with the names of roles. at returns the mixer and the network of layer i.
func (c *Config) Stack(n int, roles Roles, at func(i int) (Mixer, FFN)) {
	c.Roles = roles
	c.Layers = make([]LayerSpec, n)
	for i := range c.Layers {
		l := LayerSpec{Streams: c.Streams, KV: i, Prefix: strings.Replace(roles["layer"], "*", strconv.Itoa(i), 1), Roles: roles}
		l.Mixer, l.FFN = at(i)
		if m, ok := l.FFN.(MoE); ok {
			c.MoE = m
		}
		c.Layers[i] = l
	}
}

// KVBlockBytes returns the size, in bytes, of a KV block of tokens tokens over all layers, with a KV cache of type t.
func (c *Config) KVBlockBytes(tokens int, t tensor.DType) (n int64) {
	for s := range c.states {
		if s.Kind == Paged {
			n += int64(s.BlockRows(tokens)) * int64(s.Bytes(t))
		}
	}
	return n
}

// ChosenTokenBytes returns the bytes per token in KVBlockBytes of state with Chosen, and the largest such number of one
// layer.
func (c *Config) ChosenTokenBytes(t tensor.DType) (n int64, widest int) {
	for s := range c.states {
		if s.Chosen {
			n, widest = n+int64(s.Bytes(t)), max(widest, s.Bytes(t))
		}
	}
	return n, widest
}

// WindowTokenBytes returns the bytes per token that layers with a window add to KVBlockBytes.
func (c *Config) WindowTokenBytes(t tensor.DType) (n int64) {
	for s := range c.states {
		if s.Window > 0 {
			n += int64(s.Bytes(t))
		}
	}
	return n
}

// Window returns the largest window of all layers, in tokens; 0 if every layer sees all tokens.
func (c *Config) Window() (n int) {
	for s := range c.states {
		n = max(n, s.Window)
	}
	return n
}

// SequenceBytes returns the number of bytes that the layers keep for a sequence apart from the rows of
// its tokens, with a KV cache of type t. It does not depend on the sequence's length.
func (c *Config) SequenceBytes(t tensor.DType) (n int64) {
	for s := range c.states {
		if s.Kind != Paged {
			n += int64(s.Rows) * int64(s.Bytes(t))
		}
	}
	return n
}

// states goes through what the mixers of all layers keep.
func (c *Config) states(yield func(State) bool) {
	for i := range c.Layers {
		if c.Layers[i].Mixer == nil {
			continue
		}
		for _, s := range c.Layers[i].State(c.Hidden) {
			if !yield(s) {
				return
			}
		}
	}
}

// Costs returns the costs of the layers, added up for layers with equal heads and windows.
func (c *Config) Costs() (sums []Cost) {
	for i := range c.Layers {
		x := c.Layers[i].Mixer.Cost()
		at := slices.IndexFunc(sums, func(s Cost) bool { return s.Heads == x.Heads && s.Window == x.Window })
		if at < 0 {
			sums = append(sums, x)
			continue
		}
		sum := &sums[at]
		sum.Pair += x.Pair
		sum.DecodePair += x.DecodePair
		sum.Expand += x.Expand
		sum.Row += x.Row
		sum.Small += x.Small
	}
	return sums
}

// TwoForms reports whether a layer computes generated rows differently from the rows of a
// prompt.
func (c *Config) TwoForms() bool {
	for i := range c.Layers {
		if c.Layers[i].Mixer.TwoForms() {
			return true
		}
	}
	return false
}

// Has reports whether the model has tensors of a part.
func (c *Config) Has(part Part) bool {
	for i := range c.Layers {
		for _, t := range c.Layers[i].Mixer.Tensors(c.Hidden) {
			if t.Part == part {
				return true
			}
		}
		for _, t := range c.Layers[i].FFN.Tensors(c.Hidden) {
			if t.Part == part {
				return true
			}
		}
	}
	return false
}

// Ropes lists the rotations of the layers, each once.
func (c *Config) Ropes() (list []*RopeConfig) {
	seen := map[*RopeConfig]bool{nil: true}
	for i := range c.Layers {
		if r := c.Layers[i].Mixer.Rotary(); !seen[r] {
			seen[r] = true
			list = append(list, r)
		}
	}
	return list
}
