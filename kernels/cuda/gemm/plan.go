package gemm

import (
	"fmt"

	"krater/kernels/cuda/launch"
)

// Variant is a kernel: how large a tile of results a block has.
type Variant uint8

const (
	Auto Variant = iota // by shape
	A64                 // mma.sync, 64 x 64
	A128                // mma.sync, 128 x 128
	H64                 // wgmma, 64 x 128
	H128                // wgmma, 128 x 128
	H256                // wgmma, 128 x 256
	variants
)

// shape is what a variant's block takes and needs, as the kernels have it.
type shape struct {
	name           string
	rows, cols     int // of a tile; SwiGLU has half the columns
	threads        int
	swigluThreads  int
	blocks         int // that a multiprocessor holds
	shared         int // bytes
	hopper         bool
	rate           float64 // of a full card, TFLOP/s: see cost
	plain, swiglus launch.Kernel
}

const (
	stageA = 64      // bytes of a row of a stage
	stageH = 128     //
	barsH  = 8 * 2   // bytes of a stage's barriers
	band   = 1 << 31 // tiles of all products are counted in int
)

var shapes = [variants]shape{
	A64: {name: "64x64", rows: 64, cols: 64, threads: 128, swigluThreads: 64, blocks: 4, shared: 4 * 128 * stageA, rate: 260,
		plain: launch.Named("kr_gemm_64x64"), swiglus: launch.Named("kr_gemm_swiglu_64x64")},
	A128: {name: "128x128", rows: 128, cols: 128, threads: 128, swigluThreads: 128, blocks: 2, shared: 4 * 256 * stageA, rate: 420,
		plain: launch.Named("kr_gemm_128x128"), swiglus: launch.Named("kr_gemm_swiglu_128x128")},
	H64: {name: "64x128_h", rows: 64, cols: 128, threads: 384, swigluThreads: 384, blocks: 2, shared: 4 * (192*stageH + barsH), hopper: true, rate: 400,
		plain: launch.Named("kr_gemm_64x128_h"), swiglus: launch.Named("kr_gemm_swiglu_64x128_h")},
	H128: {name: "128x128_h", rows: 128, cols: 128, threads: 384, swigluThreads: 384, blocks: 1, shared: 6 * (256*stageH + barsH), hopper: true, rate: 500,
		plain: launch.Named("kr_gemm_128x128_h"), swiglus: launch.Named("kr_gemm_swiglu_128x128_h")},
	H256: {name: "128x256_h", rows: 128, cols: 256, threads: 384, swigluThreads: 384, blocks: 1, shared: 4 * (384*stageH + barsH), hopper: true, rate: 620,
		plain: launch.Named("kr_gemm_128x256_h"), swiglus: launch.Named("kr_gemm_swiglu_128x256_h")},
}

// String is the variant's name.
func (v Variant) String() string {
	if v == Auto {
		return "auto"
	}
	return shapes[v].name
}

// runs reports whether the card has the variant.
func (v Variant) runs(card launch.Card) bool {
	s := &shapes[v]
	return v > Auto && v < variants && (card.Hopper || !s.hopper) && (card.SharedMax == 0 || s.shared <= card.SharedMax)
}

// Plan says how a product is carried out. The zero Plan is chosen by shape.
type Plan struct {
	Variant Variant
	// Parts is into how many pieces K is cut, each multiplied by blocks of its own into
	// float32 and then added up in order by a second kernel; 0 and 1: it is not.
	Parts int
}

func (p Plan) String() string {
	if p.Parts > 1 {
		return fmt.Sprintf("%v in %d parts", p.Variant, p.Parts)
	}
	return p.Variant.String()
}

// partMin is the least length of a part, partsMax the largest number of them.
const (
	partMin  = 512
	partsMax = 8
)

// part is the length of a part of k, a multiple of 64, and count how many there are.
func part(k, parts int) (length, count int) {
	length = (k + parts - 1) / parts
	length = (length + 63) &^ 63
	return length, (k + length - 1) / length
}

// Sizes are of out [M, N] = x [M, K] * transposed w [N, K], Batch times (0: once).
type Sizes struct{ M, N, K, Batch int }

// Choose gives the plan with the least cost. divisible: K may be cut. It depends on
// nothing but its arguments.
func Choose(card launch.Card, s Sizes, divisible bool) Plan { return choose(card, s, divisible, false) }

func choose(card launch.Card, s Sizes, divisible, swiglu bool) Plan {
	var best Plan
	least := 0.0
	for v := Auto + 1; v < variants; v++ {
		if !v.runs(card) || card.Hopper && !shapes[v].hopper {
			continue
		}
		for parts := 1; parts <= partsMax; parts++ {
			if parts > 1 && (!divisible || s.K < parts*partMin) {
				break
			}
			if _, n := part(s.K, parts); n != parts {
				continue
			}
			if c := cost(card, s, Plan{v, parts}, swiglu); best.Variant == Auto || c < least {
				best, least = Plan{v, parts}, c
			}
		}
	}
	return best
}

// What cost assumes, of an H100. That the rates are right among themselves matters, how
// large they are does not.
const (
	fullSMs    = 132
	tileUs     = 2.0 // to start a block's copies and to store its results
	partsUs    = 3.0 // a second kernel
	bytesPerUs = 3e6
)

// cost is about how many microseconds a plan takes. Tiles run in rounds of as many as the
// card holds; in the last round a multiprocessor may have fewer blocks than it can hold,
// and then hides less of its waiting.
func cost(card launch.Card, z Sizes, p Plan, swiglu bool) float64 {
	s := &shapes[p.Variant]
	k, parts := part(z.K, max(1, p.Parts))
	rows, cols, batch := z.M, z.N, max(1, z.Batch)
	if swiglu {
		cols *= 2
	}
	tiles := ceil(rows, s.rows) * ceil(cols, s.cols) * batch * parts
	sms := max(1, card.SMs)
	perSM := s.rate * 1e6 / fullSMs // multiply-adds twice, a microsecond
	tile := 2 * float64(s.rows) * float64(s.cols) * float64(k) / perSM
	held := float64(s.blocks)
	us := tileUs + float64(tiles/(sms*s.blocks))*held*tile
	if rest := tiles % (sms * s.blocks); rest > 0 {
		b := float64(ceil(rest, sms))
		us += b * tile * (1 + held) / (1 + b)
	}
	results := float64(rows) * float64(z.N) * float64(batch)
	bytes := 2 * (float64(rows+cols)*float64(z.K)*float64(batch) + results)
	if parts > 1 {
		bytes += 8 * float64(parts) * results
		us += partsUs
	}
	return max(us, tileUs+bytes/bytesPerUs)
}

func ceil(a, b int) int { return (a + b - 1) / b }
