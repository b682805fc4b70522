package loss

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"krater/kernels/ref"
	"krater/kernels/tensor"
)

const root = "../../testdata/goldens/"

func open(t *testing.T, name string) *Model {
	t.Helper()
	m, err := Open(root + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestRoundRow against the reference operator, over odd sizes.
func TestRoundRow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct{ cols, group int }{{32, 32}, {96, 32}, {130, 32}, {7, 32}, {64, 64}} {
		row, want := make([]float32, x.cols), make([]float64, x.cols)
		for i := range row {
			row[i] = float32(r.NormFloat64())
			want[i] = float64(row[i])
		}
		roundRow(want, x.group)
		q := ref.QuantizeRows(row, x.cols, x.group)
		for i := range row {
			if got := float64(q.Q[i]) * float64(q.Scale[i/x.group]); math.Abs(got-want[i]) > 1e-6 {
				t.Fatalf("%+v, column %d: %g, the operator gives %g", x, i, want[i], got)
			}
		}
	}
}

// TestL2: without rounding the golden itself; weights and rows lose each their part.
func TestL2(t *testing.T) {
	m, f := open(t, "mixtral"), tensor.INT8.By(32)
	var e [4]float64
	for i, r := range []Rounding{{}, {Weights: f}, {Rows: f}, {f, f}} {
		var err error
		if e[i], err = m.L2(r); err != nil {
			t.Fatal(err)
		}
	}
	if !(e[0] < 1e-5 && e[1] > 0.01 && e[2] > 0.01 && math.Abs(math.Hypot(e[1], e[2])-e[3]) < 0.1*e[3]) {
		t.Errorf("got %.5f", e)
	}
	if w, err := open(t, "kimi_k25").L2(Rounding{Weights: f}); err != nil || w > 1e-5 {
		t.Errorf("INT4 of the files as INT8: %g, %v", w, err)
	}
}

// TestTokens: where clear tokens change, the routers choose other experts.
func TestTokens(t *testing.T) {
	f := tensor.INT8.By(32)
	got, err := open(t, "minimax_m2").Tokens(Rounding{f, f})
	if err != nil {
		t.Fatal(err)
	}
	if got.Clear != 46 || got.Wrong == 0 || got.Forced != 0 || got.Chosen != 558 || got.Other == 0 || got.Other > 20 {
		t.Errorf("%+v", got)
	}
}

func TestRefused(t *testing.T) {
	if _, err := Open(root + "qwen3"); !errors.Is(err, ErrDense) {
		t.Errorf("a dense model: %v", err)
	}
	var out strings.Builder
	if err := Table(&out, t.TempDir()); err != nil || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%q, %v", out.String(), err)
	}
}
