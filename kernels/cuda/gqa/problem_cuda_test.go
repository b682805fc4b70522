//go:build cuda

package gqa

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// epsMMA: weights and the sums of values are rounded to bf16 (2^-9 each, relative to sums of
// size 1), and so is the result.
const epsMMA = 2. / 256

// seq is one sequence of a batch: rows new rows after past positions.
type seq struct {
	past, rows int
	decode     bool
}

func contexts(n ...int) []seq {
	var s []seq
	for _, ctx := range n {
		s = append(s, seq{past: ctx - 1, rows: 1, decode: true})
	}
	return s
}

// problem is a batch on the GPU. Its blocks are in any order, unused positions are NaN, and
// queries and cache rows are followed by a gap.
type problem struct {
	c               *cudatest.GPU
	p               device.GQA
	prefill, decode []device.Span
	rows, slots     int
	query, cached   []float32
	q, table        launch.Mat
	kv              launch.KV

	sinks   []float32 // nil: none
	sinkMat launch.Mat
}

func newProblem(c *cudatest.GPU, seed uint64, heads, kvHeads, dim, blockTokens int, cache tensor.DType, seqs []seq) *problem {
	rng := rand.New(rand.NewPCG(seed, 2))
	b := &problem{c: c, p: device.GQA{Heads: heads, KVHeads: kvHeads, HeadDim: dim, Scale: float32(1.3 / math.Sqrt(float64(dim))), BlockTokens: blockTokens}}
	b.place(rng, seqs)
	b.query = cudatest.Normal(rng, b.rows*heads*dim)
	wide := make([]float32, b.rows*(heads*dim+8))
	for r := range b.rows {
		copy(wide[r*(heads*dim+8):], b.query[r*heads*dim:][:heads*dim])
	}
	b.q = c.BF16(wide, b.rows, heads*dim+8).ColRange(0, heads*dim)
	b.fill(rng, cache)
	return b
}

// place assigns rows and blocks to the sequences, and makes the table.
func (b *problem) place(rng *rand.Rand, seqs []seq) {
	bt, blocks := b.p.BlockTokens, 3
	for _, s := range seqs {
		blocks += (s.past+s.rows+bt-1)/bt + 1 // one too many: a table may be longer than needed
	}
	order := rng.Perm(blocks)
	for _, s := range seqs {
		n := (s.past+s.rows+bt-1)/bt + 1
		sp := device.Span{Row: b.rows, Len: s.rows, Pos: s.past}
		for _, id := range order[:n] {
			sp.Blocks = append(sp.Blocks, int32(id))
		}
		order = order[n:]
		b.rows += s.rows
		if s.decode {
			b.decode = append(b.decode, sp)
		} else {
			b.prefill = append(b.prefill, sp)
		}
	}
	b.slots = blocks * bt
	b.putTable()
}

func (b *problem) all() []device.Span {
	return append(append([]device.Span(nil), b.prefill...), b.decode...)
}

func (b *problem) putTable() {
	n := 0
	for _, s := range b.all() {
		n += len(s.Blocks)
	}
	words := make([]int32, spans.Words(len(b.all()), n))
	spans.Put(words, b.prefill, b.decode)
	b.table = b.c.I32(words, 1, len(words))
}

// fill makes the cache: random values at positions that a row sees, NaN elsewhere (or in int8 any
// number with a scale of NaN).
func (b *problem) fill(rng *rand.Rand, dt tensor.DType) {
	used := make([]bool, b.slots)
	for _, s := range b.all() {
		first := 0
		if b.p.Window > 0 {
			first = max(s.Pos+1-b.p.Window, 0)
		}
		for p := first; p < s.Pos+s.Len; p++ {
			used[int(s.Blocks[p/b.p.BlockTokens])*b.p.BlockTokens+p%b.p.BlockTokens] = true
		}
	}
	width, dim := b.p.Width(), b.p.HeadDim
	stride := width + 16/dt.Size()
	raw := make([]byte, b.slots*stride*dt.Size())
	b.cached = make([]float32, b.slots*width)
	scales := make([]float32, b.slots*width/dim)
	nan := float32(math.NaN())
	for i := range scales {
		if scales[i] = float32(1+rng.Float64()) / 100; !used[i*dim/width] {
			scales[i] = nan
		}
	}
	for i := range b.cached {
		slot, at := i/width, i/width*stride+i%width
		v := float32(rng.NormFloat64())
		if !used[slot] {
			v = nan
		}
		switch dt {
		case tensor.F32:
			binary.LittleEndian.PutUint32(raw[4*at:], math.Float32bits(v))
		case tensor.BF16:
			bits := tensor.F32ToBF16(v)
			binary.LittleEndian.PutUint16(raw[2*at:], bits)
			v = tensor.BF16ToF32(bits)
		case tensor.F8E4M3:
			if raw[at] = 0xff; used[slot] {
				raw[at] = byte(rng.IntN(0x38)) | byte(rng.IntN(2)<<7) // up to 1, tiny ones too
				if rng.IntN(3) > 0 {                                  // most near 1
					raw[at] = raw[at]&0x80 | byte(0x30+rng.IntN(16))
				}
				v = tensor.F8E4M3ToF32(raw[at])
			}
		case tensor.I8:
			q := int8(rng.IntN(255) - 127)
			raw[at], v = byte(q), float32(q)*scales[i/dim]
		}
		b.cached[i] = v
	}
	b.kv = launch.KV{Mat: launch.Mat{At: b.c.Bytes(raw), DType: dt, Rows: b.slots, Cols: width, Stride: stride}}
	if dt == tensor.I8 {
		b.kv.Scales, b.kv.Group = b.c.F32(scales, b.slots, width/dim), dim
	}
}

// want returns the reference's results for all rows.
func (b *problem) want() []float32 {
	out := make([]float32, b.rows*b.p.Heads*b.p.HeadDim)
	ref.GQA(out, b.query, b.cached, b.sinks, b.decode, b.p)
	ref.GQA(out, b.query, b.prompts(), b.sinks, b.prefill, b.p)
	return out
}

// prompts returns the cache as kernels of prompts read it: they round an integer times its scale
// to BF16. Other types are exact in it.
func (b *problem) prompts() []float32 {
	if b.kv.DType != tensor.I8 {
		return b.cached
	}
	out := make([]float32, len(b.cached))
	for i, v := range b.cached {
		out[i] = tensor.BF16ToF32(tensor.F32ToBF16(v))
	}
	return out
}

// out makes a poisoned output with gaps between rows.
func (b *problem) out(dt tensor.DType) launch.Mat {
	n := b.p.Heads * b.p.HeadDim
	return b.c.Strided(dt, b.rows, n, n+8)
}

// of returns the values of a span's rows.
func (b *problem) of(x []float32, s device.Span) []float32 {
	n := b.p.Heads * b.p.HeadDim
	return x[s.Row*n : (s.Row+s.Len)*n]
}

// compare compares got with want. eps is the relative error of one rounding; every output is a
// mean of values of size 1, so errors are relative to 1.
func compare(t *testing.T, what string, got, want []float32, eps float64) {
	t.Helper()
	worst, at := -1.0, 0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if d != d {
			d = math.Inf(1)
		}
		if d /= 1 + math.Abs(float64(want[i])); d > worst {
			worst, at = d, i
		}
	}
	t.Logf("%s: largest error %.2e", what, worst)
	if worst > eps {
		t.Errorf("%s: element %d is %v, want %v: off by %.2e, %.2e is allowed", what, at, got[at], want[at], worst, eps)
	}
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v, was %v", what, i, got[i], want[i])
		}
	}
}
