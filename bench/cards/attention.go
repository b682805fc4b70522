package cards

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Attention rounds probabilities to BF16. Each is off by up to 2^-8 of itself, independently of the
// others. The scale of a sample is the root of the sum of its terms' squares, so these errors make
// the sum wrong by more than n*2^-8 of it with a probability below 2*exp(-n*n/2) (Hoeffding's
// inequality): 3e-14 for the 8 of absMLA. relMLA has room for the rounded result.
//
// An error of a key or of a query moves scores, so the bound does not cover it. The reference rounds
// integer keys of prompts, and the projected query and the mean of latents of generated rows, as the kernels
// do.
const relMLA, absMLA = 1.0 / 64, 8 * 1.0 / 256

// history describes the sequences of a batch: rows new tokens each, after past tokens.
type history struct{ seqs, rows, past int }

func (h history) context() int { return h.past + h.rows }

// cached is a cache that has the blocks of every sequence in a random order, and the table of the
// batch.
type cached struct {
	kv     data
	scales data // for I8
	group  int
	tokens int // per block
	table  data
	list   []device.Span
	// rounded: kernels of prompts round an integer times its scale to BF16. Other types are exact in it.
	rounded bool
}

// cached makes rows of width values. In a cache of I8, group values share a scale.
func (d *desk) cached(h history, dt tensor.DType, width, group, blockTokens int, decode bool) *cached {
	each := (h.context() + blockTokens - 1) / blockTokens
	slots := h.seqs * each * blockTokens
	c := &cached{kv: d.numbers(dt, slots, width, unit), group: group, tokens: blockTokens}
	if dt == tensor.I8 {
		c.scales = d.numbers(tensor.F32, slots, width/group, small)
	}
	blocks := d.rng.Perm(h.seqs * each)
	for i := range h.seqs {
		s := device.Span{Row: i * h.rows, Len: h.rows, Pos: h.past}
		for _, b := range blocks[i*each : (i+1)*each] {
			s.Blocks = append(s.Blocks, int32(b))
		}
		c.list = append(c.list, s)
	}
	words := make([]int32, spans.Words(h.seqs, h.seqs*each))
	if decode {
		spans.Put(words, nil, c.list)
	} else {
		spans.Put(words, c.list, nil)
	}
	c.table = d.ints(1, len(words), func(i int) int32 { return words[i] })
	return c
}

// of returns a copy of the cache.
func (c *cached) of(i int) launch.KV {
	kv := launch.KV{Mat: c.kv.of(i)}
	if c.kv.DType == tensor.I8 {
		kv.Scales, kv.Group = c.scales.of(i), c.group
	}
	return kv
}

// slot returns the cache row that holds a position of a sequence.
func (c *cached) slot(seq, pos int) int {
	return int(c.list[seq].Blocks[pos/c.tokens])*c.tokens + pos%c.tokens
}

// values returns n values of a slot's row, from column `first` on.
func (c *cached) values(slot, first, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		if out[i] = c.kv.get(slot, first+i); c.kv.DType == tensor.I8 {
			out[i] *= c.scales.get(slot, (first+i)/c.group)
		}
		if c.rounded {
			out[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(out[i]))))
		}
	}
	return out
}

// latent builds attention of a batch of generated rows (one per sequence) or of prompts.
func latent(decode bool, h history, dt tensor.DType, p device.MLA) *Case {
	t, ctx := h.seqs*h.rows, float64(h.context())
	width := float64((p.Rank + p.Rope) * dt.Size())
	kvB := float64(p.Heads * (p.Nope + p.V) * p.Rank * 2)
	rows := float64(t * p.Heads * (p.Nope + p.Rope + p.V) * 2)
	c := &Case{
		Op:    "mla prefill",
		Shape: fmt.Sprintf("%d x %d rows after %d, %d heads", h.seqs, h.rows, h.past, p.Heads),
		DType: "cache " + dt.String(),
		Bytes: float64(h.seqs)*ctx*width + kvB + rows,
		Rel:   relMLA, Abs: absMLA,
	}
	// The number of keys that each row sees, summed over the rows of a sequence.
	seen := float64(h.rows)*float64(h.past) + float64(h.rows)*float64(h.rows+1)/2
	if decode {
		c.Op = "mla decode"
		c.Flops = 2 * float64(h.seqs*p.Heads) * (seen*float64(2*p.Rank+p.Rope) + float64((p.Nope+p.V)*p.Rank))
	} else {
		expand := ctx * float64(p.Rank) * float64(p.Nope+p.V)
		c.Flops = 2 * float64(h.seqs*p.Heads) * (seen*float64(p.Nope+p.Rope+p.V) + expand)
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		q, out := d.numbers(tensor.BF16, t, p.Heads*(p.Nope+p.Rope), unit), d.room(tensor.BF16, t, p.Heads*p.V)
		w := d.weights(bf16, 1, p.Heads*(p.Nope+p.V), p.Rank, false)
		in := d.cached(h, dt, p.Rank+p.Rope, p.Rope, p.BlockTokens, decode)
		return &job{
			run: func(b *ops.Builder, i int) {
				attend := b.MLAPrefill
				if decode {
					attend = b.MLADecode
				}
				attend(out.of(i), q.of(i), in.of(i), w.of(i), in.list, in.table.of(i), p)
			},
			outs: []data{out},
			check: func(read reader) []Sample {
				return checkLatent(d, read, in, q, out, &w, h, p, decode)
			},
		}
	}
	return c
}

// checkLatent samples four rows, and four heads of each.
func checkLatent(d *desk, read reader, in *cached, q, out data, w *weights, h history, p device.MLA, decode bool) []Sample {
	rows, heads := d.spread(out.Rows, 4), d.spread(p.Heads, 4)
	var got [][]float64
	for _, row := range rows {
		got = append(got, read(out.RowRange(row, row+1)))
	}
	s := make([]Sample, len(rows)*len(heads)*p.V)
	parallel(len(rows)*len(heads), func(i int) {
		row, head := i/len(heads), heads[i%len(heads)]
		want, scale := attended(in, q, w, rows[row], head, h, p, decode)
		for v := range p.V {
			s[i*p.V+v] = Sample{got[row][head*p.V+v], want[v], scale}
		}
	})
	return s
}

// attended computes one head of a row, and the size of the terms of its sums. It multiplies the
// query by kv_b instead of expanding the keys, which gives the same numbers.
//
// Kernels of generated rows do that too, and round twice in between. The projected query becomes BF16,
// as here (with a cache of FP8 it is F16, whose error is negligible): an error of a query moves all
// scores together, so unlike errors of scores it does not shrink with more keys. The mean of the latents
// becomes BF16 before it is multiplied by kv_b, as here: in a long context it is large beside the terms
// of its sum, because keys that the query likes have latents that are alike.
func attended(in *cached, q data, w *weights, row, head int, h history, p device.MLA, decode bool) (out []float64, scale float64) {
	seq, ctx := row/h.rows, h.past+row%h.rows+1
	at := head * (p.Nope + p.Rope)
	query := make([]float64, p.Rank+p.Rope)
	for i := range p.Nope {
		v := q.get(row, at+i)
		for r, c := range w.row(0, head*(p.Nope+p.V)+i) {
			query[r] += v * c
		}
	}
	if decode && in.kv.DType != tensor.F8E4M3 {
		roundBF16(query[:p.Rank])
	}
	for i := range p.Rope {
		query[p.Rank+i] = q.get(row, at+p.Nope+i)
	}
	prob, top := make([]float64, ctx), math.Inf(-1)
	for pos := range prob {
		prob[pos], _ = dot(query, in.kv.row(in.slot(seq, pos)))
		prob[pos] *= float64(p.Scale)
		top = max(top, prob[pos])
	}
	sum := 0.0
	for pos := range prob {
		prob[pos] = math.Exp(prob[pos] - top)
		sum += prob[pos]
	}
	mean, squares := make([]float64, p.Rank), make([]float64, p.Rank)
	for pos := range prob {
		for r, v := range in.kv.row(in.slot(seq, pos))[:p.Rank] {
			v *= prob[pos] / sum
			mean[r] += v
			squares[r] += v * v
		}
	}
	if decode {
		roundBF16(mean)
	}
	out = make([]float64, p.V)
	for v := range out {
		size := 0.0
		for r, c := range w.row(0, head*(p.Nope+p.V)+p.Nope+v) {
			out[v] += c * mean[r]
			size += c * c * squares[r]
		}
		scale = max(scale, math.Sqrt(size))
	}
	return out, scale
}

// roundBF16 rounds each number to BF16.
func roundBF16(x []float64) {
	for i, v := range x {
		x[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(v))))
	}
}
