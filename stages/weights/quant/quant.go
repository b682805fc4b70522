// Package quant turns float32 weight matrices into integers with one bfloat16
// scale for every group of columns. It is the only quantiser: all formats of
// equal bits and group hold what it gives.
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

// ErrSpec: bits or group size that do not exist.
var ErrSpec = errors.New("no such quantisation")

// groups are the supported sizes, largest first.
var groups = [...]int{128, 64, 32}

// Spec says what is wanted; what a matrix gets depends on its columns too (Format).
type Spec struct {
	Bits  int // 4 or 8
	Group int // 32, 64, 128, or 0: one scale for a row ("per channel")
}

// Check names the first field that does not exist.
func (s Spec) Check() error {
	if s.Bits != 4 && s.Bits != 8 {
		return fmt.Errorf("%w: %d bits, want 4 or 8", ErrSpec, s.Bits)
	}
	switch s.Group {
	case 0, 32, 64, 128:
		return nil
	}
	return fmt.Errorf("%w: groups of %d, want 32, 64, 128 or 0 for a whole row", ErrSpec, s.Group)
}

// Format is the format of a matrix [rows, cols]. A group that does not divide the
// columns (rounded up to 32) falls to the largest smaller size that does; 32
// always does.
func (s Spec) Format(rows, cols int) (tensor.FormatB, error) {
	f := tensor.FormatB{Rows: rows, Cols: cols, Bits: s.Bits, Group: 32}
	if err := s.Check(); err != nil {
		return f, err
	}
	if s.Group == 0 {
		f.Group = f.PaddedCols()
		return f, f.Check()
	}
	for _, g := range groups {
		if g <= s.Group && f.PaddedCols()%g == 0 {
			f.Group = g
			break
		}
	}
	return f, f.Check()
}

// Matrix is a quantised matrix before it is packed: row r, column c is about
// Values[r, c] * Scales[r, c/Group].
type Matrix struct {
	tensor.FormatB
	Values []int8    // [Rows, Cols]; INT4 -8..7, INT8 -127..127
	Scales []float32 // [Rows, Groups], each a bfloat16 number; INT4 scales may be negative
}

// Row widens row r into dst [Cols].
func (m *Matrix) Row(dst []float32, r int) {
	n := m.Groups()
	for c := range dst[:m.Cols] {
		dst[c] = float32(m.Values[r*m.Cols+c]) * m.Scales[r*n+c/m.Group]
	}
}

// Dequantize gives the matrix as float32 [Rows, Cols].
func (m *Matrix) Dequantize() []float32 {
	out := make([]float32, m.Rows*m.Cols)
	for r := range m.Rows {
		m.Row(out[r*m.Cols:(r+1)*m.Cols], r)
	}
	return out
}

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
func Quantize(w []float32, rows, cols int, spec Spec, o Options) (*Matrix, error) {
	m, err := prepare(w, rows, cols, spec)
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
		s := newSearcher(m.Bits, m.Group)
		return func(r int) { m.row(s, w[r*cols:(r+1)*cols], r, o) }
	})
	return m, nil
}

// prepare checks a matrix and makes room for the result.
func prepare(w []float32, rows, cols int, spec Spec) (*Matrix, error) {
	f, err := spec.Format(rows, cols)
	if err != nil {
		return nil, err
	}
	if len(w) != rows*cols {
		return nil, fmt.Errorf("quant: %d weights for a matrix [%d, %d]", len(w), rows, cols)
	}
	for i, v := range w {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return nil, fmt.Errorf("%w: row %d, column %d is %v", ErrNotFinite, i/cols, i%cols, v)
		}
	}
	return &Matrix{FormatB: f, Values: make([]int8, rows*cols), Scales: make([]float32, rows*f.Groups())}, nil
}

// row quantises one row, group by group.
func (m *Matrix) row(s *searcher, w []float32, r int, o Options) {
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
