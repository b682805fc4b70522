package gemv

import (
	"math/bits"

	"krater/kernels/cuda/launch"
)

// A plan says how the blocks of a kernel of gemv_moe.cu use their warps and their shared memory.
type plan struct {
	warps              int
	parts, sharedParts int // of the columns of a row
	pairs, half        int // how the routed experts' parts are added: Cut of src/gemv_flow.cuh
	tokens             int // per block, at most
	bytes              int // bytes of shared memory
}

// The sizes of src/gemv_flow.cuh and src/gemv_moe.cu.
const (
	zeros   = 256
	results = maxParts * 512
	fixed   = 2048 // of kr_gemv_gate_up, in addition to the launch's dynamic memory
)

// stagedBytes returns the size of a row of that many activations in shared memory.
func stagedBytes(cols int) int { return unitsOf(cols)*256 + 16 }

// pair sets how paired parts of rows of cols columns are added: for few rows each part has a
// warp, for many rows one warp has two parts.
func (p *plan) pair(rows, cols int) {
	if !Grouped(rows) {
		p.pairs = 1
		return
	}
	p.half = unitsOf(cols) / p.parts
	p.parts /= 2
}

// noHalf is NO_HALF of src/gemv_flow.cuh.
const noHalf = 1 << 20

// planFor returns the plan of blocks with room for tokens rows of that many bytes.
func planFor(gpu launch.GPU, parts, sharedParts, tokens, rowBytes int) (p plan, ok bool) {
	p = plan{warps: maxParts, parts: parts, sharedParts: sharedParts, half: noHalf, tokens: tokens, bytes: results + zeros + tokens*rowBytes}
	return p, gpu.SharedMax == 0 || p.bytes+fixed <= gpu.SharedMax
}

// rowBlocks returns the number of row blocks of 16 per block, if rows are cut into parts: Cut of
// gemv_flow.cuh.
func (p *plan) rowBlocks(parts int) int {
	n := maxParts
	for n*parts > p.warps {
		n /= 2
	}
	return n
}

// blocks returns the number of blocks for that many rows.
func (p *plan) blocks(rows, parts int) int {
	n := 16 * p.rowBlocks(parts)
	return (rows + n - 1) / n
}

// groups returns the number of groups of tokens for that many rows of activations.
func (p *plan) groups(rows int) int { return (rows + p.tokens - 1) / p.tokens }

func (p *plan) config(x, y int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(x), Y: uint32(y)}, Block: launch.Dim{X: uint32(32 * p.warps)},
		Shared: uint32(p.bytes), PDL: true}
}

// appendParts appends both numbers of parts, each with the factor that replaces a division by it
// (Parts in gemv_flow.cuh).
func (p *plan) appendParts(args []launch.Arg) []launch.Arg {
	return append(args, launch.I32(p.parts), launch.I32(over(p.parts)), launch.I32(p.sharedParts), launch.I32(over(p.sharedParts)))
}

// over returns the factor that replaces a division by n: 2^16 / n, rounded up. It is exact for
// numbers whose product with n is below 2^16.
func over(n int) int { return (1<<16 + max(n, 1) - 1) / max(n, 1) }

// append appends the arguments PLAN_ARGS.
func (p *plan) append(args []launch.Arg, rows, sharedRows int) []launch.Arg {
	args = append(args, launch.I32(rows), launch.I32(p.tokens), launch.I32(p.groups(rows)),
		launch.I32(bits.Len(uint(p.rowBlocks(p.parts)))-1), launch.I32(bits.Len(uint(p.rowBlocks(p.sharedParts)))-1))
	return append(p.appendParts(args), launch.I32(p.pairs), launch.I32(p.half), launch.I32(sharedRows))
}

// folded reports whether kernels compute a mixture's routed and shared networks together. With a gate only those of few
// rows do, with the parts of a network apart, so that a row's bits do not depend on the number of rows.
func folded(m *Mixture) bool { return foldable(m) && (m.Gate.Zero() || !Grouped(m.X.Rows)) }

// divided reports whether routed and shared networks are divided into parts for one launch, whatever the number of rows.
func divided(m *Mixture) bool { return m.Gate.Zero() && foldable(m) }

// foldable reports whether there are kernels for both networks.
func foldable(m *Mixture) bool {
	if m.Shared.Zero() || !m.Bank.Extra.Zero() {
		return false
	}
	together := func(routed, shared *launch.Weight) bool {
		r, _ := formatOf(routed)
		s, _ := formatOf(shared)
		return r == s || withInt8[r] && s == int8x128
	}
	return together(&m.Bank.W13, &m.Shared.W13) && together(&m.Bank.W2, &m.Shared.W2)
}

// gateUpPlan, downPlan and downAllPlan return the plans of a mixture's kernels, with tiles of
// that many tokens.
func gateUpPlan(gpu launch.GPU, m *Mixture, tile int) (plan, bool) {
	parts, paired := gateParts(m)
	p, ok := planFor(gpu, parts, sharedGateParts(m), tile, stagedBytes(m.X.Cols))
	if paired {
		p.pair(m.X.Rows, m.X.Cols)
	}
	return p, ok
}

func downPlan(gpu launch.GPU, m *Mixture, tile int) (plan, bool) {
	parts, paired := downParts(m)
	sharedParts, bytes := parts, stagedBytes(m.Bank.W2.Cols())
	if folded(m) {
		sharedParts, bytes = sharedDownParts(m), max(bytes, stagedBytes(m.Shared.Width()))
	}
	p, ok := planFor(gpu, parts, sharedParts, tile, bytes)
	if paired {
		p.pair(m.X.Rows, m.Bank.W2.Cols())
	}
	return p, ok
}

// downWarps is the most warps of a block of kr_gemv_down_all.
const downWarps = 16

func downAllPlan(m *Mixture) plan {
	p := plan{}
	p.parts, _ = downParts(m)
	if folded(m) {
		p.sharedParts = sharedDownParts(m)
	}
	items := m.IDs.Cols*p.parts + p.sharedParts
	most := downWarps
	if m.X.Rows > 1 {
		most /= 2 // two blocks per multiprocessor: as many warps, and a token's blocks do not wait for another token's
	}
	rounds := (items + most - 1) / most
	p.warps = (items + rounds - 1) / rounds
	p.bytes = 64*items + 4*m.IDs.Cols
	return p
}
