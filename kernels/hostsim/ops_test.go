package hostsim

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// rig makes the same seeded arguments on any device.
type rig struct {
	t    *testing.T
	dev  device.Device
	s    device.Stream
	seed uint64
}

func (r *rig) normal(rows, cols int) device.Mat {
	r.seed++
	return put(r.t, r.dev, tensor.F32, rows, cols, kerneltest.Normal(kerneltest.Rand(r.seed), rows*cols, 1))
}

func (r *rig) weight(rows, cols int) device.Mat {
	r.seed++
	stored, _ := kerneltest.BF16(kerneltest.Normal(kerneltest.Rand(r.seed), rows*cols, 0.1))
	return put(r.t, r.dev, tensor.BF16, rows, cols, stored)
}

func (r *rig) ids(v ...int32) device.Mat { return put(r.t, r.dev, tensor.I32, len(v), 1, v) }

func (r *rig) zero(dt tensor.DType, rows, cols int) device.Mat {
	return alloc(r.t, r.dev, dt, rows, cols)
}

func (r *rig) expert(h, f int) device.Expert {
	return device.Expert{Gate: r.weight(f, h), Up: r.weight(f, h), Down: r.weight(h, f), Extra: r.extra(h, f)}
}

func (r *rig) extra(h, f int) device.Extra {
	return device.Extra{Act: device.Activation{Alpha: 1.702, Limit: 7, Shift: 1}, B13: r.normal(1, 2*f), B2: r.normal(1, h)}
}

func (r *rig) integers(rows, cols int) device.QMat {
	r.seed++
	f := tensor.Layout{Format: tensor.INT4.By(32), Rows: rows, Cols: cols}
	g := kerneltest.Rand(r.seed)
	values := make([]int8, rows*cols)
	for i := range values {
		values[i] = int8(g.IntN(15) - 7)
	}
	scales := make([]float32, rows*f.Groups())
	for i := range scales {
		scales[i] = float32(g.Float64() * 0.01)
	}
	raw := make([]byte, f.ValueBytes()+f.ScaleBytes())
	f.Pack(raw, raw[f.ValueBytes():], f.Matrix(values, scales))
	m := put(r.t, r.dev, tensor.U8, 1, len(raw), raw)
	return device.QMat{Layout: f, Values: m.Buf, Scales: m.Buf, ScaleAt: f.ValueBytes()}
}

func (r *rig) quantised(x device.Mat) device.QRows {
	q, err := device.AllocQRows(r.dev, x.Rows, x.Cols, 32)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { run(r.dev, r.s, func(l *device.List) { l.QuantizeRows(q, x) }); q.Free() })
	run(r.dev, r.s, func(l *device.List) { l.QuantizeRows(q, x) })
	return q
}

func (r *rig) network(h, f int) device.QExpert {
	return device.QExpert{W13: r.integers(2*f, h), W2: r.integers(h, f), Extra: r.extra(h, f)}
}

var (
	spans   = []device.Span{{Row: 0, Len: 2, Pos: 3, Blocks: []int32{1, 0}}, {Row: 2, Len: 1, Pos: 1, Blocks: []int32{2}}}
	ones    = []device.Span{{Row: 0, Len: 1, Pos: 5, Blocks: []int32{1, 0}}, {Row: 1, Len: 1, Pos: 0, Blocks: []int32{2}}}
	slotted = []device.Span{{Len: 2, Pos: 3, Slot: 1}, {Row: 2, Len: 1, Pos: 1}}
	jobs    = []device.ExpertRows{{Expert: 0, Assign: []int32{1, 2}}, {Expert: 2, Assign: []int32{0, 3}}}
	mla     = device.MLA{Heads: 2, Nope: 8, Rope: 4, V: 6, Rank: 16, Scale: 0.3, BlockTokens: 4}
	net     = device.DeltaNet{KeyHeads: 1, ValueHeads: 2, KeyDim: 8, ValueDim: 4, Taps: 3, ByKeyHead: true}
	index   = device.Index{Heads: 3, Dim: 8, TopK: 2, BlockTokens: 4}
	gqa     = device.GQA{Heads: 4, KVHeads: 2, HeadDim: 8, Scale: 0.3, BlockTokens: 4}
)

// cases run each operator once and give what it wrote.
var cases = map[string]func(r *rig) []device.Mat{
	"GatherRows": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 16)
		run(r.dev, r.s, func(l *device.List) { l.GatherRows(out, r.weight(5, 16), r.ids(4, 0, 2)) })
		return []device.Mat{out}
	},
	"RMSNorm": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 16)
		run(r.dev, r.s, func(l *device.List) { l.RMSNorm(out, r.normal(3, 16), r.weight(1, 16), 1e-6) })
		return []device.Mat{out}
	},
	"Add+RMSNorm": func(r *rig) []device.Mat {
		out, x := r.zero(tensor.F32, 3, 16), r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Add(x, r.normal(3, 16)); l.RMSNorm(out, x, r.weight(1, 16), 1e-6) })
		return []device.Mat{out, x}
	},
	"Add": func(r *rig) []device.Mat {
		x := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Add(x.ColRange(4, 12), r.normal(3, 8)) })
		return []device.Mat{x}
	},
	"AddBias": func(r *rig) []device.Mat {
		x := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.AddBias(x, r.weight(1, 16)) })
		return []device.Mat{x}
	},
	"MatMul": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 7)
		run(r.dev, r.s, func(l *device.List) {
			l.MatMul(out, r.normal(3, 33), device.QRows{}, &device.Weight{F: r.weight(7, 33)})
		})
		return []device.Mat{out}
	},
	"Gate": func(r *rig) []device.Mat {
		x := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Gate(x.ColRange(4, 12), r.normal(3, 8)) })
		return []device.Mat{x}
	},
	"Conv": func(r *rig) []device.Mat {
		out, tail := r.zero(tensor.F32, 3, net.Channels()), device.KV{Mat: r.normal(2*3, net.Channels())}
		run(r.dev, r.s, func(l *device.List) {
			l.Conv(out, r.normal(3, net.Width()), r.normal(3, net.Channels()), tail, device.Spans{List: slotted}, &net)
		})
		return []device.Mat{out, tail.Mat}
	},
	"Delta": func(r *rig) []device.Mat {
		out, states := r.zero(tensor.F32, 3, net.Values()), device.KV{Mat: r.normal(2*net.StateRows(), net.ValueDim)}
		run(r.dev, r.s, func(l *device.List) {
			l.Delta(out, r.normal(3, net.Channels()), r.normal(3, 4), r.normal(1, 2), r.normal(1, 2), states, device.Spans{List: slotted}, &net)
		})
		return []device.Mat{out, states.Mat}
	},
	"LayerNorm": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 16)
		run(r.dev, r.s, func(l *device.List) { l.LayerNorm(out, r.normal(3, 16), r.weight(1, 16), r.weight(1, 16), 1e-6) })
		return []device.Mat{out}
	},
	"Select": func(r *rig) []device.Mat {
		out := r.zero(tensor.I32, 3, 2)
		run(r.dev, r.s, func(l *device.List) {
			l.Select(out, r.normal(3, index.Heads*index.Dim), r.normal(3, index.Heads), device.KV{Mat: r.weight(12, index.Dim)}, device.Spans{List: spans}, &index)
		})
		return []device.Mat{out}
	},
	"PoolKeys": func(r *rig) []device.Mat {
		p := device.Index{Dim: 8, Pool: 2}
		out, tail := r.zero(tensor.F32, 3, p.Dim), device.KV{Mat: r.normal(2*p.Pool, 2*p.Dim)}
		run(r.dev, r.s, func(l *device.List) {
			l.PoolKeys(out, r.normal(3, 2*p.Dim), r.normal(p.Pool, p.Dim), tail, device.Spans{List: slotted}, &p)
		})
		return []device.Mat{out, tail.Mat}
	},
	"SparseMLA": func(r *rig) []device.Mat {
		out, kvB := r.zero(tensor.F32, 3, 12), r.weight(28, 16)
		run(r.dev, r.s, func(l *device.List) {
			l.SparseMLA(out, r.normal(3, 24), device.KV{Mat: r.weight(12, 20)}, &device.KVB{F: kvB}, put(r.t, r.dev, tensor.I32, 3, 2, []int32{0, 3, 1, 4, 0, 1}), device.Spans{List: spans}, &mla)
		})
		return []device.Mat{out}
	},
	"GatedNorm": func(r *rig) []device.Mat {
		out := r.normal(3, net.Values())
		run(r.dev, r.s, func(l *device.List) {
			l.GatedNorm(out, r.normal(3, net.Width()), r.weight(1, net.ValueDim), 1e-6, &net)
		})
		return []device.Mat{out}
	},
	"Rope": func(r *rig) []device.Mat {
		x := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) {
			l.Rope(x, r.ids(0, 5, 2), r.normal(8, 4), &device.Rope{Heads: 2, HeadDim: 8, Offset: 4, Dim: 4, Interleaved: true})
		})
		return []device.Mat{x}
	},
	"StoreRows": func(r *rig) []device.Mat {
		cache := r.zero(tensor.BF16, 8, 16)
		run(r.dev, r.s, func(l *device.List) { l.StoreRows(device.KV{Mat: cache}, r.normal(2, 16), r.ids(7, 3)) })
		return []device.Mat{cache}
	},
	"CopyRows": func(r *rig) []device.Mat {
		cache, from := r.zero(tensor.BF16, 8, 16), r.weight(9, 16)
		run(r.dev, r.s, func(l *device.List) { l.CopyRows(cache.RowRange(2, 5), from.RowRange(6, 9)) })
		return []device.Mat{cache}
	},
	"MLA of prompts": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 12)
		run(r.dev, r.s, func(l *device.List) {
			l.MLA(out, r.normal(3, 24), device.KV{Mat: r.weight(12, 20)}, &device.KVB{F: r.weight(28, 16)}, device.Spans{List: spans}, &mla)
		})
		return []device.Mat{out}
	},
	"MLA of generated rows": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 2, 12)
		run(r.dev, r.s, func(l *device.List) {
			l.MLA(out, r.normal(2, 24), device.KV{Mat: r.weight(12, 20)}, &device.KVB{F: r.weight(28, 16)}, device.Spans{Decode: true, List: ones}, &mla)
		})
		return []device.Mat{out}
	},
	"GQA": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 32)
		run(r.dev, r.s, func(l *device.List) {
			l.GQA(out, r.normal(3, 32), device.KV{Mat: r.weight(12, 32)}, r.normal(1, 4), device.Spans{List: spans}, &gqa)
		})
		return []device.Mat{out}
	},
	"NGrams": func(r *rig) []device.Mat {
		p := device.NGrams{Order: 2, PerOrder: 2, Dim: 4, EOS: 1, Multipliers: []uint64{5, 3}, Sizes: []uint64{5, 7}, Offsets: []uint64{0, 5}}
		out, rows, tail := r.zero(tensor.F32, 3, 8), r.zero(tensor.I32, 3, 2), r.zero(tensor.F32, 4, 1)
		run(r.dev, r.s, func(l *device.List) {
			l.NGrams(out, rows, r.ids(4, 3, 2), []device.Mat{r.weight(6, 4), r.weight(6, 4)}, device.Mat{}, device.KV{Mat: tail}, device.Spans{List: slotted}, &p)
		})
		return []device.Mat{out, rows, tail}
	},
	"TapConv": func(r *rig) []device.Mat {
		out, tail := r.zero(tensor.F32, 3, 16), r.normal(8, 16)
		kept, list := device.KV{Mat: tail}, device.Spans{List: slotted}
		run(r.dev, r.s, func(l *device.List) {
			l.TapConv(out, r.normal(3, 16), r.normal(2, 16), kept, list, &device.TapConv{Taps: 2, Step: 3})
		})
		return []device.Mat{out, tail}
	},
	"SelectBlocks": func(r *rig) []device.Mat {
		p := device.BlockIndex{Heads: 2, Dim: 8, Block: 2, Chosen: 1, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 8, Dim: 4}, BlockTokens: 4}
		chosen := r.zero(tensor.I32, 3, 3)
		run(r.dev, r.s, func(l *device.List) {
			l.SelectBlocks(chosen, r.normal(3, 16), device.KV{Mat: r.weight(12, 8)}, r.weight(1, 8), r.normal(8, 4), device.Spans{List: spans}, &p)
		})
		return []device.Mat{chosen}
	},
	"SparseGQA": func(r *rig) []device.Mat {
		out, chosen := r.zero(tensor.F32, 3, 32), put(r.t, r.dev, tensor.I32, 3, 2, []int32{0, 2, 1, 4, 0, -1})
		cache, list := device.KV{Mat: r.weight(12, 32)}, device.Spans{List: spans}
		run(r.dev, r.s, func(l *device.List) { l.SparseGQA(out, r.normal(3, 32), cache, chosen, list, &gqa) })
		return []device.Mat{out}
	},
	"RouteTopK": func(r *rig) []device.Mat {
		ids, weights := r.zero(tensor.I32, 3, 2), r.zero(tensor.F32, 3, 2)
		run(r.dev, r.s, func(l *device.List) {
			l.RouteTopK(ids, weights, r.normal(3, 8), device.Mat{}, device.Mat{}, &device.Router{Experts: 8, TopK: 2, Scale: 1, Normalize: true})
		})
		return []device.Mat{ids, weights}
	},
	"FFN": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 16)
		run(r.dev, r.s, func(l *device.List) { l.FFN(out, r.normal(3, 16), device.QRows{}, &device.FFN{F: r.expert(16, 24)}) })
		return []device.Mat{out}
	},
	"Experts": func(r *rig) []device.Mat {
		y, bank := r.zero(tensor.F32, 4, 16), []device.Expert{r.expert(16, 24), r.expert(16, 24), r.expert(16, 24)}
		run(r.dev, r.s, func(l *device.List) {
			l.Experts(y, r.normal(2, 16), device.QRows{}, device.Routed{F: bank, Work: jobs, TopK: 2})
		})
		return []device.Mat{y}
	},
	"Activate": func(r *rig) []device.Mat {
		out := r.normal(3, 7)
		run(r.dev, r.s, func(l *device.List) { l.Activate(out, r.normal(3, 7), device.GELUTanh) })
		return []device.Mat{out}
	},
	"Scale": func(r *rig) []device.Mat {
		out := r.normal(3, 7)
		run(r.dev, r.s, func(l *device.List) { l.Scale(out, 1.5) })
		return []device.Mat{out}
	},
	"Softcap": func(r *rig) []device.Mat {
		out := r.normal(3, 7)
		run(r.dev, r.s, func(l *device.List) { l.Softcap(out, 2) })
		return []device.Mat{out}
	},
	"GateRows": func(r *rig) []device.Mat {
		out := r.normal(3, 7)
		run(r.dev, r.s, func(l *device.List) { l.GateRows(out, r.normal(3, 33), r.weight(1, 33)) })
		return []device.Mat{out}
	},
	"WeightedSum": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 2, 16)
		run(r.dev, r.s, func(l *device.List) {
			l.WeightedSum(out, r.normal(4, 16), r.normal(2, 2), r.normal(2, 16), device.Mat{}, device.Mat{})
		})
		return []device.Mat{out}
	},
	"QuantizeRows": func(r *rig) []device.Mat {
		q := r.quantised(r.normal(3, 40))
		return []device.Mat{q.Q, q.Scale, q.Bias}
	},
	"MatMul of integers": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 16)
		run(r.dev, r.s, func(l *device.List) {
			l.MatMul(out, device.Mat{}, r.quantised(r.normal(3, 64)), &device.Weight{Q: r.integers(16, 64)})
		})
		return []device.Mat{out}
	},
	"FFN of integers": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 64)
		run(r.dev, r.s, func(l *device.List) {
			l.FFN(out, device.Mat{}, r.quantised(r.normal(3, 64)), &device.FFN{Q: r.network(64, 32)})
		})
		return []device.Mat{out}
	},
	"Experts of integers": func(r *rig) []device.Mat {
		y, bank := r.zero(tensor.F32, 4, 64), []device.QExpert{r.network(64, 32), r.network(64, 32), r.network(64, 32)}
		run(r.dev, r.s, func(l *device.List) {
			l.Experts(y, device.Mat{}, r.quantised(r.normal(2, 64)), device.Routed{Q: bank, Work: jobs, TopK: 2})
		})
		return []device.Mat{y}
	},
}

// results runs a case on a device.
func results(t *testing.T, dev device.Device, f func(*rig) []device.Mat) [][]byte {
	s := newStream(t, dev)
	var out [][]byte
	for _, m := range f(&rig{t: t, dev: dev, s: s}) {
		out = append(out, get(t, s, m))
	}
	return out
}

// TestOperatorsHaveTheBitsOfTheCPU: each by itself, and counted under its name.
func TestOperatorsHaveTheBitsOfTheCPU(t *testing.T) {
	processor := processor(t)
	for _, async := range []bool{false, true} {
		seen := map[string]int64{}
		for name, f := range cases {
			kind, _, _ := strings.Cut(name, " of ")
			d := simulated(t, Options{CPU: processor, Async: async})
			want, got := results(t, processor, f), results(t, d, f)
			for i := range want {
				if !bytes.Equal(want[i], got[i]) {
					t.Errorf("%s, result %d: other bits than on the CPU", name, i)
				}
				if bytes.Equal(want[i], make([]byte, len(want[i]))) {
					t.Errorf("%s, result %d: all zero", name, i)
				}
			}
			c := d.Counters()
			if c.Launches[kind] != 1 || c.BytesOnDevice == 0 || c.BytesUp == 0 || c.BytesDown == 0 {
				t.Errorf("%s: counted %+v", name, c)
			}
			for op, n := range c.Launches {
				seen[op] += n
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(seen) != 40 {
			t.Errorf("%d operators launched, want 40: %v", len(seen), seen)
		}
	}
}

// TestOperatorArgumentsAreReadAtOnce: lists may be used again after the call.
func TestOperatorArgumentsAreReadAtOnce(t *testing.T) {
	d := simulated(t, Options{})
	r := &rig{t: t, dev: d, s: newStream(t, d)}
	q, cache := r.normal(3, 32), device.KV{Mat: r.weight(12, 32)}
	out, again := r.zero(tensor.F32, 3, 32), r.zero(tensor.F32, 3, 32)
	run(d, r.s, func(l *device.List) { l.GQA(out, q, cache, device.Mat{}, device.Spans{List: spans}, &gqa) })
	want := get(t, r.s, out)
	mine := []device.Span{spans[0], spans[1]}
	mine[0].Blocks = []int32{1, 0}
	run(d, r.s, func(l *device.List) { l.GQA(again, q, cache, device.Mat{}, device.Spans{List: mine}, &gqa) })
	mine[0].Blocks[0], mine[1].Pos = 2, 0
	if !bytes.Equal(want, get(t, r.s, again)) {
		t.Error("spans that changed after the call changed the result")
	}
	x, bank := r.normal(2, 16), []device.Expert{r.expert(16, 24)}
	y, z := r.zero(tensor.F32, 4, 16), r.zero(tensor.F32, 4, 16)
	run(d, r.s, func(l *device.List) {
		l.Experts(y, x, device.QRows{}, device.Routed{F: bank, Work: []device.ExpertRows{{Assign: []int32{1, 3}}}, TopK: 2})
	})
	own := []device.ExpertRows{{Assign: []int32{1, 3}}}
	run(d, r.s, func(l *device.List) { l.Experts(z, x, device.QRows{}, device.Routed{F: bank, Work: own, TopK: 2}) })
	own[0].Assign[0] = 0
	want = get(t, r.s, y)
	if !bytes.Equal(want, get(t, r.s, z)) {
		t.Error("work that changed after the call changed the result")
	}
}

// TestWork holds bytes and operations of each kind of operator to its formula,
// written out for the sizes of the cases.
func TestWork(t *testing.T) {
	d := simulated(t, Options{})
	for name, want := range map[string]work{
		"GatherRows": {3*16*4 + 3*16*2 + 3*4, 0},                                // out, rows of the table, ids
		"Rope":       {3*16*4 + 3*4, 0},                                         // x, positions
		"StoreRows":  {2*16*4 + 2*16*2 + 2*4, 0},                                // src, rows of the cache, slots
		"CopyRows":   {2 * 3 * 16 * 2, 0},                                       // rows there and here
		"MatMul":     {3*7*4 + 3*33*4 + 7*33*2, 2 * 3 * 7 * 33},                 // out, x, w
		"GateRows":   {3*7*4 + 3*33*4 + 33*2, 2 * 3 * 33},                       // out, x, w
		"FFN":        {2*3*16*4 + 3*24*16*2 + 4*(2*24+16), 2 * 3 * 3 * 24 * 16}, // out and x, three matrices, biases
		// out, x, w; three rows kept of two sequences, read and written.
		"Conv": {3*24*4 + 3*32*4 + 3*24*4 + 2*2*3*24*4, 2 * 3 * 3 * 24},
		// out, x, ba, decay and bias; two states, read and written.
		"Delta": {3*8*4 + 3*24*4 + 3*4*4 + 2*2*4 + 2*2*16*4*4, 7 * 3 * 16 * 4},
		// Four rows out, two in, two of three experts.
		"Experts": {4*16*4 + 2*16*4 + 2*(3*24*16*2+4*(2*24+16)), 2 * 4 * 3 * 24 * 16},
		// Spans of 5 and 2 keys, four sinks; 4+5+2 pairs.
		"GQA": {2*3*32*4 + 4*4 + 7*32*2, 4 * 11 * 4 * 8},
		// The same with 20 values a key, which all are expanded to 2 heads.
		"MLA of prompts": {3*12*4 + 3*24*4 + 28*16*2 + 7*20*2, 2 * 2 * (7*14*16 + 11*18)},
		// Two rows that read 6 and 1 keys.
		"MLA of generated rows": {2*12*4 + 2*24*4 + 28*16*2 + 7*20*2, 2 * 2 * (2*14*16 + 7*36)},
		"Add":                   {2 * 3 * 8 * 4, 0},
	} {
		r := &rig{t: t, dev: d, s: newStream(t, d)}
		before := d.Counters()
		cases[name](r)
		if c := d.Counters().Since(before); c.BytesOnDevice != want.bytes || c.Flops != want.flops {
			t.Errorf("%s: %d bytes, %d flops; want %+v", name, c.BytesOnDevice, c.Flops, want)
		}
		if err := r.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignMemory names both devices.
func TestForeignMemory(t *testing.T) {
	processor := processor(t)
	one := simulated(t, Options{CPU: processor, Name: "hostsim:0"})
	two := simulated(t, Options{CPU: processor, Name: "hostsim:1"})
	s := newStream(t, one)
	a, b, host := alloc(t, one, tensor.F32, 1, 4), alloc(t, two, tensor.F32, 1, 4), alloc(t, processor, tensor.F32, 1, 4)
	for want, f := range map[string]func(){
		"Add: x is memory of hostsim:1, the operator runs on hostsim:0":      func() { run(one, s, func(l *device.List) { l.Add(a, b) }) },
		"Add: x is memory of the host, the operator runs on hostsim:0":       func() { run(one, s, func(l *device.List) { l.Add(a, host) }) },
		"CopyIn: dst is memory of hostsim:1, the operator runs on hostsim:0": func() { s.CopyIn(b, make([]byte, 16)) },
		"Add: the stream belongs to hostsim:0, the operator to hostsim:1":    func() { run(two, s, func(l *device.List) { l.Add(b, b) }) },
		"Add: the stream belongs to cpu, the operator to hostsim:1":          func() { run(two, newStream(t, processor), func(l *device.List) { l.Add(b, b) }) },
		"CopyOut: 12 bytes for src F32 [1, 4]":                               func() { s.CopyOut(make([]byte, 12), a) },
		"Experts: expert 3 of 2": func() {
			run(one, s, func(l *device.List) {
				l.Experts(a, a, device.QRows{}, device.Routed{F: make([]device.Expert, 2), Work: []device.ExpertRows{{Expert: 3}}, TopK: 1})
			})
		},
		"FFN: gate is memory of the host, the operator runs on hostsim:0": func() {
			run(one, s, func(l *device.List) {
				l.FFN(a, a, device.QRows{}, &device.FFN{F: device.Expert{Gate: host, Up: a, Down: a}})
			})
		},
		"MatMul: w is memory of hostsim:1, the operator runs on hostsim:0": func() {
			run(one, s, func(l *device.List) {
				l.MatMul(a, device.Mat{}, device.QRows{}, &device.Weight{Q: device.QMat{Values: b.Buf, Scales: a.Buf}})
			})
		},
		"GQA: cache.Scales is memory of hostsim:1, the operator runs on hostsim:0": func() {
			run(one, s, func(l *device.List) { l.GQA(a, a, device.KV{Mat: a, Scales: b}, device.Mat{}, device.Spans{}, &gqa) })
		},
		"MLA: kv_b.V.Scales is memory of hostsim:1, the operator runs on hostsim:0": func() {
			run(one, s, func(l *device.List) {
				l.MLA(a, a, device.KV{Mat: a}, &device.KVB{K: []device.QMat{{}}, V: []device.QMat{{Values: a.Buf, Scales: b.Buf}}}, device.Spans{Decode: true}, &mla)
			})
		},
	} {
		if got := raised(f); got != want {
			t.Errorf("raised %q, want %q", got, want)
		}
	}
	if c := one.Counters(); c.Operators() != 0 || c.CopiesUp != 0 || c.CopiesDown != 0 {
		t.Errorf("counted %+v although nothing was enqueued", c)
	}
	if raised(func() { run(processor, newStream(t, processor), func(l *device.List) { l.Add(host, a) }) }) == "" {
		t.Error("the CPU took memory of a simulated device")
	}
}

func TestTimeOfUnits(t *testing.T) {
	for _, c := range []struct{ n, rate, want int64 }{
		{0, 5, 0}, {5, 0, 0}, {1, 1_000_000_000, 1}, {3, 2_000_000_000, 1}, {1 << 50, 1 << 30, 1 << 20 * 1_000_000_000},
		{math.MaxInt64, 1, math.MaxInt64}, {math.MaxInt64, math.MaxInt64, 1_000_000_000},
	} {
		if got := at(c.n, c.rate); int64(got) != c.want {
			t.Errorf("%d at %d a second: %d ns, want %d", c.n, c.rate, got, c.want)
		}
	}
}
