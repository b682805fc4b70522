package device

// Compress says how tokens become the entries that attention reads in their place (DeepSeek-V4). An entry stands for Ratio
// consecutive tokens, its window. A token's raw row [2*Parts*Dim] is values C, then gates Z. Entry b is, channel by channel,
//
//	the sum over tokens of softmax over tokens (Z + ape[position in the window]) * C
//
// over its window; with Overlap a row has two parts, and an entry takes the first parts of the tokens of window b-1, if there is
// one, and the second parts of those of window b, in one softmax. Then comes RMSNorm with Eps, and the rotation by Rope to the position of the window's
// first token.
//
// An entry lies in the block of the token that completes it: see EntrySlot.
type Compress struct {
	Dim, Ratio  int
	Overlap     bool
	Eps         float32
	Rope        Rope // of one head of Dim values
	BlockTokens int  // tokens in a KV block
}

// Parts returns the number of values of a channel that a token has.
func (p Compress) Parts() int {
	if p.Overlap {
		return 2
	}
	return 1
}

// Width is the values of a raw row.
func (p Compress) Width() int { return 2 * p.Parts() * p.Dim }

// Entry returns the position of the token that completes entry e of ratio tokens.
func Entry(e, ratio int) int { return (e+1)*ratio - 1 }

// EntryRows returns the rows of a KV block in a cache of entries: its blockTokens tokens may complete as many entries of ratio tokens.
func EntryRows(blockTokens, ratio int) int { return (blockTokens + ratio - 1) / ratio }

// EntrySlot returns the row of a cache that has entry e of the sequence with these blocks.
func EntrySlot(blocks []int32, e, ratio, blockTokens int) int {
	pos := Entry(e, ratio)
	return int(blocks[pos/blockTokens])*EntryRows(blockTokens, ratio) + pos%blockTokens/ratio
}

// Compressed gives the sizes of attention over the newest tokens and over entries in one softmax (DeepSeek-V4). A row of Dim values is
// key and value for all heads. The row at position t sees the tokens from t-Window+1 on, and of the (t+1)/Ratio entries
// whose windows are complete those that are chosen, or all.
type Compressed struct {
	Heads, Dim  int
	Window      int
	Ratio       int // tokens of an entry; 0: there are no entries
	Scale       float32
	BlockTokens int // tokens in a KV block
}

// First returns the position of the first token that the row at position pos sees.
func (p Compressed) First(pos int) int { return max(0, pos-p.Window+1) }

// Sees returns the number of entries that the row at position pos sees.
func (p Compressed) Sees(pos int) int {
	if p.Ratio == 0 {
		return 0
	}
	return (pos + 1) / p.Ratio
}

// Near is the cache of the newest tokens, beside the one of entries, and where a batch's rows are in it.
type Near struct {
	KV    KV
	Spans Spans
}

func (l *List) nearOf(cache KV, spans Spans) *Near {
	l.near = append(l.near, Near{cache, spans})
	return &l.near[len(l.near)-1]
}

// Compress appends that the entries of all windows that the rows of spans complete are stored in entries. near are the
// raw rows, by nearSpans; norm [1, Dim], ape [Ratio, Parts*Dim] F32, table [P, Rope.Dim] F32.
func (l *List) Compress(entries KV, spans Spans, near KV, nearSpans Spans, norm, ape, table Mat, p *Compress) {
	o := l.add(OpCompress, Mat{}, Mat{})
	o.KV, o.Spans, o.Near, o.W, o.A, o.B, o.Compress = entries, spans, l.nearOf(near, nearSpans), norm, ape, table, p
}

// Compressed appends the attention of queries q [T, Heads*Dim] over near, by nearSpans, and over entries, by spans. chosen
// [T, n] I32 lists the entries of each row, -1 behind them; absent: a row sees all. entries is absent without any.
// sinks [1, Heads] F32 are scores of a value of zeros.
func (l *List) Compressed(out, q Mat, entries KV, spans Spans, near KV, nearSpans Spans, chosen, sinks Mat, p *Compressed) {
	o := l.add(OpCompressed, out, q)
	o.KV, o.Spans, o.Near, o.A, o.W, o.Compressed = entries, spans, l.nearOf(near, nearSpans), chosen, sinks, p
}

// RouteByToken appends the weights of experts that a table has for each token: ids [T, K] and weights [T, K] as those of RouteTopK, from
// logits [T, E] F32 and the rows of table [V, K] F32, expert numbers, by tokens [T, 1] I32.
func (l *List) RouteByToken(ids, weights, logits, tokens, table Mat, p *Router) {
	o := l.add(OpRouteByToken, ids, logits)
	o.A, o.B, o.W, o.Router = weights, tokens, table, p
}
