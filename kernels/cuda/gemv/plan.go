package gemv

import "krater/kernels/cuda/launch"

// A plan is how the blocks of a kernel of gemv_moe.cu share out their warps and their
// shared memory.
type plan struct {
	warps              int
	parts, sharedParts int // of the columns of a row
	tokens             int // of a block, at most
	rows, rings        int // where in shared memory activations and rings begin
	bytes              int // of shared memory
}

// The sizes of src/gemv_flow.cuh and src/gemv_moe.cu.
const (
	zeros   = 256
	results = maxParts * 512
)

// ringBytes is the ring of a warp.
func (f format) ringBytes() int {
	group := 128 >> (2 - (f-int4x32)%3) // 32, 64, 128
	switch {
	case f == plainBF16:
		return 3 * 4096
	case f <= int4x128:
		return 8 * (1024 + 32*128/int(group))
	}
	return 4 * (2048 + 32*128/int(group))
}

// stagedBytes is a row of so many activations in shared memory.
func stagedBytes(cols int) int { return unitsOf(cols)*256 + 16 }

func fits(card launch.Card, bytes int) bool { return card.SharedMax == 0 || bytes <= card.SharedMax }

// planFor is the plan of blocks with room for tokens rows of so many bytes: as many warps
// as there is room for, at most maxParts.
func planFor(card launch.Card, parts, sharedParts, tokens, rowBytes, ring int) (p plan, ok bool) {
	p = plan{parts: parts, sharedParts: sharedParts, tokens: tokens, rows: results + zeros}
	p.rings = p.rows + tokens*rowBytes
	for p.warps = maxParts; p.warps >= max(parts, sharedParts); p.warps /= 2 {
		if p.bytes = p.rings + p.warps*ring; fits(card, p.bytes) {
			return p, true
		}
	}
	p.warps = max(parts, sharedParts)
	p.bytes = p.rings + p.warps*ring
	return p, fits(card, p.bytes)
}

// rowBlocks is how many row blocks of 16 a block has if its rows are cut into parts: Cut of
// gemv_flow.cuh.
func (p *plan) rowBlocks(parts int) int {
	n := maxParts
	for n*parts > p.warps {
		n /= 2
	}
	return n
}

// blocks is how many blocks so many rows make.
func (p *plan) blocks(rows, parts int) int {
	n := 16 * p.rowBlocks(parts)
	return (rows + n - 1) / n
}

// groups is how many groups of tokens so many rows of activations make.
func (p *plan) groups(rows int) int { return (rows + p.tokens - 1) / p.tokens }

func (p *plan) config(x, y int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(x), Y: uint32(y)}, Block: launch.Dim{X: uint32(32 * p.warps)},
		Shared: uint32(p.bytes), PDL: true}
}

// append appends the arguments PLAN_ARGS.
func (p *plan) append(args []launch.Arg, rows, sharedRows int) []launch.Arg {
	return append(args, launch.I32(rows), launch.I32(p.tokens), launch.I32(p.parts), launch.I32(p.sharedParts),
		launch.I32(sharedRows), launch.I32(p.rings))
}

// formatPair is how a mixture's routed and shared networks are kept, and whether the
// kernels take both together.
type formatPair struct {
	fold        bool
	ring, ring2 int // of a warp, first and second half
}

func formatsOf(m *Mixture) formatPair {
	r, _ := formatOf(&m.Bank.W13)
	r2, _ := formatOf(&m.Bank.W2)
	f := formatPair{ring: r.ringBytes(), ring2: r2.ringBytes()}
	if m.Shared.Zero() {
		return f
	}
	s, _ := formatOf(&m.Shared.W13)
	s2, _ := formatOf(&m.Shared.W2)
	together := func(r, s format) bool { return r == s || r == int4x128 && s == int8x128 }
	if f.fold = together(r, s) && together(r2, s2); f.fold {
		f.ring, f.ring2 = max(f.ring, s.ringBytes()), max(f.ring2, s2.ringBytes())
	}
	return f
}

// gateUp, down and downAll are the plans of a mixture's kernels, with tiles of so many
// tokens.
func (f formatPair) gateUp(card launch.Card, m *Mixture, tile int) (plan, bool) {
	hidden := m.X.Cols
	return planFor(card, gateParts(hidden), gateParts(hidden), tile, stagedBytes(hidden), f.ring)
}

func (f formatPair) down(card launch.Card, m *Mixture, tile int) (plan, bool) {
	width := m.Bank.W2.Cols()
	parts, bytes := downParts(width), stagedBytes(width)
	sharedParts := parts
	if f.fold {
		sharedParts, bytes = downParts(m.Shared.Width()), max(bytes, stagedBytes(m.Shared.Width()))
	}
	return planFor(card, parts, sharedParts, tile, bytes, f.ring2)
}

// downWarps is the most warps of a block of kr_gemv_down_all.
const downWarps = 16

func (f formatPair) downAll(card launch.Card, m *Mixture) (p plan, ok bool) {
	width := m.Bank.W2.Cols()
	p = plan{parts: downParts(width), tokens: 1}
	bytes := m.IDs.Cols * stagedBytes(width)
	if f.fold {
		p.sharedParts = downParts(m.Shared.Width())
		bytes += stagedBytes(m.Shared.Width())
	}
	items := m.IDs.Cols*p.parts + p.sharedParts
	p.rows = 64*items + up16(4*m.IDs.Cols) + zeros
	p.rings = p.rows + bytes
	for rounds := (items + downWarps - 1) / downWarps; rounds <= items; rounds++ {
		p.warps = (items + rounds - 1) / rounds
		if p.bytes = p.rings + p.warps*f.ring2; fits(card, p.bytes) {
			return p, true
		}
	}
	return p, false
}
