// Package quant turns float32 weight matrices into matrices of a number format. It is the only
// quantiser: all layouts of a format hold what it gives.
//
// An encoding may have a rule of its own (tensor.Encoding). The others are integers with one
// bfloat16 scale for every group of columns.
//
// Three methods, by rising cost and falling error: plain rounding by the largest
// value, a search of each group's scale by least squared error (search.go), and
// error feedback calibrated with inputs the matrix really sees (feedback.go).
package quant

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/tensor"
)

// ErrNotFinite: a weight is infinite or not a number.
var ErrNotFinite = errors.New("not a finite weight")

// Method of choosing a group's scale.
type Method uint8

const (
	// Search takes the scale with the least squared error.
	Search Method = iota
	// Absmax divides the largest magnitude by the largest value (7 or 127): the
	// baseline.
	Absmax
)

// Options of a quantisation.
type Options struct {
	Method Method
	// Weight is how much an error in each column counts [cols]: the mean square of
	// the input there, E[x^2]. nil: all the same. Absmax does not use it.
	Weight []float32
	// Threads bounds the workers; 0: all cores. The result does not depend on it.
	Threads int
}

// Quantize rounds w [rows, cols]. An error names the row and column at fault; the
// caller adds the tensor's name. w is not changed.
func Quantize(w []float32, rows, cols int, f tensor.Format, o Options) (*tensor.Matrix, error) {
	m, err := prepare(w, rows, cols, f)
	if err != nil {
		return nil, err
	}
	if o.Weight != nil && len(o.Weight) != cols {
		return nil, fmt.Errorf("quant: %d column weights for %d columns", len(o.Weight), cols)
	}
	for c, v := range o.Weight {
		if !(v >= 0) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("quant: column %d weighs %v", c, v)
		}
	}
	eachRow(rows, o.Threads, func() func(r int) {
		if f.HasRule() {
			return func(r int) { m.Quantize(w[r*cols:(r+1)*cols], r) }
		}
		s := newSearcher(m.Encoding, m.Group)
		return func(r int) { quantizeRow(m, s, w[r*cols:(r+1)*cols], r, o) }
	})
	return m, nil
}

// prepare checks a matrix and makes room for the result.
func prepare(w []float32, rows, cols int, f tensor.Format) (*tensor.Matrix, error) {
	l, err := f.On(tensor.CPU, rows, cols)
	if err != nil {
		return nil, fmt.Errorf("quant: %w", err)
	}
	if len(w) != rows*cols {
		return nil, fmt.Errorf("quant: %d weights for a matrix [%d, %d]", len(w), rows, cols)
	}
	for i, v := range w {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return nil, fmt.Errorf("%w: row %d, column %d is %v", ErrNotFinite, i/cols, i%cols, v)
		}
	}
	return tensor.NewMatrix(l.Format, rows, cols), nil
}

// quantizeRow quantises one row, group by group.
func quantizeRow(m *tensor.Matrix, s *searcher, w []float32, r int, o Options) {
	for g := range m.Groups() {
		from, to := g*m.Group, min((g+1)*m.Group, m.Cols)
		if from >= to {
			return // a group of padding only
		}
		var weight []float32
		if o.Weight != nil {
			weight = o.Weight[from:to]
		}
		s.load(w[from:to], weight)
		scale := s.absmax()
		if o.Method == Search {
			scale = s.best(scale)
		}
		m.Scales[r*m.Groups()+g] = float32(scale)
		s.round(m.Values[r*m.Cols+from:r*m.Cols+to], scale)
	}
}

// eachRow calls work for every row 0..rows-1. Each worker makes its own work
// function and with it its own scratch memory.
func eachRow(rows, threads int, worker func() func(r int)) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	threads = min(threads, rows)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range threads {
		wait.Go(func() {
			work := worker()
			for {
				r := int(next.Add(1)) - 1
				if r >= rows {
					return
				}
				work(r)
			}
		})
	}
	wait.Wait()
}
