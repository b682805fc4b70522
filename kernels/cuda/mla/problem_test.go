//go:build cuda

package mla

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

// seq is one sequence of a batch: rows new rows after past positions.
type seq struct {
	past, rows int
	decode     bool
}

// problem is a batch of sequences on the GPU. Its blocks are in any order, and unused positions
// are poisoned.
type problem struct {
	c               *cudatest.GPU
	p               device.MLA
	prefill, decode []device.Span
	rows            int
	query           []float32
	cached          []float32 // [slots, rank+rope] as stored in the cache
	weights         []float32
	q               launch.Mat
	kv              launch.KV
	kvb             launch.Weight
	table           launch.Mat
	slots           int
}

var (
	small  = device.MLA{Heads: 4, Nope: 16, Rope: 8, V: 12, Rank: 32, BlockTokens: 16}
	lite   = device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 128, Rank: 512, BlockTokens: 16}
	scaled = 1.3 // softmax scale times the root of the key's width: scores differ enough
)

// newProblem makes q, cache and kv_b of the given types. Rows of the batch are in order
// of seqs.
func newProblem(c *cudatest.GPU, seed uint64, p device.MLA, q, cache, kvb tensor.DType, seqs []seq) *problem {
	rng := rand.New(rand.NewPCG(seed, 2))
	p.Scale = float32(scaled / math.Sqrt(float64(p.Nope+p.Rope)))
	b := &problem{c: c, p: p}
	b.place(rng, seqs)
	width := p.Rank + p.Rope
	b.query = cudatest.Normal(rng, b.rows*p.Heads*(p.Nope+p.Rope))
	b.weights = cudatest.Normal(rng, p.Heads*(p.Nope+p.V)*p.Rank)
	size := float32(math.Pow(2, -math.Round(math.Log2(math.Sqrt(float64(p.Rank))))))
	for i := range b.weights {
		b.weights[i] *= size
	}
	b.q = b.upload(q, b.query, b.rows, p.Heads*(p.Nope+p.Rope))
	b.kvb = launch.Weight{F: b.upload(kvb, b.weights, p.Heads*(p.Nope+p.V), p.Rank)}
	b.fill(rng, cache, width)
	return b
}

func (b *problem) upload(dt tensor.DType, x []float32, rows, cols int) launch.Mat {
	if dt == tensor.F32 {
		return b.c.F32(x, rows, cols)
	}
	return b.c.BF16(x, rows, cols)
}

// place assigns rows and blocks to the sequences, and makes the table.
func (b *problem) place(rng *rand.Rand, seqs []seq) {
	bt := b.p.BlockTokens
	blocks := 3
	for _, s := range seqs {
		blocks += (s.past+s.rows+bt-1)/bt + 1 // one too many: a table may be longer than needed
	}
	order, at := rng.Perm(blocks), 0
	for _, s := range seqs {
		n := (s.past+s.rows+bt-1)/bt + 1
		sp := device.Span{Row: b.rows, Len: s.rows, Pos: s.past}
		for _, id := range order[at : at+n] {
			sp.Blocks = append(sp.Blocks, int32(id))
		}
		at += n
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

func (b *problem) putTable() {
	n := 0
	for _, s := range append(append([]device.Span(nil), b.prefill...), b.decode...) {
		n += len(s.Blocks)
	}
	words := make([]int32, spans.Words(len(b.prefill)+len(b.decode), n))
	spans.Put(words, b.prefill, b.decode)
	b.table = b.c.I32(words, 1, len(words))
}

func (b *problem) used() []bool {
	used := make([]bool, b.slots)
	for _, s := range append(append([]device.Span(nil), b.prefill...), b.decode...) {
		for p := range s.Pos + s.Len {
			used[int(s.Blocks[p/b.p.BlockTokens])*b.p.BlockTokens+p%b.p.BlockTokens] = true
		}
	}
	return used
}

// fill makes the cache: random rows at used positions, NaN elsewhere (or in int8 any number with
// a scale of NaN).
func (b *problem) fill(rng *rand.Rand, dt tensor.DType, width int) {
	const group = 4
	b.cached = make([]float32, b.slots*width)
	raw := make([]byte, 0, b.slots*width*dt.Size())
	scales := make([]float32, b.slots*width/group)
	for slot, used := range b.used() {
		for i := range width {
			v := float32(rng.NormFloat64())
			if !used {
				v = float32(math.NaN())
			}
			b.cached[slot*width+i], raw = element(raw, rng, dt, v, &scales[(slot*width+i)/group])
		}
	}
	b.kv = launch.KV{Mat: launch.Mat{At: b.c.Bytes(raw), DType: dt, Rows: b.slots, Cols: width, Stride: width}}
	if dt == tensor.I8 {
		b.kv.Scales, b.kv.Group = b.c.F32(scales, b.slots, width/group), group
	}
}

// element appends v as dt and returns the stored value.
func element(raw []byte, rng *rand.Rand, dt tensor.DType, v float32, scale *float32) (float32, []byte) {
	switch dt {
	case tensor.F32:
		return v, binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	case tensor.BF16:
		bits := tensor.F32ToBF16(v)
		return tensor.BF16ToF32(bits), binary.LittleEndian.AppendUint16(raw, bits)
	case tensor.F8E4M3:
		if v != v {
			return v, append(raw, 0xff)
		}
		bits := byte(rng.IntN(0x38)) // up to 1, denormals too
		if rng.IntN(2) == 0 {
			bits |= 0x80
		}
		if rng.IntN(3) > 0 { // most near 1
			bits = bits&0x80 | byte(0x30+rng.IntN(16))
		}
		return tensor.F8E4M3ToF32(bits), append(raw, bits)
	}
	q := int8(rng.IntN(255) - 127)
	if *scale == 0 {
		*scale = float32(1+rng.Float64()) / 100
	}
	if v != v {
		*scale = v
	}
	return float32(q) * *scale, append(raw, byte(q))
}

// want returns the reference's results for all rows.
func (b *problem) want() []float32 {
	out := make([]float32, b.rows*b.p.Heads*b.p.V)
	ref.MLA(out, b.query, b.cached, b.weights, b.prefill, b.p)
	ref.MLA(out, b.query, b.cached, b.weights, b.decode, b.p)
	return out
}

// out makes a poisoned output with gaps between rows.
func (b *problem) out(dt tensor.DType) launch.Mat {
	return b.c.Strided(dt, b.rows, b.p.Heads*b.p.V, b.p.Heads*b.p.V+8)
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
