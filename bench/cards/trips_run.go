//go:build cuda

package cards

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/bench/stat"
	"krater/kernels/cuda/hostcall"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// tripLimit ends a measurement if the host does not answer.
const tripLimit = time.Second

// trips measures round trips.
func (r *runner) trips() error {
	for _, t := range trips() {
		if r.opt.Match != nil && !r.opt.Match(t.Name()) {
			continue
		}
		if err := r.trip(t); err != nil {
			return fmt.Errorf("%s: %w", t.Name(), err)
		}
		r.rep.Trips = append(r.rep.Trips, *t)
	}
	return nil
}

// trip measures one of them. Every answer has 1 in the first column, followed by the call's rows.
// So the first column of hidden counts the completed calls.
func (r *runner) trip(t *Trip) error {
	d := &desk{gpu: r.gpu.Info(), arena: r, rng: r.random(), copies: 1}
	x := d.numbers(t.dtype, t.Rows, t.Hidden, unit)
	hidden := d.mat(tensor.F32, t.Rows, t.Hidden, func([]byte) {})
	id := int32(0)
	if t.Silent {
		id = 1
	}
	ids, weights := d.ints(t.Rows, 1, func(int) int32 { return id }), d.numbers(tensor.F32, t.Rows, 1, unit)
	where := d.ints(1, 2, func(e int) int32 { return int32(e) - 1 }) // the first expert is the host's
	state := d.mat(tensor.I8, 1, hostcall.StateBytes, func([]byte) {})
	box := &hostcall.Box{State: state.At, Size: hostcall.Size{HostCallSize: device.HostCallSize{Rows: t.Rows, Hidden: t.Hidden, TopK: 1, Limit: tripLimit}, RowType: t.dtype}}
	memory, at, err := r.gpu.MapHost(box.Bytes())
	if err != nil {
		return errors.Join(err, r.clear())
	}
	box.Host = at
	host := hostcall.NewHost(box.Size, memory, func() error { hostcall.Clear(&r.s.List, box); return r.s.Synchronize() })
	calls := tripCalls
	if r.opt.Small {
		calls = 3
	}
	step := func() {
		for range calls {
			hostcall.Post(&r.s.List, box, x.Mat, ids.Mat, weights.Mat, where.Mat)
			hostcall.Take(&r.s.List, box, hidden.Mat)
		}
		r.s.Flush()
	}
	r.s.Keep(true)
	var times []float64
	runs := 0
	sent := x.host
	for i := 0; i < rounds+2 && r.err == nil && t.Fault == ""; i++ { // launched one by one, recorded, replayed
		if i >= 2 {
			sent = nil
		}
		var took time.Duration
		took, t.Fault, r.err = r.exchange(host, calls, sent, step)
		runs++
		if i >= 2 {
			times = append(times, took.Seconds()*1e6/float64(calls))
		}
	}
	r.s.Keep(false)
	r.s.Forget() // graphs that use this memory
	if r.err == nil && t.Fault == "" {
		t.Fault = t.judge(r.read(hidden.Mat), x, float64(runs*calls))
		slices.Sort(times)
		if !r.opt.Small {
			t.US = stat.Round(times[len(times)/2], 4)
		}
	}
	return errors.Join(r.gpu.FreeHost(memory), r.clear())
}

// exchange runs a step while a goroutine answers its calls in order. rows are the expected rows
// of the calls; nil: they are not checked.
func (r *runner) exchange(host *hostcall.Host, calls int, rows []byte, step func()) (took time.Duration, fault string, err error) {
	host.Begin()
	var ended atomic.Bool
	served := make(chan string)
	go func() {
		fault := ""
		for n := range calls {
			l, ok := host.Await(n, ended.Load)
			if !ok {
				fault = fmt.Sprintf("call %d did not come", n)
				break
			}
			if l.Rows == 0 {
				continue
			}
			if rows != nil && !bytes.Equal(l.X, rows) {
				fault = fmt.Sprintf("call %d has other rows", n)
			}
			out := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(l.Out))), 4*len(l.Out))
			copy(out, l.X)
			for row := range l.Rows {
				l.Out[row*len(l.Out)/l.Rows] = 1
			}
			host.Answer(n)
		}
		served <- fault
	}()
	took, err = r.s.Timed(step)
	ended.Store(true)
	fault = <-served
	if late := host.Err(); late != nil {
		fault = late.Error()
	}
	return took, fault, err
}

// judge returns the faults of hidden after that many calls.
func (t *Trip) judge(hidden []float64, x data, calls float64) string {
	want := calls
	if t.Silent {
		want = 0
	}
	for row := range t.Rows {
		if got := hidden[row*t.Hidden]; got != want {
			return fmt.Sprintf("row %d counts %g calls of %g", row, got, want)
		}
		if t.dtype != tensor.F32 { // a returned value is not a number
			continue
		}
		for i := 1; i < t.Hidden; i++ {
			if sum := want * x.get(row, i); !(math.Abs(hidden[row*t.Hidden+i]-sum) <= 1e-4*math.Abs(sum)) {
				return fmt.Sprintf("row %d, column %d is %g, want %g", row, i, hidden[row*t.Hidden+i], sum)
			}
		}
	}
	return ""
}
