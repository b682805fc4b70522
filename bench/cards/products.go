package cards

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/cuda/gemv"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/native"
	"krater/kernels/cuda/ops"
	"krater/kernels/tensor"
)

// Tolerances of products whose sums are in float32. A BF16 result is off by half a unit in its
// last place, 2^-9. Abs allows for other orders of summing, relative to the terms, and is still
// less than one missing term of 2,048.
const (
	relF32, absF32   = 1e-4, 1e-4
	relBF16, absBF16 = 1.0 / 256, 2e-3
	// Products of many rows may convert integers times their scale to BF16. Then every term is
	// off by up to 2^-9; in practice errors reach 3.6 times their typical sum.
	absTiles = 1.0 / 128
	// A network rounds what is between its two products too.
	relFFN, absFFN = 1.0 / 128, 1.0 / 64
)

func tolerance(f format, out tensor.DType) (rel, abs float64) {
	rel, abs = relBF16, absBF16
	if out == tensor.F32 {
		rel, abs = relF32, absF32
	}
	if !f.packed.Zero() {
		abs = absTiles
	}
	return rel, abs
}

// spread returns up to n numbers below limit: the first, the last, and some in between.
func (d *desk) spread(limit, n int) []int {
	if limit <= n {
		all := make([]int, limit)
		for i := range all {
			all[i] = i
		}
		return all
	}
	out := []int{0, limit - 1}
	for len(out) < n {
		out = append(out, d.rng.IntN(limit))
	}
	return out
}

// parallel calls f for 0 to n-1 on all cores.
func parallel(n int, f func(i int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wait.Wait()
}

// dot returns the sum of products, and the sum of their sizes.
func dot(a, b []float64) (sum, scale float64) {
	b = b[:len(a)]
	for i := range a {
		v := a[i] * b[i]
		sum += v
		scale += v * v
	}
	return sum, math.Sqrt(scale)
}

// matmul builds a product x [t, k] * w^T, w [n, k].
func matmul(what string, f format, out tensor.DType, t, n, k int) *Case {
	c := &Case{
		Op:    "matmul",
		Shape: fmt.Sprintf("%s T=%d N=%d K=%d out %s", what, t, n, k, out),
		DType: f.String(),
		Bytes: float64(f.bytes(n, k) + t*k*2 + t*n*out.Size()),
		Flops: 2 * float64(t) * float64(n) * float64(k),
	}
	c.Rotate = f.bytes(n, k) + t*k*2 + t*n*out.Size()
	c.Rel, c.Abs = tolerance(f, out)
	c.build = func(d *desk) *job {
		x, w, y := d.numbers(tensor.BF16, t, k, unit), d.weights(f, 1, n, k, false), d.room(out, t, n)
		var product func(i int) (out, x, w launch.Mat)
		if f == bf16 {
			product = func(i int) (launch.Mat, launch.Mat, launch.Mat) { return y.of(i), x.of(i), w.of(i).F }
		}
		return &job{
			product: product,
			run:     func(b *ops.Builder, i int) { b.MatMul(y.of(i), x.of(i), w.of(i)) },
			outs:    []data{y},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 6) {
					got, in := read(y.RowRange(row, row+1)), x.row(row)
					for _, col := range d.spread(n, 40) {
						want, scale := dot(in, w.row(0, col))
						s = append(s, Sample{got[col], want, scale})
					}
				}
				return s
			},
		}
	}
	return c
}

// hidden returns silu(gate x) * up x for a row of x and matrix i of w13, rounded as in the
// kernels.
func hidden(x data, row int, w13 *weights, i, width int) []float64 {
	return hiddenOf(x.row(row), w13, i, width)
}

func hiddenOf(in []float64, w13 *weights, i, width int) []float64 {
	h := make([]float64, width)
	parallel(width, func(f int) {
		gate, _ := dot(in, w13.row(i, f))
		up, _ := dot(in, w13.row(i, width+f))
		h[f] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(gate / (1 + math.Exp(-gate)) * up))))
	})
	return h
}

// network builds a dense SwiGLU network of width f.
func network(what string, f format, t, hiddenSize, width int) *Case {
	size := f.bytes(2*width, hiddenSize) + f.bytes(hiddenSize, width)
	c := &Case{
		Op:     "ffn",
		Shape:  fmt.Sprintf("%s T=%d H=%d F=%d", what, t, hiddenSize, width),
		DType:  f.String(),
		Bytes:  float64(size + 2*t*hiddenSize*2),
		Flops:  6 * float64(t) * float64(hiddenSize) * float64(width),
		Rotate: size + 2*t*hiddenSize*2,
		Rel:    relFFN, Abs: absFFN,
	}
	c.build = func(d *desk) *job {
		x, y := d.numbers(tensor.BF16, t, hiddenSize, unit), d.room(tensor.BF16, t, hiddenSize)
		w13, w2 := d.weights(f, 1, 2*width, hiddenSize, !f.packed.Zero()), d.weights(f, 1, hiddenSize, width, false)
		return &job{
			run:  func(b *ops.Builder, i int) { b.FFN(y.of(i), x.of(i), ops.Network{W13: w13.of(i), W2: w2.of(i)}) },
			outs: []data{y},
			check: func(read reader) []Sample {
				var s []Sample
				for _, row := range d.spread(t, 2) {
					h, got := hidden(x, row, &w13, 0, width), read(y.RowRange(row, row+1))
					for _, col := range d.spread(hiddenSize, 60) {
						want, scale := dot(h, w2.row(0, col))
						s = append(s, Sample{got[col], want, scale})
					}
				}
				return s
			},
		}
	}
	return c
}

// moe has the sizes of a block of experts; shared 0: without a shared network.
type moe struct{ hidden, experts, topK, width, shared int }

// choice returns k different experts for each token. It always returns the same for the same
// sizes, because the number of experts that are read depends on it.
func (m *moe) choice(t int) []int32 {
	ids := make([]int32, 0, t*m.topK)
	state := uint64(0x9e3779b97f4a7c15)
	taken := make([]bool, m.experts)
	for range t {
		clear(taken)
		for k := 0; k < m.topK; {
			state = state*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
			e := int(state>>33) % m.experts
			if !taken[e] {
				taken[e] = true
				ids = append(ids, int32(e))
				k++
			}
		}
	}
	return ids
}

// mix builds a whole block: routed experts of one format, the shared network of another, and the
// weighted sum of both.
func mix(m moe, routed, shared format, t int) *Case { return mixBy("mix", m, routed, shared, t, nil) }

// mixHere is mix with a map of experts, every third of which is not in the bank.
func mixHere(m moe, routed, shared format, t int) *Case {
	where := make([]int32, m.experts)
	for e := range where {
		if where[e] = int32((5*e + 3) % m.experts); e%3 == 0 {
			where[e] = -1
		}
	}
	return mixBy("mix here", m, routed, shared, t, where)
}

// mixBy is mix with a map; nil: without one.
func mixBy(op string, m moe, routed, shared format, t int, where []int32) *Case {
	ids := m.choice(t)
	seen := map[int32]bool{}
	for _, e := range ids {
		if where == nil || where[e] >= 0 {
			seen[e] = true
		}
	}
	expert := routed.bytes(2*m.width, m.hidden) + routed.bytes(m.hidden, m.width)
	rest := 2 * t * m.hidden * 2
	if m.shared > 0 {
		rest += shared.bytes(2*m.shared, m.hidden) + shared.bytes(m.hidden, m.shared)
	}
	c := &Case{
		Op:     op,
		Shape:  fmt.Sprintf("T=%d H=%d E=%d K=%d F=%d+%d, %d experts hit", t, m.hidden, m.experts, m.topK, m.width, m.shared, len(seen)),
		DType:  routed.String() + ", shared " + shared.String(),
		Bytes:  float64(expert*len(seen) + rest),
		Flops:  6 * float64(t) * float64(m.hidden) * float64(m.topK*m.width+m.shared),
		Rotate: expert*len(seen) + rest,
		Size:   expert*m.experts + rest,
		Rel:    relFFN, Abs: absFFN,
	}
	c.build = func(d *desk) *job { return m.job(d, routed, shared, t, ids, where) }
	return c
}

// rounds reports whether the products of experts round weights to BF16.
func (m *moe) rounds(f format, t int) bool {
	if f.packed.Shared() {
		return native.Tile(t*m.topK, m.experts) > native.FewTokens
	}
	return t > gemv.MaxRows
}

func (m *moe) job(d *desk, routed, shared format, t int, chosen, where []int32) *job {
	x, delta := d.numbers(tensor.BF16, t, m.hidden, unit), d.room(tensor.BF16, t, m.hidden)
	y, z := d.room(tensor.BF16, t*m.topK, m.hidden), d.room(tensor.BF16, t, m.hidden)
	w13, w2 := d.weights(routed, m.experts, 2*m.width, m.hidden, !routed.packed.Zero()), d.weights(routed, m.experts, m.hidden, m.width, false)
	w13.tiles, w2.tiles = m.rounds(routed, t), m.rounds(routed, t)
	var s13, s2 weights
	if m.shared > 0 {
		s13, s2 = d.weights(shared, 1, 2*m.shared, m.hidden, !shared.packed.Zero()), d.weights(shared, 1, m.hidden, m.shared, false)
	}
	ids := d.ints(t, m.topK, func(i int) int32 { return chosen[i] })
	share := d.numbers(tensor.F32, t, m.topK, small)
	var places data
	if where != nil {
		places = d.ints(1, m.experts, func(e int) int32 { return where[e] })
	}
	place := func(row, k int) int {
		e := chosen[row*m.topK+k]
		if where != nil {
			e = where[e]
		}
		return int(e)
	}
	return &job{
		run: func(b *ops.Builder, i int) {
			bank := launch.Bank{Experts: m.experts, W13: w13.of(i), W2: w2.of(i),
				Step: w13.next, ScaleStep: w13.nextScale, Step2: w2.next, ScaleStep2: w2.nextScale, Map: places.of(i).At}
			var n ops.Network
			if m.shared > 0 {
				n = ops.Network{W13: s13.of(i), W2: s2.of(i)}
			}
			b.Mix(delta.of(i), y.of(i), z.of(i), x.of(i), bank, n, ids.of(i), share.of(i))
		},
		outs: []data{delta, y, z},
		check: func(read reader) []Sample {
			var s []Sample
			for _, row := range d.spread(t, 2) {
				var common []float64
				if m.shared > 0 {
					common = hidden(x, row, &s13, 0, m.shared)
				}
				var parts [][]float64
				for k := range m.topK {
					var h []float64
					if e := place(row, k); e >= 0 {
						h = hidden(x, row, &w13, e, m.width)
					}
					parts = append(parts, h)
				}
				got := read(delta.RowRange(row, row+1))
				for _, col := range d.spread(m.hidden, 40) {
					want, scale := 0.0, 0.0
					if m.shared > 0 {
						want, scale = dot(common, s2.row(0, col))
						scale *= scale
					}
					for k, h := range parts {
						if h == nil {
							continue
						}
						e, p := place(row, k), share.get(row, k)
						v, size := dot(h, w2.row(e, col))
						want, scale = want+p*v, scale+p*size*p*size
					}
					s = append(s, Sample{got[col], want, math.Sqrt(scale)})
				}
			}
			return s
		},
	}
}
