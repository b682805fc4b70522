package compressed

import (
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kMMA  = launch.Named("kr_compressed_mma")
	kJoin = launch.Named("kr_compressed_join")
)

// The sizes of compressed_mma.cu.
const (
	mmaDim, mmaHeads, mmaKeys, mmaPitch = 512, 64, 32, 36
	mmaThreads, joinThreads             = 256, mmaDim / 4
	mmaShared                           = (mmaHeads+2*mmaKeys)*2*mmaDim + 4*mmaHeads*mmaPitch
	slice                               = 128 // of what a row sees, with each block
)

// CanAttend reports whether AttendPrompts and AttendGenerated take these: heads of 512, queries and caches of BF16, aligned to 16 bytes, and a GPU with
// room for a block's queries and rows.
func CanAttend(gpu launch.GPU, out, q launch.Mat, c *Caches, p device.Compressed) bool {
	fits := func(m launch.Mat) bool { return m.DType == tensor.BF16 && m.At%16 == 0 && m.Stride%8 == 0 }
	return gpu.SharedMax >= mmaShared && p.Dim == mmaDim && fits(q) && fits(c.Near.Mat) && (p.Ratio == 0 || fits(c.Entries.Mat)) && out.Stride%4 == 0
}

// Splits returns the number of slices of a generated row that sees at most n tokens and entries.
func Splits(n int) int { return (n + slice - 1) / slice }

// PartsBytes returns the scratch memory of AttendGenerated.
func PartsBytes(rows, splits, heads int) int { return 4 * rows * splits * heads * (mmaDim + 2) }

// AttendPrompts is Attend for the rows of prompts, where CanAttend.
func AttendPrompts(l *launch.List, out, q launch.Mat, c Caches, chosen, sinks launch.Mat, p device.Compressed) {
	mma(l, out, q, c, chosen, sinks, false, 1, q.Rows, 0, p)
}

// AttendGenerated is Attend for rows generated rows, where CanAttend. None sees more than splits slices; parts is PartsBytes of scratch memory, aligned to 16.
func AttendGenerated(l *launch.List, out, q launch.Mat, c Caches, chosen, sinks launch.Mat, rows, splits int, parts launch.Ptr, p device.Compressed) {
	mma(l, out, q, c, chosen, sinks, true, splits, rows, parts, p)
	if rows == 0 {
		return
	}
	config := launch.Config{Grid: launch.Dim{X: uint32(p.Heads), Y: uint32(rows)}, Block: launch.Dim{X: joinThreads}, PDL: true}
	l.Add(kJoin, config,
		launch.P(out.At), wide("Compressed", out), launch.I32(out.Stride), launch.P(parts), launch.I32(splits), launch.P(c.NearTable.At),
		launch.I32(p.Window), launch.I32(p.Ratio), flag(!chosen.Zero()), launch.I32(chosen.Cols), launch.P(sinks.At))
}

func mma(l *launch.List, out, q launch.Mat, c Caches, chosen, sinks launch.Mat, decode bool, splits, rows int, parts launch.Ptr, p device.Compressed) {
	const op = "Compressed"
	check(op, out, q, &c, chosen, sinks, p)
	if rows == 0 {
		return
	}
	config := launch.Config{
		Grid:   launch.Dim{X: uint32(splits), Y: uint32(rows), Z: uint32((p.Heads + mmaHeads - 1) / mmaHeads)},
		Block:  launch.Dim{X: mmaThreads},
		Shared: mmaShared,
		PDL:    true,
	}
	l.Add(kMMA, config,
		launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(parts), launch.P(q.At), launch.I32(q.Stride),
		launch.P(c.Near.At), launch.I32(c.Near.Stride), launch.P(c.Entries.At), launch.I32(c.Entries.Stride), launch.P(c.NearTable.At), launch.P(c.Table.At), flag(decode),
		launch.I32(p.Heads), launch.I32(p.Window), launch.I32(p.Ratio), launch.F32(float32(float64(p.Scale)*math.Log2E)), launch.I32(p.BlockTokens),
		launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(chosen.Cols), launch.P(sinks.At))
}
