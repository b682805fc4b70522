package quant

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"krater/kernels/tensor"
)

// inputs are count vectors whose columns depend on one another.
func inputs(r *rand.Rand, n, count int) *Hessian {
	h := NewHessian(n)
	mix := make([][]float64, 8)
	for i := range mix {
		mix[i] = make([]float64, n)
		for j := range mix[i] {
			mix[i][j] = r.NormFloat64()
		}
	}
	x := make([]float32, n)
	for range count {
		for j := range x {
			x[j] = float32(0.5 * r.NormFloat64() * float64(1+j%5))
		}
		for i := range mix {
			f := r.NormFloat64()
			for j := range x {
				x[j] += float32(f * mix[i][j])
			}
		}
		h.Add(x)
	}
	return h
}

// outputError is the squared error of all outputs over the inputs of h.
func outputError(w []float32, m *tensor.Matrix, h *Hessian) float64 {
	got := m.Dequantize()
	var sum float64
	for r := range m.Rows {
		for i := range m.Cols {
			for j := range m.Cols {
				a, b := r*m.Cols+i, r*m.Cols+j
				sum += float64(w[a]-got[a]) * float64(w[b]-got[b]) * h.at(i, j)
			}
		}
	}
	return sum
}

// TestFeedbackLowersOutputError on dependent inputs: below plain and searched
// scales always, and far below plain ones.
func TestFeedbackLowersOutputError(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 21))
	for i, spec := range []tensor.Format{tensor.INT4.By(32), tensor.INT4.By(64), tensor.INT4.By(0), tensor.INT8.By(64), tensor.INT3.By(32)} {
		const rows, cols = 6, 160
		w, h := normal(r, rows*cols, i%3), inputs(r, cols, 400)
		fed, err := Feedback(w, rows, cols, spec, h, FeedbackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		unrefined, err := Feedback(w, rows, cols, spec, h, FeedbackOptions{Passes: -1})
		if err != nil {
			t.Fatal(err)
		}
		a := outputError(w, fed, h)
		u := outputError(w, unrefined, h)
		s := outputError(w, must(t, w, rows, cols, spec, Options{Weight: h.Diagonal()}), h)
		p := outputError(w, must(t, w, rows, cols, spec, Options{Method: Absmax}), h)
		t.Logf("%+v: plain 1, searched %.3f, feedback %.3f, refined %.3f", spec, s/p, u/p, a/p)
		if !(a < 0.6*p) || !(a < s) || !(a <= u*1.001) {
			t.Errorf("%+v: feedback %g, unrefined %g, searched %g, plain %g", spec, a, u, s, p)
		}
	}
}

// TestFeedbackNeverAboveOthers compares the damped error with few inputs. Feedback promises that its
// damped error is not above the others'.
func TestFeedbackNeverAboveOthers(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 23))
	for i := range 30 {
		rows, cols := 1+r.IntN(4), 1+r.IntN(100)
		w, h := normal(r, rows*cols, i%3), inputs(r, cols, 1+r.IntN(20))
		spec := []tensor.Format{tensor.INT4.By(32), tensor.INT3.By(64)}[i%2]
		fed, err := Feedback(w, rows, cols, spec, h, FeedbackOptions{Damp: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		damped := NewHessian(cols)
		damped.AddScaled(h, 1)
		for j := range cols {
			for k := range cols {
				damped.sum[j*cols+j] += 0.1 * h.at(k, k) / float64(cols)
			}
		}
		a, p := outputError(w, fed, damped), outputError(w, must(t, w, rows, cols, spec, Options{Method: Absmax}), damped)
		if !(a <= p*(1+1e-9)) {
			t.Errorf("case %d [%d, %d]: feedback %g, plain %g", i, rows, cols, a, p)
		}
	}
}

// TestFeedbackAgainstBruteForce: of all integers and scales of a row of two
// columns, on an ill-conditioned Hessian, feedback finds nearly the best.
func TestFeedbackAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 25))
	var sum, best float64
	for range 40 {
		w := normal(r, 2, 0)
		h := NewHessian(2)
		for range 5 {
			a := float32(r.NormFloat64())
			h.Add([]float32{a, a + 0.3*float32(r.NormFloat64())})
		}
		fed, err := Feedback(w, 1, 2, tensor.INT4.By(32), h, FeedbackOptions{Damp: 1e-6})
		if err != nil {
			t.Fatal(err)
		}
		scale := float64(fed.Scales[0])
		least := math.Inf(1)
		for a := -8.0; a < 8; a++ {
			for b := -8.0; b < 8; b++ {
				d, e := float64(w[0])-a*scale, float64(w[1])-b*scale
				least = min(least, d*d*h.at(0, 0)+2*d*e*h.at(0, 1)+e*e*h.at(1, 1))
			}
		}
		got := outputError(w, fed, h)
		if got < least*(1-1e-4)-1e-9 {
			t.Fatalf("error %g below the least possible %g", got, least)
		}
		sum, best = sum+got, best+least
	}
	t.Logf("%.4f times the best integers at the chosen scales", sum/best)
	if sum > 1.5*best {
		t.Errorf("error %g, the best integers at the same scales have %g", sum, best)
	}
}

// TestInverseFactor multiplies back: U^T U A = I.
func TestInverseFactor(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 27))
	const n = 23
	h := inputs(r, n, 60)
	order := r.Perm(n)
	a, err := h.full(order, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	u, err := inverseFactor(append([]float64(nil), a...), n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		for j := range n {
			var sum float64
			for k := range n {
				for l := 0; l <= min(i, k); l++ {
					sum += u[l*n+i] * u[l*n+k] * a[k*n+j]
				}
			}
			want := 0.0
			if i == j {
				want = 1
			}
			if math.Abs(sum-want) > 1e-8 {
				t.Fatalf("element %d, %d of the product: %g", i, j, sum)
			}
			if j < i && u[i*n+j] != 0 {
				t.Fatalf("u[%d, %d] = %g below the diagonal", i, j, u[i*n+j])
			}
		}
	}
}

func TestHessianRefused(t *testing.T) {
	w := make([]float32, 64)
	spec := tensor.INT4.By(32)
	if _, err := Feedback(w, 1, 64, spec, NewHessian(64), FeedbackOptions{}); !errors.Is(err, ErrHessian) {
		t.Errorf("no inputs: got %v", err)
	}
	if _, err := Feedback(w, 1, 64, spec, NewHessian(32), FeedbackOptions{}); !errors.Is(err, ErrHessian) {
		t.Errorf("other width: got %v", err)
	}
	h := NewHessian(64)
	x := make([]float32, 64)
	x[3] = float32(math.NaN())
	h.Add(x)
	if _, err := Feedback(w, 1, 64, spec, h, FeedbackOptions{}); !errors.Is(err, ErrHessian) {
		t.Errorf("NaN input: got %v", err)
	}
}

// BenchmarkFeedback quantises 64 rows, the Hessian's factor included: the cost is
// about 10 K^2 a row and K^3 / 2 a matrix.
func BenchmarkFeedback(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, cols := range []int{256, 1024} {
		w, h := normal(r, 64*cols, 0), inputs(r, cols, 2*cols)
		b.Run(fmt.Sprintf("K=%d", cols), func(b *testing.B) {
			for b.Loop() {
				if _, err := Feedback(w, 64, cols, tensor.INT4.By(64), h, FeedbackOptions{Threads: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(w))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}
