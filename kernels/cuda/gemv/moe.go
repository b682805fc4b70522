package gemv

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/link"
	"krater/kernels/cuda/route"
	"krater/kernels/tensor"
)

var (
	kDownAll = withBiases("kr_gemv_down_all_", formats)
	kDown    = withBiases("kr_gemv_down_", formats)

	kGateUpMixed  = mixed("kr_gemv_gate_up_")
	kDownMixed    = mixed("kr_gemv_down_")
	kDownAllMixed = mixed("kr_gemv_down_all_")
)

// withInt8 are the formats of experts with kernels of a name for a shared network of INT8 beside
// them, in groups of 128.
var withInt8 = [formats]bool{int4x128: true, int3x128: true}

// mixed are these kernels.
func mixed(prefix string) (k [formats]launch.Kernel) {
	for f, ok := range withInt8 {
		if ok {
			k[f] = launch.Named(prefix + formatNames[f] + "_int8_g128")
		}
	}
	return k
}

// TileRows is the most tokens of a tile of MoE's sorted assignments.
const TileRows = 8

// groupedFrom is the number of rows from which experts are read once for all their tokens: 8 rows
// of top 6 of 64 use 35 experts 48 times. With fewer rows this saves less than the additional
// launches cost.
const groupedFrom = 4

// Grouped reports whether MoE of that many rows needs its assignments sorted (route.Align with
// tiles of Tile). The results have the same bits.
func Grouped(rows int) bool { return rows >= groupedFrom }

// Mixture are the arguments of a mixture of experts.
type Mixture struct {
	X       launch.Mat    // [M, H] BF16
	Bank    launch.Bank   // E experts of width F, perhaps with biases and an activation
	IDs     launch.Mat    // [M, K] I32; an id outside 0..E-1, or not in the bank, adds nothing
	Weights launch.Mat    // [M, K] F32
	Shared  Network       // of width S; may be absent
	Gate    launch.Mat    // [1, H] BF16 or F32: the shared result's factor is sigmoid(x * gate); absent: 1
	Aligned route.Aligned // IDs sorted into tiles of Tile; read if Grouped(M)
}

// CanMoE reports whether MoE takes the mixture: as CanFFN, for experts and shared
// network, if a GPU's blocks have the shared memory for at least one token. A shared
// network of INT3 is computed only beside experts without biases and without a gate. It takes no
// activation apart.
func CanMoE(gpu launch.GPU, m *Mixture) bool {
	n := Network{m.Bank.W13, m.Bank.W2}
	return n.can(m.X) && !m.Bank.Apart() && (m.Shared.Zero() || m.Shared.can(m.X) && (m.Shared.alone() || divided(m))) &&
		(m.Gate.Zero() || elem.Chunks(m.X, m.Gate)) && m.IDs.Cols <= 32 && m.Bank.Step%16 == 0 && m.Bank.Step2%16 == 0 && m.Bank.ScaleStep%16 == 0 && m.Bank.ScaleStep2%16 == 0 &&
		Tile(gpu, m) > 0
}

// Tile returns the tile of tokens for the sorting of assignments: up to TileRows, as far as the
// GPU's shared memory allows; 0 if it does not suffice for one token.
func Tile(gpu launch.GPU, m *Mixture) int {
	rows := m.X.Rows
	for tile := min(TileRows, max(1, rows)); tile > 0; tile-- {
		if _, ok := gateUpPlan(gpu, m, tile); !ok {
			continue
		}
		if !Grouped(rows) {
			return tile
		}
		if _, ok := downPlan(gpu, m, tile); ok {
			return tile
		}
	}
	return 0
}

// MoEScratch returns the scratch memory of MoE in bytes. shared is the width of the shared
// network, 0 if there is none.
func MoEScratch(rows, topK, hidden, width, shared int) int {
	s := scratchOf(0, rows, topK, hidden, width, shared)
	return s.bytes
}

// scratch has the parts of MoE's memory.
type scratch struct {
	h      launch.Ptr // BF16 [M*K, F]
	shared launch.Ptr // BF16 [M, S]
	base   launch.Ptr // F32 [M, H]: the output of the shared network, if a separate kernel computes it
	y      launch.Ptr // F32 [M*K, H], if the work is grouped
	bytes  int
}

func scratchOf(at launch.Ptr, rows, topK, hidden, width, shared int) scratch {
	var s scratch
	cut := func(n int) launch.Ptr {
		p := at + launch.Ptr(s.bytes)
		s.bytes += up16(n)
		return p
	}
	s.h = cut(2 * rows * topK * width)
	if shared > 0 {
		s.shared = cut(2 * rows * shared)
		s.base = cut(4 * rows * hidden)
	}
	if Grouped(rows) {
		s.y = cut(4 * rows * topK * hidden)
	}
	return s
}

// MoE computes out [M, H] (F32 or BF16) = the sum over the ranks k = 0..K-1, in that order, of
// weights[., k] * the expert ids[., k] of x, plus the shared network of x, times its gate. memory has MoEScratch
// bytes, aligned to 16. If the last launch of l is a router that chooses IDs and Weights, the
// mixture may choose instead, and then also writes the router's results.
func MoE(l *launch.List, gpu launch.GPU, out launch.Mat, memory launch.Ptr, m *Mixture, o Options) {
	const op = "gemv MoE"
	rows, topK, hidden, width := m.X.Rows, m.IDs.Cols, m.X.Cols, m.Bank.W2.Cols()
	switch {
	case !CanMoE(gpu, m):
		refuse(op, "x %v, experts [%d, %d] and [%d, %d]", m.X, m.Bank.W13.Rows(), m.Bank.W13.Cols(), m.Bank.W2.Rows(), width)
	case m.IDs.DType != tensor.I32 || m.IDs.Rows != rows || !m.IDs.Dense() || topK < 1:
		refuse(op, "ids %v for x %v", m.IDs, m.X)
	case m.Weights.DType != tensor.F32 || m.Weights.Rows != rows || m.Weights.Cols != topK || !m.Weights.Dense():
		refuse(op, "weights %v for ids %v", m.Weights, m.IDs)
	case Grouped(rows) && (m.Aligned.Tile != Tile(gpu, m) || m.Aligned.Assignments != rows*topK || m.Aligned.Experts != m.Bank.Experts || m.Aligned.Map != m.Bank.Map):
		refuse(op, "%d assignments of %d experts in tiles of %d, by map %#x", m.Aligned.Assignments, m.Aligned.Experts, m.Aligned.Tile, uint64(m.Aligned.Map))
	}
	checkOut(op, out, rows, hidden)
	if rows == 0 {
		return
	}
	shared := 0
	if !m.Shared.Zero() {
		shared = m.Shared.Width()
	}
	s := scratchOf(memory, rows, topK, hidden, width, shared)
	w := work{ids: m.IDs.At, topK: topK, experts: m.Bank.Experts, where: m.Bank.Map, rows: rows * topK}
	room := launch.Range{At: memory, Bytes: s.bytes}
	if Grouped(rows) {
		w.aligned, w.rows = &m.Aligned, m.Aligned.MaxTiles()
	} else {
		w.left, _ = route.Leave(l, m.IDs, m.Weights, m.Bank.Experts, room)
		w.weights = m.Weights.At
	}
	fold := folded(m)
	if shared > 0 {
		w.early = route.Reads(l, m.X, room)
		if !w.early && fold && norms(&m.Shared.W13) {
			w.normed, w.early = route.Hold(l, m.X, room)
		}
	}
	base := launch.Ptr(0)
	if shared > 0 && (Grouped(rows) || !fold) {
		base = s.base
	}
	if shared > 0 && !fold {
		sum := launch.Mat{At: base, DType: tensor.F32, Rows: rows, Cols: hidden, Stride: hidden}
		m.Shared.run(l, gpu, sum, s.shared, m.X, m.Shared.gateParts(), m.Shared.downParts(), Options{})
	}
	if p, ok := ringPlanOf(gpu, m); ok {
		ring(l, gpu, &p, m, s)
		combine(l, out, m, s, base, o)
		return
	}
	tile := Tile(gpu, m)
	p, _ := gateUpPlan(gpu, m, tile)
	var with *Network
	if fold {
		with = &m.Shared
	}
	gateUp(l, p, m.X, &m.Bank, w, s.h, with, s.shared)
	if Grouped(rows) {
		downGrouped(l, gpu, m, tile, s)
		combine(l, out, m, s, base, o)
	} else {
		downAll(l, gpu, out, m, s, base, &w.left, o)
	}
}

// norms reports whether the kernels of a shared network's first half w13 can norm its rows: of whole units, and in a
// format that leaves them the registers (NORMS of src/gemv_moe.cu).
func norms(w13 *launch.Weight) bool {
	f, _ := formatOf(w13)
	return w13.Cols()%128 == 0 && f != int4x128 && f != int3x64 && f != int3x128
}

// gateParts and downParts return the number of parts into which the products of an expert are
// split. If one row's experts are so small that the GPU would lack warps, these are twice as many
// and are added two by two (paired); in the kernels for many rows a warp takes two. (With a
// shared network without a gate in the same launch there are enough warps.)
func gateParts(m *Mixture) (parts int, paired bool) {
	n, units := networkGateParts(m.X.Cols), unitsOf(m.X.Cols)
	if !divided(m) && 2*n <= maxParts && units >= 8*n && units%(2*n) == 0 && m.IDs.Cols*blocksOf(m.Bank.W13.Rows())*n < enoughWarps {
		return 2 * n, true
	}
	return n, false
}

func downParts(m *Mixture) (parts int, paired bool) {
	n := networkDownParts(m.Bank.W2.Cols())
	if units := unitsOf(m.Bank.W2.Cols()); !divided(m) && n == 1 && units == 6 && 2*m.IDs.Cols <= downWarps {
		return 2, true
	}
	return n, false
}

// enoughWarps keep a GPU of 132 multiprocessors busy.
const enoughWarps = 2048

// gateParts and downParts are the numbers of parts of a shared network that is divided by itself: the
// fewest that give enough warps. They are the same on every GPU, like those of experts.
func (n *Network) gateParts() int { return partsOf(n.W13.Rows(), n.W13.Cols(), enoughWarps) }
func (n *Network) downParts() int { return partsOf(n.W2.Rows(), n.W2.Cols(), enoughWarps) }

// networkGateParts and networkDownParts do the same for a network that all rows use.
func networkGateParts(hidden int) int { return min(maxParts, (unitsOf(hidden)+7)/8) }
func networkDownParts(width int) int {
	units := unitsOf(width)
	if units == 16 { // four equal parts, as kRing needs, and not three others
		return 4
	}
	return min(maxParts, (units+5)/6)
}

// sharedGateParts and sharedDownParts are the numbers of parts of a shared network beside experts. The first is higher if a
// warp has only one unit of INT8 in flight while others have two of INT4, so that both need the same number of memory accesses.
func sharedGateParts(m *Mixture) int {
	switch {
	case m.Shared.Zero():
	case !divided(m):
		return m.Shared.gateParts()
	default:
		r, _ := formatOf(&m.Bank.W13)
		if s, _ := formatOf(&m.Shared.W13); s != r {
			return min(maxParts, (unitsOf(m.X.Cols)+3)/4)
		}
	}
	return networkGateParts(m.X.Cols)
}

func sharedDownParts(m *Mixture) int {
	if divided(m) {
		return networkDownParts(m.Shared.Width())
	}
	return m.Shared.downParts()
}

// work has the assignments of a launch.
type work struct {
	ids           launch.Ptr
	weights       launch.Ptr     // written if left is to be chosen
	left          route.Left     // the choice, if no launch has made it
	early         bool           // x is there before the choice is, or what it is computed from
	normed        route.Normed   // that
	aligned       *route.Aligned // nil: one by one
	topK, experts int
	where         launch.Ptr // the bank's map
	rows          int        // size of the grid: assignments, or tiles
}

// appendGate appends the arguments ROW_GATE_ARGS of src/rowgate.cuh.
func (m *Mixture) appendGate(args []launch.Arg) []launch.Arg {
	return append(args, launch.P(m.X.At), launch.I32(m.X.Stride), launch.P(m.Gate.At), flag(m.Gate.DType == tensor.BF16))
}

// append appends tiles, slots and count.
func (w *work) append(args []launch.Arg) []launch.Arg {
	if w.aligned == nil {
		return append(args, launch.P(0), launch.P(0), launch.P(0))
	}
	return append(args, launch.P(w.aligned.Tiles), launch.P(w.aligned.Slots), launch.P(w.aligned.Count))
}

// appendBank appends the arguments BANK_ARGS of an expert's matrix.
func appendBank(args []launch.Arg, step, scaleStep, biasStep int64, w launch.Weight, bias launch.Ptr) []launch.Arg {
	w.Bias = bias
	return appendMatrix(append(args, launch.I64(step), launch.I64(scaleStep), launch.I64(biasStep)), &w)
}

// gateUp launches the first half of the experts (bank, nil: none) and of a network
// (shared, nil: none); h and hs get their hidden values.
func gateUp(l *launch.List, p plan, x launch.Mat, bank *launch.Bank, w work, h launch.Ptr, shared *Network, hs launch.Ptr) {
	var kernel launch.Kernel
	inOrder, sharedInOrder := false, false
	width, sharedRows, sharedBlocks := 0, 0, 0
	act, coming := (&launch.Extra{}).Act(), launch.Ptr(0)
	if shared != nil {
		f, _ := formatOf(&shared.W13)
		kernel = kGateUp.plain[f]
		sharedInOrder = shared.W2.A.Zero()
		sharedBlocks = p.blocks(shared.W13.Rows(), p.sharedParts) * p.groups(x.Rows)
		width, sharedRows = sharedBlocks, 1
	}
	if bank != nil {
		f, _ := formatOf(&bank.W13)
		kernel = kGateUp.of(f, !bank.Extra.Zero())
		if shared != nil {
			if s, _ := formatOf(&shared.W13); s != f {
				kernel = kGateUpMixed[f]
			}
		}
		inOrder = bank.W2.A.Zero()
		width = p.blocks(bank.W13.Rows(), p.parts)
		sharedRows = (sharedBlocks + width - 1) / width
	}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(h), flag(inOrder), launch.P(hs), flag(sharedInOrder), launch.P(x.At), launch.I32(x.Stride), launch.P(w.ids))
	args = append(w.append(args), launch.I32(w.topK), launch.I32(w.experts), launch.I32(over(w.topK)), launch.P(w.where))
	args = p.append(args, x.Rows, sharedRows)
	if bank != nil {
		args = appendBank(args, bank.Step, bank.ScaleStep, bank.BiasStep, bank.W13, bank.B13)
		act = bank.Act()
		if link.Last(l, bank.Coming) {
			coming = bank.Coming
		}
	} else {
		args = appendMatrix(append(args, launch.I64(0), launch.I64(0), launch.I64(0)), nil)
	}
	if shared != nil {
		args = appendMatrix(args, &shared.W13)
	} else {
		args = appendMatrix(args, nil)
	}
	args = append(w.left.Append(args), launch.P(w.weights), flag(w.early), act[0], act[1], act[2])
	l.Add(kernel, p.config(width, sharedRows+w.rows), append(w.normed.Append(args), launch.P(coming))...)
}

// downAll launches the second half of few rows: experts, shared network (if folded) or
// its output (base), and their sum.
func downAll(l *launch.List, gpu launch.GPU, out launch.Mat, m *Mixture, s scratch, base launch.Ptr, left *route.Left, o Options) {
	p := downAllPlan(m)
	routed, _ := formatOf(&m.Bank.W2)
	kernel := kDownAll.of(routed, !m.Bank.Extra.Zero())
	var shared *launch.Weight
	if folded(m) {
		shared = &m.Shared.W2
		if f, _ := formatOf(shared); f != routed {
			kernel = kDownAllMixed[routed]
		}
	}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), flag(o.Add), launch.P(s.h), launch.P(s.shared), launch.P(base),
		launch.P(m.IDs.At), launch.P(m.Weights.At), launch.I32(m.IDs.Cols), launch.I32(m.Bank.Experts), launch.P(m.Bank.Map))
	args = appendBank(p.appendParts(args), m.Bank.Step2, m.Bank.ScaleStep2, m.Bank.BiasStep, m.Bank.W2, m.Bank.B2)
	l.Add(kernel, p.config(blocksOf(out.Cols), out.Rows), m.appendGate(left.Append(appendMatrix(args, shared)))...)
}

// downGrouped launches the second half of sorted work and of a folded network.
func downGrouped(l *launch.List, gpu launch.GPU, m *Mixture, tile int, s scratch) {
	p, _ := downPlan(gpu, m, tile)
	routed, _ := formatOf(&m.Bank.W2)
	kernel, a := kDown.of(routed, !m.Bank.Extra.Zero()), &m.Aligned
	width, sharedRows := p.blocks(m.X.Cols, p.parts), 0
	var shared *launch.Weight
	if folded(m) {
		shared = &m.Shared.W2
		if f, _ := formatOf(shared); f != routed {
			kernel = kDownMixed[routed]
		}
		sharedRows = (p.blocks(m.X.Cols, p.sharedParts)*p.groups(m.X.Rows) + width - 1) / width
	}
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(s.y), launch.P(s.h), launch.P(s.base), launch.P(s.shared), launch.P(a.Tiles), launch.P(a.Slots), launch.P(a.Count))
	args = appendBank(p.append(args, m.X.Rows, sharedRows), m.Bank.Step2, m.Bank.ScaleStep2, m.Bank.BiasStep, m.Bank.W2, m.Bank.B2)
	args = appendMatrix(args, shared)
	l.Add(kernel, p.config(width, sharedRows+a.MaxTiles()), args...)
}
