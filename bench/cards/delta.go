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

// Qwen3Next is the attention of Qwen3-Next-80B-A3B (its config.json): gated DeltaNet and grouped-query
// attention with heads of 256.
func Qwen3Next() Sizes {
	return Sizes{
		delta:  device.DeltaNet{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4, ByKeyHead: true},
		gqa:    device.GQA{Heads: 16, KVHeads: 2, HeadDim: 256, Scale: 0.0625, BlockTokens: 64},
		few:    []int{1, 8, 32},
		many:   []int{512, 2048},
		depths: []int{2048, 32768},
	}
}

// GLM53Flash is the layers of GLM-5.3-Flash with Kimi Delta Attention (its config.json).
func GLM53Flash() Sizes {
	return Sizes{
		kda:  device.DeltaNet{KeyHeads: 64, ValueHeads: 64, KeyDim: 128, ValueDim: 128, Taps: 4, SigmoidGate: true, Floor: -5},
		few:  []int{1, 8, 32},
		many: []int{512, 2048},
	}
}

// deltas are the cases of gated DeltaNet and of Kimi Delta Attention.
func (s *Sizes) deltas() (out []*Case) {
	for _, p := range [...]device.DeltaNet{s.delta, s.kda} {
		if p.Taps == 0 {
			continue
		}
		for _, t := range s.few {
			out = append(out, deltaRule(true, t, 1, p), deltaConv(true, t, 1, p))
		}
		for _, t := range s.many {
			out = append(out, deltaRule(false, 1, t, p), deltaConv(false, 1, t, p))
		}
		out = append(out, deltaRule(false, 8, s.many[0], p))
	}
	return out
}

// sequences makes the spans of a batch, and their table. Prompts are from their beginning.
func (d *desk) sequences(decode bool, seqs, rows int) (list []device.Span, table data) {
	for i := range seqs {
		s := device.Span{Row: i * rows, Len: rows, Slot: seqs - 1 - i}
		if decode {
			s.Pos = 1000 + i
		}
		list = append(list, s)
	}
	words := make([]int32, spans.Words(seqs, 0))
	if decode {
		spans.Put(words, nil, list)
	} else {
		spans.Put(words, list, nil)
	}
	return list, d.ints(1, len(words), func(i int) int32 { return words[i] })
}

// deltaRule builds the gated delta rule of a batch of generated rows (one per sequence) or of prompts.
func deltaRule(decode bool, seqs, rows int, p device.DeltaNet) *Case {
	t, state, name := seqs*rows, seqs*p.StateRows()*p.ValueDim, "delta"
	if p.Floor < 0 {
		name = "kda"
	}
	c := &Case{
		Op:    name + " prefill",
		Shape: fmt.Sprintf("%d x %d rows, %d heads of %d by %d", seqs, rows, p.ValueHeads, p.KeyDim, p.ValueDim),
		DType: "state F32",
		Bytes: float64(4*state + 2*t*(p.Channels()+p.Values()+p.Numbers())),
		Flops: 7 * float64(t) * float64(p.StateRows()*p.ValueDim),
		Rel:   relBF16, Abs: 2e-3,
	}
	if decode {
		c.Op = name + " decode"
		c.Bytes += float64(4 * state) // it is read as well
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		x, ba := d.numbers(tensor.BF16, t, p.Channels(), unit), d.numbers(tensor.BF16, t, p.Numbers(), unit)
		out := d.room(tensor.BF16, t, p.Values())
		decay := d.mat(tensor.F32, 1, p.ValueHeads, func(b []byte) {
			for i := range p.ValueHeads {
				put32(b[4*i:], -float64(i+1)/64)
			}
		})
		bias := d.numbers(tensor.F32, 1, p.ValueHeads*p.Rates(), unit)
		states := d.numbers(tensor.F32, seqs*p.StateRows(), p.ValueDim, small)
		list, table := d.sequences(decode, seqs, rows)
		return &job{
			run: func(b *ops.Builder, i int) {
				b.Delta(out.of(i), x.of(i), ba.of(i), decay.of(i), bias.of(i), launch.KV{Mat: states.of(i)}, list, table.of(i), decode, p)
			},
			outs: []data{out},
			check: func(read reader) []Sample {
				seqsSeen, heads := d.spread(seqs, 2), d.spread(p.ValueHeads, 2)
				got := make([][]float64, t)
				for _, seq := range seqsSeen {
					for row := seq * rows; row < (seq+1)*rows; row++ {
						got[row] = read(out.RowRange(row, row+1))
					}
				}
				parts := make([][]Sample, len(seqsSeen)*len(heads))
				parallel(len(parts), func(i int) {
					sp, h := list[seqsSeen[i/len(heads)]], heads[i%len(heads)]
					s := newDeltaState(states, sp, h, p)
					for r := range sp.Len {
						for v, want := range s.token(x.row(sp.Row+r), ba.row(sp.Row+r), decay.get(0, h), bias.row(0)[h*p.Rates():][:p.Rates()]) {
							parts[i] = append(parts[i], Sample{got[sp.Row+r][h*p.ValueDim+v], want, 1})
						}
					}
				})
				var all []Sample
				for _, s := range parts {
					all = append(all, s...)
				}
				return all
			},
		}
	}
	return c
}

// deltaState is the state of a value head in float64.
type deltaState struct {
	p device.DeltaNet
	h int
	s [][]float64
}

func newDeltaState(states data, sp device.Span, h int, p device.DeltaNet) *deltaState {
	d := &deltaState{p, h, make([][]float64, p.KeyDim)}
	for i := range d.s {
		if d.s[i] = make([]float64, p.ValueDim); sp.Pos > 0 {
			d.s[i] = states.row(sp.Slot*p.StateRows() + h*p.KeyDim + i)
		}
	}
	return d
}

// token is the output for a row of channels and one of strengths and decays.
func (d *deltaState) token(x, ba []float64, decay float64, bias []float64) []float64 {
	p, key, j := d.p, d.h/d.p.Group(), d.h%d.p.Group()
	unit := func(v []float64) []float64 {
		sum, out := 1e-6, make([]float64, len(v))
		for _, f := range v {
			sum += f * f
		}
		for i, f := range v {
			out[i] = f / math.Sqrt(sum)
		}
		return out
	}
	keys := p.KeyHeads * p.KeyDim
	q, k, v := unit(x[key*p.KeyDim:][:p.KeyDim]), unit(x[keys+key*p.KeyDim:][:p.KeyDim]), x[2*keys+d.h*p.ValueDim:][:p.ValueDim]
	a, b := ba[p.Decays().At+key*p.Decays().Step+j*p.Rates():][:p.Rates()], ba[p.Strengths().At+key*p.Strengths().Step+j]
	strength := 1 / (1 + math.Exp(-b))
	kept := func(i int) float64 { // of a row of the state
		v := a[i%p.Rates()] + bias[i%p.Rates()]
		if p.Floor < 0 {
			return math.Exp(float64(p.Floor) / (1 + math.Exp(decay*v)))
		}
		return math.Exp(decay * math.Log1p(math.Exp(v)))
	}
	out, known := make([]float64, p.ValueDim), make([]float64, p.ValueDim)
	for i, row := range d.s {
		by := kept(i)
		for c := range row {
			row[c] *= by
			known[c] += k[i] * row[c]
		}
	}
	for i, row := range d.s {
		for c := range row {
			row[c] += k[i] * strength * (v[c] - known[c])
			out[c] += q[i] * row[c] / math.Sqrt(float64(p.KeyDim))
		}
	}
	return out
}

// deltaConv builds the convolution of gated DeltaNet with SiLU.
func deltaConv(decode bool, seqs, rows int, p device.DeltaNet) *Case {
	t, n := seqs*rows, p.Channels()
	c := &Case{
		Op:    "delta conv",
		Shape: fmt.Sprintf("%d x %d rows, %d channels, generated %t", seqs, rows, n, decode),
		DType: "BF16",
		Bytes: float64(4*t*n + 4*n*p.Taps + 4*seqs*n*min(rows, p.Taps)),
		Rel:   relBF16, Abs: 1e-3,
	}
	if decode {
		c.Bytes += float64(4 * seqs * n * (p.Taps - 1))
	}
	c.Rotate = int(c.Bytes)
	c.build = func(d *desk) *job {
		x, out := d.numbers(tensor.BF16, t, p.Width(), unit), d.room(tensor.BF16, t, n)
		w, tail := d.numbers(tensor.F32, p.Taps, n, unit), d.numbers(tensor.F32, seqs*p.Taps, n, unit)
		list, table := d.sequences(decode, seqs, rows)
		columns := make([]int, 0, n) // of the input
		for _, part := range []struct {
			device.Columns
			n int
		}{{p.Queries(), p.KeyDim}, {p.Keys(), p.KeyDim}, {p.Inputs(), p.Group() * p.ValueDim}} {
			for i := range p.KeyHeads * part.n {
				columns = append(columns, part.At+i/part.n*part.Step+i%part.n)
			}
		}
		return &job{
			run: func(b *ops.Builder, i int) {
				b.Conv(out.of(i), x.of(i), w.of(i), launch.KV{Mat: tail.of(i)}, list, table.of(i), decode, p)
			},
			outs: []data{out},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					sp, got := list[row/rows], read(out.RowRange(row, row+1))
					for c, v := range got {
						sum, scale := 0.0, 0.0
						for back := range p.Taps {
							at, term := row-sp.Row-back, 0.0
							switch {
							case at >= 0:
								term = x.get(sp.Row+at, columns[c])
							case sp.Pos+at >= 0:
								term = tail.get(sp.Slot*p.Taps+(sp.Pos+at)%p.Taps, c)
							}
							term *= w.get(p.Taps-1-back, c)
							sum, scale = sum+term, scale+math.Abs(term)
						}
						s = append(s, Sample{v, sum / (1 + math.Exp(-sum)), scale})
					}
				}
				return s
			},
		}
	}
	return c
}
