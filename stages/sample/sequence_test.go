package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// off has every feature off.
func off() Params { return Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1} }

func mustNew(t testing.TB, p Params, prompt []int32, vocab int) *Sequence {
	t.Helper()
	q, err := New(p, prompt, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func mustNext(t testing.TB, q *Sequence, row []float32) Result {
	t.Helper()
	r, err := q.Next(row)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// randomRow has the shapes logits come in: spread, peaked, flat, coarse (many equal values), sorted
// up and down, partly masked.
func randomRow(r *rand.Rand, vocab int) []float32 {
	x := make([]float32, vocab)
	kind := r.IntN(7)
	for i := range x {
		v := r.NormFloat64()
		switch kind {
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

// randomParams turns each feature on now and then.
func randomParams(r *rand.Rand, vocab int) Params {
	p := off()
	maybe := func() bool { return r.IntN(3) == 0 }
	token := func() int32 { return int32(r.IntN(vocab)) }
	if !maybe() {
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
	if maybe() {
		p.RepetitionPenalty = 0.5 + r.Float64()
	}
	if maybe() {
		p.PresencePenalty = r.NormFloat64()
	}
	if maybe() {
		p.FrequencyPenalty = r.NormFloat64()
	}
	if maybe() {
		p.LogitBias = map[int32]float32{token(): 5, token(): -100}
	}
	if maybe() {
		p.StopIDs, p.EOS, p.MinTokens = []int32{token()}, []int32{token()}, r.IntN(6)
		p.IgnoreEOS = maybe()
	}
	p.Seed = r.Uint64()
	return p
}

// TestAgainstOracle runs random requests over random rows, and holds each token to the naive
// version.
func TestAgainstOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	drawn, near := 0, 0
	for run := range 1500 {
		vocab := 3 + r.IntN(60)
		if run%20 == 0 {
			vocab = 500 + r.IntN(2000)
		}
		p := randomParams(r, vocab)
		prompt := []int32{int32(r.IntN(vocab)), int32(r.IntN(vocab))}
		q := mustNew(t, p, prompt, vocab)
		o := &oracle{p: p, prompt: prompt}
		for n := range 5 {
			row := randomRow(r, vocab)
			before := slices.Clone(row)
			x := o.row(row)
			got, err := q.Next(row)
			if x[greedy(x)] == math.Inf(-1) {
				if !errors.Is(err, ErrLogits) {
					t.Fatalf("run %d: every token is masked: %v", run, err)
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(row, before) {
				t.Fatalf("run %d: the row was changed", run)
			}
			want, margin := greedy(x), math.Inf(1)
			if p.Temperature > 0 {
				drawn++
				dist := o.distribution(x)
				want, margin = pickAt(dist, uniform(p.Seed, uint64(n)))
				if dist[got.ID] == 0 && x[got.ID] != x[want] {
					// Only a token at the very edge of a filter may differ by rounding.
					margin = edgeMargin(o, x, got.ID)
				}
			} else if x[got.ID] == x[want] || math.Abs(x[got.ID]-x[want]) < 1e-5 && q.change.Penalises() {
				want = got.ID // penalties are float32 in the product
			}
			if got.ID != want && margin > 1e-6 {
				t.Fatalf("run %d, token %d: chose %d, want %d (margin %g)\n%+v", run, n, got.ID, want, margin, p)
			} else if got.ID != want {
				near++
			}
			ends := slices.Contains(p.StopIDs, got.ID) || !p.IgnoreEOS && slices.Contains(p.EOS, got.ID)
			if got.Stop != ends {
				t.Fatalf("run %d: stop %v for token %d of %+v", run, got.Stop, got.ID, p)
			}
			o.answer = append(o.answer, got.ID)
		}
	}
	if drawn < 2500 || near > drawn/500 {
		t.Errorf("%d draws, %d of them on an edge", drawn, near)
	}
}

// edgeMargin returns how far a filter would have to move to let the token in.
func edgeMargin(o *oracle, x []float64, id int32) float64 {
	loose := *o
	loose.p.TopP = min(1, o.p.TopP+1e-7)
	loose.p.MinP = max(0, o.p.MinP-1e-7)
	if loose.distribution(x)[id] > 0 {
		return 0
	}
	return 1
}

// TestAlone: a request's tokens are its own, whatever requests are served between them.
func TestAlone(t *testing.T) {
	const vocab = 300
	r := rand.New(rand.NewPCG(3, 3))
	table := make([][]float32, 40)
	for i := range table {
		table[i] = randomRow(r, vocab)
		table[i][0] = 1 // never all masked
	}
	params := make([]Params, 8)
	for i := range params {
		params[i] = randomParams(r, vocab)
		params[i].LogitBias = nil
	}
	run := func(q *Sequence) (ids []int32) {
		for _, row := range table {
			ids = append(ids, mustNext(t, q, row).ID)
		}
		return ids
	}
	var alone [8][]int32
	for i, p := range params {
		alone[i] = run(mustNew(t, p, []int32{1, 2, 3}, vocab))
	}
	// Interleaved in one goroutine, then all at once.
	var seqs [8]*Sequence
	for i, p := range params {
		seqs[i] = mustNew(t, p, []int32{1, 2, 3}, vocab)
	}
	for n, row := range table {
		for i, q := range seqs {
			if got := mustNext(t, q, row).ID; got != alone[i][n] {
				t.Fatalf("request %d, token %d: %d among others, %d alone", i, n, got, alone[i][n])
			}
		}
	}
	var wg sync.WaitGroup
	for i, p := range params {
		wg.Go(func() {
			if got := run(mustNew(t, p, []int32{1, 2, 3}, vocab)); !slices.Equal(got, alone[i]) {
				t.Errorf("request %d at the same time as others: %v, alone %v", i, got, alone[i])
			}
		})
	}
	wg.Wait()
}

// TestUnusable: a bad logit is an error at every place, and never a token; the sequence goes on
// afterwards as if the row had not been.
func TestUnusable(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negNaN := math.Float32frombits(0xffc00000)
	for _, vocab := range []int{1, 2, 3, 4, 5, 8, 13} {
		for _, temperature := range []float64{0, 1} {
			p := off()
			p.Temperature, p.Seed = temperature, 5
			q, untouched := mustNew(t, p, nil, vocab), mustNew(t, p, nil, vocab)
			row := make([]float32, vocab)
			for i := range row {
				for _, bad := range []float32{inf, nan, negNaN} {
					row[i] = bad
					if _, err := q.Next(row); !errors.Is(err, ErrLogits) || !strings.Contains(err.Error(), fmt.Sprintf("token %d ", i)) {
						t.Errorf("%v at %d of %d: %v", bad, i, vocab, err)
					}
					row[i] = 0
				}
			}
			if got, want := mustNext(t, q, row), mustNext(t, untouched, row); got.ID != want.ID {
				t.Errorf("the failed rows counted: %d, want %d", got.ID, want.ID)
			}
			for i := range row {
				row[i] = negInf
			}
			if _, err := q.Next(row); !errors.Is(err, ErrLogits) {
				t.Errorf("all -Inf: %v", err)
			}
			if _, err := q.Next(row[1:]); !errors.Is(err, ErrLogits) {
				t.Errorf("a short row: %v", err)
			}
		}
	}
}

// TestOrder: a choice that a device made behind one that was not taken is not taken either, and has no mask.
func TestOrder(t *testing.T) {
	var took []int32
	q := mustNew(t, Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1, Took: func(id int32) error { took = append(took, id); return nil },
		Allow: func(n int, wait bool) []uint32 {
			if !wait {
				return nil
			}
			return []uint32{1 << n}
		}}, []int32{1}, 8)
	for n := range 3 {
		d, ok := q.DrawAt(n + 1)
		if !ok || !d.Later || d.Mask != nil || q.Mask(n+1) != nil {
			t.Fatalf("%d tokens, the next draw but one is %+v, %v", n, d, ok)
		}
		if _, err := q.Take(n+1, 5); !errors.Is(err, ErrLogits) || len(took) != n {
			t.Fatalf("%d tokens, then one after %d: %v, took %v", n, n+1, err, took)
		}
		if mask := q.Mask(n); len(mask) != 1 || mask[0] != 1<<n {
			t.Fatalf("after %d tokens the mask is %x", n, mask)
		}
		if r, err := q.Take(n, 5); err != nil || r.ID != 5 || len(took) != n+1 {
			t.Fatalf("%d tokens: %+v, %v, took %v", n, r, err, took)
		}
	}
}

// TestMaskedOut: min_tokens with nothing but end tokens is an error, not one of them.
func TestMaskedOut(t *testing.T) {
	p := off()
	p.EOS, p.StopIDs, p.MinTokens = []int32{0}, []int32{1}, 1
	if _, err := mustNew(t, p, nil, 2).Next([]float32{1, 2}); !errors.Is(err, ErrLogits) {
		t.Error(err)
	}
}

// TestPenalties computes a few by hand.
func TestPenalties(t *testing.T) {
	p := off()
	p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 2, 0.5, 0.25
	q := mustNew(t, p, []int32{0, 1, 1}, 4)
	row := []float32{8, -1, 5, 4.5}
	if got := mustNext(t, q, row).ID; got != 2 { // 4, -2, 5, 4.5
		t.Errorf("first %d", got)
	}
	if got := mustNext(t, q, row).ID; got != 3 { // token 2: 5/2 - 0.75
		t.Errorf("second %d", got)
	}
	if got := mustNext(t, q, row).ID; got != 0 { // token 3: 4.5/2 - 0.75
		t.Errorf("third %d", got)
	}
	if got := mustNext(t, q, row).ID; got != 0 { // 8/2 - 0.75
		t.Errorf("fourth %d", got)
	}
	if got, err := q.changed(row, new(scratch)); err != nil || got[0] != 3 { // twice in the answer: 8/2 - 0.5 - 2*0.25
		t.Errorf("token 0 at %v", got)
	}
}

// TestStop covers end tokens, ignore_eos and min_tokens.
func TestStop(t *testing.T) {
	row := []float32{3, 2, 1}
	tests := []struct {
		name string
		set  func(*Params)
		ids  []int32
		stop []bool
	}{
		{"eos", func(p *Params) { p.EOS = []int32{0} }, []int32{0}, []bool{true}},
		{"stop id", func(p *Params) { p.StopIDs = []int32{1, 0} }, []int32{0}, []bool{true}},
		{"ignored", func(p *Params) { p.EOS, p.IgnoreEOS = []int32{0}, true }, []int32{0, 0}, []bool{false, false}},
		{"ignored, but a stop id", func(p *Params) { p.EOS, p.StopIDs, p.IgnoreEOS = []int32{0}, []int32{0}, true }, []int32{0}, []bool{true}},
		{"min_tokens", func(p *Params) { p.EOS, p.StopIDs, p.MinTokens = []int32{0}, []int32{1}, 2 }, []int32{2, 2, 0}, []bool{false, false, true}},
		{"min_tokens, ignored", func(p *Params) { p.EOS, p.IgnoreEOS, p.MinTokens = []int32{0}, true, 1 }, []int32{0, 0}, []bool{false, false}},
	}
	for _, tt := range tests {
		p := off()
		tt.set(&p)
		q := mustNew(t, p, nil, 3)
		for i := range tt.ids {
			if r := mustNext(t, q, row); r.ID != tt.ids[i] || r.Stop != tt.stop[i] {
				t.Errorf("%s, token %d: %+v, want %d %v", tt.name, i, r, tt.ids[i], tt.stop[i])
			}
		}
	}
}

// TestLogprobs: log-probabilities come from the raw row, whatever the parameters do to it.
func TestLogprobs(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for run := range 300 {
		vocab := 2 + r.IntN(200)
		p := randomParams(r, vocab)
		p.Logprobs, p.MinTokens = r.IntN(min(vocab, 20)+1), 0
		row := randomRow(r, vocab)
		q := mustNew(t, p, nil, vocab)
		got, err := q.Next(row)
		if err != nil {
			t.Fatal(err)
		}
		want := logSoftmax(row)
		if diff := math.Abs(float64(got.Logprob) - want[got.ID]); diff > 1e-5*(1+math.Abs(want[got.ID])) {
			t.Fatalf("run %d: logprob %v, want %v", run, got.Logprob, want[got.ID])
		}
		if len(got.Top) != p.Logprobs {
			t.Fatalf("run %d: %d alternatives, want %d", run, len(got.Top), p.Logprobs)
		}
		order := make([]int32, vocab)
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(a, b int32) int {
			switch {
			case row[a] > row[b]:
				return -1
			case row[a] < row[b]:
				return 1
			}
			return 0
		})
		for i, c := range got.Top {
			if c.ID != order[i] || math.Abs(float64(c.Logprob)-want[c.ID]) > 1e-5*(1+math.Abs(want[c.ID])) && !math.IsInf(want[c.ID], -1) {
				t.Fatalf("run %d, place %d: %+v, want token %d at %v", run, i, c, order[i], want[order[i]])
			}
		}
	}
}

// TestTopIsOwned: the alternatives of one token survive the choice of the next.
func TestTopIsOwned(t *testing.T) {
	p := off()
	p.Logprobs = 2
	q := mustNew(t, p, nil, 3)
	first := mustNext(t, q, []float32{3, 2, 1})
	kept := slices.Clone(first.Top)
	mustNext(t, q, []float32{1, 2, 3})
	if !slices.Equal(first.Top, kept) {
		t.Errorf("%v became %v", kept, first.Top)
	}
}

// TestParams: each field out of range is named; New keeps nothing of the caller's.
func TestParams(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		set  func(*Params)
		name string
	}{
		{func(p *Params) { p.Temperature = -1 }, "temperature"},
		{func(p *Params) { p.Temperature = nan }, "temperature"},
		{func(p *Params) { p.Temperature = inf }, "temperature"},
		{func(p *Params) { p.TopK = -1 }, "top_k"},
		{func(p *Params) { p.TopP = 0 }, "top_p"},
		{func(p *Params) { p.TopP = 1.1 }, "top_p"},
		{func(p *Params) { p.TopP = nan }, "top_p"},
		{func(p *Params) { p.MinP = -0.1 }, "min_p"},
		{func(p *Params) { p.MinP = nan }, "min_p"},
		{func(p *Params) { p.RepetitionPenalty = 0 }, "repetition_penalty"},
		{func(p *Params) { p.RepetitionPenalty = nan }, "repetition_penalty"},
		{func(p *Params) { p.RepetitionPenalty = 1e-38 }, "repetition_penalty"},
		{func(p *Params) { p.PresencePenalty = nan }, "presence_penalty"},
		{func(p *Params) { p.FrequencyPenalty = -inf }, "frequency_penalty"},
		{func(p *Params) { p.Logprobs = -2 }, "logprobs"},
		{func(p *Params) { p.Logprobs = 11 }, "logprobs"},
		{func(p *Params) { p.MinTokens = -1 }, "min_tokens"},
		{func(p *Params) { p.LogitBias = map[int32]float32{10: 1} }, "logit_bias"},
		{func(p *Params) { p.LogitBias = map[int32]float32{1: float32(nan)} }, "logit_bias"},
		{func(p *Params) { p.StopIDs = []int32{-1} }, "stop token"},
		{func(p *Params) { p.EOS = []int32{10} }, "stop token"},
	}
	for _, tt := range tests {
		p := off()
		tt.set(&p)
		if _, err := New(p, nil, 10); !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), tt.name) {
			t.Errorf("%v, want %s named", err, tt.name)
		}
	}
	p := off()
	p.RepetitionPenalty = 2
	if _, err := New(p, []int32{10}, 10); !errors.Is(err, ErrParams) {
		t.Errorf("a prompt outside the vocabulary: %v", err)
	}
	if _, err := New(off(), nil, 0); !errors.Is(err, ErrParams) {
		t.Errorf("no vocabulary: %v", err)
	}
	p = off()
	p.StopIDs, p.LogitBias = []int32{0}, map[int32]float32{1: 100}
	q := mustNew(t, p, nil, 3)
	p.StopIDs[0] = 1
	clear(p.LogitBias)
	if r := mustNext(t, q, []float32{1, 2, 3}); r.ID != 1 || r.Stop {
		t.Errorf("the caller's slices are shared: %+v", r)
	}
}

// TestExtremeParams: every set of allowed values chooses a token.
func TestExtremeParams(t *testing.T) {
	for _, set := range []func(*Params){
		func(p *Params) { p.TopP = 5e-324 },
		func(p *Params) { p.MinP = 1 },
		func(p *Params) { p.TopP, p.MinP, p.TopK = 5e-324, 1, 1 },
		func(p *Params) { p.RepetitionPenalty = 1e-6 },
		func(p *Params) { p.RepetitionPenalty = 1e6 },
		func(p *Params) { p.PresencePenalty, p.FrequencyPenalty = 1e6, 1e6 },
		func(p *Params) { p.LogitBias = map[int32]float32{0: -1e6, 1: 1e6} },
		func(p *Params) { p.TopK = math.MaxInt },
	} {
		for _, temperature := range []float64{0, 1e-5, 1, 1e6} {
			for _, row := range [][]float32{{1, 3, 2.9}, {5, 5, 5}, {-80, 0, -1e4}, {1e4, -1e4, 0}} {
				p := off()
				p.Temperature, p.MinTokens, p.StopIDs = temperature, 1, []int32{2}
				set(&p)
				q := mustNew(t, p, []int32{0, 1, 1}, 3)
				for range 3 {
					mustNext(t, q, row)
				}
			}
		}
	}
}

// TestTinyTemperature is greedy, not a division that loses everything.
func TestTinyTemperature(t *testing.T) {
	for _, temperature := range []float64{1e-300, 1e-6, 1e-5, 1e-4} {
		p := off()
		p.Temperature = temperature
		if r := mustNext(t, mustNew(t, p, nil, 3), []float32{1, 3, 2.9}); r.ID != 1 {
			t.Errorf("temperature %g chose %d", temperature, r.ID)
		}
	}
}
