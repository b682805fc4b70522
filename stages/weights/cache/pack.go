package cache

import (
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/tensor"
	"krater/stages/weights/quant"
)

// stripeRows is how many rows of a matrix are packed in one go: whole tiles of
// either format.
const stripeRows = 4 * tensor.TileA

// pack lays out one expert in dst, size bytes.
func (x *expert) pack(dst []byte, w13, w2 *quant.Matrix, threads int) {
	clear(dst[x.w13Scales:x.w2Values])
	clear(dst[x.w2Scales:x.size])
	values13, scales13, values2, scales2 := dst[x.w13Values:], dst[x.w13Scales:], dst[x.w2Values:], dst[x.w2Scales:]
	if x.a13.Rows > 0 {
		PackA(values13, scales13, x.a13, w13, threads)
		PackA(values2, scales2, x.a2, w2, threads)
		return
	}
	packB(values13, scales13, w13, threads)
	packB(values2, scales2, w2, threads)
}

// packBy has one expert laid out in dst by its source.
func (x *expert) packBy(dst []byte, p Packer, layer, e int) error {
	clear(dst)
	part := func(f tensor.FormatB, values, scales int) Packed {
		return Packed{FormatB: f, Values: dst[values:][:f.ValueBytes()], Scales: dst[scales:][:f.ScaleBytes()]}
	}
	return p.Pack(layer, e, part(x.w13, x.w13Values, x.w13Scales), part(x.w2, x.w2Values, x.w2Scales))
}

// packB writes a matrix in format B.
func packB(values, scales []byte, m *quant.Matrix, threads int) {
	f := m.FormatB
	spread((f.Rows+stripeRows-1)/stripeRows, threads, func(i int) {
		row := i * stripeRows
		part, tile := f, row/tensor.TileRows
		part.Rows = min(stripeRows, f.Rows-row)
		part.Pack(values[tile*f.TileBytes():], m.Values[row*f.Cols:])
		part.PackScales(scales[tile*2*tensor.TileRows*f.Groups():], m.Scales[row*f.Groups():])
	})
}

// PackA writes a matrix in format A: ValueBytes of values, ScaleBytes of scales. threads
// 0: all cores.
func PackA(values, scales []byte, f tensor.FormatA, m *quant.Matrix, threads int) {
	n := f.TileCols() * f.TileBytes()
	spread(f.TileRows(), threads, func(i int) { f.PackTiles(values[i*n:(i+1)*n], m.Values, i) })
	f.PackScales(scales, m.Scales)
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
