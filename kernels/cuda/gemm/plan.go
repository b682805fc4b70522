package gemm

import (
	"fmt"

	"krater/kernels/cuda/launch"
)

// Variant is a kernel, with its size of tile per block.
type Variant uint8

const (
	Auto Variant = iota // chosen by shape
	A64                 // mma.sync, 64 rows of x with 64 of w
	A128                // mma.sync, 128 x 128
	H64                 // wgmma, 64 x 128
	H128                // wgmma, 128 x 128
	H256                // wgmma, 128 x 256
	variants
)

// shape has the sizes and resources of a variant's block, as in the kernels.
type shape struct {
	name       string
	rows, cols int // rows of a tile: of x, of w
	threads    int
	swiglu     int // threads; with two matrices
	blocks     int // blocks per multiprocessor
	shared     int // bytes
	hopper     bool
	rate       float64 // of a full GPU, TFLOP/s: see cost
	kernel     launch.Kernel
	both       launch.Kernel // SwiGLU of two matrices
}

// The dynamic shared memory is a ring of stages. gemm_a.cu has rows of 64 bytes of both matrices,
// gemm_h.cu rows of 128 bytes and two barriers.
func sharedA(rows int) int         { return 4 * rows * 64 }
func sharedH(stages, rows int) int { return stages * (rows*128 + 16) }

var shapes = [variants]shape{
	A64: {name: "64x64", rows: 64, cols: 64, threads: 128, swiglu: 64, blocks: 4, shared: sharedA(128), rate: 260,
		kernel: launch.Named("kr_gemm_64x64"), both: launch.Named("kr_gemm_swiglu_64x64")},
	A128: {name: "128x128", rows: 128, cols: 128, threads: 128, swiglu: 128, blocks: 2, shared: sharedA(256), rate: 420,
		kernel: launch.Named("kr_gemm_128x128"), both: launch.Named("kr_gemm_swiglu_128x128")},
	H64: {name: "64x128_h", rows: 64, cols: 128, threads: 384, swiglu: 384, blocks: 2, shared: sharedH(4, 192), hopper: true, rate: 400,
		kernel: launch.Named("kr_gemm_64x128_h"), both: launch.Named("kr_gemm_swiglu_64x128_h")},
	H128: {name: "128x128_h", rows: 128, cols: 128, threads: 384, swiglu: 384, blocks: 1, shared: sharedH(6, 256), hopper: true, rate: 500,
		kernel: launch.Named("kr_gemm_128x128_h"), both: launch.Named("kr_gemm_swiglu_128x128_h")},
	H256: {name: "128x256_h", rows: 128, cols: 256, threads: 384, swiglu: 384, blocks: 1, shared: sharedH(4, 384), hopper: true, rate: 620,
		kernel: launch.Named("kr_gemm_128x256_h"), both: launch.Named("kr_gemm_swiglu_128x256_h")},
}

// String returns the variant's name.
func (v Variant) String() string {
	if v == Auto || v >= variants {
		return "auto"
	}
	return shapes[v].name
}

// runs reports whether the GPU has the variant.
func (v Variant) runs(gpu launch.GPU) bool {
	if v == Auto || v >= variants {
		return false
	}
	s := &shapes[v]
	return (gpu.Hopper || !s.hopper) && (gpu.SharedMax == 0 || s.shared <= gpu.SharedMax)
}

// Plan says how a product is computed. The zero Plan is chosen by shape.
type Plan struct {
	Variant Variant
	// Parts is the number of pieces into which K is cut. Each is multiplied by its own blocks
	// into float32, and a second kernel adds them in order. 0 and 1: K is not cut.
	Parts int
}

func (p Plan) String() string {
	if p.Parts > 1 {
		return fmt.Sprintf("%v in %d parts", p.Variant, p.Parts)
	}
	return p.Variant.String()
}

// partMin is the least length of a part that Choose makes, partsMax the most parts, and
// scratchMax the most memory for them.
const (
	partMin    = 512
	partsMax   = 8
	scratchMax = 64 << 20
)

// part returns the length of a part of k, a multiple of 64, and the number of parts.
func part(k, parts int) (length, count int) {
	length = (ceil(k, parts) + 63) &^ 63
	return length, ceil(k, length)
}

// Sizes are the sizes of out [M, N] = x [M, K] * transposed w [N, K].
type Sizes struct {
	M, N, K int
	Batch   int  // the number of products; 0: one
	SwiGLU  bool // with two matrices w
	Whole   bool // K may not be cut
}

func (z Sizes) whole() bool { return z.Whole || z.SwiGLU || z.Batch > 1 }

// scratch returns the size of that many parts in bytes.
func (z Sizes) scratch(parts int) int { return 4 * parts * z.M * z.N }

// fills reports whether there are tiles for all blocks that fit on the GPU.
func (z Sizes) fills(gpu launch.GPU, v Variant) bool {
	s := &shapes[v]
	return ceil(z.M, s.rows)*ceil(z.N, s.cols) >= gpu.SMs*s.blocks
}

// Choose returns the cheapest plan that the GPU can run; it uses mma.sync kernels only without
// wgmma. The result depends on nothing but its arguments.
func Choose(gpu launch.GPU, z Sizes) Plan {
	var best Plan
	least := 0.0
	for v := Auto + 1; v < variants; v++ {
		if s := &shapes[v]; !v.runs(gpu) || gpu.Hopper != s.hopper {
			continue
		}
		for parts := 1; parts <= partsMax; parts++ {
			if parts > 1 && (z.whole() || z.K < parts*partMin || z.scratch(parts) > scratchMax || z.fills(gpu, v)) {
				break
			}
			if _, n := part(z.K, parts); n != parts {
				continue
			}
			if c := cost(gpu, z, Plan{v, parts}); best.Variant == Auto || c < least {
				best, least = Plan{v, parts}, c
			}
		}
	}
	return best
}

// The assumptions of cost, for an H100. Only their ratios matter. The rates grow with a tile's
// rows times columns over their sum: the traffic from L2 for a product has that ratio, and limits
// all but the largest tiles.
const (
	fullSMs    = 132
	tileUs     = 2.0 // to start a block's copies and to store its results
	partsUs    = 3.0 // a second kernel
	bytesPerUs = 3e6
)

// cost estimates the microseconds of a plan. Tiles run in rounds of as many as the GPU holds. In
// the last round a multiprocessor may have fewer blocks than it can hold, and then hides less of
// its waiting.
func cost(gpu launch.GPU, z Sizes, p Plan) float64 {
	s := &shapes[p.Variant]
	k, parts := part(z.K, max(1, p.Parts))
	cols, batch := z.N, max(1, z.Batch)
	if z.SwiGLU {
		cols *= 2
	}
	tiles := ceil(z.M, s.rows) * ceil(cols, s.cols) * batch * parts
	sms := max(1, gpu.SMs)
	tile := 2 * float64(s.rows) * float64(s.cols) * float64(k) / (s.rate * 1e6 / fullSMs)
	held := float64(s.blocks)
	us := tileUs + float64(tiles/(sms*s.blocks))*held*tile
	if rest := tiles % (sms * s.blocks); rest > 0 {
		b := float64(ceil(rest, sms))
		us += b * tile * (1 + held) / (1 + b)
	}
	results := float64(z.M) * float64(z.N) * float64(batch)
	bytes := 2*float64(z.M+cols)*float64(z.K)*float64(batch) + 2*results
	us = max(us, tileUs+bytes/bytesPerUs)
	if parts > 1 { // at best the parts are written while the products run, and are read afterwards
		us += partsUs + 4*float64(parts)*results/bytesPerUs
	}
	return us
}

func ceil(a, b int) int { return (a + b - 1) / b }
