//go:build cuda

package cards

import (
	"slices"

	"krater/bench/stat"
	"krater/kernels/cuda/launch"
)

const (
	ceilingBytes = 1 << 30
	ceilingSteps = 4096 // products per warpgroup
	blockSteps   = 8    // products per step, in kernels/cuda/src/ceiling.cu
)

// ceilings measures the GPU's limits, with the given numbers of bytes and steps.
func (r *runner) ceilings(bytes int64, steps int) error {
	info := r.gpu.Info()
	at, to := r.alloc(bytes), r.alloc(bytes)
	if r.err != nil {
		return r.clear()
	}
	r.s.List.Fill(at, bytes, 1)
	top := &r.rep.Ceilings
	top.ReadGBps = stat.Round(float64(bytes)/1e3/r.best(func() { readAll(&r.s.List, info, at, to, bytes) }), 4)
	top.CopyGBps = stat.Round(2*float64(bytes)/1e3/r.best(func() { r.s.List.Copy(to, at, bytes) }), 4)
	r.far(bytes)
	flops := 0.0
	us := r.best(func() { flops = multiply(&r.s.List, info, to, steps) })
	top.TFLOPs = stat.Round(flops/1e6/us, 4)
	top.LibraryTFLOPs = r.librarySpeed()
	return r.clear()
}

// farMost bounds the memory that far reads, as a multiple of the other measurements'.
const farMost = 32

// far measures reads over more and more memory, up to half of the free memory. Reads get slower
// beyond the reach of the GPU's address translation caches, and so does the use of a large
// model's weights.
func (r *runner) far(bytes int64) {
	free, err := r.gpu.Free()
	if err != nil {
		r.err = err
		return
	}
	for n := 2 * bytes; n <= min(farMost*bytes, free/2); n *= 2 {
		at, err := r.gpu.Alloc(n, true)
		if err != nil {
			r.err = err
			return
		}
		r.s.List.Fill(at, n, 1)
		us := r.best(func() { readAll(&r.s.List, r.gpu.Info(), at, at, n) })
		r.rep.Ceilings.Far = append(r.rep.Ceilings.Far, Far{int(n >> 30), stat.Round(float64(n)/1e3/us, 4)})
		if err := r.gpu.Release(at); err != nil && r.err == nil {
			r.err = err
		}
	}
}

// best returns the shortest time of the launches that f adds, in microseconds.
func (r *runner) best(f func()) float64 {
	var times []float64
	for range rounds {
		if r.err != nil {
			return 1
		}
		took, err := r.s.Timed(f)
		r.err = err
		times = append(times, took.Seconds()*1e6)
	}
	return slices.Min(times)
}

func readAll(l *launch.List, c launch.GPU, at, to launch.Ptr, bytes int64) {
	l.Add(kRead, launch.Config{Grid: launch.Dim{X: uint32(4 * c.SMs)}, Block: launch.Dim{X: 512}},
		launch.P(at), launch.I64(bytes/16), launch.P(to))
}

// multiply adds products from registers, and returns the number of operations.
func multiply(l *launch.List, c launch.GPU, to launch.Ptr, steps int) float64 {
	if c.Hopper { // per group of 4 warps: 64 x 128 x 16, from shared memory
		l.Add(kProductsH, launch.Config{Grid: launch.Dim{X: uint32(c.SMs)}, Block: launch.Dim{X: 256}, Shared: 48 << 10},
			launch.I32(steps), launch.P(to))
		return float64(c.SMs) * 2 * float64(steps) * blockSteps * 2 * 64 * 128 * 16
	}
	l.Add(kProducts, launch.Config{Grid: launch.Dim{X: uint32(2 * c.SMs)}, Block: launch.Dim{X: 256}},
		launch.I32(steps), launch.P(to))
	return float64(2*c.SMs) * 8 * float64(steps) * blockSteps * 2 * 16 * 8 * 16
}
