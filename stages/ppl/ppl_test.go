package ppl

import (
	"errors"
	"math"
	"testing"
)

// counter predicts that the next id is the last one plus one: logit 2 for it, 0 for the other
// vocab-1 ids.
type counter struct {
	vocab int
	texts [][]int32
	skip  int
}

func (c *counter) Score(ids []int32, see func(int, []float32)) error {
	c.texts = append(c.texts, append([]int32(nil), ids...))
	for i := range len(ids) - c.skip {
		logits := make([]float32, c.vocab)
		logits[int(ids[i]+1)%c.vocab] = 2
		see(i, logits)
	}
	return nil
}

func TestMeasure(t *testing.T) {
	ids := []int32{0, 1, 2, 9, 4, 5, 7, 3, 4, 5, 6} // windows of 4: 0 1 2 9 | 4 5 7 3 | 4 5 6
	c := &counter{vocab: 10}
	told := 0
	r, err := Measure(c, ids, 4, func(n int) { told = n })
	if err != nil {
		t.Fatal(err)
	}
	// Right: 0-1, 1-2, 4-5, 4-5, 5-6. Wrong: 2-9, 5-7, 7-3.
	z := math.Log(math.Exp(2) + 9)
	want := (5*(z-2) + 3*z) / 8
	if r.Predictions != 8 || r.Tokens != 11 || math.Abs(r.MeanNLL-want) > 1e-12 || math.Abs(r.Perplexity-math.Exp(want)) > 1e-11 {
		t.Errorf("got %+v, want mean %v", r, want)
	}
	if len(c.texts) != 3 || len(c.texts[2]) != 3 || told != 11 {
		t.Errorf("windows %v, told %d", c.texts, told)
	}
}

func TestMeasureRefuses(t *testing.T) {
	for _, x := range []struct{ n, window int }{{0, 8}, {1, 8}, {9, 1}, {9, 0}} {
		if _, err := Measure(&counter{vocab: 10}, make([]int32, x.n), x.window, nil); !errors.Is(err, ErrText) {
			t.Errorf("%+v: got %v", x, err)
		}
	}
	if _, err := Measure(&counter{vocab: 10, skip: 1}, make([]int32, 9), 4, nil); err == nil {
		t.Error("a scorer that leaves positions out passed")
	}
}

func TestNLL(t *testing.T) {
	if got := NLL([]float32{1000, 999}, 0); math.Abs(got-math.Log(1+math.Exp(-1))) > 1e-12 {
		t.Errorf("got %v", got)
	}
	for _, id := range []int32{-1, 2} {
		if got := NLL([]float32{0, 0}, id); !math.IsInf(got, 1) {
			t.Errorf("id %d: got %v", id, got)
		}
	}
}
