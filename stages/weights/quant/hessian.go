package quant

import (
	"errors"
	"fmt"
	"math"
)

// ErrHessian: the inputs' statistics cannot be used.
var ErrHessian = errors.New("bad input statistics")

// Hessian is the sum of x x^T over inputs x [N] of a matrix: half the second
// derivative of its squared output error by one row's weights. It is not safe for
// concurrent use.
type Hessian struct {
	N     int
	Count int       // inputs added
	sum   []float64 // [N, N], the lower triangle only
}

// NewHessian makes statistics without inputs.
func NewHessian(n int) *Hessian { return &Hessian{N: n, sum: make([]float64, n*n)} }

// Add counts one input [N].
//
//go:norace
func (h *Hessian) Add(x []float32) {
	for i, v := range x[:h.N] {
		if v == 0 {
			continue
		}
		row := h.sum[i*h.N : i*h.N+i+1]
		f := float64(v)
		for j := range row {
			row[j] += f * float64(x[j])
		}
	}
	h.Count++
}

// AddScaled adds weight times the sums of other; inputs are not counted.
//
//go:norace
func (h *Hessian) AddScaled(other *Hessian, weight float64) {
	for i, v := range other.sum {
		h.sum[i] += weight * v
	}
}

// Diagonal returns the sum of x^2 in each column: the weight for Options.Weight.
func (h *Hessian) Diagonal() []float32 {
	d := make([]float32, h.N)
	for i := range d {
		d[i] = float32(h.sum[i*h.N+i])
	}
	return d
}

// at reads the symmetric matrix.
func (h *Hessian) at(i, j int) float64 {
	if j > i {
		i, j = j, i
	}
	return h.sum[i*h.N+j]
}

// full returns the matrix in the order of columns, damp times the mean of the
// diagonal added to the diagonal: without it, columns that were always zero
// together make it singular.
//
//go:norace
func (h *Hessian) full(order []int, damp float64) ([]float64, error) {
	var mean float64
	for i := range h.N {
		mean += h.at(i, i) / float64(h.N)
	}
	if !(mean > 0) || math.IsInf(mean, 0) {
		return nil, fmt.Errorf("%w: mean square %v over %d inputs", ErrHessian, mean, h.Count)
	}
	out := make([]float64, h.N*h.N)
	for i, a := range order {
		for j, b := range order {
			out[i*h.N+j] = h.at(a, b)
		}
		out[i*h.N+i] += damp * mean
	}
	return out, nil
}

// inverseFactor returns the upper triangular U [n, n] with U^T U = a^-1 for a
// symmetric positive definite a, which it overwrites. With a = R R^T, R upper
// triangular (a Cholesky factorisation from the last row up), U is R^-1.
//
//go:norace
func inverseFactor(a []float64, n int) ([]float64, error) {
	for j := n - 1; j >= 0; j-- {
		d := a[j*n+j]
		for k := j + 1; k < n; k++ {
			d -= a[j*n+k] * a[j*n+k]
		}
		if !(d > 0) {
			return nil, fmt.Errorf("%w: not positive definite at %d of %d", ErrHessian, j, n)
		}
		d = math.Sqrt(d)
		a[j*n+j] = d
		tail := a[j*n+j+1 : j*n+n]
		for i := range j {
			sum := a[i*n+j]
			for k, v := range a[i*n+j+1 : i*n+n] {
				sum -= v * tail[k]
			}
			a[i*n+j] = sum / d
		}
	}
	// Row i of the inverse, from the last up: U[i] = (e_i - sum R[i,k] U[k]) / R[i,i].
	u := make([]float64, n*n)
	for i := n - 1; i >= 0; i-- {
		row := u[i*n : (i+1)*n]
		row[i] = 1
		for k := i + 1; k < n; k++ {
			f := a[i*n+k]
			for c, v := range u[k*n+k : (k+1)*n] {
				row[k+c] -= f * v
			}
		}
		for c := i; c < n; c++ {
			row[c] /= a[i*n+i]
		}
	}
	return u, nil
}
