package moe

import (
	"strings"

	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// Variant is a kernel of a format, with the part of a product that a block computes.
type Variant uint8

const (
	Auto   Variant = iota // chosen by shape
	A32                   // mma.sync, 256 rows of weights with 32 tokens
	A64                   // mma.sync, 256 x 64
	H32                   // wgmma, 128 x 32, three blocks per multiprocessor
	H64                   // wgmma, 128 x 64, two
	H128                  // wgmma, 128 x 128, two
	H128x4                // wgmma, 256 x 128, one
	variants
)

// shape has the sizes and resources of a variant's block, as in the kernels.
type shape struct {
	suffix  string
	tokens  int
	rows    int // stored rows of weights
	threads int
	stages  int  // tiles of activations in shared memory
	staged  bool // and of weights
}

var shapes = [variants]shape{
	A32:    {"_t32", 32, 256, 256, 4, false},
	A64:    {"_t64", 64, 256, 256, 4, false},
	H32:    {"_t32_h", 32, 128, 256, 6, true},
	H64:    {"_t64_h", 64, 128, 256, 6, true},
	H128:   {"_t128_h", 128, 128, 256, 5, false},
	H128x4: {"_t128x4_h", 128, 256, 512, 5, false},
}

// shared returns the dynamic shared memory of a block: the ring of activations and perhaps
// weights, which later holds the results, and the output row of every token.
func (s *shape) shared(f format) int {
	stage := s.tokens * 128
	if s.staged {
		stage += s.threads * placeBytes[f]
	}
	return max(s.stages*stage, s.tokens*(2*s.rows+16)) + 4*s.tokens
}

// placeBytes is the size of a thread's part of a tile of 64 columns: 16 bytes for the weights of a
// load, 4 per scale.
var placeBytes = [formats]int{24, 20, 20, 16, 40, 40, 40, 32, 20, 20}

// Tokens returns the number of tokens of a tile.
func (v Variant) Tokens() int { return shapes[v].tokens }

func (v Variant) String() string {
	if v == Auto {
		return "auto"
	}
	return shapes[v].suffix[1:]
}

// The average numbers of tokens per expert from which larger tiles are used. Measured on an H100
// with 64 experts of 1408 x 2048, with a simpler loop: at 48 tokens per expert, tiles of 64 take
// two thirds of the time of tiles of 128; at 192, four warpgroups with 128 tokens are the
// fastest; at 768, two blocks of two. Weights are unpacked once per tile, however few its tokens
// are. So tiles are rather too large, and kernels for Hopper multiply half a tile if that holds
// all tokens. Tiles of 32 are for experts that would rarely fill more than such a half; they give
// more blocks at a time.
const (
	tokensForH64    = 16
	tokensForA64    = 24
	tokensFor128    = 64
	tokensForBlocks = 384
)

// choose returns the variant for that many tokens per expert.
func choose(gpu launch.GPU, mean int) Variant {
	switch {
	case !gpu.Hopper && mean < tokensForA64:
		return A32
	case !gpu.Hopper:
		return A64
	case mean < tokensForH64:
		return H32
	case mean < tokensFor128:
		return H64
	case mean < tokensForBlocks:
		return H128x4
	}
	return H128
}

// For returns the variant that Experts runs for that many assignments. route.Align must cut tiles
// of its Tokens.
func For(gpu launch.GPU, assignments, experts int) Variant {
	return choose(gpu, assignments/max(1, experts))
}

// ForBank is For with the bank's biases and activation, which have no kernel for A64.
func ForBank(gpu launch.GPU, assignments int, b *launch.Bank) Variant {
	v := For(gpu, assignments, b.Experts)
	if v == A64 && !simple(b) {
		return A32
	}
	return v
}

// runs reports whether the GPU has the variant.
func (v Variant) runs(gpu launch.GPU) bool {
	return v > Auto && v < variants && (gpu.Hopper || v <= A64)
}

// format numbers the formats of weights.
type format int

const formats = 10

var formatList = [formats]tensor.Format{
	tensor.INT4.By(32), tensor.INT4.By(64), tensor.INT4.By(128), tensor.INT4.By(0),
	tensor.INT8.By(32), tensor.INT8.By(64), tensor.INT8.By(128), tensor.INT8.By(0),
	tensor.INT3.By(64), tensor.INT3.By(128),
}

var formatIndex = func() map[tensor.Format]format {
	m := map[tensor.Format]format{}
	for i, f := range formatList {
		m[f] = format(i)
	}
	m[tensor.INT3.By(0)] = m[tensor.INT3.By(128)] // of up to 128 columns
	return m
}()

// formatOf returns the format of w; ok is false if no kernel here takes it.
func formatOf(w *launch.Tiles) (f format, ok bool) {
	f, ok = formatIndex[w.Scaling()]
	return f, ok
}

// biased are the kernels with biases and any activation: of formats with groups, and without A64.
var kernels, biased = func() (k, biased [variants][formats]launch.Kernel) {
	for v := Auto + 1; v < variants; v++ {
		for f, kept := range formatList {
			name := strings.ReplaceAll(kept.String(), "_row", "_ch") + shapes[v].suffix
			k[v][f] = launch.Named("kr_moe_" + name)
			if kept.Group != 0 && v != A64 {
				biased[v][f] = launch.Named("kr_moe_biased_" + name)
			}
		}
	}
	return k, biased
}()

// fits reports whether a kernel takes w: a multiple of 64 columns and of 8 rows (of 16 if gate
// and up are joined), with aligned addresses.
func fits(w *launch.Tiles) bool {
	rows := 8
	if w.Joined {
		rows = 16
	}
	if w.Zero() {
		return false
	}
	_, ok := formatOf(w)
	return ok && w.Check() == nil && w.Cols%tensor.TileA == 0 && w.Rows%rows == 0 && w.Values%16 == 0 && w.Scales%4 == 0
}

// readable reports whether rows of BF16 can be copied 16 bytes at a time.
func readable(m launch.Mat) bool {
	return m.DType == tensor.BF16 && m.At%16 == 0 && (m.Stride%8 == 0 || m.Rows <= 1)
}

// writable is readable for results: F32 may be at any element.
func writable(m launch.Mat) bool { return m.DType == tensor.F32 || readable(m) }
