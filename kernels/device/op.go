package device

import "iter"

// Kind selects the computation of an operator.
type Kind uint8

// The operators. T rows of a batch, H hidden size, E experts, K experts per token. Activations are
// of RowType, weights BF16, F32 or integers, indices I32.
//
// Every operator is batch invariant on the CPU: a row's result has the same bits whatever the
// other rows are and however many there are.
const (
	OpGatherRows   Kind = iota + 1 // Out[i] [n,H] = W[A[i]]; W [V,H] table, A [n,1] ids
	OpRMSNorm                      // Out [T,H] = X / sqrt(mean(X^2)+Eps) * W; W [1,H]
	OpLayerNorm                    // Out [T,H] = (X - mean(X)) / sqrt(variance(X)+Eps) * W + B; W, B [1,H]
	OpAdd                          // Out [T,H] += X
	OpAddBias                      // Out [T,N] += W in every row; W [1,N]
	OpQuantizeRows                 // Q = X [T,K] as integers
	OpMatMul                       // Out [T,N] = X [T,K] * Weight^T; Q is X for integer weights
	OpHeadNorm                     // Out [T,Heads*d]: RMSNorm over each head in place; W [1,d]
	OpRope                         // Out [T,*] rotates in place by Rope; A [T,1] positions, W [P,2*Dim/2] F32 cos and sin
	OpStoreRows                    // KV[A[i]] = X[i]; X [T,W], A [T,1] slots
	OpSigmoid                      // Out [T,N] by Sigmoid, in place
	OpMixWeights                   // Out [T,N]: weights of streams from products, in place, by Mix; X [T,n*H] streams, W [1,N] F32 base, A [1,3 or 1] F32 scale
	OpCollapse                     // Out [T,H] = sum over the streams of X [T,n*H] * A [T,n*H], or [T,n], a factor for each stream; the mean where A is absent
	OpSpread                       // Out [T,n*H] = A [T,n], a factor for each stream, * X [T,H], plus W [T,n*H] or absent; of A [T,n+n*n] the rest is the matrix that mixes the streams W first
	OpStreamGates                  // Out [T,n]: with d the product of a stream of X [T,n*H] and of A [T,n*H] over sqrt(H), sign(d) * sqrt(max(|d|, 1e-6))
	OpNGrams                       // Out [T,Width]: rows of the table Shards, of numbers B [T,Heads] I32 that follow from the ids A [T,1], by Spans and NGrams; KV keeps the newest Order ids of a sequence, W [1,n] I32 is NGrams.Words on an accelerator. Without Out it only asks for the rows, and keeps nothing
	OpTapConv                      // Out [T,C] = silu of the causal convolution W [Taps,C] F32 of X [T,C], by Spans and Taps; KV keeps the newest rows of a sequence
	OpCopyRows                     // Out = X [n,W], of one type and not overlapping
	OpMLA                          // Out [T,heads*v]: latent attention of queries X over KV by KVB, Spans and MLA
	OpPoolKeys                     // Out [T,Dim]: the key of the pool that ends with each row of X [T,2*Dim], keys and gates, zeros where none does, by Spans and Index; W [Pool,Dim] F32 are the gates' biases, KV keeps the newest Pool rows of a sequence
	OpSelect                       // Out [T,Positions] I32: the positions that each row chooses by its index queries X [T,Heads*Dim] and weights A [T,Heads] over the index keys KV, by Spans and Index
	OpSparseMLA                    // Out [T,heads*v]: OpMLA over the positions A [T,n] I32 alone, -1 behind them
	OpGQA                          // Out [T,heads*d]: grouped-query attention of queries X over KV by Spans and GQA; W [1,heads] sinks or absent
	OpSelectBlocks                 // Out [T,Width] I32: the positions that each row attends to, by its index queries X [T,Heads*Dim] and the keys KV, in which it makes those of blocks, by Spans and Blocks; W [1,Dim] is the keys' norm, A [P,Rope.Dim] F32 cos and sin, both absent with Local
	OpSparseGQA                    // Out [T,heads*d]: OpGQA over the positions A [T,Lists*n] I32 alone, -1 behind each list
	OpCompress                     // KV: entries of the windows that rows complete, from their raw rows Near, by Spans and Compress; W [1,Dim] norm, A [Ratio,Parts*Dim] F32, B [P,Rope.Dim] F32 cos and sin
	OpCompressed                   // Out [T,heads*Dim]: attention of queries X over the rows Near and the entries KV, by Spans and Compressed; A [T,n] I32 chosen entries or absent, W [1,heads] F32 sinks
	OpRouteTopK                    // Out [T,K] ids, A [T,K] F32 weights, chosen from X [T,E] F32 logits by Router; W [1,E] F32 bias or absent, B [1,E] F32 factors of the weights or absent
	OpRouteByToken                 // Out [T,K] ids, A [T,K] F32 weights: the experts that W [V,K] F32 has for the tokens B [T,1] I32, weighed by X [T,E] F32 logits and Router
	OpFFN                          // Out [T,H] = down(act(gate X, up X)) of FFN; Q is X for integer weights
	OpExperts                      // Out [T*K,H]: rows that Work lists, by Experts, each for its rows of X [T,H]; Q is X for integer weights
	OpExpertsOn                    // Out [T*K,H]: a row for every choice A [T,K] of Bank; ids below 0 give zeros, experts nowhere in Bank.Map leave their rows
	OpGate                         // Out [T,N] *= sigmoid(X), element by element
	OpActivate                     // Out [T,N] = act(Out, X), element by element, by Act
	OpScale                        // Out [T,N] *= Factor
	OpSoftcap                      // Out [T,N] = Factor * tanh(Out / Factor)
	OpConv                         // Out [T,Channels] = silu of the causal convolution W [Taps,Channels] F32 of X [T,Width], by Spans and DeltaNet; KV keeps the newest Taps rows of a sequence
	OpDelta                        // Out [T,Values]: the gated delta rule for the rows X [T,Channels] of OpConv and the strengths and decays A [T,Numbers], by Spans and DeltaNet; W [1,ValueHeads] and B [1,ValueHeads*Rates] F32 are -exp(A_log) and dt_bias, KV the states
	OpGatedNorm                    // Out [T,Values]: RMSNorm over each value head times silu of the gates in X [T,Width], in place; W [1,ValueDim]
	OpGateRows                     // Out [T,N] *= sigmoid(X * W), one factor for each row; X [T,H], W [1,H]
	OpWeightedSum                  // Out [T,H] = sum over K of A [T,K] * X [T*K,H], plus W [T,H] or absent; of choices B [T,K] not below 0 in C [1,E], where those are there
	OpChangeLogits                 // Out [n,V] F32 logits: penalties, biases and masks of Changes, in place
	OpChoose                       // Out [n,1] ids: a token for each row of X [n,V] logits, by A [1, n*DrawWords] draws
	OpAskHost                      // asks the host for the choices A [T,K] of X [T,H] that C [1,E] has below 0, with weights B [T,K], through Calls
	OpTakeAnswer                   // Out [T,H] F32 += the host's answer to the last OpAskHost, which is waited for; with A [T,K] and C [1,E], rows of Out [T*K,H] whose choices of A have C below 0 become the answer's
	OpPickExperts                  // Out [1,E] I32 = X [1,E], the slots of experts, with slots of the terms W [1,1+n] for some that the choices A [T,K] lack, which B [1,2n] lists and C [1,slots] marks
	OpBringExperts                 // copies experts of X [E,N], host memory, to slots of Out [slots,N], as B [1,2n] lists them, the first A.Cols of N first, and takes the marks C [1,slots] away
	opKinds
)

var kindNames = [opKinds]string{"", "GatherRows", "RMSNorm", "LayerNorm", "Add", "AddBias", "QuantizeRows", "MatMul", "HeadNorm", "Rope", "StoreRows",
	"Sigmoid", "MixWeights", "Collapse", "Spread", "StreamGates", "NGrams", "TapConv", "CopyRows", "MLA", "PoolKeys", "Select", "SparseMLA", "GQA", "SelectBlocks", "SparseGQA",
	"Compress", "Compressed", "RouteTopK", "RouteByToken", "FFN", "Experts", "ExpertsOn", "Gate", "Activate", "Scale", "Softcap", "Conv", "Delta", "GatedNorm", "GateRows", "WeightedSum", "ChangeLogits", "Choose", "AskHost", "TakeAnswer", "PickExperts", "BringExperts"}

// String returns the operator's name.
func (k Kind) String() string { return kindNames[k] }

// Op is an operator with its arguments; Kind tells which fields count. A List makes them.
type Op struct {
	Kind    Kind
	Out     Mat
	X       Mat
	W       Mat
	A, B, C Mat

	Q          QRows
	KV         KV
	Spans      Spans
	Eps        float32
	Factor     float32
	Act        Activation
	Heads      int
	Weight     *Weight
	KVB        *KVB
	FFN        *FFN
	Bank       *Bank
	Experts    Routed
	Rope       *Rope
	MLA        *MLA
	Index      *Index
	GQA        *GQA
	Delta      *DeltaNet
	Router     *Router
	Sigmoid    Sigmoid
	Mix        StreamMix
	NGrams     *NGrams
	Shards     []Mat // of a table, along its rows, which are dense
	Taps       *TapConv
	Blocks     *BlockIndex
	Near       *Near // where there are entries
	Compress   *Compress
	Compressed *Compressed
	Changes    *LogitChanges
	Calls      HostCalls
}

// Mats calls f with the field's name and every matrix of o that is there, but for those of weights
// and the cache.
func (o *Op) Mats(f func(name string, m *Mat)) {
	for _, m := range [...]struct {
		name string
		*Mat
	}{{"out", &o.Out}, {"x", &o.X}, {"w", &o.W}, {"a", &o.A}, {"b", &o.B}, {"c", &o.C}, {"q", &o.Q.Q}, {"q.Scale", &o.Q.Scale}, {"q.Bias", &o.Q.Bias}} {
		if !m.Zero() {
			f(m.name, m.Mat)
		}
	}
}

// Reads reports whether o reads m, which it may also write.
func (o *Op) Reads(m Mat) bool {
	switch {
	case o.X == m || o.W == m || o.A == m && o.Kind != OpRouteTopK && o.Kind != OpRouteByToken || o.B == m || o.C == m:
		return true
	case o.Out == m:
		switch o.Kind {
		case OpAdd, OpAddBias, OpSigmoid, OpMixWeights, OpHeadNorm, OpRope, OpGate, OpActivate, OpScale, OpSoftcap, OpGatedNorm, OpGateRows, OpChangeLogits, OpTakeAnswer:
			return true
		}
	}
	return false
}

// Routed are the routed experts of a layer on a device that computes what the host lists: F or Q.
type Routed struct {
	F    []Expert     // [E]
	Q    []QExpert    // [E]
	Work []ExpertRows // experts and assignments rising
	TopK int
}

// Sizes are the bytes, the hidden values and the width of expert e.
func (r *Routed) Sizes(e int32) (bytes, ff, hidden int) {
	if len(r.Q) > 0 {
		return r.Q[e].Bytes(), r.Q[e].W2.Cols, r.Q[e].W2.Rows
	}
	return r.F[e].Bytes(), r.F[e].Gate.Rows, r.F[e].Gate.Cols
}

// Len returns the number of experts.
func (r *Routed) Len() int { return max(len(r.F), len(r.Q)) }

// List is a list of operators that run one after the other.
type List struct {
	Ops []Op
	// Generated is the number of generated rows at the start of the operators' rows:
	// a device may compute these in another way than a prompt's.
	Generated int

	near []Near // that Ops point to
}

// Reset empties the list and keeps its memory.
func (l *List) Reset() { l.Ops, l.near = l.Ops[:0], l.near[:0] }

// From returns the list without its first n operators.
func (l List) From(n int) List { l.Ops = l.Ops[n:]; return l }

// To returns the first n operators of the list.
func (l List) To(n int) List { l.Ops = l.Ops[:n]; return l }

// Parts yields the list in parts that d computes as one each.
func (l List) Parts(d Device) iter.Seq[List] {
	return func(yield func(List) bool) {
		for len(l.Ops) > 0 {
			n := d.Fused(l)
			if !yield(l.To(n)) {
				return
			}
			l = l.From(n)
		}
	}
}

func (l *List) add(k Kind, out, x Mat) *Op {
	l.Ops = append(l.Ops, Op{})
	o := &l.Ops[len(l.Ops)-1]
	o.Kind, o.Out, o.X = k, out, x
	return o
}

// GatherRows appends out[i] = table[ids[i]].
func (l *List) GatherRows(out, table, ids Mat) {
	o := l.add(OpGatherRows, out, Mat{})
	o.W, o.A = table, ids
}

// RMSNorm appends out = x / sqrt(mean(x^2)+eps) * w.
func (l *List) RMSNorm(out, x, w Mat, eps float32) {
	o := l.add(OpRMSNorm, out, x)
	o.W, o.Eps = w, eps
}

// LayerNorm appends out = (x - mean(x)) / sqrt(variance(x)+eps) * w + b.
func (l *List) LayerNorm(out, x, w, b Mat, eps float32) {
	o := l.add(OpLayerNorm, out, x)
	o.W, o.B, o.Eps = w, b, eps
}

// Add appends x += delta.
func (l *List) Add(x, delta Mat) { l.add(OpAdd, x, delta) }

// AddBias appends x += b in every row.
func (l *List) AddBias(x, b Mat) { l.add(OpAddBias, x, Mat{}).W = b }

// QuantizeRows appends out = x as integers.
func (l *List) QuantizeRows(out QRows, x Mat) { l.add(OpQuantizeRows, Mat{}, x).Q = out }

// MatMul appends out = x * w^T. q is x as integers, which integer weights multiply.
func (l *List) MatMul(out, x Mat, q QRows, w *Weight) {
	l.either(OpMatMul, out, x, q, w.Integer()).Weight = w
}

// either appends an operator that reads rows as they are, or as integers.
func (l *List) either(k Kind, out, x Mat, q QRows, integers bool) *Op {
	if !integers {
		return l.add(k, out, x)
	}
	o := l.add(k, out, Mat{})
	o.Q = q
	return o
}

// HeadNorm appends RMSNorm over each of the heads of x, in place.
func (l *List) HeadNorm(x Mat, heads int, w Mat, eps float32) {
	o := l.add(OpHeadNorm, x, Mat{})
	o.Heads, o.W, o.Eps = heads, w, eps
}

// Rope appends the rotation of x in place.
func (l *List) Rope(x, positions, table Mat, p *Rope) {
	o := l.add(OpRope, x, Mat{})
	o.A, o.W, o.Rope = positions, table, p
}

// StoreRows appends cache[slots[i]] = src[i].
func (l *List) StoreRows(cache KV, src, slots Mat) {
	o := l.add(OpStoreRows, Mat{}, src)
	o.A, o.KV = slots, cache
}

// Sigmoid appends x = p.Out * f(p.In * x) in place.
func (l *List) Sigmoid(x Mat, p Sigmoid) { l.add(OpSigmoid, x, Mat{}).Sigmoid = p }

// Collapse appends out[t,h] = the sum over the streams s of weights[t,s*H+h] * x[t,s*H+h]. weights may also be [T, n], one
// for each stream, or absent: then out is the mean of the streams.
func (l *List) Collapse(out, x, weights Mat) { l.add(OpCollapse, out, x).A = weights }

// Spread appends out[t,s*H+h] = weights[t,s] * x[t,h], plus base unless base is absent, which may be out. weights may be
// [T, n+n*n]: of the new stream s, weights[t,n+j*n+s] is the factor of stream j of base.
func (l *List) Spread(out, x, weights, base Mat) {
	o := l.add(OpSpread, out, x)
	o.A, o.W = weights, base
}

// StreamGates appends the roots of products of streams.
func (l *List) StreamGates(out, x, y Mat) { l.add(OpStreamGates, out, x).A = y }

// NGrams appends the rows of a table that the rows that spans lists read. tail keeps the newest ids of each
// sequence: that of position p in row Slot*Order + p%Order, as a number. words are p.Words in the memory of an accelerator, for
// which the table is one shard of AllocHost; absent elsewhere.
func (l *List) NGrams(out, rows, ids Mat, shards []Mat, words Mat, tail KV, spans Spans, p *NGrams) {
	o := l.add(OpNGrams, out, Mat{})
	o.A, o.B, o.W, o.Shards, o.KV, o.Spans, o.NGrams = ids, rows, words, shards, tail, spans, p
}

// TapConv appends the convolution and SiLU of the rows that spans lists. tail keeps the newest rows of
// each sequence: that of position p in row Slot*Reach + p%Reach.
func (l *List) TapConv(out, x, w Mat, tail KV, spans Spans, p *TapConv) {
	o := l.add(OpTapConv, out, x)
	o.W, o.KV, o.Spans, o.Taps = w, tail, spans, p
}

// NGramsAhead appends that the rows which NGrams will read are asked for, where a device has to wait for them. It writes
// their numbers alone.
func (l *List) NGramsAhead(rows, ids Mat, shards []Mat, tail KV, spans Spans, p *NGrams) {
	l.NGrams(Mat{}, rows, ids, shards, Mat{}, tail, spans, p)
}

// SelectBlocks appends the choice of positions by an index over blocks: see BlockIndex. norm and table are absent where keys are ready.
func (l *List) SelectBlocks(chosen, q Mat, keys KV, norm, table Mat, spans Spans, p *BlockIndex) {
	o := l.add(OpSelectBlocks, chosen, q)
	o.W, o.A, o.KV, o.Spans, o.Blocks = norm, table, keys, spans, p
}

// SparseGQA appends GQA without sinks and window in which each row sees the positions of its row of chosen: each key head
// those of its list.
func (l *List) SparseGQA(out, q Mat, cache KV, chosen Mat, spans Spans, p *GQA) {
	o := l.add(OpSparseGQA, out, q)
	o.KV, o.A, o.Spans, o.GQA = cache, chosen, spans, p
}

// CopyRows appends dst = src.
func (l *List) CopyRows(dst, src Mat) { l.add(OpCopyRows, dst, src) }

// MLA appends latent attention of the rows that spans lists: of prompts, or of generated rows.
func (l *List) MLA(out, q Mat, cache KV, kvB *KVB, spans Spans, p *MLA) {
	o := l.add(OpMLA, out, q)
	o.KV, o.KVB, o.Spans, o.MLA = cache, kvB, spans, p
}

// PoolKeys appends the keys of pools that end in rows that spans lists: see Index. tail keeps the newest rows of each
// sequence: that of position p in row Slot*Pool + p%Pool.
func (l *List) PoolKeys(out, x, bias Mat, tail KV, spans Spans, p *Index) {
	o := l.add(OpPoolKeys, out, x)
	o.W, o.KV, o.Spans, o.Index = bias, tail, spans, p
}

// Select appends the choice of positions by an indexer: see Index.
func (l *List) Select(chosen, q, weights Mat, keys KV, spans Spans, p *Index) {
	o := l.add(OpSelect, chosen, q)
	o.A, o.KV, o.Spans, o.Index = weights, keys, spans, p
}

// SparseMLA appends MLA in which each row sees the positions of its row of chosen, as Select leaves
// them. A row that may see no more positions than chosen has columns sees all of them.
func (l *List) SparseMLA(out, q Mat, cache KV, kvB *KVB, chosen Mat, spans Spans, p *MLA) {
	o := l.add(OpSparseMLA, out, q)
	o.KV, o.KVB, o.A, o.Spans, o.MLA = cache, kvB, chosen, spans, p
}

// GQA appends grouped-query attention of the rows that spans lists. sinks may be absent.
func (l *List) GQA(out, q Mat, cache KV, sinks Mat, spans Spans, p *GQA) {
	o := l.add(OpGQA, out, q)
	o.KV, o.W, o.Spans, o.GQA = cache, sinks, spans, p
}

// RouteTopK appends the choice of experts. bias and factors may be absent.
func (l *List) RouteTopK(ids, weights, logits, bias, factors Mat, p *Router) {
	o := l.add(OpRouteTopK, ids, logits)
	o.A, o.W, o.B, o.Router = weights, bias, factors, p
}

// FFN appends out = the network's result for x, or for q, which is x as integers.
func (l *List) FFN(out, x Mat, q QRows, n *FFN) {
	l.either(OpFFN, out, x, q, n.Integer()).FFN = n
}

// Experts appends the rows of y that r.Work lists.
func (l *List) Experts(y, x Mat, q QRows, r Routed) {
	l.either(OpExperts, y, x, q, len(r.Q) > 0).Experts = r
}

// ExpertsOn appends a row of y for every choice of ids.
func (l *List) ExpertsOn(y, x Mat, b *Bank, ids Mat) {
	o := l.add(OpExpertsOn, y, x)
	o.A, o.Bank = ids, b
}

// Gate appends out *= sigmoid(x).
func (l *List) Gate(out, x Mat) { l.add(OpGate, out, x) }

// Activate appends x = act(x, up).
func (l *List) Activate(x, up Mat, act Activation) { l.add(OpActivate, x, up).Act = act }

// Scale appends x *= factor.
func (l *List) Scale(x Mat, factor float32) { l.add(OpScale, x, Mat{}).Factor = factor }

// Softcap appends x = limit * tanh(x / limit).
func (l *List) Softcap(x Mat, limit float32) { l.add(OpSoftcap, x, Mat{}).Factor = limit }

// Conv appends the convolution and SiLU of the rows that spans lists. tail keeps the newest rows of
// each sequence: that of position p in row Slot*Taps + p%Taps.
func (l *List) Conv(out, x, w Mat, tail KV, spans Spans, p *DeltaNet) {
	o := l.add(OpConv, out, x)
	o.W, o.KV, o.Spans, o.Delta = w, tail, spans, p
}

// Delta appends the gated delta rule for the rows that spans lists: with q and k the query and the
// key of a row over sqrt(sum of squares + 1e-6), q over sqrt(KeyDim) too, and S the state of a value
// head [KeyDim, ValueDim],
//
//	S *= exp(decay * softplus(a + bias)); S += k (sigmoid(b) * (v - k^T S))^T; out = q^T S
//
// With a Floor, row c of S decays by a factor of its own instead, exp(Floor * sigmoid(-decay * (a[c] + bias[c]))).
//
// The state of a sequence begins at row Slot*StateRows of states, with the rows of head 0; before
// its first position it is zero.
func (l *List) Delta(out, x, ba, decay, bias Mat, states KV, spans Spans, p *DeltaNet) {
	o := l.add(OpDelta, out, x)
	o.A, o.W, o.B, o.KV, o.Spans, o.Delta = ba, decay, bias, states, spans, p
}

// GatedNorm appends RMSNorm over each value head of out times silu of its gates, in place.
func (l *List) GatedNorm(out, x, w Mat, eps float32, p *DeltaNet) {
	o := l.add(OpGatedNorm, out, x)
	o.W, o.Eps, o.Delta = w, eps, p
}

// GateRows appends out[t] *= sigmoid(x[t] * w).
func (l *List) GateRows(out, x, w Mat) { l.add(OpGateRows, out, x).W = w }

// WeightedSum appends out[t] = the sum over k of weights[t,k] * y[t*K+k], plus base[t] unless base is
// absent. With slots [1,E], choices ids whose expert has a slot below 0 are left out.
func (l *List) WeightedSum(out, y, weights, base, ids, slots Mat) {
	o := l.add(OpWeightedSum, out, y)
	o.A, o.W = weights, base
	if !slots.Zero() {
		o.B, o.C = ids, slots
	}
}

// ChangeLogits appends penalties, biases and masks, in place.
func (l *List) ChangeLogits(logits Mat, c LogitChanges) {
	l.add(OpChangeLogits, logits, Mat{}).Changes = &c
}

// Choose appends the choice of a token for each row of logits.
func (l *List) Choose(ids, logits, draws Mat) { l.add(OpChoose, ids, logits).A = draws }

// AskHost appends a host call for the choices ids whose expert has a slot below 0.
func (l *List) AskHost(m HostCalls, x, ids, weights, slots Mat) {
	o := l.add(OpAskHost, Mat{}, x)
	o.Calls, o.A, o.B, o.C = m, ids, weights, slots
}

// PickExperts appends the choice of experts that an accelerator copies over the link in this step. slots [1,E] I32 has the slot of
// each expert, below 0 if it has none. terms [1,1+n] I32 has the share, in 256ths, of the missing experts among ids that are
// copied, rounded down, and slots for them, -1 after the last one. Experts with the most rows come first, of equal ones those
// with lower ids. now [1,E] becomes slots with those of the copied experts; list [1,2n] I32 gets their ids and slots in turn, and -1
// after the last one. coming [1,S] I32, which is zeros at first, has a word for each slot: BringExperts changes those of the copied experts to 0.
func (l *List) PickExperts(now, list, coming, ids, slots, terms Mat) {
	o := l.add(OpPickExperts, now, slots)
	o.A, o.B, o.C, o.W = ids, list, coming, terms
}

// BringExperts appends the copies of what PickExperts has listed: rows of from [E,N] F32, pinned host memory
// (Accelerator.View), to rows of slots [S,N]. first [E,n] (Mat.ColRange of from) has the columns of an expert's first
// matrix. They are copied first, and products of a bank with Coming need not wait for the others.
func (l *List) BringExperts(slots, from, first, list, coming Mat) {
	o := l.add(OpBringExperts, slots, from)
	o.A, o.B, o.C = first, list, coming
}

// TakeAnswer appends the wait for the answer to the last AskHost, which is added to hidden.
func (l *List) TakeAnswer(m HostCalls, hidden Mat) { l.add(OpTakeAnswer, hidden, Mat{}).Calls = m }

// TakeRows appends the wait for the answer to the last AskHost, of a row for each of the choices ids whose
// expert has a slot below 0. They are written to y [T*K, H].
func (l *List) TakeRows(m HostCalls, y, ids, slots Mat) {
	o := l.add(OpTakeAnswer, y, Mat{})
	o.A, o.C, o.Calls = ids, slots, m
}
