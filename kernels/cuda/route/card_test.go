//go:build cuda

package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func upload(c *cudatest.GPU, dt tensor.DType, x []float32, rows, cols int) launch.Mat {
	if dt == f32 {
		return c.F32(x, rows, cols)
	}
	return c.BF16(x, rows, cols)
}

// TestLogits: compared with float64, and the same bits for every number of tokens, in every
// kernel that takes them. Every other gate of F32 has BF16 values, as most have in practice.
func TestLogits(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for i, s := range []struct{ most, experts, cols int }{
		{140, 35, 72}, {150, 64, 264}, {3, 9, 61}, {5, 6, 2304}, {18, 3, 1160}, {131, 9, 1304}, {1, 1, 1}, {133, 70, 528}, {200, 17, 1600},
	} {
		for j := range 4 {
			xt, gt := []tensor.DType{f32, bf16}[j&1], []tensor.DType{f32, bf16}[j>>1]
			x, gate := cudatest.Normal(rng, s.most*s.cols), cudatest.Normal(rng, s.experts*s.cols)
			if i%2 == 0 && gt == f32 {
				gate = finest(rng, s.experts*s.cols)
			}
			gm := upload(c, gt, gate, s.experts, s.cols)
			xm, out := upload(c, xt, x, s.most, s.cols), c.Strided(f32, s.most, s.experts, s.experts+i)
			scratch := c.Alloc(max(16, Scratch(s.most, s.experts, s.cols)))
			c.Run(func(l *launch.List) { Logits(l, out, xm, gm, scratch) })
			got, want := c.Floats(out), make([]float32, s.most*s.experts)
			ref.MatMul(want, x, gate, s.most, s.experts, s.cols)
			if err := kerneltest.Compare(got, want, s.experts, kerneltest.DotTolerance(x, gate, s.cols)); err != nil {
				t.Fatalf("%+v %s %s: %v", s, xt, gt, err)
			}
			for _, n := range []int{1, 2, 3, 16, 17, 130} {
				if n >= s.most {
					continue
				}
				some, from := c.Mat(f32, n, s.experts), s.most-n
				c.Run(func(l *launch.List) { Logits(l, some, xm.RowRange(from, s.most), gm, scratch) })
				if err := kerneltest.SameBits(c.Floats(some), got[from*s.experts:]); err != nil {
					t.Fatalf("%+v: %d tokens: %v", s, n, err)
				}
			}
		}
	}
}

// finest returns numbers that use all bits of float32.
func finest(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// TestLogitsAreExact: a token that selects a column gets exactly its weights, in every kernel
// that takes BF16.
func TestLogitsAreExact(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range []struct{ tokens, experts, cols int }{{5, 20, 1096}, {143, 67, 136}, {4100, 2, 64}} {
		x, gate := make([]float32, s.tokens*s.cols), finest(rng, s.experts*s.cols)
		want := make([]float32, 0, s.tokens*s.experts)
		for i := range s.tokens {
			col := rng.IntN(s.cols)
			x[i*s.cols+col] = -1
			for e := range s.experts {
				want = append(want, -gate[e*s.cols+col])
			}
		}
		out, scratch := c.Mat(f32, s.tokens, s.experts), c.Alloc(max(16, Scratch(s.tokens, s.experts, s.cols)))
		xm, gm := c.BF16(x, s.tokens, s.cols), c.F32(gate, s.experts, s.cols)
		c.Run(func(l *launch.List) { Logits(l, out, xm, gm, scratch) })
		if err := kerneltest.SameBits(c.Floats(out), want); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// routers are all kinds of choice.
var routers = []device.Router{
	{Experts: 64, TopK: 6, Scale: 1},
	{Experts: 8, TopK: 2, Normalize: true, Scale: 1},
	{Experts: 160, TopK: 6, Groups: 8, TopGroups: 3, GroupScore: device.GroupMax, Scale: 16},
	{Experts: 256, TopK: 8, Scoring: device.ScoreSigmoid, Groups: 8, TopGroups: 4, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5},
	{Experts: 384, TopK: 8, Scoring: device.ScoreSigmoid, Groups: 1, TopGroups: 1, Normalize: true, Scale: 2.827},
	{Experts: 512, TopK: 10, Normalize: true, Scale: 1},
	{Experts: 60, TopK: 4, Groups: 5, TopGroups: 2, GroupScore: device.GroupTop2Sum, Scale: 1},
	{Experts: 32, TopK: 3, Groups: 32, TopGroups: 5, GroupScore: device.GroupTop2Sum, Scale: 1},
	{Experts: 33, TopK: 32, Scale: 1},
	{Experts: 1, TopK: 1, Scoring: device.ScoreSigmoid, Scale: 1},
	{Experts: 256, TopK: 6, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 1.5},
	{Experts: 60, TopK: 4, Groups: 5, TopGroups: 2, Scoring: device.ScoreSqrtSoftplus, Scale: 1},
}

// TestTopK: the reference's choice, with and without a bias.
func TestTopK(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(2, 1))
	const rows = 21
	for _, p := range routers {
		for _, biased := range []bool{false, true} {
			logits, bias := make([]float32, rows*p.Experts), make([]float32, p.Experts)
			for i := range logits {
				logits[i] = float32(rng.NormFloat64() * 2)
			}
			for i := range bias {
				bias[i] = float32(rng.NormFloat64()) * 0.1
			}
			bm, b := c.F32(bias, 1, p.Experts), bias
			if !biased {
				bm, b = launch.Mat{}, nil
			}
			ids, weights := c.Strided(i32, rows, p.TopK, p.TopK+1), c.Strided(f32, rows, p.TopK, p.TopK+2)
			lm := c.F32(logits, rows, p.Experts)
			c.Run(func(l *launch.List) { TopK(l, ids, weights, lm, bm, p, 0) })
			want, w := make([]int32, rows*p.TopK), make([]float32, rows*p.TopK)
			ref.RouteTopK(want, w, logits, b, nil, p)
			if got := ints(c, ids); !slices.Equal(got, want) {
				t.Errorf("%+v, bias %v: chose\n%v, want\n%v", p, biased, got, want)
			}
			if err := kerneltest.Compare(c.Floats(weights), w, p.TopK, kerneltest.Relative(w, 64, 1e-20)); err != nil {
				t.Errorf("%+v, bias %v: %v", p, biased, err)
			}
		}
	}
}

func ints(c *cudatest.GPU, m launch.Mat) []int32 {
	var out []int32
	for r := range m.Rows {
		out = append(out, cudatest.Download[int32](c, m.RowRange(r, r+1).At, m.Cols)...)
	}
	return out
}

// TestTies: equal scores come by rising id, values that are not numbers last; padded rows have no
// experts.
func TestTies(t *testing.T) {
	c := cudatest.Open(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const e, k = 40, 4
	row := func(set map[int]float32) []float32 {
		x := make([]float32, e)
		for i, v := range set {
			x[i] = v
		}
		return x
	}
	all := slices.Repeat([]float32{nan}, e)
	sigmoid := device.Router{Experts: e, TopK: k, Scoring: device.ScoreSigmoid, Scale: 1}
	softmax := device.Router{Experts: e, TopK: k, Scale: 1}
	groups := device.Router{Experts: e, TopK: k, Groups: 4, TopGroups: 2, Scale: 1}
	for _, tt := range []struct {
		name string
		p    device.Router
		x    []float32
		want []int32
	}{
		{"all equal", softmax, row(nil), []int32{0, 1, 2, 3}},
		{"equal far apart", softmax, row(map[int]float32{39: 2, 3: 2, 33: 2}), []int32{3, 33, 39, 0}},
		{"zeros of both signs", softmax, row(map[int]float32{0: float32(math.Copysign(0, -1))}), []int32{0, 1, 2, 3}},
		{"saturated", sigmoid, row(map[int]float32{38: 100, 20: 200, 21: inf}), []int32{20, 21, 38, 0}},
		{"a NaN", sigmoid, row(map[int]float32{0: nan, 1: -1}), []int32{2, 3, 4, 5}},
		{"all NaN", sigmoid, all, []int32{0, 1, 2, 3}},
		{"all NaN by softmax", softmax, row(map[int]float32{7: nan}), []int32{0, 1, 2, 3}},
		{"equal groups", groups, row(nil), []int32{0, 1, 2, 3}},
		{"equal groups, the best inside", groups, row(map[int]float32{5: 1, 15: 1, 25: 1, 35: 1}), []int32{5, 15, 0, 1}},
		{"two of the groups", groups, row(map[int]float32{35: 3, 12: 2, 2: 1}), []int32{35, 12, 10, 11}},
		{"minus infinity", softmax, row(map[int]float32{0: -inf}), []int32{1, 2, 3, 4}},
	} {
		ids, weights, lm := c.Mat(i32, 1, k), c.Mat(f32, 1, k), c.F32(tt.x, 1, e)
		c.Run(func(l *launch.List) { TopK(l, ids, weights, lm, launch.Mat{}, tt.p, 0) })
		if got := ints(c, ids); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	const rows = 7
	count := cudatest.Upload(c, []int32{3})
	ids, weights, lm := c.Mat(i32, rows, k), c.Mat(f32, rows, k), c.F32(make([]float32, rows*e), rows, e)
	c.Run(func(l *launch.List) { TopK(l, ids, weights, lm, launch.Mat{}, softmax, count) })
	w := c.Floats(weights)
	for i, id := range ints(c, ids) {
		if want := int32(i % k); i < 3*k && (id != want || w[i] != 1./e) || i >= 3*k && (id != -1 || w[i] != 0) {
			t.Fatalf("row %d of 3: expert %d, weight %v", i/k, id, w[i])
		}
	}
}

// TestByToken: the reference's order and weights of what a table has, which may have an expert twice; what is no token's row and no expert becomes
// the nearest one.
func TestByToken(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(2, 2))
	const vocab = 9
	tokens := []int32{8, 0, 3, 3, 5, 1, 7}
	for _, p := range []device.Router{
		{Experts: 256, TopK: 6, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 1.5},
		{Experts: 5, TopK: 3, Scoring: device.ScoreSigmoid, Scale: 2},
		{Experts: 70, TopK: 32, Normalize: true, Scale: 1},
	} {
		logits, table := make([]float32, len(tokens)*p.Experts), make([]float32, vocab*p.TopK)
		for i := range logits {
			logits[i] = float32(rng.NormFloat64() * 3)
		}
		for v := range vocab {
			for i, e := range rng.Perm(p.Experts)[:p.TopK] {
				table[v*p.TopK+i] = float32(e)
			}
		}
		run := func(tokens []int32, table []float32) ([]int32, []float32) {
			n := len(tokens)
			ids, weights := c.Strided(i32, n, p.TopK, p.TopK+1), c.Strided(f32, n, p.TopK, p.TopK+2)
			lm, tm, of := c.F32(logits, n, p.Experts), c.F32(table, vocab, p.TopK), c.I32(tokens, n, 1)
			c.Run(func(l *launch.List) { ByToken(l, ids, weights, lm, of, tm, p) })
			return ints(c, ids), c.Floats(weights)
		}
		want, w := make([]int32, len(tokens)*p.TopK), make([]float32, len(tokens)*p.TopK)
		ref.RouteByToken(want, w, logits, tokens, table, p)
		got, weights := run(tokens, table)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: chose\n%v, want\n%v", p, got, want)
		}
		if err := kerneltest.Compare(weights, w, p.TopK, kerneltest.Relative(w, 64, 1e-20)); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
		same := slices.Repeat([]float32{float32(p.Experts + 3)}, len(table))
		got, _ = run([]int32{-4}, same)
		other, _ := run([]int32{vocab + 70}, same)
		if last := slices.Repeat([]int32{int32(p.Experts - 1)}, p.TopK); !slices.Equal(got, last) || !slices.Equal(other, last) {
			t.Errorf("%+v: chose %v and %v, want the last expert", p, got, other)
		}
	}
}

// TestRoute: one launch gives the bits of two and of three, repeatedly.
func TestRoute(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(3, 1))
	turn, count := cudatest.Upload(c, make([]int32, TurnBytes/4)), cudatest.Upload(c, []int32{5})
	for i, p := range []device.Router{routers[0], routers[3], routers[6], routers[10]} {
		for j, s := range [][2]int{{1, 64}, {2, 67}, {3, 1096}, {16, 64}, {17, 520}, {MaxFused, 64}, {MaxFused + 5, 528}} {
			if testing.Short() && i > 0 && (i+j)%2 == 0 {
				continue // the next router has them
			}
			tokens, cols := s[0], s[1]
			x, gate := upload(c, bf16, cudatest.Normal(rng, tokens*cols), tokens, cols), c.F32(finest(rng, p.Experts*cols), p.Experts, cols)
			bias := c.F32(cudatest.Normal(rng, p.Experts), 1, p.Experts)
			rows := count
			if i == 0 || apart(p) {
				rows = 0
			}
			var ids, weights, logits [4]launch.Mat
			for i := range ids {
				ids[i], weights[i], logits[i] = c.Mat(i32, tokens, p.TopK), c.Mat(f32, tokens, p.TopK), c.Strided(f32, tokens, p.Experts, p.Experts+i)
			}
			scratch := c.Alloc(max(16, Scratch(tokens, p.Experts, cols)))
			c.Run(func(l *launch.List) {
				Logits(l, logits[0], x, gate, scratch)
				TopK(l, ids[0], weights[0], logits[0], bias, p, rows)
				for i, turn := range []launch.Ptr{turn, 0, turn} {
					Route(l, ids[i+1], weights[i+1], logits[i+1], x, launch.Weight{F: gate}, bias, p, rows, turn, scratch)
				}
			})
			for i := range 3 {
				if !slices.Equal(ints(c, ids[i+1]), ints(c, ids[0])) {
					t.Fatalf("%+v, %d tokens of %d: other experts", p, tokens, cols)
				}
				for _, m := range [][2]launch.Mat{{weights[i+1], weights[0]}, {logits[i+1], logits[0]}} {
					if err := kerneltest.SameBits(c.Floats(m[0]), c.Floats(m[1])); err != nil {
						t.Fatalf("%+v, %d tokens of %d: %v", p, tokens, cols, err)
					}
				}
			}
		}
	}
	if got := cudatest.Download[int32](c, turn, TurnBytes/4); !slices.Equal(got, make([]int32, TurnBytes/4)) {
		t.Errorf("the turns are left at %v", got)
	}
}

// TestRouteBias: a gate's bias is part of the logits, whose bits do not depend on the number of tokens.
func TestRouteBias(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 1))
	turn, p := cudatest.Upload(c, make([]int32, TurnBytes/4)), routers[0]
	for i, cols := range []int{64, 1096} {
		const most = MaxFused + 5
		x, gate := upload(c, bf16, cudatest.Normal(rng, most*cols), most, cols), upload(c, []tensor.DType{f32, bf16}[i], cudatest.Normal(rng, p.Experts*cols), p.Experts, cols)
		bias := cudatest.Normal(rng, p.Experts)
		w := launch.Weight{F: gate, Bias: c.F32(bias, 1, p.Experts).At}
		scratch := c.Alloc(max(16, Scratch(most, p.Experts, cols)))
		run := func(tokens int, turn launch.Ptr) []float32 {
			logits := c.Mat(f32, tokens, p.Experts)
			c.Run(func(l *launch.List) {
				Route(l, c.Mat(i32, tokens, p.TopK), c.Mat(f32, tokens, p.TopK), logits, x.RowRange(0, tokens), w, launch.Mat{}, p, 0, turn, scratch)
			})
			return c.Floats(logits)
		}
		all, plain := run(most, turn), c.Mat(f32, most, p.Experts)
		c.Run(func(l *launch.List) { Logits(l, plain, x, gate, scratch) })
		for j, v := range c.Floats(plain) {
			if d := float64(all[j]) - float64(v) - float64(bias[j%p.Experts]); math.Abs(d) > 1e-4 {
				t.Fatalf("%d columns: logit %d is %v, %v without its bias %v", cols, j, all[j], v, bias[j%p.Experts])
			}
		}
		for _, tokens := range []int{1, 3, 17, MaxFused} {
			for _, turn := range []launch.Ptr{0, turn} {
				if err := kerneltest.SameBits(run(tokens, turn), all[:tokens*p.Experts]); err != nil {
					t.Fatalf("%d columns, %d tokens: %v", cols, tokens, err)
				}
			}
		}
	}
}

// TestAlign: tiles and slots of random and lopsided choices equal those of a stable sort.
func TestAlign(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(4, 1))
	for _, s := range []struct{ tokens, k, experts, tile int }{
		{1, 6, 64, 8}, {1, 1, 1, 16}, {22, 6, 64, 16}, {33, 4, 7, 8}, {130, 1, 3, 64}, {200, 8, 512, 16}, {683, 6, 64, 128}, {1030, 16, 40, 64},
	} {
		for kind := range 4 {
			ids := make([]int32, s.tokens*s.k)
			for i := range ids {
				switch kind {
				case 0:
					ids[i] = int32(rng.IntN(s.experts))
				case 1: // padding, and ids that are no expert
					ids[i] = int32(rng.IntN(s.experts+2) - 1)
				case 2: // all to the last one
					ids[i] = int32(s.experts - 1)
				case 3:
					ids[i] = -1
				}
			}
			a := NewAligned(c.Alloc(AlignedBytes(s.tokens, s.k, s.experts, s.tile)), s.tokens, s.k, s.experts, s.tile)
			scratch := launch.Ptr(0)
			if n := AlignScratch(s.tokens, s.k, s.experts); n > 0 {
				scratch = c.Alloc(n)
			}
			m := c.I32(ids, s.tokens, s.k)
			for i := range 4 {
				where := []int32(nil)
				if a.Map = 0; i >= 2 {
					where = anywhere(rng, s.experts)
					a.Map = cudatest.Upload(c, where)
				}
				c.Run(func(l *launch.List) { Align(l, &a, m, scratch) })
				if err := sorted(c, a, ids, where); err != nil {
					t.Fatalf("%+v, kind %d, map %v: %v", s, kind, where, err)
				}
			}
		}
	}
}

// TestAlignInRoute: sorting in the launch that chooses gives the same result as sorting
// separately.
func TestAlignInRoute(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(5, 1))
	turn, count := cudatest.Upload(c, make([]int32, TurnBytes/4)), cudatest.Upload(c, []int32{11})
	for _, s := range []struct {
		p                  device.Router
		tokens, cols, tile int
		rows               launch.Ptr
	}{
		{routers[0], 1, 64, 8, 0}, {routers[0], 8, 64, 8, 0}, {routers[0], 33, 520, 8, 0}, {routers[0], MaxFused, 64, 128, count},
		{routers[5], 12, 64, 5, count}, {routers[1], 64, 64, 1, 0}, {routers[8], 61, 64, 8, count},
	} {
		x, gate := upload(c, bf16, cudatest.Normal(rng, s.tokens*s.cols), s.tokens, s.cols), c.F32(finest(rng, s.p.Experts*s.cols), s.p.Experts, s.cols)
		ids, weights, logits := c.Mat(i32, s.tokens, s.p.TopK), c.Mat(f32, s.tokens, s.p.TopK), c.Mat(f32, s.tokens, s.p.Experts)
		a := NewAligned(c.Alloc(AlignedBytes(s.tokens, s.p.TopK, s.p.Experts, s.tile)), s.tokens, s.p.TopK, s.p.Experts, s.tile)
		scratch := c.Alloc(max(16, Scratch(s.tokens, s.p.Experts, s.cols)))
		for i := range 3 {
			where := []int32(nil)
			if i == 2 {
				where = anywhere(rng, s.p.Experts)
				a.Map = cudatest.Upload(c, where)
			}
			c.Run(func(l *launch.List) {
				Route(l, ids, weights, logits, x, launch.Weight{F: gate}, launch.Mat{}, s.p, s.rows, turn, scratch)
				Align(l, &a, ids, 0)
				if len(l.Ops) != 1 {
					t.Fatalf("%+v: %d launches", s, len(l.Ops))
				}
			})
			if err := sorted(c, a, ints(c, ids), where); err != nil {
				t.Fatalf("%+v, map %v: %v", s, where, err)
			}
		}
	}
	if got := cudatest.Download[int32](c, turn, TurnBytes/4); !slices.Equal(got, make([]int32, TurnBytes/4)) {
		t.Errorf("the turns are left at %v", got)
	}
}

// anywhere makes a map of experts to twice as many slots; a quarter of the experts have none.
func anywhere(rng *rand.Rand, experts int) []int32 {
	where := make([]int32, experts)
	for e, slot := range rng.Perm(2 * experts)[:experts] {
		if where[e] = int32(slot); rng.IntN(4) == 0 {
			where[e] = -1 - where[e]
		}
	}
	return where
}

// sorted compares with a stable sort on the host. where is a's map, nil: none.
func sorted(c *cudatest.GPU, a Aligned, ids, where []int32) error {
	of := make([][]int32, a.Experts)
	for i, e := range ids {
		if e >= 0 && int(e) < a.Experts && (where == nil || where[e] >= 0) {
			of[e] = append(of[e], int32(i))
		}
	}
	var slots, tiles, loads []int32
	for e, list := range of {
		place := int32(e)
		if where != nil {
			place = where[e]
		}
		loads = append(loads, int32(len(list)))
		for len(list) > 0 {
			n := min(a.Tile, len(list))
			tiles = append(tiles, place, int32(len(slots)), int32(n), 0)
			slots = append(slots, list[:n]...)
			slots = append(slots, slices.Repeat([]int32{-1}, a.Tile-n)...)
			list = list[n:]
		}
	}
	count := cudatest.Download[int32](c, a.Count, 1)[0]
	if int(count) != len(tiles)/4 || int(count) > a.MaxTiles() {
		return fmt.Errorf("%d tiles, want %d of at most %d", count, len(tiles)/4, a.MaxTiles())
	}
	if got := cudatest.Download[int32](c, a.Tiles, len(tiles)); !slices.Equal(got, tiles) {
		return fmt.Errorf("tiles %v, want %v", got, tiles)
	}
	if got := cudatest.Download[int32](c, a.Slots, len(slots)); !slices.Equal(got, slots) {
		return fmt.Errorf("slots %v, want %v", got, slots)
	}
	if got := cudatest.Download[int32](c, a.Loads, len(loads)); !slices.Equal(got, loads) {
		return fmt.Errorf("loads %v, want %v", got, loads)
	}
	return nil
}
