package delta

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kChunks = launch.Named("kr_delta_chunks")

// The sizes of src/delta_chunk.cu.
const (
	Chunk        = 64 // rows; a row's bits do not depend on cuts at multiples of it
	chunkThreads = 256
	rowBytes     = 2*KeysMax + 16
	sliceBytes   = 2*columns + 16
	chunkShared  = 3*Chunk*rowBytes + 2*KeysMax*sliceBytes + 4*Chunk*sliceBytes + 4*Chunk*20 + 7*4*Chunk
)

// CanChunk reports whether Chunks takes these: rows of BF16 whose heads can be read 16 bytes at a
// time.
func CanChunk(gpu launch.GPU, out, x launch.Mat, p device.DeltaNet) bool {
	return gpu.SharedMax >= chunkShared && x.DType == tensor.BF16 && p.KeyDim%8 == 0 && p.KeyDim <= KeysMax && p.ValueDim%8 == 0 &&
		x.At%16 == 0 && x.Stride%8 == 0 && out.At%4 == 0 && out.Stride%2 == 0
}

// Chunks computes what Rule computes, for the prompts of list, with matrix products over chunks of
// rows.
func Chunks(l *launch.List, gpu launch.GPU, out, x, ba, decay, bias, states launch.Mat, list []device.Span, table launch.Mat, p device.DeltaNet) {
	checkRule(out, x, ba, decay, bias, states, table, p)
	if !CanChunk(gpu, out, x, p) {
		refuse("Delta", "no kernel for out %v, x %v, sizes %+v", out, x, p)
	}
	if len(list) == 0 {
		return
	}
	l.Add(kChunks, launch.Config{Grid: ruleGrid(len(list), p), Block: launch.Dim{X: chunkThreads}, Shared: chunkShared, PDL: true},
		ruleArgs(out, x, ba, decay, bias, states, table, p)...)
}
