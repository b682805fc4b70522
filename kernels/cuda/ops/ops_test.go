package ops

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// lite are the sizes of DeepSeek-V2-Lite.
var lite = device.StepSizes{
	Rows: 2080, Seqs: 32, LogitRows: 32, Context: 32768, Hidden: 2048, Vocab: 102400,
	Experts: 64, TopK: 6, ExpertFF: 1408, SharedFF: 2816, DenseFF: 10944,
	MLA: device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 32},
}

// at makes matrices at addresses that do not overlap and are never read.
type at struct{ next launch.Ptr }

func (a *at) mat(dt tensor.DType, rows, cols int) launch.Mat {
	a.next += 1 << 36
	return launch.Mat{At: a.next, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func (a *at) tiles(rows, cols, bits int, joined bool) launch.Weight {
	a.next += 1 << 36
	return launch.Weight{A: launch.Tiles{Layout: tensor.Layout{Format: tensor.Integers(bits).By(128), Rows: rows, Cols: cols, For: tensor.GPU, Joined: joined},
		Values: a.next, Scales: a.next + 1<<34}}
}

// everything appends every operator of a step of V2-Lite with that many rows.
func everything(b *Builder, a *at, rows int, list []device.Span, decode bool, bits int) {
	s := &lite
	h := a.mat(tensor.F32, rows, s.Hidden)
	x, delta := a.mat(tensor.BF16, rows, s.Hidden), a.mat(tensor.BF16, rows, s.Hidden)
	q, out := a.mat(tensor.BF16, rows, 16*192), a.mat(tensor.BF16, rows, 16*128)
	cache := launch.KV{Mat: a.mat(tensor.BF16, 1<<16, 576)}
	kvb := launch.Weight{F: a.mat(tensor.BF16, 16*256, 512)}
	table := a.mat(tensor.I32, 1, 1<<16)
	weight := func(n, k int) launch.Weight {
		if bits == 0 {
			return launch.Weight{F: a.mat(tensor.BF16, n, k)}
		}
		return a.tiles(n, k, bits, false)
	}
	network := func(f int) Network {
		if bits == 0 {
			return Network{W13: launch.Weight{F: a.mat(tensor.BF16, 2*f, s.Hidden)}, W2: launch.Weight{F: a.mat(tensor.BF16, s.Hidden, f)}}
		}
		return Network{W13: a.tiles(2*f, s.Hidden, bits, true), W2: a.tiles(s.Hidden, f, bits, false)}
	}
	b.AddRMSNorm(x, h, delta, a.mat(tensor.BF16, 1, s.Hidden), 1e-6)
	b.MatMul(q, x, weight(16*192, s.Hidden))
	if decode {
		b.MLADecode(out, q, cache, kvb, list, table, s.MLA)
	} else {
		b.MLAPrefill(out, q, cache, kvb, list, table, s.MLA)
	}
	b.MatMul(delta, out, weight(s.Hidden, 16*128))
	logits := a.mat(tensor.F32, rows, s.Experts)
	b.MatMul(logits, x, launch.Weight{F: a.mat(tensor.BF16, s.Experts, s.Hidden)})
	ids, weights := a.mat(tensor.I32, rows, s.TopK), a.mat(tensor.F32, rows, s.TopK)
	router := device.Router{Experts: s.Experts, TopK: s.TopK, Scale: 1}
	b.TopK(ids, weights, logits, launch.Mat{}, router)
	b.Route(ids, weights, logits, x, launch.Weight{F: a.mat(tensor.F32, s.Experts, s.Hidden)}, launch.Mat{}, router)
	b.FFN(delta, x, network(s.DenseFF))
	n := network(s.ExpertFF)
	step := int64(1) << 30
	bank := launch.Bank{Experts: s.Experts, W13: n.W13, W2: n.W2, Step: step, ScaleStep: step, Step2: step, ScaleStep2: step}
	y, shared := a.mat(tensor.BF16, rows*s.TopK, s.Hidden), a.mat(tensor.BF16, rows, s.Hidden)
	b.Mix(delta, y, shared, x, bank, network(s.SharedFF), ids, weights)
	if rows > AddRows {
		return
	}
	b.AddMatMul(h, delta, out, weight(s.Hidden, 16*128))
	b.AddFFN(h, delta, x, network(s.DenseFF))
	b.AddMix(h, delta, y, shared, x, bank, network(s.SharedFF), ids, weights)
}

// spansOf returns sequences with that many rows in all; generated rows have random contexts.
func spansOf(rng *rand.Rand, rows int, decode bool) []device.Span {
	var list []device.Span
	for at := 0; at < rows; {
		sp := device.Span{Row: at, Len: 1, Pos: rng.IntN(lite.Context - 1)}
		if !decode {
			sp.Len = min(rows-at, 1+rng.IntN(rows))
			if len(list) == lite.Seqs-1 {
				sp.Len = rows - at
			}
			sp.Pos = rng.IntN(lite.Context - sp.Len)
		}
		sp.Blocks = make([]int32, (sp.Pos+sp.Len+31)/32)
		list = append(list, sp)
		at += sp.Len
	}
	return list
}

// TestScratchIsBounded: no step requests more scratch memory than planned, on GPUs with and
// without Hopper's kernels.
func TestScratchIsBounded(t *testing.T) {
	planned := ScratchBytes(&lite)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, gpu := range []launch.GPU{{SMs: 132, Hopper: true, SharedMax: 232448}, {SMs: 108, SharedMax: 166912}, {SMs: 28, SharedMax: 101376}} {
		for _, bits := range []int{0, 4, 8} {
			for range 30 {
				rows, decode := 1+rng.IntN(lite.Rows), rng.IntN(2) == 0
				if decode {
					rows = 1 + rng.IntN(lite.Seqs)
				}
				most := 0
				b := &Builder{GPU: gpu, List: &launch.List{}, Scratch: func(n int) launch.Ptr {
					most = max(most, n)
					return 1 << 60
				}}
				everything(b, &at{}, rows, spansOf(rng, rows, decode), decode, bits)
				if most > planned {
					t.Errorf("%d rows, %d bits, decode %v on %d multiprocessors: %d bytes, planned are %d", rows, bits, decode, gpu.SMs, most, planned)
				}
			}
		}
	}
	if planned > 1<<30 {
		t.Errorf("%d bytes are planned", planned)
	}
}

// TestStepsRepeat: two steps of generated rows with equal keys are the same list, even if their
// contexts differ.
func TestStepsRepeat(t *testing.T) {
	gpu := launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}
	rng := rand.New(rand.NewPCG(3, 4))
	seen := map[int]*launch.List{}
	repeated := 0
	for range 400 {
		list := spansOf(rng, 4, true)
		for i := range list {
			list[i].Pos = 2000 + rng.IntN(400)
		}
		l := &launch.List{}
		b := &Builder{GPU: gpu, List: l, Scratch: func(int) launch.Ptr { return 1 << 60 }}
		everything(b, &at{}, 4, list, true, 4)
		key := DecodeItems(list)
		if old := seen[key]; old != nil {
			repeated++
			if !l.Same(old) || l.Hash() != old.Hash() {
				t.Fatalf("steps of %d items differ", key)
			}
		}
		seen[key] = l
	}
	if repeated < 300 {
		t.Errorf("%d of 400 steps came again", repeated)
	}
}

// TestFastKernelsAreChosen: at the sizes of the fast kernels, no operator uses the plain kernels.
func TestFastKernelsAreChosen(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, rows := range []int{1, 5, 64, 65, 2048} {
		for _, bits := range []int{4, 8} {
			decode := rows <= lite.Seqs
			l := &launch.List{}
			b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: l, Scratch: func(int) launch.Ptr { return 1 << 60 }}
			everything(b, &at{}, rows, spansOf(rng, rows, decode), decode, bits)
			for i := range l.Ops {
				if o := &l.Ops[i]; o.Kind == launch.Run && isPlain(o.Kernel.String()) {
					t.Errorf("%d rows of %d bits: %s", rows, bits, o.Kernel)
				}
			}
		}
	}
}

// TestLaunchesOfALayer: the launches of a layer of V2-Lite for a few generated rows.
func TestLaunchesOfALayer(t *testing.T) {
	norms := []string{"kr_rms_norm", "kr_gemv_int8_g128"}
	for rows, want := range map[int][]string{
		1: {"kr_gemv_norm_int8_g128", "kr_mla_begin", "kr_mla_decode_bf16", "kr_mla_merge", "kr_gemv_int8_g128",
			"kr_norm_route_b", "kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_down_all_int4_g128_int8_g128"},
		3: append(norms, "kr_mla_begin", "kr_mla_decode_bf16", "kr_mla_join", "kr_mla_merge", "kr_gemv_int8_g128",
			"kr_rms_norm", "kr_logits_few_b", "kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_down_all_int4_g128_int8_g128"),
	} {
		var got []string
		for _, o := range layer(rows).Ops {
			got = append(got, o.Kernel.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d rows: launches\n%q, want\n%q", rows, got, want)
		}
	}
}

// TestNextNorm: the launch that adds the experts' results also norms the rows for the next layer, where it is a launch of
// its own and the rows are not normed by the product that reads them.
func TestNextNorm(t *testing.T) {
	for rows, fused := range map[int]int{1: 0, 2: 0, 3: 0, 4: 1, 32: 1, 64: 1, 65: 0} {
		one, two := layer(rows).Ops, layers(2, rows, 0).Ops
		norms := 0
		for _, o := range two {
			if o.Kernel.String() == "kr_gemv_combine_norm" {
				norms++
			}
		}
		if norms != fused || len(two) != 2*len(one)-fused {
			t.Errorf("%d rows: %d norms in sums of experts, want %d; %d launches, one layer has %d", rows, norms, fused, len(two), len(one))
		}
	}
}

// TestRouteSorts: a mixture directly after the router needs no launch to sort its choices, unless
// there are many.
func TestRouteSorts(t *testing.T) {
	s := &lite
	for _, bits := range []int{4, 8} {
		for rows := 1; rows <= 130; rows++ {
			a, l := &at{}, &launch.List{}
			b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: l, Turn: 1 << 20, Scratch: func(int) launch.Ptr { return 1 << 60 }}
			x, ids, weights := a.mat(tensor.BF16, rows, s.Hidden), a.mat(tensor.I32, rows, s.TopK), a.mat(tensor.F32, rows, s.TopK)
			b.Route(ids, weights, a.mat(tensor.F32, rows, s.Experts), x, launch.Weight{F: a.mat(tensor.F32, s.Experts, s.Hidden)}, launch.Mat{},
				device.Router{Experts: s.Experts, TopK: s.TopK, Scale: 1})
			bank := launch.Bank{Experts: s.Experts, W13: a.tiles(2*s.ExpertFF, s.Hidden, bits, true), W2: a.tiles(s.Hidden, s.ExpertFF, bits, false),
				Step: 1 << 30, ScaleStep: 1 << 30, Step2: 1 << 30, ScaleStep2: 1 << 30}
			b.Mix(a.mat(tensor.BF16, rows, s.Hidden), a.mat(tensor.BF16, rows*s.TopK, s.Hidden), launch.Mat{}, x, bank, Network{}, ids, weights)
			aligns := 0
			for i := range l.Ops {
				if l.Ops[i].Kernel.String() == "kr_align" {
					aligns++
				}
			}
			if want := rows > 128; aligns == 1 != want || aligns > 1 {
				t.Errorf("%d rows of %d bits are sorted by %d launches", rows, bits, aligns)
			}
		}
	}
}

// TestChoiceIsLeft: up to three rows the mixture makes the router's choice itself. The router's
// turn is then 0, and no other data is written to the memory of the logits' parts.
func TestChoiceIsLeft(t *testing.T) {
	for rows := 1; rows <= 4; rows++ {
		l := layer(rows)
		var router, mixture *launch.Op
		for i := range l.Ops {
			switch o := &l.Ops[i]; o.Kernel.String() {
			case "kr_norm_route_b", "kr_logits_few_b":
				router = o
			case "kr_gemv_gate_up_int4_g128_int8_g128":
				mixture = o
			}
		}
		if router == nil || mixture == nil {
			t.Fatalf("%d rows: no router or no mixture", rows)
		}
		args := l.OpArgs(router)
		if left, want := args[0] == launch.P(0), !gemv.Grouped(rows); left != want {
			t.Errorf("%d rows: left %v, want %v", rows, left, want)
		}
		if hidden, parts := l.OpArgs(mixture)[0], args[1]; !gemv.Grouped(rows) && hidden == parts {
			t.Errorf("%d rows: hidden values lie where the logits do", rows)
		}
	}
}

// TestSharedNetworkIsEarly: the shared network does not wait for the choice, and writes no memory
// that the router still reads. Up to two rows the router norms the rows itself, and so does the shared
// network, which starts when these rows are there.
func TestSharedNetworkIsEarly(t *testing.T) {
	for _, rows := range []int{1, 2, 3, 4, 8, 32, 64} {
		l := layer(rows)
		for i := range l.Ops {
			o := &l.Ops[i]
			if o.Kernel.String() != "kr_gemv_gate_up_int4_g128_int8_g128" {
				continue
			}
			args, router := l.OpArgs(o), l.OpArgs(&l.Ops[i-1])
			if args[len(args)-10] != launch.I32(1) {
				t.Errorf("%d rows: the shared network waits for the choice", rows)
			}
			normed := l.Ops[i-1].Kernel.String() == "kr_norm_route_b"
			if normed != (rows <= 2) || normed && (router[len(router)-1] != launch.I32(1) || args[len(args)-6] != router[len(router)-8]) {
				t.Errorf("%d rows: the router norms %v and lets the shared network start with %v, which reads %v",
					rows, normed, router[len(router)-8:], args[len(args)-6:])
			}
			parts, end := at64(router[1]), at64(router[1])+uint64(route.Scratch(rows, lite.Experts, lite.Hidden))
			for _, to := range []uint64{at64(args[0]), at64(args[2])} { // hidden values, routed and shared
				if to >= parts && to < end {
					t.Errorf("%d rows: writes at %x into the router's sums at %x", rows, to, parts)
				}
			}
		}
	}
}

// TestMapIsGiven: a layer has the same launches with a map as without one. Those that look up
// experts get the map, and the sum of many rows is another kernel.
func TestMapIsGiven(t *testing.T) {
	const where = launch.Ptr(1 << 58)
	for rows, want := range map[int][]string{
		1:   {"kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_down_all_int4_g128_int8_g128"},
		3:   {"kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_down_all_int4_g128_int8_g128"},
		4:   {"kr_logits_few_b", "kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_combine"},
		64:  {"kr_logits_few_b", "kr_gemv_gate_up_int4_g128_int8_g128", "kr_gemv_combine"},
		65:  {"kr_logits_few_b", "kr_weighted_sum_here"},
		300: {"kr_align", "kr_weighted_sum_here"},
	} {
		l, m := layer(rows), layers(1, rows, where)
		if len(l.Ops) != len(m.Ops) {
			t.Fatalf("%d rows: %d launches, with a map %d", rows, len(l.Ops), len(m.Ops))
		}
		var given []string
		for i := range l.Ops {
			a, b := &l.Ops[i], &m.Ops[i]
			if slices.Contains(m.OpArgs(b), launch.P(where)) {
				given = append(given, b.Kernel.String())
			}
			if a.Config != b.Config || a.Kernel != b.Kernel && b.Kernel.String() != "kr_weighted_sum_here" {
				t.Errorf("%d rows: %v %+v became %v %+v", rows, a.Kernel, a.Config, b.Kernel, b.Config)
			}
		}
		if !slices.Equal(given, want) {
			t.Errorf("%d rows: %v are given the map, want %v", rows, given, want)
		}
	}
}

// at64 is a pointer among arguments.
func at64(a launch.Arg) uint64 {
	var b [8]byte
	a.Put(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// layer returns the launches of a MoE layer of V2-Lite.
func layer(rows int) *launch.List { return layers(1, rows, 0) }

// layers returns the launches of equal layers, one after the other, with a map of experts; 0: slot e is expert e.
func layers(n, rows int, where launch.Ptr) *launch.List {
	s, a, l := &lite, &at{}, &launch.List{}
	b := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: l, Turn: 1 << 59, Scratch: func(int) launch.Ptr { return 1 << 60 }}
	h := a.mat(tensor.F32, rows, s.Hidden)
	for range n {
		addLayer(b, a, h, where)
	}
	return l
}

func addLayer(b *Builder, a *at, h launch.Mat, where launch.Ptr) {
	s, rows := &lite, h.Rows
	x, delta := a.mat(tensor.BF16, rows, s.Hidden), a.mat(tensor.BF16, rows, s.Hidden)
	norm, both, out := a.mat(tensor.BF16, 1, s.Hidden), a.mat(tensor.BF16, rows, 16*192+576), a.mat(tensor.BF16, rows, 16*128)
	q, kv := both.ColRange(0, 16*192), both.ColRange(16*192, both.Cols)
	cache, kvb, table := launch.KV{Mat: a.mat(tensor.BF16, 1<<16, 576)}, launch.Weight{F: a.mat(tensor.BF16, 16*256, 512)}, a.mat(tensor.I32, 1, 1<<16)
	turn := device.Rope{Heads: 16, HeadDim: 192, Offset: 128, Dim: 64, Interleaved: true}
	key := device.Rope{Heads: 1, HeadDim: 64, Dim: 64, Interleaved: true}
	b.NormMatMul(both, x, h, norm, 1e-6, a.tiles(both.Cols, s.Hidden, 8, false))
	list := spansOf(rand.New(rand.NewPCG(7, 8)), rows, true)
	for i := range list {
		list[i].Pos = 2000 + i
	}
	b.LatentDecode(out, q, kv, a.mat(tensor.BF16, 1, 512), 1e-6, cache, a.mat(tensor.I32, rows, 1), a.mat(tensor.I32, rows, 1), a.mat(tensor.F32, 4096, 64),
		turn, key, kvb, list, table, s.MLA)
	b.AddMatMul(h, delta, out, a.tiles(s.Hidden, 16*128, 8, false))
	ids, weights, logits := a.mat(tensor.I32, rows, s.TopK), a.mat(tensor.F32, rows, s.TopK), a.mat(tensor.F32, rows, s.Experts)
	b.NormRoute(ids, weights, logits, x, h, norm, 1e-6, launch.Weight{F: a.mat(tensor.BF16, s.Experts, s.Hidden)}, launch.Mat{}, device.Router{Experts: s.Experts, TopK: s.TopK, Scale: 1})
	n := func(f, bits int) Network {
		return Network{W13: a.tiles(2*f, s.Hidden, bits, true), W2: a.tiles(s.Hidden, f, bits, false)}
	}
	routed, step := n(s.ExpertFF, 4), int64(1)<<30
	bank := launch.Bank{Experts: s.Experts, W13: routed.W13, W2: routed.W2, Step: step, ScaleStep: step, Step2: step, ScaleStep2: step, Map: where}
	b.AddMix(h, delta, a.mat(tensor.BF16, rows*s.TopK, s.Hidden), a.mat(tensor.BF16, rows, s.Hidden), x, bank, n(s.SharedFF, 8), ids, weights)
}

func isPlain(name string) bool {
	for _, p := range []string{"kr_plain_", "kr_mla_plain"} {
		if len(name) >= len(p) && name[:len(p)] == p {
			return true
		}
	}
	return false
}

// BenchmarkStep measures the host's work for a layer of a generated row: appending, and
// recognising the list.
func BenchmarkStep(b *testing.B) {
	l := &launch.List{}
	builder := &Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}, List: l, Scratch: func(int) launch.Ptr { return 1 << 60 }}
	list := spansOf(rand.New(rand.NewPCG(1, 1)), 1, true)
	var hash uint64
	for b.Loop() {
		l.Reset()
		everything(builder, &at{}, 1, list, true, 4)
		hash += l.Hash()
	}
	b.ReportMetric(float64(len(l.Ops)), "launches")
}

// TestGroupedScratch: grouped-query attention uses the scratch memory planned for a step.
func TestGroupedScratch(t *testing.T) {
	s := device.StepSizes{Rows: 300, Seqs: 20, LogitRows: 20, Context: 9000, Hidden: 64, Vocab: 100,
		GQA: device.GQA{Heads: 32, KVHeads: 4, HeadDim: 128, Scale: 0.1, BlockTokens: 64}}
	a, p := &at{}, s.GQA
	var list []device.Span
	for i := range s.Seqs {
		list = append(list, device.Span{Row: i, Len: 1, Pos: s.Context - 1})
	}
	most := 0
	b := Builder{GPU: launch.GPU{SMs: 132, Hopper: true, SharedMax: 227 << 10}, List: &launch.List{}, Scratch: func(n int) launch.Ptr {
		most = max(most, n)
		return 1 << 20
	}}
	q, out := a.mat(tensor.BF16, s.Rows, p.Heads*p.HeadDim), a.mat(tensor.BF16, s.Rows, p.Heads*p.HeadDim)
	cache, table := launch.KV{Mat: a.mat(tensor.F8E4M3, 1<<16, p.Width())}, a.mat(tensor.I32, 1, 1<<16)
	b.GQA(out, q, cache, launch.Mat{}, list, table, true, p)
	b.GQA(out, q, cache, launch.Mat{}, []device.Span{{Len: s.Rows}}, table, false, p)
	b.GQA(out, q, cache, launch.Mat{}, nil, table, false, p)
	if planned := ScratchBytes(&s); most == 0 || most > planned || len(b.List.Ops) != 3 {
		t.Errorf("%d bytes, planned %d, %d launches", most, planned, len(b.List.Ops))
	}
}
