package ppl

import (
	"errors"
	"math"
	"testing"
)

func TestKL(t *testing.T) {
	p, q := []float64{0.5, 0.25, 0.25}, []float64{0.2, 0.2, 0.6}
	var want float64
	a, b := make([]float32, 3), make([]float32, 3)
	for i := range p {
		want += p[i] * math.Log(p[i]/q[i])
		a[i], b[i] = float32(math.Log(p[i])+100), float32(math.Log(q[i])-300)
	}
	if got := KL(a, b); math.Abs(got-want) > 1e-4 { // the logits are rounded at +-300
		t.Errorf("got %v, want %v", got, want)
	}
	if got := KL(a, a); got != 0 {
		t.Errorf("of itself: %v", got)
	}
	if !(KL(b, a) > 0) || KL(a, b) == KL(b, a) {
		t.Error("KL is not symmetric")
	}
}

// twist is a counter that prefers another token at every third position.
type twist struct{ counter }

func (w *twist) Score(ids []int32, see func(int, []float32)) error {
	return w.counter.Score(ids, func(pos int, logits []float32) {
		if pos%3 == 2 {
			logits[(int(ids[pos])+2)%w.vocab] = 3
		}
		see(pos, logits)
	})
}

func TestAgainst(t *testing.T) {
	ids := []int32{0, 1, 2, 9, 4, 5, 7, 3, 4, 5, 6} // windows of 4: predictions at 0 1 2 | 0 1 2 | 0 1
	told := 0
	r, err := Against(&counter{vocab: 10}, &twist{counter{vocab: 10}}, ids, 4, func(n int) { told = n })
	if err != nil {
		t.Fatal(err)
	}
	plain := make([]float32, 10)
	plain[0] = 2
	twisted := append([]float32(nil), plain...)
	twisted[1] = 3
	want := 2 * KL(plain, twisted) / 8
	if r.Model.Predictions != 8 || math.Abs(r.MeanKL-want) > 1e-12 || r.Top1 != 6.0/8 || math.Abs(r.MaxKL-4*want) > 1e-12 || told != 11 {
		t.Errorf("got %+v, told %d, want KL %v", r, told, want)
	}
	for _, x := range []struct {
		got Result
		of  Scorer
	}{{r.Reference, &counter{vocab: 10}}, {r.Model, &twist{counter{vocab: 10}}}} {
		if want, err := Measure(x.of, ids, 4, nil); err != nil || x.got != want {
			t.Errorf("got %+v, measured alone %+v, %v", x.got, want, err)
		}
	}
}

// failing is a scorer that ends with an error.
type failing struct{}

func (failing) Score([]int32, func(int, []float32)) error { return errors.New("no device") }

func TestAgainstRefuses(t *testing.T) {
	ids, good := make([]int32, 9), &counter{vocab: 10}
	for name, x := range map[string]struct {
		a, b   Scorer
		ids    []int32
		window int
	}{
		"one token":              {good, good, ids[:1], 4},
		"window of one":          {good, good, ids, 1},
		"other vocabulary":       {good, &counter{vocab: 11}, ids, 4},
		"positions missing":      {good, &counter{vocab: 10, skip: 1}, ids, 4},
		"reference incomplete":   {&counter{vocab: 10, skip: 1}, good, ids, 4},
		"the model fails":        {good, failing{}, ids, 4},
		"the reference fails":    {failing{}, good, ids, 4},
		"nothing scored by both": {&counter{vocab: 10, skip: 9}, good, ids, 9},
	} {
		if _, err := Against(x.a, x.b, x.ids, x.window, nil); err == nil {
			t.Errorf("%s: passed", name)
		}
	}
}
