//go:build cuda

package hostcall

import (
	"fmt"
	"math"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// TestRows: answers of a row for each choice reach the rows of the host's choices, and no others, in lists
// and in graphs.
func TestRows(t *testing.T) {
	c := cudatest.Open(t)
	for _, rows := range []int{1, 5, 40} {
		for _, hidden := range []int{8, 1016, 2056} {
			for _, dt := range []tensor.DType{tensor.BF16, tensor.F32} {
				if rows == 40 && hidden > 8 && (testing.Short() || dt == tensor.F32) {
					continue
				}
				r := newRigOf(t, c, rows, hidden, tensor.BF16, time.Minute, true)
				y := c.Strided(dt, rows*testTopK, hidden, hidden+8)
				for i := range 4 {
					c.Stream().Keep(i > 0)
					r.rowsOf(y, i, fmt.Sprintf("%d rows of %d, %s, step %d", rows, hidden, dt, i))
				}
				c.Stream().Keep(false)
			}
		}
	}
}

// rowsOf runs a step with one call and compares y.
func (r *rig) rowsOf(y launch.Mat, step int, what string) {
	r.t.Helper()
	before := r.c.Floats(y)
	value := func(a, col int) float32 { return float32(1000*step+a) + float32(col)/64 }
	r.host.Begin()
	served := make(chan error)
	go func() {
		l, ok := r.host.Await(0, func() bool { return false })
		if !ok || l.Rows != r.rows || len(l.Out) != y.Rows*y.Cols {
			served <- fmt.Errorf("a call of %d rows for %d values: %v", l.Rows, len(l.Out), ok)
			return
		}
		for i := range l.Out {
			l.Out[i] = value(i/y.Cols, i%y.Cols)
		}
		r.host.Answer(0)
		served <- nil
	}()
	l := &r.c.Stream().List
	Post(l, &r.box, r.x[0], r.idMat[0], r.shares[0], r.where)
	TakeRows(l, &r.box, y, r.idMat[0], r.where)
	err := r.c.Stream().Synchronize()
	if e := <-served; err == nil {
		err = e
	}
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	for i, got := range r.c.Floats(y) {
		e, want := r.ids[0][i/y.Cols], before[i]
		if e >= 0 && e < testExperts && testWhere[e] < 0 {
			want = value(i/y.Cols, i%y.Cols)
			if y.DType == tensor.BF16 {
				want = tensor.BF16ToF32(tensor.F32ToBF16(want))
			}
		}
		if math.Float32bits(got) != math.Float32bits(want) {
			r.t.Fatalf("%s: row %d, column %d is %g, want %g", what, i/y.Cols, i%y.Cols, got, want)
		}
	}
}
