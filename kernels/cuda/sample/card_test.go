//go:build cuda

package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	host "krater/stages/sample"
)

var negInf = float32(math.Inf(-1))

// randomRow has the typical shapes of logits: spread, peaked, flat, coarse (many equal values),
// sorted up and down, partly masked.
func randomRow(r *rand.Rand, kind, vocab int) []float32 {
	x := make([]float32, vocab)
	for i := range x {
		v := r.NormFloat64()
		switch kind % 7 {
		case 0:
			x[i] = float32(3 * v)
		case 1:
			x[i] = float32(15 * v)
		case 2:
			x[i] = float32(1e-3 * v)
		case 3:
			x[i] = float32(math.Round(v))
		case 4:
			x[i] = float32(i) * 0.01
		case 5:
			x[i] = float32(-i) * 0.01
		case 6:
			x[i] = float32(v)
			if r.IntN(3) > 0 && i > 0 {
				x[i] = negInf
			}
		}
	}
	return x
}

// randomParams enables each feature now and then.
func randomParams(r *rand.Rand, vocab int) host.Params {
	p := host.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: r.IntN(2) - 1, Seed: r.Uint64()}
	maybe := func() bool { return r.IntN(3) == 0 }
	if r.IntN(8) > 0 {
		p.Temperature = []float64{0.1, 0.7, 1, 1.5, 5}[r.IntN(5)]
	}
	if maybe() {
		p.TopK = 1 + r.IntN(vocab+3)
	}
	if maybe() {
		p.TopP = 1 - r.Float64()*0.999
	}
	if maybe() {
		p.MinP = r.Float64() * r.Float64()
	}
	return p
}

// batch is rows of logits with their parameters, chosen all at once.
type batch struct {
	logits []float32
	params []host.Params
	vocab  int
}

// first returns the host's first token for a row.
func first(t *testing.T, row []float32, p host.Params) int32 {
	t.Helper()
	q, err := host.New(p, nil, len(row))
	if err != nil {
		t.Fatal(err)
	}
	r, err := q.Next(row)
	if err != nil {
		t.Fatal(err)
	}
	return r.ID
}

// ask appends a row and returns the host's first token for it.
func (b *batch) ask(t *testing.T, row []float32, p host.Params) int32 {
	t.Helper()
	b.logits, b.params = append(b.logits, row...), append(b.params, p)
	return first(t, row, p)
}

// run returns the GPU's tokens and logarithms of probabilities for the n-th token of each.
func (b *batch) run(c *cudatest.GPU, n uint64, pad int) ([]int32, []float32) {
	rows := len(b.params)
	records := make([]byte, rows*RowBytes)
	wide := make([]float32, rows*(b.vocab+pad))
	for i, p := range b.params {
		r := Row{Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed, N: n, Logprob: p.Logprobs >= 0}
		r.Put(records[i*RowBytes:])
		row := wide[i*(b.vocab+pad):][:b.vocab+pad]
		for j := range row {
			row[j] = float32(math.NaN())
		}
		copy(row, b.logits[i*b.vocab:(i+1)*b.vocab])
	}
	m := launch.Mat{At: cudatest.Upload(c, wide), DType: f32, Rows: rows, Cols: b.vocab, Stride: b.vocab + pad}
	out, logprobs := c.Mat(i32, rows, 1), c.Mat(f32, rows, 1)
	at, scratch := c.Bytes(records), c.Alloc(Scratch(rows, b.vocab))
	c.Run(func(l *launch.List) { Sample(l, out, m, at, logprobs, m, scratch) })
	return cudatest.Download[int32](c, out.At, rows), c.Floats(logprobs)
}

// TestAgainstHost: the GPU chooses the same tokens as the host.
func TestAgainstHost(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 1))
	drawn := 0
	for i, vocab := range []int{1, 2, 3, 40, 61, 256, 257, 1000, 9001, 16501} {
		rows := 28
		switch {
		case vocab > 1<<14: // the search uses blocks of its own
			rows = 7
		case vocab > 500:
			rows = 14
		}
		b := batch{vocab: vocab}
		for r := range rows {
			row := randomRow(rng, r, vocab)
			row[rng.IntN(vocab)] = 1 // never all masked
			b.logits, b.params = append(b.logits, row...), append(b.params, randomParams(rng, vocab))
		}
		seqs := make([]*host.Sequence, rows)
		for r, p := range b.params {
			var err error
			if seqs[r], err = host.New(p, nil, vocab); err != nil {
				t.Fatal(err)
			}
		}
		for n := range uint64(2) {
			ids, logprobs := b.run(c, n, i%4)
			for r := range rows {
				want, err := seqs[r].Next(b.logits[r*vocab : (r+1)*vocab])
				if err != nil {
					t.Fatal(err)
				}
				if ids[r] != want.ID {
					t.Errorf("vocabulary %d, row %d, token %d: chose %d, want %d (%+v)", vocab, r, n, ids[r], want.ID, b.params[r])
				}
				if b.params[r].Logprobs >= 0 && math.Abs(float64(logprobs[r]-want.Logprob)) > 1e-6*(1+math.Abs(float64(want.Logprob))) {
					t.Errorf("vocabulary %d, row %d: logprob %v, want %v", vocab, r, logprobs[r], want.Logprob)
				}
				if b.params[r].Temperature > 0 {
					drawn++
				}
			}
			again, _ := b.run(c, n, i%4)
			if !slices.Equal(again, ids) {
				t.Errorf("vocabulary %d: %v, then %v", vocab, ids, again)
			}
		}
	}
	if drawn < 250 {
		t.Errorf("%d draws", drawn)
	}
}

// TestEqualAtTheEdge: of tokens equal to the last one that top_k keeps, top_p keeps none that
// top_k left out.
func TestEqualAtTheEdge(t *testing.T) {
	c := cudatest.Open(t)
	const vocab, rows = 40, 32
	b := batch{vocab: vocab, logits: make([]float32, rows*vocab)}
	for i := range rows {
		b.params = append(b.params, host.Params{Temperature: 1, TopK: 5, TopP: 0.99, Seed: uint64(i), Logprobs: -1})
	}
	ids, _ := b.run(c, 0, 0)
	if slices.Max(ids) != 4 || slices.Min(ids) != 0 {
		t.Errorf("top 5 of equal tokens: %v", ids)
	}
}

// TestUniform: the GPU's random numbers are the host's to the last bits. The GPU changes from one
// of two tokens to the other where the host does.
func TestUniform(t *testing.T) {
	c := cudatest.Open(t)
	row := []float32{0, -1}
	// share requests token 0 with this probability, at least a half.
	share := func(p float64, seed uint64) host.Params {
		return host.Params{Temperature: -1 / math.Log(1/p-1), TopP: 1, RepetitionPenalty: 1, Logprobs: -1, Seed: seed}
	}
	choose := func(p host.Params) int32 { return first(t, row, p) }
	b := batch{vocab: len(row)}
	var want []int32
	for seed := uint64(1); len(want) < 40; seed += 1 << 33 {
		lo, hi := 0.501, 0.999 // where token 1 comes, and token 0
		if choose(share(lo, seed)) != 1 || choose(share(hi, seed)) != 0 {
			continue // the number is not between them
		}
		for hi-lo > 0x1p-44 {
			if mid := (lo + hi) / 2; choose(share(mid, seed)) == 1 {
				lo = mid
			} else {
				hi = mid
			}
		}
		b.logits, b.params = append(b.logits, 0, -1, 0, -1), append(b.params, share(lo-0x1p-42, seed), share(hi+0x1p-42, seed))
		want = append(want, 1, 0)
	}
	if ids, _ := b.run(c, 0, 0); !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
}

// TestUnusable: rows without a choice report the reason, and other rows are not affected.
func TestUnusable(t *testing.T) {
	c := cudatest.Open(t)
	const vocab = 300
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	b := batch{vocab: vocab}
	var want []int32
	add := func(id int32, set map[int]float32, all float32) {
		for _, temperature := range []float64{0, 1} {
			row := slices.Repeat([]float32{all}, vocab)
			for i, v := range set {
				row[i] = v
			}
			b.logits, want = append(b.logits, row...), append(want, id)
			b.params = append(b.params, host.Params{TopP: 0.5, TopK: 3, Temperature: temperature, Logprobs: -1})
		}
	}
	add(IsNaN, map[int]float32{0: nan}, 0)
	add(IsNaN, map[int]float32{299: -nan, 3: inf}, 0)
	add(IsInfinite, map[int]float32{298: inf}, 0)
	add(AllMasked, nil, negInf)
	add(77, map[int]float32{77: -1e30}, negInf)
	add(0, map[int]float32{0: math.MaxFloat32}, -math.MaxFloat32)
	ids, _ := b.run(c, 0, 0)
	if !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
	m, out, scratch := c.F32(b.logits, len(want), vocab), c.Mat(i32, len(want), 1), c.Alloc(Scratch(len(want), vocab))
	c.Run(func(l *launch.List) { Argmax(l, out, m, scratch) })
	if ids := cudatest.Download[int32](c, out.At, len(want)); !slices.Equal(ids, want) {
		t.Errorf("argmax: %v, want %v", ids, want)
	}
}

// TestArgmax: the smallest of equal tokens, at any place of any vocabulary.
func TestArgmax(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(2, 1))
	for _, vocab := range []int{1, 7, 8, 255, 256, 1030, 8200} {
		const rows = 6
		x, want := make([]float32, 0, rows*vocab), make([]int32, rows)
		for r := range rows {
			row := randomRow(rng, 3+4*(r%2), vocab)
			if r == 4 {
				row = make([]float32, vocab) // zeros of both signs are equal
				row[0] = float32(math.Copysign(0, -1))
			}
			if r == 5 {
				row[vocab-1] = 100
			}
			want[r] = int32(slices.Index(row, slices.Max(row)))
			x = append(x, row...)
		}
		m, out, scratch := c.F32(x, rows, vocab), c.Mat(i32, rows, 1), c.Alloc(Scratch(rows, vocab))
		c.Run(func(l *launch.List) { Argmax(l, out, m, scratch) })
		if got := cudatest.Download[int32](c, out.At, rows); !slices.Equal(got, want) {
			t.Errorf("vocabulary %d: %v, want %v", vocab, got, want)
		}
	}
}

// TestDistribution: many draws from a small vocabulary have the frequencies of the parameters
// (chi-square).
func TestDistribution(t *testing.T) {
	c := cudatest.Open(t)
	const vocab = 11
	draws := 1500
	if testing.Short() {
		draws = 500
	}
	row := []float32{0.3, -1, 2, 1.5, 2, 0, -4, 1, 0.2, negInf, 1.2}
	for _, p := range []host.Params{
		{Temperature: 1, TopP: 1}, {Temperature: 0.6, TopP: 1}, {Temperature: 1, TopP: 0.8}, {Temperature: 1.3, TopP: 1, TopK: 4},
		{Temperature: 1, TopP: 1, MinP: 0.3}, {Temperature: 2, TopP: 0.9, TopK: 7, MinP: 0.2},
	} {
		b := batch{vocab: vocab}
		p.Logprobs = -1
		for i := range draws {
			p.Seed = uint64(i) * 0x9e3779b97f4a7c15
			b.logits, b.params = append(b.logits, row...), append(b.params, p)
		}
		ids, _ := b.run(c, 0, 1)
		got, want := make([]float64, vocab), expected(row, p)
		for _, id := range ids {
			got[id]++
		}
		sum, freedom := 0.0, -1
		for i, q := range want {
			if q == 0 {
				if got[i] > 0 {
					t.Errorf("%+v: token %d came %v times", p, i, got[i])
				}
				continue
			}
			freedom++
			n := q * float64(draws)
			sum += (got[i] - n) * (got[i] - n) / n
		}
		// Mean f and deviation sqrt(2f); the limit is five deviations.
		if f := float64(freedom); sum > f+5*math.Sqrt(2*f)+5 {
			t.Errorf("%+v: chi-square %.1f of %d", p, sum, freedom)
		}
	}
}

// expected returns the distribution after the filters, by sorting.
func expected(row []float32, p host.Params) []float64 {
	order := make([]int, len(row))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case row[a] > row[b]:
			return -1
		case row[a] < row[b]:
			return 1
		}
		return 0
	})
	w := make([]float64, len(row))
	total, sum := 0.0, 0.0
	for rank, i := range order {
		if p.TopK == 0 || rank < p.TopK {
			w[i] = math.Exp(float64(row[i]-row[order[0]]) / p.Temperature)
			total += w[i]
		}
	}
	kept := 0.0
	for _, i := range order {
		if sum >= p.TopP*total || w[i] < p.MinP {
			w[i] = 0
		}
		sum += w[i]
		kept += w[i]
	}
	for i := range w {
		w[i] /= kept
	}
	return w
}
