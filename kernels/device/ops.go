package device

import (
	"math"
	"slices"
)

// The sizes and parameters of operators. Kind says what each operator computes.

// Rope describes the elements of a row that RoPE rotates: in each of Heads heads of HeadDim elements, the
// Dim elements from Offset on.
type Rope struct {
	Heads       int
	HeadDim     int
	Offset      int
	Dim         int  // even
	Interleaved bool // pairs (0,1),(2,3),... as DeepSeek stores them; else (i, i+Dim/2)
	Back        bool // by minus the angle
}

// Span is the part of a batch that belongs to one sequence.
type Span struct {
	Row    int     // first row of the batch
	Len    int     // rows
	Pos    int     // position of the first row in the sequence
	Slot   int     // where a device keeps what the sequence has beside its blocks
	Blocks []int32 // block table: position p lives in slot Blocks[p/B]*B + p%B, B = block size
	Skip   int     // blocks before Blocks[0], which no operator reads; only in what Layout.PutSpans takes
}

// MLA gives the sizes of multi-head latent attention (DeepSeek-V2, arXiv
// 2405.04434 section 2.1). Queries are [T, Heads*(Nope+Rope)], already rotated;
// the cache holds a row per slot: Rank values of compressed KV after its norm,
// then Rope values of the rotated shared key; kv_b is [Heads*(Nope+V), Rank].
type MLA struct {
	Heads, Nope, Rope, V, Rank int
	Scale                      float32 // softmax scale, YaRN's mscale included
	BlockTokens                int     // tokens in a KV block
}

// Index gives the sizes of a sparse indexer (DeepSeek-V3.2, arXiv 2512.02556 section 2.1). The row at
// position t scores each position s <= t as the sum over the heads of
//
//	weights[h] * max(0, q[h] . keys[s])
//
// and chooses the best TopK, of equal scores the lower positions, or all if there are no more. They
// come out rising, with -1 behind them. Queries are [T, Heads*Dim] and keys [Dim], rotated already. A
// score that is not a number is the least.
//
// With Pool r it scores pools of r consecutive tokens instead (GLM-5.3-Flash). The row at position t sees the (t+1)/r pools that
// are complete; the key of a pool lies where its last token has its key. It chooses the best TopK, all of their tokens, and
// the tokens behind the last complete pool. The key is the sum over its tokens of
//
//	softmax over the tokens (gate + bias) * key
//
// for each of the Dim channels by itself; bias is that of the token's number in the pool.
//
// With Entries the keys are of entries for Pool tokens each (Compress), and lie as entries do; numbers of entries are chosen instead of positions.
type Index struct {
	Heads, Dim  int
	TopK        int // positions, or pools
	Pool        int // tokens of a pool; 0: positions are scored
	Entries     bool
	BlockTokens int // tokens in a KV block
}

// Sees returns the number of keys that the row at position pos may choose from.
func (p Index) Sees(pos int) int { return (pos + 1) / max(1, p.Pool) }

// Last returns the position that has key i.
func (p Index) Last(i int) int { return (i+1)*max(1, p.Pool) - 1 }

// Slot returns the row of a cache that has key i of the sequence with these blocks.
func (p Index) Slot(blocks []int32, i int) int {
	if p.Entries {
		return EntrySlot(blocks, i, p.Pool, p.BlockTokens)
	}
	return int(blocks[p.Last(i)/p.BlockTokens])*p.BlockTokens + p.Last(i)%p.BlockTokens
}

// Positions returns the most positions that a row chooses. A row that sees no more of them chooses them all.
func (p Index) Positions() int {
	if p.Entries {
		return p.TopK
	}
	return p.Last(p.TopK)
}

// GQA gives the sizes of grouped-query attention (arXiv 2305.13245): Heads query
// heads share KVHeads key and value heads, head h those of h/(Heads/KVHeads).
// With KVHeads == Heads it is ordinary multi-head attention, with 1 multi-query
// attention. Queries are [T, Heads*HeadDim], already rotated; the cache holds a
// row per slot: the rotated keys of all key heads, then their values.
//
// Sinks [1, Heads], BF16 or F32, are scores of one more key for each head, whose value is zero: exp(sink)
// is added to the sum that the softmax divides by. Scale does not multiply them (gpt-oss,
// arXiv 2508.10925 section 2.2).
type GQA struct {
	Heads       int // a multiple of KVHeads
	KVHeads     int
	HeadDim     int
	Scale       float32 // softmax scale
	BlockTokens int     // tokens in a KV block
	Window      int     // how many keys a query sees, the last of which is its own; 0: all up to its own
	Lists       int     // of OpSparseGQA: lists of positions of a row, a divisor of KVHeads; 0: one
}

// List returns the number of key head h's list of positions among the lists of a row.
func (p GQA) List(h int) int { return h * max(1, p.Lists) / p.KVHeads }

// First returns the position of the first key that the query at pos sees.
func (p GQA) First(pos int) int {
	if p.Window == 0 {
		return 0
	}
	return max(0, pos+1-p.Window)
}

// Width returns the number of values in a row of the cache.
func (p GQA) Width() int { return 2 * p.KVHeads * p.HeadDim }

// DeltaNet gives the sizes of gated DeltaNet (arXiv 2412.06464): ValueHeads heads, each with a
// state of KeyDim rows of ValueDim values. Value head j reads key head j/(ValueHeads/KeyHeads).
//
// A row of its input has queries, keys and values, which a causal convolution of Taps tokens
// passes over (Channels), and the gates z of the output; another row (Numbers) has for each value head the numbers
// b and a, one of each, or with Floor one b and KeyDim a. The columns lie as Queries and the methods after it say.
type DeltaNet struct {
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads
	KeyDim     int
	ValueDim   int
	Taps       int // tokens that the convolution sees, the last of which is the row's own
	// ByKeyHead: the columns are ordered by key head: its queries, its keys, then
	// the values and the gates of its value heads; its b, then its a. Otherwise all queries come
	// first, then all keys, and so on.
	ByKeyHead bool
	// SigmoidGate: the output is multiplied by the sigmoid of its gates, otherwise by silu.
	SigmoidGate bool
	// Floor, below 0, makes it Kimi Delta Attention (KDA; arXiv 2510.26692) with bounded decays: each of the KeyDim rows
	// of a state has an a of its own, and none decays by less than exp(Floor). 0: a head has one a. Not ByKeyHead.
	Floor float32
}

// BlockIndex gives the sizes of an index over blocks of Block consecutive tokens (QSA of Qwen4-Exp). The
// key of a block is the RMSNorm with Eps of the mean of its tokens' raw keys, rotated by Rope to the position of the block's
// first token. It takes the place of the last token's raw key in the cache as soon as the block is complete: that raw key is
// of no use any more, and a sequence that is cut back into the block loses this row. The row at position t sees the (t+1)/Block blocks that are complete, and scores each as the
// sum over the heads of
//
//	max(0, q[h] . key) / sqrt(Dim)
//
// It chooses the best Chosen, of equal scores the first, and all of their tokens, and the tokens behind the last complete block.
// Their positions come out rising, with -1 behind them. Queries are [T, Heads*Dim], normed and rotated already, keys
// [Dim]. A score that is not a number is the least.
//
// With Local (block sparse attention of MiniMax-M3) each head chooses for itself, and its positions follow those of the head before.
// Keys are normed and rotated already, and a block has none of its own: its score for head h is
//
//	max over its tokens of q[h] . key
//
// Of the Chosen blocks the last Local ones are those up to the row's own, the others are the best of those before.
type BlockIndex struct {
	Heads, Dim  int
	Block       int
	Chosen      int // blocks
	Local       int // of these, those that are chosen whatever their scores; 0: heads choose together
	Eps         float32
	Rope        Rope // of one head of Dim values
	BlockTokens int  // tokens in a KV block
}

// Lists returns the number of lists of positions of a row.
func (p BlockIndex) Lists() int {
	if p.Local > 0 {
		return p.Heads
	}
	return 1
}

// Positions returns the most positions in a list.
func (p BlockIndex) Positions() int {
	if p.Local > 0 {
		return p.Chosen * p.Block
	}
	return (p.Chosen+1)*p.Block - 1
}

// Width returns the number of positions in all lists of a row.
func (p BlockIndex) Width() int { return p.Lists() * p.Positions() }

// Sigmoid is a function of single values: Out * f(In * x), f the sigmoid, or with Silu x * sigmoid(x).
type Sigmoid struct {
	Silu    bool
	In, Out float32
}

// TapConv gives the sizes of a causal convolution of each channel by itself, over Taps tokens that are Step
// apart, the last of which is the row's own.
type TapConv struct{ Taps, Step int }

// Reach returns the number of tokens that the convolution spans.
func (p TapConv) Reach() int { return (p.Taps-1)*p.Step + 1 }

// NGrams says which rows of a table belong to a token and those before it (PLE of Qwen4-Exp). Of
// each order from 2 to Order there are PerOrder heads, numbered from the lowest order on. The row of head
// h, of order n, for the tokens x[0], the token itself, x[1], the one before, and so on, is
//
//	(x[0]*Multipliers[0] xor ... xor x[n-1]*Multipliers[n-1]) mod Sizes[h] + Offsets[h]
//
// From the first x[i], i > 0, that is EOS or lies before the start, all x are EOS.
type NGrams struct {
	Order, PerOrder int
	Dim             int      // values of a row
	Multipliers     []uint64 // [Order]; no product with an id exceeds 63 bits
	Sizes, Offsets  []uint64 // [Heads]
	EOS             int32
}

// Heads returns the number of rows that a token reads.
func (p *NGrams) Heads() int { return (p.Order - 1) * p.PerOrder }

// Width returns the number of values that a token reads.
func (p *NGrams) Width() int { return p.Heads() * p.Dim }

// Rows returns the number of rows of the table that are used.
func (p *NGrams) Rows() uint64 {
	last := p.Heads() - 1
	return p.Offsets[last] + p.Sizes[last]
}

// Words returns Multipliers, Sizes and Offsets for a device's memory: two words per number, the lower word first.
func (p *NGrams) Words() []int32 {
	var list []int32
	for _, v := range slices.Concat(p.Multipliers, p.Sizes, p.Offsets) {
		list = append(list, int32(uint32(v)), int32(v>>32))
	}
	return list
}

// Row returns the row of head h for the tokens before, the newest first.
func (p *NGrams) Row(h int, x []int32) int {
	var mix uint64
	for i := range h/p.PerOrder + 2 {
		mix ^= uint64(x[i]) * p.Multipliers[i]
	}
	return int(mix%p.Sizes[h] + p.Offsets[h])
}

// Fill replaces tokens before the start of a text by EOS. x are the tokens at position pos and before it,
// the newest first.
func (p *NGrams) Fill(x []int32, pos int) {
	for i := 1; i < len(x); i++ {
		if i > pos || x[i] == p.EOS {
			for ; i < len(x); i++ {
				x[i] = p.EOS
			}
		}
	}
}

// Columns gives the place of one kind of values in a row: the values of key head h are consecutive and
// begin at column At + h*Step.
type Columns struct{ At, Step int }

// Group returns the number of value heads of a key head.
func (p DeltaNet) Group() int { return p.ValueHeads / p.KeyHeads }

// Channels returns the number of columns that the convolution passes over. Its output has all queries,
// then all keys, then all values.
func (p DeltaNet) Channels() int { return 2*p.KeyHeads*p.KeyDim + p.Values() }

// Values returns the number of values of all heads, and of the operator's output.
func (p DeltaNet) Values() int { return p.ValueHeads * p.ValueDim }

// Width returns the number of columns of an input row: Channels and the gates.
func (p DeltaNet) Width() int { return p.Channels() + p.Values() }

// StateRows returns the number of rows of a sequence's state.
func (p DeltaNet) StateRows() int { return p.ValueHeads * p.KeyDim }

// Queries returns the columns of the queries in an input row.
func (p DeltaNet) Queries() Columns { return p.part(0, 0, p.KeyDim) }

// Keys returns the columns of the keys in an input row.
func (p DeltaNet) Keys() Columns { return p.part(1, 0, p.KeyDim) }

// Inputs returns the columns of the values in an input row.
func (p DeltaNet) Inputs() Columns { return p.part(2, 0, p.Group()*p.ValueDim) }

// Gates returns the columns of the gates in an input row.
func (p DeltaNet) Gates() Columns { return p.part(2, 1, p.Group()*p.ValueDim) }

// part is where a kind lies that follows the given numbers of kinds of keys and of values.
func (p DeltaNet) part(keys, values, step int) Columns {
	at := keys*p.KeyDim + values*p.Group()*p.ValueDim
	if p.ByKeyHead {
		return Columns{at, p.Width() / p.KeyHeads}
	}
	return Columns{at * p.KeyHeads, step}
}

// Strengths returns the columns of b in the row of numbers. The sigmoid of b is the write strength.
func (p DeltaNet) Strengths() Columns { return p.number(0) }

// Decays returns the columns of a in the row of numbers.
func (p DeltaNet) Decays() Columns { return p.number(1) }

func (p DeltaNet) number(i int) Columns {
	if p.ByKeyHead {
		return Columns{i * p.Group(), 2 * p.Group()}
	}
	return Columns{i * p.ValueHeads, p.Group() * []int{1, p.Rates()}[i]}
}

// Rates returns the number of values a of each value head.
func (p DeltaNet) Rates() int {
	if p.Floor < 0 {
		return p.KeyDim
	}
	return 1
}

// Numbers returns the number of columns of the row of numbers.
func (p DeltaNet) Numbers() int { return p.ValueHeads * (1 + p.Rates()) }

// Scoring turns router logits into scores.
type Scoring uint8

const (
	ScoreSoftmax Scoring = iota
	ScoreSigmoid
	ScoreSqrtSoftplus // sqrt(log(1 + exp(logit)))
)

// GroupScore selects the score of a group of experts in group-limited top-k.
type GroupScore uint8

const (
	GroupMax     GroupScore = iota // DeepSeek-V2: the best expert
	GroupTop2Sum                   // DeepSeek-V3: the sum of the two best (biased) scores
)

// Router holds the parameters of the choice of experts. A bias affects the choice, but not the weights. A
// factor of an expert multiplies its normalised weight. Chosen experts are in the order of falling
// weight, then rising id.
type Router struct {
	Experts    int
	TopK       int
	Scoring    Scoring
	Groups     int // 0 or 1: no groups
	TopGroups  int
	GroupScore GroupScore
	Normalize  bool    // divide the K weights by their sum (+1e-20)
	Scale      float32 // routed_scaling_factor, applied last
}

// Expert is one SwiGLU feed-forward network: down(silu(gate x) * (up x)), or with the activation and biases of Extra.
type Expert struct {
	Gate Mat // [F, H]
	Up   Mat // [F, H]
	Down Mat // [H, F]
	Extra
}

// Extra holds the biases and the activation of a SwiGLU network. The zero value has no biases and
// SiLU.
type Extra struct {
	Act Activation
	B13 Mat // [1, 2F] F32, added to gate x, then to up x; absent without biases
	B2  Mat // [1, H] F32, added to the result; absent without biases
}

// Activation computes a middle value of a SwiGLU network from a value g of gate and a value u of up. The zero
// value is silu(g) * u. With a Limit, first g = min(g, Limit) and u = max(-Limit, min(u, Limit)).
// The result is g * sigmoid(Alpha*(g + Cubic*g^3)) * (u + Shift).
type Activation struct {
	Alpha float32 // 0 is 1
	Limit float32 // above 0, or 0: none (swiglu_limit)
	Shift float32
	Cubic float32
}

// GELUTanh is gelu(g) * u by the tanh approximation of GELU (arXiv 1606.08415, section 2):
// g/2 * (1 + tanh(y)) is g * sigmoid(2*y), y = sqrt(2/pi) * (g + 0.044715*g^3).
var GELUTanh = Activation{Alpha: 1.5957691216057308, Cubic: 0.044715}

// Of computes one value.
func (a Activation) Of(g, u float64) float64 {
	alpha, limit := float64(a.Alpha), float64(a.Limit)
	if alpha == 0 {
		alpha = 1
	}
	if limit > 0 {
		g, u = min(g, limit), max(-limit, min(u, limit))
	}
	return g / (1 + math.Exp(-alpha*(g+float64(a.Cubic)*g*g*g))) * (u + float64(a.Shift))
}

// ExpertRows lists the work of one expert: Assign holds rising assignment
// numbers a = token*K + rank; the input is row a/K of x, the output row a of y.
type ExpertRows struct {
	Expert int32
	Assign []int32
}
