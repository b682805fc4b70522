package delta

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kChunks, kRowChunks = launch.Named("kr_delta_chunks"), launch.Named("kr_kda_chunks")

// The sizes of src/delta_chunk.cu and src/kda_chunk.cu.
const (
	Chunk        = 64 // rows; a row's bits do not depend on cuts at multiples of it
	rowChunk     = 32 // with a decay for each row of a state
	chunkThreads = 256
	rowBytes     = 2*KeysMax + 16
	sliceBytes   = 2*columns + 16
	chunkShared  = 3*Chunk*rowBytes + 2*KeysMax*sliceBytes + 4*Chunk*sliceBytes + 4*Chunk*20 + 7*4*Chunk
	rowShared    = 6*rowChunk*rowBytes + 2*KeysMax*sliceBytes + 2*rowChunk*sliceBytes + 4*rowChunk*20 + 8*rowChunk*20 + 7*4*KeysMax + 5*4*rowChunk
	// floorLeast bounds Floor: the product of 16 decays must not underflow.
	floorLeast = -5
)

// CanChunk reports whether Chunks takes these: rows of BF16 whose heads can be read 16 bytes at a
// time, and decays of the rows of states 4 bytes at a time, which are at least exp(-5).
func CanChunk(gpu launch.GPU, out, x, ba launch.Mat, p device.DeltaNet) bool {
	if p.Floor < 0 && (p.Floor < floorLeast || ba.At%4 != 0 || ba.Stride%2 != 0 || p.ValueHeads%2 != 0) {
		return false
	}
	return gpu.SharedMax >= chunkShared && x.DType == tensor.BF16 && p.KeyDim%8 == 0 && p.KeyDim <= KeysMax && p.ValueDim%8 == 0 &&
		x.At%16 == 0 && x.Stride%8 == 0 && out.At%4 == 0 && out.Stride%2 == 0
}

// Chunks computes what Rule computes, for the prompts of list, with matrix products over chunks of
// rows.
func Chunks(l *launch.List, gpu launch.GPU, out, x, ba, decay, bias, states launch.Mat, list []device.Span, table launch.Mat, p device.DeltaNet) {
	checkRule(out, x, ba, decay, bias, states, table, p)
	if !CanChunk(gpu, out, x, ba, p) {
		refuse("Delta", "no kernel for out %v, x %v, sizes %+v", out, x, p)
	}
	if len(list) == 0 {
		return
	}
	if p.Floor < 0 {
		l.Add(kRowChunks, launch.Config{Grid: ruleGrid(len(list), p), Block: launch.Dim{X: chunkThreads}, Shared: rowShared, PDL: true},
			ruleArgs(out, x, ba, decay, bias, states, table, p, launch.F32(p.Floor))...)
		return
	}
	l.Add(kChunks, launch.Config{Grid: ruleGrid(len(list), p), Block: launch.Dim{X: chunkThreads}, Shared: chunkShared, PDL: true},
		ruleArgs(out, x, ba, decay, bias, states, table, p)...)
}
