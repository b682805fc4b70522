package cache

import (
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/tensor"
)

// stripeRows is how many rows of a matrix are packed in one go: whole bands of any layout.
const stripeRows = 256

// pack lays out one expert in dst, size bytes.
func (x *expert) pack(dst []byte, w13, w2 *tensor.Matrix, threads int) {
	clear(dst)
	p13, p2 := x.parts(dst)
	Pack(p13, w13, threads)
	Pack(p2, w2, threads)
}

// packBy has one expert laid out in dst by its source.
func (x *expert) packBy(dst []byte, p Packer, layer, e int) error {
	clear(dst)
	w13, w2 := x.parts(dst)
	return p.Pack(layer, e, w13, w2)
}

// parts are the matrices of an expert in memory.
func (x *expert) parts(b []byte) (w13, w2 Packed) {
	part := func(l tensor.Layout, values, scales int) Packed {
		return Packed{Layout: l, Values: b[values:][:l.ValueBytes()], Scales: b[scales:][:l.ScaleBytes()]}
	}
	return part(x.w13, x.w13Values, x.w13Scales), part(x.w2, x.w2Values, x.w2Scales)
}

// Pack lays out a matrix. threads 0: all cores.
func Pack(p Packed, m *tensor.Matrix, threads int) {
	step := stripeRows / p.BandRows()
	spread((p.Bands()+step-1)/step, threads, func(i int) {
		p.PackBands(p.Values, p.Scales, m, i*step, min((i+1)*step, p.Bands()))
	})
}

// workers is a number of threads, 0: all cores.
func workers(threads int) int {
	if threads <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return threads
}

// spread calls work for 0..n-1 on several threads.
func spread(n, threads int, work func(i int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	run := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			work(i)
		}
	}
	for range min(workers(threads), n) - 1 {
		wait.Go(run)
	}
	run()
	wait.Wait()
}
