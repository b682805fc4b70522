//go:build cuda

package cuda

import (
	"slices"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Run implements device.Device: operators become launches on s, and sequences that Fused
// recognises become one operator of package ops.
func (d *Device) Run(s device.Stream, l device.List) {
	for len(l.Ops) > 0 {
		f := d.first(l)
		d.do(f.name, s, func(own *Stream) {
			own.ops.Generated = l.Generated
			f.add(&own.ops, l.Ops[:f.n])
		})
		l = l.From(f.n)
	}
}

// Fused implements device.Device.
func (d *Device) Fused(l device.List) int { return d.first(l).n }

// fusion is the first n operators of a list as one operator.
type fusion struct {
	name string
	n    int
	add  func(b *ops.Builder, o []device.Op)
}

// first finds the longest sequence at the head of l that can be fused.
func (d *Device) first(l device.List) fusion {
	for _, p := range patterns[l.Ops[0].Kind] {
		if p.n = p.matches(d, l); p.n > 0 {
			return p.fusion
		}
	}
	k := l.Ops[0].Kind
	return fusion{k.String(), 1, d.single(k)}
}

// pattern is a fusion, with a function that returns how many operators of l it covers, 0 for
// none.
type pattern struct {
	fusion
	matches func(d *Device, l device.List) int
}

// patterns are the fusions that begin with an operator of a kind, longest first.
var patterns = map[device.Kind][]pattern{
	device.OpRMSNorm: {
		{fusion{name: "StreamNorms", add: addStreamNorms}, isStreamNorms},
		{fusion{name: "NormRoute", add: addNormRoute}, isNormRoute},
		{fusion{name: "NormMatMul", add: addNormMatMul}, isNormMatMul},
	},
	device.OpAdd: {{fusion{name: "AddRMSNorm", add: addAddRMSNorm}, isAddRMSNorm}},
	device.OpSpread: {
		{fusion{name: "GrownInput", add: addGrownInput}, isGrownInput},
		{fusion{name: "SpreadNorms", add: addSpreadNorms}, isSpreadNorms},
	},
	device.OpMatMul: {
		{fusion{name: "MixedInput", add: addMixedInput}, isMixedInput},
		{fusion{name: "MixIn", add: addMixIn}, isMixIn},
		{fusion{name: "MixLow", add: addMixLow}, isMixLow},
		{fusion{name: "Route", add: addRoute}, isRoute},
		{fusion{name: "AddMatMul", add: addAddMatMul}, isAddMatMul},
		{fusion{name: "MatMul", add: addBiasedMatMul}, isBiasedMatMul},
		{fusion{name: "MatMulPair", add: addMatMulPair}, isMatMulPair},
	},
	device.OpConv: {{fusion{name: "DeltaStep", add: addDeltaStep}, isDeltaStep}},
	device.OpFFN:  {{fusion{name: "AddFFN", add: addAddFFN}, isAddFFN}},
	device.OpRope: {
		{fusion{name: "LatentDecode", add: addLatentDecode}, isLatentDecode},
		{fusion{name: "Latent", add: addLatent}, isLatent},
		{fusion{name: "HeadStore", add: addHeadStore}, isHeadStore},
	},
	device.OpHeadNorm: {
		{fusion{name: "HeadStore", add: addNormedHeadStore}, isNormedHeadStore},
		{fusion{name: "IndexStore", add: addIndexStore}, isIndexStore},
	},
	device.OpExpertsOn: {
		{fusion{name: "AddMix", add: addAddMix}, isAddMix},
		{fusion{name: "Mix", add: addMix}, isMix},
	},
}

// kinds reports whether l begins with these kinds.
func kinds(l device.List, want ...device.Kind) bool {
	if len(l.Ops) < len(want) {
		return false
	}
	for i, k := range want {
		if l.Ops[i].Kind != k {
			return false
		}
	}
	return true
}

// norms reports whether a product norms the few rows that it reads: every block does so for
// itself.
func (d *Device) norms(rows int) bool { return !d.F32 && rows <= ops.NormRows }

// adds reports whether the kernel that makes a sum also adds it to the residual stream: for few
// rows or, if bits must not depend on their number, for any rows that include generated ones.
func (d *Device) adds(rows, generated int) bool {
	if d.F32 {
		return false
	}
	return rows <= ops.AddRows || d.invariant && generated > 0
}

// added reports whether operator i of l adds the result of the one before it to the residual
// stream, and the one before it may add it itself, because no other operator reads that result.
func (d *Device) added(l device.List, i int) bool {
	if len(l.Ops) <= i || l.Ops[i].Kind != device.OpAdd {
		return false
	}
	sum := &l.Ops[i]
	return sum.X == l.Ops[i-1].Out && d.adds(sum.Out.Rows, l.Generated) && unread(l.From(i+1), sum.X)
}

// unread reports whether no operator of l reads the current content of m.
func unread(l device.List, m device.Mat) bool {
	for i := range l.Ops {
		o := &l.Ops[i]
		for _, x := range [...]*device.Mat{&o.X, &o.W, &o.A, &o.B, &o.C} {
			if x.Overlaps(m) {
				return false
			}
		}
		if o.Reads(o.Out) && o.Out.Overlaps(m) {
			return false
		}
		if covers(o.Out, m) {
			return true
		}
	}
	return true
}

// covers reports whether b is a range of the columns of a.
func covers(a, b device.Mat) bool {
	if a.Buf != b.Buf || a.DType != b.DType || a.Stride != b.Stride || a.Rows != b.Rows || b.Off < a.Off {
		return false
	}
	return (b.Off-a.Off)/a.DType.Size()+b.Cols <= a.Cols
}

func isNormRoute(d *Device, l device.List) int {
	if !kinds(l, device.OpRMSNorm, device.OpMatMul) || !d.norms(l.Ops[0].Out.Rows) || l.Ops[1].X != l.Ops[0].Out {
		return 0
	}
	if n := isRoute(d, l.From(1)); n > 0 {
		return 1 + n
	}
	return 0
}

// isBiasedMatMul finds a product and the addition of a bias to its rows.
func isBiasedMatMul(_ *Device, l device.List) int {
	if !kinds(l, device.OpMatMul, device.OpAddBias) || l.Ops[1].Out != l.Ops[0].Out || l.Ops[1].W.DType != tensor.F32 {
		return 0
	}
	return 2
}

// productOf returns how many operators l begins with that are one product, with or without a bias.
func productOf(d *Device, l device.List) int { return max(1, isBiasedMatMul(d, l)) }

// weightOf returns the weight of a product that begins at o, with the bias that the n-th operator adds.
func weightOf(o []device.Op, n int) launch.Weight {
	w := weight(o[0].Weight)
	if n > 1 {
		w.Bias = mat(o[1].W).At
	}
	return w
}

func addBiasedMatMul(b *ops.Builder, o []device.Op) {
	b.MatMul(mat(o[0].Out), mat(o[0].X), weightOf(o, 2))
}

func addNormRoute(b *ops.Builder, o []device.Op) {
	n := before(o, device.OpRouteTopK)
	norm, top := &o[0], &o[n]
	b.NormRoute(mat(top.Out), mat(top.A), mat(top.X), mat(norm.Out), mat(norm.X), mat(norm.W), norm.Eps, weightOf(o[1:], n-1), mat(top.W), *top.Router)
	b.WeighChosen(mat(top.Out), mat(top.A), mat(top.B))
}

func isRoute(d *Device, l device.List) int {
	n := productOf(d, l)
	if !kinds(l.From(n), device.OpRouteTopK) || l.Ops[n].X != l.Ops[0].Out || l.Ops[0].Weight.F.Zero() {
		return 0
	}
	return n + 1
}

// before returns the number of operators of o before the first of a kind.
func before(o []device.Op, k device.Kind) int {
	return slices.IndexFunc(o, func(o device.Op) bool { return o.Kind == k })
}

func addRoute(b *ops.Builder, o []device.Op) {
	n := before(o, device.OpRouteTopK)
	top := &o[n]
	b.Route(mat(top.Out), mat(top.A), mat(top.X), mat(o[0].X), weightOf(o, n), mat(top.W), *top.Router)
	b.WeighChosen(mat(top.Out), mat(top.A), mat(top.B))
}

func isNormMatMul(d *Device, l device.List) int {
	if !kinds(l, device.OpRMSNorm, device.OpMatMul) || !d.norms(l.Ops[0].Out.Rows) || l.Ops[1].X != l.Ops[0].Out {
		return 0
	}
	if l.Ops[1].Out.DType != d.RowType() || !unread(l.From(2), l.Ops[0].Out) {
		return 0
	}
	return 1 + productOf(d, l.From(1))
}

func addNormMatMul(b *ops.Builder, o []device.Op) {
	norm, product := &o[0], &o[1]
	b.NormMatMul(mat(product.Out), mat(norm.Out), mat(norm.X), mat(norm.W), norm.Eps, weightOf(o[1:], len(o)-1))
}

func isAddRMSNorm(_ *Device, l device.List) int {
	if !kinds(l, device.OpAdd, device.OpRMSNorm) || l.Ops[1].X != l.Ops[0].Out || l.Ops[0].Out.DType != tensor.F32 {
		return 0
	}
	return 2
}

func addAddRMSNorm(b *ops.Builder, o []device.Op) {
	sum, norm := &o[0], &o[1]
	b.AddRMSNorm(mat(norm.Out), mat(norm.X), mat(sum.X), mat(norm.W), norm.Eps)
}

func isAddMatMul(d *Device, l device.List) int {
	n := productOf(d, l)
	if !d.added(l, n) {
		return 0
	}
	return n + 1
}

func addAddMatMul(b *ops.Builder, o []device.Op) {
	n := before(o, device.OpAdd)
	product, sum := &o[0], &o[n]
	b.AddMatMul(mat(sum.Out), mat(sum.X), mat(product.X), weightOf(o, n))
}

func isAddFFN(d *Device, l device.List) int {
	if !d.added(l, 1) {
		return 0
	}
	return 2
}

func addAddFFN(b *ops.Builder, o []device.Op) {
	ffn, sum := &o[0], &o[1]
	b.AddFFN(mat(sum.Out), mat(sum.X), mat(ffn.X), network(ffn.FFN))
}

// isLatent finds rotation of the queries, norm and rotation of the latent row, and its store.
func isLatent(_ *Device, l device.List) int {
	if !kinds(l, device.OpRope, device.OpRMSNorm, device.OpRope, device.OpStoreRows) {
		return 0
	}
	norm, turn, store := &l.Ops[1], &l.Ops[2], &l.Ops[3]
	row, rank := store.X, norm.X.Cols
	if norm.Out != norm.X || rank >= row.Cols || norm.X != row.ColRange(0, rank) || turn.Out != row.ColRange(rank, row.Cols) {
		return 0
	}
	if q := &l.Ops[0]; q.A != turn.A || q.W != turn.W {
		return 0
	}
	return 4
}

func addLatent(b *ops.Builder, o []device.Op) {
	q, norm, turn, store := &o[0], &o[1], &o[2], &o[3]
	b.Latent(kv(&store.KV), mat(q.Out), mat(store.X), mat(norm.W), norm.Eps, mat(q.A), mat(store.A), mat(q.W), *q.Rope, *turn.Rope)
}

// isLatentDecode finds isLatent and the attention of a batch that has generated rows only.
// Queries and latent rows are undefined afterwards.
func isLatentDecode(d *Device, l device.List) int {
	if isLatent(d, l) == 0 || len(l.Ops) < 5 {
		return 0
	}
	q, store, at := &l.Ops[0], &l.Ops[3], &l.Ops[4]
	if at.Kind != device.OpMLA || !at.Spans.Decode || at.X != q.Out || !unread(l.From(5), q.Out) || !unread(l.From(5), store.X) {
		return 0
	}
	return 5
}

func addLatentDecode(b *ops.Builder, o []device.Op) {
	q, norm, turn, store, at := &o[0], &o[1], &o[2], &o[3], &o[4]
	b.LatentDecode(mat(at.Out), mat(q.Out), mat(store.X), mat(norm.W), norm.Eps, kv(&store.KV), mat(q.A), mat(store.A), mat(q.W), *q.Rope, *turn.Rope,
		kvB(at.KVB), at.Spans.List, mat(at.Spans.Table), *at.MLA)
}

// isHeadStore finds rotation of queries and keys, and the store of keys and values.
func isHeadStore(_ *Device, l device.List) int {
	if !kinds(l, device.OpRope, device.OpRope, device.OpStoreRows) {
		return 0
	}
	q, k, row := &l.Ops[0], &l.Ops[1], l.Ops[2].X
	if k.Out != row.ColRange(0, row.Cols/2) || q.A != k.A || q.W != k.W {
		return 0
	}
	return 3
}

func addHeadStore(b *ops.Builder, o []device.Op) { headStore(b, o, launch.Mat{}, launch.Mat{}, 0) }

func headStore(b *ops.Builder, o []device.Op, qNorm, kNorm launch.Mat, eps float32) {
	q, k, store := &o[0], &o[1], &o[2]
	b.HeadStore(kv(&store.KV), mat(q.Out), mat(store.X), qNorm, kNorm, eps, mat(q.A), mat(store.A), mat(q.W), *q.Rope, *k.Rope)
}

// isNormedHeadStore finds the norms of query and key heads before isHeadStore.
func isNormedHeadStore(d *Device, l device.List) int {
	if !kinds(l, device.OpHeadNorm, device.OpHeadNorm) || isHeadStore(d, l.From(2)) == 0 {
		return 0
	}
	q, k := &l.Ops[0], &l.Ops[1]
	if q.Out != l.Ops[2].Out || k.Out != l.Ops[3].Out || q.Eps != k.Eps {
		return 0
	}
	return 5
}

func addNormedHeadStore(b *ops.Builder, o []device.Op) {
	headStore(b, o[2:], mat(o[0].W), mat(o[1].W), o[0].Eps)
}

// isIndexStore finds norm and rotation of the queries of an index over blocks, norm and rotation of its keys if they have a norm, and their store.
func isIndexStore(_ *Device, l device.List) int {
	n := 3
	if kinds(l, device.OpHeadNorm, device.OpRope, device.OpHeadNorm, device.OpRope, device.OpStoreRows) {
		n = 5
	} else if !kinds(l, device.OpHeadNorm, device.OpRope, device.OpStoreRows) {
		return 0
	}
	q, turn, key := &l.Ops[0], &l.Ops[1], l.Ops[n-1].X
	if turn.Out != q.Out || key.Cols != turn.Rope.HeadDim || covers(q.Out, key) {
		return 0
	}
	if n == 5 {
		norm, keys, one := &l.Ops[2], &l.Ops[3], *turn.Rope
		one.Heads = 1
		if norm.Out != key || norm.Eps != q.Eps || keys.Out != key || *keys.Rope != one || keys.A != turn.A || keys.W != turn.W {
			return 0
		}
	}
	return n
}

func addIndexStore(b *ops.Builder, o []device.Op) {
	q, turn, store := &o[0], &o[1], &o[len(o)-1]
	x := elem.Index{Q: mat(q.Out), Key: mat(store.X), QNorm: mat(q.W), Eps: q.Eps, Positions: mat(turn.A), Slots: mat(store.A), Angles: mat(turn.W), Rope: *turn.Rope}
	if len(o) == 5 {
		x.KNorm = mat(o[2].W)
	}
	b.IndexStore(kv(&store.KV), &x)
}

// isMix finds the routed experts, the shared network if there is one, with or without a gate, and
// their sum.
func isMix(d *Device, l device.List) int {
	if d.Same {
		return 0
	}
	n := sumOf(l.Ops)
	if len(l.Ops) <= n || l.Ops[n].Kind != device.OpWeightedSum {
		return 0
	}
	experts, sum := &l.Ops[0], &l.Ops[n]
	var shared device.Mat
	if n > 1 {
		shared = l.Ops[1].Out
	}
	if n > 1 && l.Ops[1].X != experts.X || n > 2 && (l.Ops[2].Out != shared || l.Ops[2].X != experts.X) {
		return 0
	}
	if sum.X != experts.Out || sum.W != shared || sum.C != experts.Bank.Map {
		return 0
	}
	return n + 1
}

// sumOf returns the matrix for the sum of the mixture that o begins with.
func sumOf(o []device.Op) int {
	n := 1
	if len(o) > n && o[n].Kind == device.OpFFN {
		n++
		if len(o) > n && o[n].Kind == device.OpGateRows {
			n++
		}
	}
	return n
}

func addMix(b *ops.Builder, o []device.Op) {
	experts, sum := &o[0], &o[sumOf(o)]
	shared, ffn := sharedOf(o)
	b.Mix(mat(sum.Out), mat(experts.Out), shared, mat(experts.X), bank(experts.Bank), ffn, mat(experts.A), mat(sum.A))
}

func isAddMix(d *Device, l device.List) int {
	n := isMix(d, l)
	if n == 0 || !d.added(l, n) {
		return 0
	}
	return n + 1
}

func addAddMix(b *ops.Builder, o []device.Op) {
	n := sumOf(o)
	experts, sum, add := &o[0], &o[n], &o[n+1]
	shared, ffn := sharedOf(o)
	b.AddMix(mat(add.Out), mat(sum.Out), mat(experts.Out), shared, mat(experts.X), bank(experts.Bank), ffn, mat(experts.A), mat(sum.A))
}

// sharedOf returns the shared network of a mixture with its gate, and memory for its result.
func sharedOf(o []device.Op) (out launch.Mat, n ops.Network) {
	count := sumOf(o)
	if count == 1 {
		return out, n
	}
	n = network(o[1].FFN)
	if count == 3 {
		n.Gate = mat(o[2].W)
	}
	return mat(o[1].Out), n
}
