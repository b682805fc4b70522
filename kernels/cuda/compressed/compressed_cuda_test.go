//go:build cuda

package compressed

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// batch is sequences over two caches, whose blocks are in different orders, and generated rows among prompts.
type batch struct {
	c               *cudatest.GPU
	rng             *rand.Rand
	rows, blocks    int
	tokens          int           // of a block
	prefill, decode []device.Span // with the blocks of entries
	near            [2][]device.Span
	table, nearer   launch.Mat
}

// odd are sequences of odd lengths; every other one is a prompt.
var odd = []device.Span{{Len: 1, Pos: 35}, {Len: 30, Pos: 7}, {Len: 1, Pos: 3}, {Len: 1}, {Len: 1, Pos: 300}, {Len: 3, Pos: 126}}

// newBatch makes a batch of seqs, the i-th of which is a generated row if generated says so.
func newBatch(c *cudatest.GPU, seed uint64, blockTokens int, seqs []device.Span, generated func(i int) bool) *batch {
	b := &batch{c: c, rng: rand.New(rand.NewPCG(seed, 7)), tokens: blockTokens, blocks: 2}
	for _, s := range seqs {
		b.blocks += (s.Pos+s.Len-1)/blockTokens + 1
	}
	far, near := b.rng.Perm(b.blocks), b.rng.Perm(b.blocks)
	for i, s := range seqs {
		s.Row = b.rows
		b.rows += s.Len
		n := (s.Pos+s.Len-1)/blockTokens + 1
		take := func(from *[]int) device.Span {
			own := s
			for _, id := range (*from)[:n] {
				own.Blocks = append(own.Blocks, int32(id))
			}
			*from = (*from)[n:]
			return own
		}
		if generated(i) {
			b.decode, b.near[1] = append(b.decode, take(&far)), append(b.near[1], take(&near))
		} else {
			b.prefill, b.near[0] = append(b.prefill, take(&far)), append(b.near[0], take(&near))
		}
	}
	b.table, b.nearer = b.put(b.prefill, b.decode), b.put(b.near[0], b.near[1])
	return b
}

func (b *batch) put(prefill, decode []device.Span) launch.Mat {
	n := 0
	for _, s := range slices.Concat(prefill, decode) {
		n += len(s.Blocks)
	}
	words := make([]int32, spans.Words(len(prefill)+len(decode), n))
	spans.Put(words, prefill, decode)
	return b.c.I32(words, 1, len(words))
}

func (b *batch) all() (far, near []device.Span) {
	return slices.Concat(b.prefill, b.decode), slices.Concat(b.near[0], b.near[1])
}

const group = 4

// cache makes a cache of random rows that stand for per tokens, and returns what is stored in it. Rows are followed by a gap, unless scales belong to them.
func (b *batch) cache(dt tensor.DType, width, per int) (launch.KV, []float32) {
	stride, slots := width+8, b.blocks*device.EntryRows(b.tokens, per)
	if dt == tensor.I8 {
		stride = width
	}
	raw, stored, scales := make([]byte, slots*stride*dt.Size()), make([]float32, slots*width), make([]float32, slots*width/group)
	for i := range stored {
		v := float32(b.rng.NormFloat64())
		to := raw[(i/width*stride+i%width)*dt.Size():]
		switch dt {
		case tensor.F32:
			binary.LittleEndian.PutUint32(to, math.Float32bits(v))
		case tensor.BF16:
			bits := tensor.F32ToBF16(v)
			binary.LittleEndian.PutUint16(to, bits)
			v = tensor.BF16ToF32(bits)
		case tensor.F8E4M3:
			to[0] = ref.F8E4M3(v)
			v = tensor.F8E4M3ToF32(to[0])
		default:
			scales[i/group] = float32(1+i/group%3) / 100
			to[0] = byte(int8(v * 40))
			v = float32(int8(v*40)) * scales[i/group]
		}
		stored[i] = v
	}
	kv := launch.KV{Mat: launch.Mat{At: b.c.Bytes(raw), DType: dt, Rows: slots, Cols: width, Stride: stride}}
	if dt == tensor.I8 {
		kv.Scales, kv.Group = b.c.F32(scales, slots, width/group), group
	}
	return kv, stored
}

// read returns what is stored in a cache.
func (b *batch) read(kv launch.KV) []float32 {
	switch kv.DType {
	case tensor.F32, tensor.BF16:
		return b.c.Floats(kv.Mat)
	}
	raw := cudatest.Download[byte](b.c, kv.At, kv.Rows*kv.Stride)
	var scales []float32
	if kv.DType == tensor.I8 {
		scales = b.c.Floats(kv.Scales)
	}
	out := make([]float32, kv.Rows*kv.Cols)
	for i := range out {
		if v := raw[i/kv.Cols*kv.Stride+i%kv.Cols]; kv.DType == tensor.I8 {
			out[i] = float32(int8(v)) * scales[i/group]
		} else {
			out[i] = tensor.F8E4M3ToF32(v)
		}
	}
	return out
}

// storing is the relative error of a value that a cache of a type stores, of the largest of its row.
var storing = map[tensor.DType]float64{tensor.F32: 1e-5, tensor.BF16: 0x1p-8, tensor.F8E4M3: 0x1p-4, tensor.I8: 0x1p-7}

var kinds = []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8}

// TestCompress: the reference's entries, in their rows, and no other row of the cache is written.
func TestCompress(t *testing.T) {
	c := cudatest.Open(t)
	for i, p := range []device.Compress{
		{Dim: 32, Ratio: 4, Overlap: true, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 32, Offset: 16, Dim: 16, Interleaved: true}, BlockTokens: 5},
		{Dim: 12, Ratio: 3, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 12, Dim: 6}, BlockTokens: 8},
		{Dim: 16, Ratio: 1, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 16, Dim: 16}, BlockTokens: 1},
		{Dim: 520, Ratio: 128, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 520, Offset: 456, Dim: 64, Interleaved: true}, BlockTokens: 16},
	} {
		for _, dt := range kinds {
			if testing.Short() && p.Dim > 512 && dt != tensor.BF16 {
				continue
			}
			b := newBatch(c, uint64(i), p.BlockTokens, odd, func(i int) bool { return i%2 == 0 })
			near, raw := b.cache([]tensor.DType{tensor.F32, dt}[i%2], p.Width(), 1)
			entries, before := b.cache(dt, p.Dim, p.Ratio)
			norm, ape, angles := cudatest.Normal(b.rng, p.Dim), cudatest.Normal(b.rng, p.Ratio*p.Parts()*p.Dim), cudatest.Normal(b.rng, 301*p.Rope.Dim)
			nm, am, table := c.F32(norm, 1, p.Dim), c.F32(ape, p.Ratio, p.Parts()*p.Dim), c.F32(angles, 301, p.Rope.Dim)
			c.Run(func(l *launch.List) {
				Compress(l, entries, b.table, near, b.nearer, nm, am, table, b.rows, false, p)
				Compress(l, entries, b.table, near, b.nearer, nm, am, table, b.rows, true, p)
			})
			got := b.read(entries)
			far, nearby := b.all()
			rows, slots := ref.Compress(far, raw, nearby, norm, ape, angles, p)
			made := map[int][]float32{}
			for j, slot := range slots {
				made[int(slot)] = rows[j*p.Dim:][:p.Dim]
			}
			for slot := range entries.Rows {
				g, want, limit := got[slot*p.Dim:][:p.Dim], before[slot*p.Dim:][:p.Dim], 0.0
				if row, ok := made[slot]; ok {
					want, limit = row, storing[dt]*float64(kerneltest.MaxAbs(row))
				}
				for ch := range g {
					if d := math.Abs(float64(g[ch]) - float64(want[ch])); !(d <= limit) {
						t.Fatalf("%+v, %s: slot %d (made: %v): value %d is %v, want %v", p, dt, slot, made[slot] != nil, ch, g[ch], want[ch])
					}
				}
			}
		}
	}
}

// TestAttend: the reference's attention over what rows choose and over all, and a row's bits do not depend on the rows beside it.
func TestAttend(t *testing.T) {
	c := cudatest.Open(t)
	const n = 9
	for i, p := range []device.Compressed{
		{Heads: 6, Dim: 32, Window: 8, Ratio: 4, Scale: 0.2, BlockTokens: 5},
		{Heads: 1, Dim: 8, Window: 100, Ratio: 1, Scale: 0.4, BlockTokens: 8},
		{Heads: 9, Dim: 16, Window: 1, Scale: 0.3, BlockTokens: 4},
		{Heads: 2, Dim: 136, Window: 128, Ratio: 16, Scale: 0.1, BlockTokens: 16},
	} {
		for _, dt := range kinds {
			b := newBatch(c, uint64(i), p.BlockTokens, odd, func(i int) bool { return i%2 == 0 })
			rows := []tensor.DType{tensor.F32, tensor.BF16}[(i+dt.Size())%2]
			query, sinks := cudatest.Normal(b.rng, b.rows*p.Heads*p.Dim), cudatest.Normal(b.rng, p.Heads)
			near, nearRef := b.cache(dt, p.Dim, 1)
			far, nearby := b.all()
			caches := Caches{Near: near, NearTable: b.nearer, Table: b.table}
			var entriesRef []float32
			if p.Ratio > 0 {
				caches.Entries, entriesRef = b.cache(dt, p.Dim, p.Ratio)
			}
			chosen := slices.Repeat([]int32{-1}, b.rows*n)
			for _, s := range far {
				for r := range s.Len {
					sees := p.Sees(s.Pos + r)
					for k, e := range b.rng.Perm(sees)[:min(n, sees)] {
						chosen[(s.Row+r)*n+k] = int32(e)
					}
				}
			}
			q, sm := upload(c, rows, query, b.rows, p.Heads*p.Dim), c.F32(sinks, 1, p.Heads)
			if rows == tensor.BF16 {
				query = c.Floats(q)
			}
			for _, list := range [][]int32{nil, chosen} {
				var lm launch.Mat
				if list != nil {
					lm = c.I32(list, b.rows, n)
				}
				attend := func(caches Caches) []float32 {
					out := c.Strided(rows, b.rows, p.Heads*p.Dim, p.Heads*p.Dim+8)
					c.Run(func(l *launch.List) {
						Attend(l, out, q, caches, lm, sm, false, p)
						Attend(l, out, q, caches, lm, sm, true, p)
					})
					return c.Floats(out)
				}
				got, want := attend(caches), make([]float32, len(query))
				ref.Compressed(want, query, entriesRef, far, nearRef, nearby, list, n, sinks, p)
				if err := kerneltest.Compare(got, want, p.Dim, kerneltest.Relative(want, rounding(rows), 1e-5)); err != nil {
					t.Errorf("%+v, cache of %s, chosen %v: %v", p, dt, list != nil, err)
				}
				one := caches // the last prompt alone
				last := len(b.prefill) - 1
				one.Table, one.NearTable = b.put(b.prefill[last:], nil), b.put(b.near[0][last:], nil)
				s := b.prefill[last]
				alone, width := attend(one), p.Heads*p.Dim
				if err := kerneltest.SameBits(alone[s.Row*width:][:s.Len*width], got[s.Row*width:][:s.Len*width]); err != nil {
					t.Errorf("%+v, cache of %s: alone: %v", p, dt, err)
				}
			}
		}
	}
}

// rounding bounds the error of a row's value, in units of kerneltest.Eps32: a rounding to BF16 is 2^15 of them.
func rounding(dt tensor.DType) float64 {
	if dt == tensor.BF16 {
		return 0x1p15 + 16
	}
	return 16
}

func upload(c *cudatest.GPU, dt tensor.DType, x []float32, rows, cols int) launch.Mat {
	if dt == tensor.F32 {
		return c.F32(x, rows, cols)
	}
	return c.BF16(x, rows, cols)
}

// TestRopeBack: the reference's rotation; rows whose positions have no angles stay as they are.
func TestRopeBack(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, p := range []device.Rope{
		{Heads: 3, HeadDim: 24, Offset: 16, Dim: 8, Interleaved: true, Back: true},
		{Heads: 1, HeadDim: 7, Offset: 1, Dim: 6, Back: true},
		{Heads: 5, HeadDim: 136, Offset: 8, Dim: 128, Interleaved: true, Back: true},
	} {
		for _, dt := range []tensor.DType{tensor.F32, tensor.BF16} {
			width := p.Heads * p.HeadDim
			x, angles, positions := cudatest.Normal(rng, 5*width), cudatest.Normal(rng, 9*p.Dim), []int32{8, 0, -1, 3, 9}
			m := upload(c, dt, x, 5, width)
			x = c.Floats(m)
			table, at := c.F32(angles, 9, p.Dim), c.I32(positions, 5, 1)
			c.Run(func(l *launch.List) { RopeBack(l, m, at, table, p) })
			want := slices.Clone(x)
			for r, pos := range positions {
				if pos >= 0 && pos < 9 {
					ref.Rope(want[r*width:][:width], width, []int32{pos}, angles, p)
				}
			}
			if err := kerneltest.Compare(c.Floats(m), want, width, kerneltest.Relative(want, rounding(dt), 1e-6)); err != nil {
				t.Errorf("%+v, %s: %v", p, dt, err)
			}
		}
	}
}

// TestAttendMMA: the reference's attention on tensor cores, of rows of prompts and of generated rows in slices, over what rows choose and over all.
func TestAttendMMA(t *testing.T) {
	c := cudatest.Open(t)
	const n = 70
	seqs := []device.Span{{Len: 1, Pos: 35}, {Len: 3, Pos: 7}, {Len: 1, Pos: 300}, {Len: 2, Pos: 126}, {Len: 1}}
	for i, p := range []device.Compressed{
		{Heads: 70, Dim: mmaDim, Window: 128, Ratio: 4, Scale: 0.05, BlockTokens: 16},
		{Heads: 3, Dim: mmaDim, Window: 20, Ratio: 1, Scale: 0.05, BlockTokens: 5},
		{Heads: 17, Dim: mmaDim, Window: 128, Scale: 0.05, BlockTokens: 32},
	} {
		b := newBatch(c, uint64(i), p.BlockTokens, seqs, func(i int) bool { return i%2 == 0 })
		width := p.Heads * p.Dim
		query, sinks := cudatest.Normal(b.rng, b.rows*width), cudatest.Normal(b.rng, p.Heads)
		far, nearby := b.all()
		caches := Caches{NearTable: b.nearer, Table: b.table}
		var nearRef, entriesRef []float32
		caches.Near, nearRef = b.cache(tensor.BF16, p.Dim, 1)
		if p.Ratio > 0 {
			caches.Entries, entriesRef = b.cache(tensor.BF16, p.Dim, p.Ratio)
		}
		chosen := slices.Repeat([]int32{-1}, b.rows*n)
		for _, s := range far {
			for r := range s.Len {
				for k, e := range b.rng.Perm(p.Sees(s.Pos + r))[:min(n, p.Sees(s.Pos+r))] {
					chosen[(s.Row+r)*n+k] = int32(e)
				}
			}
		}
		q, sm := c.BF16(query, b.rows, width), c.F32(sinks, 1, p.Heads)
		query = c.Floats(q)
		for j, list := range [][]int32{nil, chosen} {
			var lm launch.Mat
			if list != nil {
				lm = c.I32(list, b.rows, n)
			}
			out := c.Strided([]tensor.DType{tensor.F32, tensor.BF16}[j], b.rows, width, width+8)
			if !CanAttend(c.Info(), out, q, &caches, p) {
				t.Skip("no room for a block's rows")
			}
			splits := Splits(p.Window+p.Sees(300)) + j // more than there are
			parts := c.Alloc(PartsBytes(len(b.decode), splits, p.Heads))
			c.Run(func(l *launch.List) {
				AttendPrompts(l, out, q, caches, lm, sm, p)
				AttendGenerated(l, out, q, caches, lm, sm, len(b.decode), splits, parts, p)
			})
			want := make([]float32, len(query))
			ref.Compressed(want, query, entriesRef, far, nearRef, nearby, list, n, sinks, p)
			if err := kerneltest.Compare(c.Floats(out), want, p.Dim, kerneltest.Relative(want, rounding(tensor.BF16), 2./256)); err != nil {
				t.Errorf("%+v, chosen %v: %v", p, list != nil, err)
			}
		}
	}
}
