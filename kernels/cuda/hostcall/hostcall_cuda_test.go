//go:build cuda

package hostcall

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const (
	testExperts, testTopK = 5, 3
	testCalls             = 4 // per step
	silent                = 2 // the call that requests nothing
)

// rig is a mailbox and the inputs of a step's calls.
type rig struct {
	t       *testing.T
	c       *cudatest.GPU
	box     Box
	host    *Host
	rows    int
	x       []launch.Mat // a call's rows, in strided memory
	raw     [][]byte     // the same, as the host receives them
	values  [][]float32
	ids     [][]int32
	weights [][]float32
	idMat   []launch.Mat
	shares  []launch.Mat
	where   launch.Mat
	hidden  launch.Mat
	delta   launch.Mat // added between Post and Take
	want    []float32  // the current value of hidden
	more    []float32
}

var testWhere = []int32{4, -1, 0, -3, 7}

// newRig makes calls of rows rows; the mailbox has room for more.
func newRig(t *testing.T, c *cudatest.GPU, rows, hidden int, dt tensor.DType, limit time.Duration) *rig {
	t.Helper()
	return newRigOf(t, c, rows, hidden, dt, limit, false)
}

// newRigOf is newRig with answers that are sums, or rows of each choice.
func newRigOf(t *testing.T, c *cudatest.GPU, rows, hidden int, dt tensor.DType, limit time.Duration, each bool) *rig {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(hidden)))
	r := &rig{t: t, c: c, rows: rows, box: Box{State: c.I32(make([]int32, StateBytes/4), 1, StateBytes/4).At,
		Size: Size{HostCallSize: device.HostCallSize{Rows: rows + 1, Hidden: hidden, TopK: testTopK, Limit: limit, Each: each}, RowType: dt}}}
	if err := r.box.Check(); err != nil {
		t.Fatal(err)
	}
	memory, at, err := c.MapHost(r.box.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.FreeHost(memory); err != nil {
			t.Error(err)
		}
	})
	r.box.Host = at
	r.host = NewHost(r.box.Size, memory, func() error {
		Clear(&c.Stream().List, &r.box)
		return c.Stream().Synchronize()
	})
	rising := make([]int32, rows)
	for i := range rising {
		rising[i] = int32(i)
	}
	every := c.I32(rising, rows, 1)
	for call := range testCalls {
		v := cudatest.Normal(rng, rows*hidden)
		dense := c.F32(v, rows, hidden)
		if dt == tensor.BF16 {
			dense = c.BF16(v, rows, hidden)
		}
		b := cudatest.Download[byte](c, dense.At, rows*hidden*dt.Size())
		x := c.Strided(dt, rows, hidden, hidden+8)
		c.Run(func(l *launch.List) { elem.GatherRows(l, x, dense, every) })
		ids, weights := make([]int32, rows*testTopK), make([]float32, rows*testTopK)
		for i := range ids {
			weights[i] = rng.Float32()
			if ids[i] = int32(rng.IntN(testExperts+2) - 1); call == silent { // none and too large ones, too
				ids[i] = []int32{-1, 0, 2, 4, testExperts}[rng.IntN(5)]
			}
		}
		if call != silent {
			ids[len(ids)-1] = 3
		}
		r.x, r.raw, r.values, r.ids, r.weights = append(r.x, x), append(r.raw, b), append(r.values, v), append(r.ids, ids), append(r.weights, weights)
		r.idMat, r.shares = append(r.idMat, c.I32(ids, rows, testTopK)), append(r.shares, c.F32(weights, rows, testTopK))
	}
	r.where = c.I32(testWhere, 1, testExperts)
	r.want, r.more = cudatest.Normal(rng, rows*hidden), cudatest.Normal(rng, rows*hidden)
	r.hidden, r.delta = c.Strided(tensor.F32, rows, hidden, hidden+4), c.F32(r.more, rows, hidden)
	from := c.F32(r.want, rows, hidden)
	c.Run(func(l *launch.List) { elem.GatherRows(l, r.hidden, from, every) })
	return r
}

// step appends the calls of a step.
func (r *rig) step() {
	l := &r.c.Stream().List
	for i := range testCalls {
		Post(l, &r.box, r.x[i], r.idMat[i], r.shares[i], r.where)
		elem.Add(l, r.hidden, r.delta)
		Take(l, &r.box, r.hidden)
	}
}

// expect computes step on the host; late: no call from that one on is answered.
func (r *rig) expect(late int) {
	for n := range testCalls {
		for i := range r.want {
			r.want[i] += r.more[i]
		}
		if n != silent && n < late {
			out := make([]float32, len(r.want))
			r.compute(n, out)
			for i := range r.want {
				r.want[i] += out[i]
			}
		}
	}
}

// compute makes an answer that depends on everything in a call.
func (r *rig) compute(n int, out []float32) {
	for row := range r.rows {
		share := float32(0)
		for k := range testTopK {
			if e := r.ids[n][row*testTopK+k]; e >= 0 && e < testExperts && testWhere[e] < 0 {
				share += r.weights[n][row*testTopK+k]
			}
		}
		for i := range r.box.Hidden {
			out[row*r.box.Hidden+i] = share * r.values[n][row*r.box.Hidden+i]
		}
	}
}

// serve answers the calls of a step before the given one; other goroutines await them too.
func (r *rig) serve(until int, stop func() bool) error {
	var watchers sync.WaitGroup
	defer watchers.Wait()
	for n := range until {
		watchers.Go(func() { r.host.Await(n, stop) })
		l, ok := r.host.Await(n, stop)
		if !ok {
			return fmt.Errorf("call %d did not come", n)
		}
		if (l.Rows == 0) != (n == silent) {
			return fmt.Errorf("call %d has %d rows", n, l.Rows)
		}
		if l.Rows == 0 {
			continue
		}
		if !bytes.Equal(l.X, r.raw[n]) {
			return fmt.Errorf("call %d has other rows", n)
		}
		for i, e := range r.ids[n] {
			if e < 0 || e >= testExperts || testWhere[e] >= 0 {
				e = -1
			}
			if l.IDs[i] != e || l.Weights[i] != r.weights[n][i] {
				return fmt.Errorf("call %d: choice %d is %d with %v, want %d with %v", n, i, l.IDs[i], l.Weights[i], e, r.weights[n][i])
			}
		}
		r.compute(n, l.Out)
		r.host.Answer(n)
	}
	return nil
}

// run runs a step whose calls are answered up to one, and compares.
func (r *rig) run(what string, until int) {
	r.t.Helper()
	r.host.Begin()
	ended, served := make(chan struct{}), make(chan error)
	stop := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	go func() { served <- r.serve(until, stop) }()
	r.step()
	err := r.c.Stream().Synchronize()
	close(ended)
	if err := errors.Join(err, <-served); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	r.expect(until)
	if got := r.c.Floats(r.hidden); !slices.Equal(got, r.want) {
		r.t.Fatalf("%s: other sums", what)
	}
}

// TestRounds: calls of a list, and of a graph that is replayed.
func TestRounds(t *testing.T) {
	c := cudatest.Open(t)
	for _, rows := range []int{1, 2, 5, 32, 100} {
		for _, hidden := range []int{8, 24, 64, 1016, 2048, 2056, 7168} {
			for _, dt := range []tensor.DType{tensor.BF16, tensor.F32} {
				if dt == tensor.F32 && rows != 2 || rows == 100 && hidden > 64 {
					continue
				}
				r := newRig(t, c, rows, hidden, dt, time.Minute)
				for _, keep := range []bool{false, true} {
					c.Stream().Keep(keep)
					for i := range 3 { // the second time it is recorded, the third replayed
						r.run(fmt.Sprintf("%d rows of %d %s, kept %v, step %d", rows, hidden, dt, keep, i), testCalls)
					}
				}
				c.Stream().Keep(false)
				if err := r.host.Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestDeadHost: a host that no longer answers costs one timeout, and the next step can have a new
// host. Sums that came in time are added.
func TestDeadHost(t *testing.T) {
	c := cudatest.Open(t)
	const limit = 5 * time.Millisecond
	for _, rows := range []int{1, 32} {
		r := newRig(t, c, rows, 2048, tensor.BF16, limit)
		begin := time.Now()
		r.run("dead", 0)
		if took, err := time.Since(begin), r.host.Err(); took < limit || took > 400*limit || !errors.Is(err, device.ErrLate) {
			t.Fatalf("a step without a host took %v: %v", took, err)
		}
		r.box.Limit = time.Minute // of new launches: this answer may take as long as a slow machine does
		r.run("well again", testCalls)
		if err := r.host.Err(); err != nil {
			t.Fatal(err)
		}
		r.box.Limit = limit
		// An answer that comes too late is not taken for one of the next step.
		r.host.Begin()
		r.step()
		c.Sync()
		r.host.Answer(0)
		r.expect(0)
		if err := r.host.Err(); !errors.Is(err, device.ErrLate) {
			t.Fatal(err)
		}
		r.run("dead again", 0)
	}
}

// TestStepCutShort: calls that are never awaited do not affect the next step.
func TestStepCutShort(t *testing.T) {
	c := cudatest.Open(t)
	r := newRig(t, c, 2, 64, tensor.BF16, time.Minute)
	for range 2 {
		r.host.Begin()
		for n := range testCalls - 1 {
			c.Run(func(l *launch.List) { Post(l, &r.box, r.x[n], r.idMat[n], r.shares[n], r.where) })
		}
		r.run("after it", testCalls)
	}
}
