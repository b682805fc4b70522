package gemv

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// kRing compute both halves of a mixture's experts, kRingCut if parts of one are cut into pieces.
var kRing, kRingCut = ringKernels("kr_gemv_ring_"), ringKernels("kr_gemv_ring_cut_")

func ringKernels(prefix string) map[tensor.Format]launch.Kernel {
	return map[tensor.Format]launch.Kernel{
		tensor.INT4.By(128): launch.Named(prefix + "int4_g128_h"),
		tensor.INT3.By(64):  launch.Named(prefix + "int3_g64_h"), tensor.INT3.By(128): launch.Named(prefix + "int3_g128_h"),
	}
}

// The sizes of src/gemv_ring.cu.
const (
	ringFrom    = 8 // rows: fewer have too few tiles for every multiprocessor
	ringThreads = 640
	ringTeams   = 4
	ringUnits   = 4  // of a stage, at most
	ringPieces  = 2  // of a part, at most
	ringStages  = 16 // at most
	ringLeast   = 8  // stages that are worth it
)

// ringBytes returns the size of a stage of weights, and of what else a block has but activations.
func ringBytes(w *launch.Weight) (stage, fixed int) {
	scales := 128 / w.A.Group // of a unit
	return ringUnits * (1024*w.A.Bits() + 128*scales), 384 + 4*64 + 2*4*ringTeams*512 + 4*ringTeams*ringUnits*32*scales
}

// ringHalf is a half of a mixture in kRing: a matrix whose rows are cut into parts.
type ringHalf struct {
	parts  int
	paired bool
	pieces int // of a part
	run    int // bands of 64 rows that a block takes at a time
	runs   int // of a tile
}

// ringHalfOf returns the half for w; ok is false if kRing does not take it: a format of kRing,
// whole bands, and parts of equal size that have room in one or two pieces.
func ringHalfOf(w *launch.Weight, parts int, paired bool, run int) (h ringHalf, ok bool) {
	units, bands, together := unitsOf(w.Cols()), w.Rows()/64, ringTeams/max(parts, 1)
	pieces := (units + parts*ringUnits - 1) / (parts * ringUnits)
	if _, ok := kRing[w.A.Scaling()]; !ok || w.Cols()%128 != 0 || w.Rows()%64 != 0 ||
		parts*together != ringTeams || pieces > ringPieces || units%(parts*pieces) != 0 || bands%together != 0 {
		return h, false
	}
	return ringHalf{parts, paired, pieces, run, (bands + run - 1) / run}, true
}

// append appends the arguments HALF_ARGS before those of the bank.
func (h *ringHalf) append(args []launch.Arg, w *launch.Weight) []launch.Arg {
	return append(args, launch.I32(h.parts), flag(h.paired), launch.I32(h.pieces), launch.I32(unitsOf(w.Cols())/h.parts/h.pieces), launch.I32(w.Rows()/64), launch.I32(h.run),
		launch.I32(h.runs))
}

// ringRun returns the bands of a run for that many rows: larger runs load activations less often,
// but few tiles have too few of them.
func ringRun(rows int) int {
	if rows < 16 {
		return 4
	}
	return 8
}

// ringPlan says how kRing computes a mixture.
type ringPlan struct {
	one, two   ringHalf
	stages     int
	row, bytes int // of activations, and of a block's shared memory
}

// ringPlanOf returns the plan of a mixture; ok is false if kRing does not
// take it (biases, or an activation apart), or there are few rows. The runs of a launch are counted in 16 bits.
func ringPlanOf(gpu launch.GPU, m *Mixture) (p ringPlan, ok bool) {
	if !gpu.Hopper || folded(m) || m.Bank.B13 != 0 || m.Bank.B2 != 0 || m.Bank.Apart() || m.X.Rows < ringFrom {
		return p, false
	}
	gate, gatePaired := gateParts(m)
	down, downPaired := downParts(m)
	run := ringRun(m.X.Rows)
	var ok1, ok2 bool
	p.one, ok1 = ringHalfOf(&m.Bank.W13, gate, gatePaired, run)
	p.two, ok2 = ringHalfOf(&m.Bank.W2, down, downPaired, run)
	p.row = 2*max(m.X.Cols, m.Bank.W2.Cols()) + 16
	if !ok1 || !ok2 || m.Bank.W13.A.Scaling() != m.Bank.W2.A.Scaling() {
		return p, false
	}
	stage, rest := ringBytes(&m.Bank.W13)
	rest += TileRows * p.row
	p.stages = min(ringStages, (gpu.SharedMax-rest)/stage)
	p.bytes = rest + p.stages*stage
	return p, p.stages >= ringLeast && m.Aligned.MaxTiles()*(p.one.runs+p.two.runs)+2*gpu.SMs < 1<<16
}

// ring launches both halves: y and h as for downGrouped and gateUp.
func ring(l *launch.List, gpu launch.GPU, p *ringPlan, m *Mixture, s scratch) {
	a := &m.Aligned
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(s.y), launch.P(s.h), launch.P(m.X.At), launch.I32(m.X.Stride), launch.P(a.Tiles), launch.P(a.Slots), launch.P(a.Count),
		launch.I32(a.Tile), launch.I32(over(m.IDs.Cols)), launch.I32(p.stages), launch.I32(p.row))
	args = appendMatrix(append(p.one.append(args, &m.Bank.W13), launch.I64(m.Bank.Step), launch.I64(m.Bank.ScaleStep)), &m.Bank.W13)
	args = appendMatrix(append(p.two.append(args, &m.Bank.W2), launch.I64(m.Bank.Step2), launch.I64(m.Bank.ScaleStep2)), &m.Bank.W2)
	act := m.Bank.Act()
	args = append(args, act[:]...)
	kernels := kRing
	if p.one.pieces*p.two.pieces > 1 {
		kernels = kRingCut
	}
	l.Add(kernels[m.Bank.W13.A.Scaling()], launch.Config{Grid: launch.Dim{X: uint32(gpu.SMs)}, Block: launch.Dim{X: ringThreads}, Shared: uint32(p.bytes), PDL: true}, args...)
}
