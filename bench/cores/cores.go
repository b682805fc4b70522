// Package cores measures how many cores the threads of this process have at the moment. On a
// virtual machine, two processors may be two hardware threads of one core for a while and two cores
// a second later. Memory bandwidth and arithmetic then differ, so a figure for several threads
// means little without this number.
package cores

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Look is the result of one probe.
type Look struct {
	Threads int
	One     float64 // operations a second of one thread
	All     float64 // and of all threads together
}

// Cores returns how many times faster all threads together are than one.
func (l Look) Cores() int {
	if l.One <= 0 {
		return 1
	}
	return max(1, min(l.Threads, int(math.Round(l.All/l.One))))
}

// Regime names the state of the machine. Many threads never reach their number, because cores slow
// down together; so the states are all, half, or fewer cores.
func (l Look) Regime() string {
	cores := l.Cores()
	switch {
	case l.Threads == 1:
		return ""
	case cores == 1:
		return "one core"
	case l.Threads == 2:
		return "two cores"
	case 4*cores >= 3*l.Threads:
		return "all cores"
	case 8*cores >= 3*l.Threads:
		return "half the cores"
	}
	return "fewer cores"
}

// The work of a probe: an integer product whose operands stay in the second-level cache and which
// keeps a core's multipliers busy, so that a second thread of the same core adds almost nothing.
const (
	rows, n, k = 8, 256, 512
	group      = 32
	bursts     = 3  // the best one counts: a thread that loses its core spoils a burst
	products   = 24 // products per burst, about 0.2 ms
)

// Probe is the work of every thread.
type Probe struct{ lanes []*lane }

// New returns a probe for the given number of threads.
func New(threads int) (*Probe, error) {
	if threads < 1 {
		return nil, fmt.Errorf("cores: a probe of %d threads", threads)
	}
	p := &Probe{}
	for range threads {
		l, err := newLane()
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("cores: %w", err)
		}
		p.lanes = append(p.lanes, l)
	}
	return p, nil
}

// Close frees the probe.
func (p *Probe) Close() {
	for _, l := range p.lanes {
		l.close()
	}
	p.lanes = nil
}

// Take probes the machine; it takes a few milliseconds of all cores.
func (p *Probe) Take() Look {
	look := Look{Threads: len(p.lanes)}
	for range bursts {
		look.One = max(look.One, burst(p.lanes[:1]))
		look.All = max(look.All, burst(p.lanes))
	}
	return look
}

// burst lets lanes work at the same time and returns their operations per second.
func burst(lanes []*lane) float64 {
	var ready atomic.Int32
	var group sync.WaitGroup
	begin, end := make([]time.Time, len(lanes)), make([]time.Time, len(lanes))
	for i, l := range lanes {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Add(1)
			for int(ready.Load()) < len(lanes) {
				runtime.Gosched()
			}
			begin[i] = time.Now()
			for range products {
				l.dev.MatMulQ(l.stream, l.out, l.x, l.w)
			}
			end[i] = time.Now()
		})
	}
	group.Wait()
	first, last := begin[0], end[0]
	for i := range lanes {
		if begin[i].Before(first) {
			first = begin[i]
		}
		if end[i].After(last) {
			last = end[i]
		}
	}
	return float64(len(lanes)) * products * 2 * rows * n * k / max(1e-9, last.Sub(first).Seconds())
}

// lane is one thread's device and operands.
type lane struct {
	dev    *cpu.Device
	stream device.Stream
	out    device.Mat
	x      device.QRows
	w      device.QMat
	bufs   []device.Buffer
}

func newLane() (*lane, error) {
	l := &lane{}
	var err error
	if l.dev, err = cpu.New(cpu.Options{Threads: 1}); err != nil {
		return nil, err
	}
	if l.stream, err = l.dev.NewStream(); err != nil {
		l.close()
		return nil, err
	}
	f := tensor.Layout{Format: tensor.INT4.By(group), Rows: n, Cols: k}
	l.w = device.QMat{Layout: f}
	for _, m := range []struct {
		mat        *device.Mat
		dt         tensor.DType
		rows, cols int
	}{
		{&l.out, tensor.F32, rows, n}, {&l.x.Q, tensor.I8, rows, k},
		{&l.x.Scale, tensor.F32, rows, k / group}, {&l.x.Bias, tensor.I32, rows, k / group},
	} {
		if err == nil {
			*m.mat, err = device.AllocMat(l.dev, m.dt, m.rows, m.cols)
			l.keep(m.mat.Buf)
		}
	}
	for _, b := range []struct {
		buf  *device.Buffer
		size int
	}{{&l.w.Values, f.ValueBytes()}, {&l.w.Scales, f.ScaleBytes()}} {
		if err == nil {
			*b.buf, err = l.dev.Alloc(b.size)
			l.keep(*b.buf)
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	l.x.Group = group
	return l, nil
}

func (l *lane) keep(b device.Buffer) {
	if b != nil {
		l.bufs = append(l.bufs, b)
	}
}

func (l *lane) close() {
	for _, b := range l.bufs {
		b.Free()
	}
	if l.dev != nil {
		l.dev.Close() // fails only when closed twice
	}
}
