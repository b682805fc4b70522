//go:build cuda

package cards

import (
	"errors"
	"slices"
	"time"

	"krater/bench/stat"
	"krater/kernels/cuda/cublaslt"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

const (
	workspaceBytes = 32 << 20
	// The size of the square product that measures what a library reaches on this GPU.
	square = 8192
)

// openLibrary opens cuBLASLt. Without it the report has no times of the library.
func (r *runner) openLibrary() error {
	var err error
	r.s.Outside(func(uintptr) error {
		r.library, err = cublaslt.Open()
		return nil
	})
	if errors.Is(err, cublaslt.ErrAbsent) {
		r.library, err = nil, nil
	}
	return err
}

func (r *runner) closeLibrary() {
	if r.library != nil {
		r.s.Outside(func(uintptr) error { r.library.Close(); return nil })
	}
}

// product enqueues a product of the library.
func (r *runner) product(out, x, w launch.Mat, room launch.Ptr) {
	r.s.Outside(func(stream uintptr) error {
		return r.library.BF16(stream, out, x, w, false, room, workspaceBytes)
	})
}

// libraryTime returns the library's median time for a case's product in microseconds, 0 if it has
// no such product. Its launches are issued one by one, so the time of a short product is that of
// issuing it.
func (r *runner) libraryTime(j *job, copies int, us float64) float64 {
	if r.library == nil || j.product == nil || r.err != nil || us <= 0 {
		return 0
	}
	room := r.alloc(workspaceBytes)
	launches := min(max(replaysMin, copies), max(2, int(float64(graphLimit.Microseconds())/us)))
	var times []float64
	for i := range rounds + 1 { // the first run chooses an algorithm
		if r.err != nil {
			return 0
		}
		var took time.Duration
		took, r.err = r.s.Timed(func() {
			for c := range launches {
				out, x, w := j.product(c % copies)
				r.product(out, x, w, room)
			}
		})
		if i > 0 {
			times = append(times, took.Seconds()*1e6/float64(launches))
		}
	}
	slices.Sort(times)
	return stat.Round(times[len(times)/2], 4)
}

// librarySpeed returns the library's rate for a large product of random numbers, in TFLOP/s.
func (r *runner) librarySpeed() float64 {
	if r.library == nil {
		return 0
	}
	d := &desk{gpu: r.gpu.Info(), arena: r, rng: r.random(), copies: 1}
	x, w := d.numbers(tensor.BF16, square, square, unit), d.numbers(tensor.BF16, square, square, small)
	out, room := d.room(tensor.BF16, square, square), r.alloc(workspaceBytes)
	us := r.best(func() { r.product(out.Mat, x.Mat, w.Mat, room) })
	return stat.Round(2*float64(square)*square*square/us/1e6, 4)
}
