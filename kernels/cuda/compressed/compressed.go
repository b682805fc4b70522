// Package compressed launches attention over the newest tokens and compressed entries of several tokens each (DeepSeek-V4), and the making of entries.
//
// A row's bits depend on its own sequence only: what it sees is read in tiles that its position determines.
package compressed

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kCompress = launch.Named("kr_compress")
	kPlain    = launch.Named("kr_compressed")
	kRopeBack = launch.Named("kr_rope_back")
)

// The sizes of compressed.cu.
const (
	makeThreads  = 512
	plainThreads = 128
	turnThreads  = 256
)

// DimMax is the longest row: a block has two of them in the memory that it shares.
const DimMax = 4096

// Check names the size that no kernel takes; the zero sizes have none.
func Check(p device.Compressed) error {
	if p.Dim > DimMax {
		return fmt.Errorf("compressed entries: heads of %d, a GPU takes at most %d", p.Dim, DimMax)
	}
	return nil
}

// Compress stores the entries of the windows that rows of the batch complete: those of the prompts in table (package spans), or of generated
// rows. entries [blocks*EntryRows, Dim] and near [slots, Width] are of any type, nearTable is of the same spans with the blocks of near; norm [1, Dim] F32 or
// BF16, ape [Ratio, Parts*Dim] F32 without gaps, angles [P, Rope.Dim] F32. The batch has rows rows.
func Compress(l *launch.List, entries launch.KV, table launch.Mat, near launch.KV, nearTable launch.Mat, norm, ape, angles launch.Mat, rows int, decode bool, p device.Compress) {
	const op = "Compress"
	switch {
	case p.Dim < 1 || p.Dim > DimMax || p.Ratio < 1 || p.BlockTokens < 1 || p.Rope.Offset < 0 || p.Rope.Dim%2 != 0 || p.Rope.Offset+p.Rope.Dim > p.Dim:
		refuse(op, "sizes %+v", p)
	case norm.Zero() || norm.Rows != 1 || norm.Cols != p.Dim:
		refuse(op, "norm %v for entries of %d", norm, p.Dim)
	case !dense(ape, p.Ratio, p.Parts()*p.Dim):
		refuse(op, "ape %v for %d tokens of %d", ape, p.Ratio, p.Parts()*p.Dim)
	case p.Rope.Dim > 0 && (angles.Zero() || angles.DType != tensor.F32 || angles.Cols != p.Rope.Dim):
		refuse(op, "angles %v for %d", angles, p.Rope.Dim)
	}
	kind, nearKind := cacheKind(op, &entries, p.Dim), cacheKind(op, &near, p.Width())
	checkTables(op, table, nearTable)
	if rows == 0 {
		return
	}
	config := rowBlocks(rows, min(makeThreads, (p.Dim+31)&^31))
	config.Shared = uint32(4 * p.Dim)
	l.Add(kCompress, config,
		launch.P(entries.At), launch.P(entries.Scales.At), launch.I32(kind), launch.I32(entries.Stride), launch.I32(entries.Scales.Stride), launch.I32(entries.Group), launch.I32(entries.Rows),
		launch.P(near.At), launch.P(near.Scales.At), launch.I32(nearKind), launch.I32(near.Stride), launch.I32(near.Scales.Stride), launch.I32(near.Group),
		launch.P(norm.At), wide(op, norm), launch.P(ape.At), launch.P(angles.At), launch.I32(angles.Stride), launch.I32(angles.Rows),
		launch.P(table.At), launch.P(nearTable.At), flag(decode), launch.I32(p.Dim), launch.I32(p.Ratio), launch.I32(p.Parts()), launch.F32(p.Eps),
		launch.I32(p.Rope.Offset), launch.I32(p.Rope.Dim), flag(p.Rope.Interleaved), launch.I32(p.BlockTokens))
}

// Caches holds the rows that attention reads, and the tables of the batch's spans with their blocks.
type Caches struct {
	Near, Entries launch.KV // [slots, Dim] and [blocks*EntryRows, Dim] of one type; without a Ratio there are no entries
	NearTable     launch.Mat
	Table         launch.Mat
}

// Attend computes attention of the rows of all prompts in the tables, or of all generated rows: out and q [T, Heads*Dim], F32 or BF16; chosen
// [T, n] I32 lists entries of each row, -1 behind them, or is absent: a row sees all; sinks [1, Heads] F32. Other rows of out are unchanged.
func Attend(l *launch.List, out, q launch.Mat, c Caches, chosen, sinks launch.Mat, decode bool, p device.Compressed) {
	const op = "Compressed"
	near, entries := &c.Near, &c.Entries
	kind := check(op, out, q, &c, chosen, sinks, p)
	if q.Rows == 0 {
		return
	}
	config := launch.Config{
		Grid:   launch.Dim{X: uint32(p.Heads), Y: uint32(q.Rows)},
		Block:  launch.Dim{X: plainThreads},
		Shared: uint32(4 * (2*p.Dim + 2*plainThreads + 2*plainThreads/32)),
		PDL:    true,
	}
	l.Add(kPlain, config,
		launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(q.At), wide(op, q), launch.I32(q.Stride),
		launch.P(near.At), launch.P(near.Scales.At), launch.I32(near.Stride), launch.I32(near.Scales.Stride),
		launch.P(entries.At), launch.P(entries.Scales.At), launch.I32(entries.Stride), launch.I32(entries.Scales.Stride), launch.I32(kind), launch.I32(near.Group),
		launch.P(c.NearTable.At), launch.P(c.Table.At), flag(decode), launch.I32(p.Dim), launch.I32(p.Window), launch.I32(p.Ratio),
		launch.F32(float32(float64(p.Scale)*math.Log2E)), launch.I32(p.BlockTokens), launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(chosen.Cols), launch.P(sinks.At))
}

// check panics unless the matrices have p's sizes, and returns the number of the caches' type.
func check(op string, out, q launch.Mat, c *Caches, chosen, sinks launch.Mat, p device.Compressed) (kind int) {
	near, entries := &c.Near, &c.Entries
	kind = cacheKind(op, near, p.Dim)
	switch {
	case p.Heads < 1 || p.Dim < 1 || p.Dim > DimMax || p.Window < 1 || p.Ratio < 0 || p.BlockTokens < 1:
		refuse(op, "sizes %+v", p)
	case out.Rows != q.Rows || q.Cols != p.Heads*p.Dim || out.Cols != p.Heads*p.Dim:
		refuse(op, "out %v, q %v for %d heads of %d", out, q, p.Heads, p.Dim)
	case p.Ratio > 0 && (cacheKind(op, entries, p.Dim) != kind || entries.Group != near.Group):
		refuse(op, "entries %v in groups of %d, rows %v in groups of %d", entries.Mat, entries.Group, near.Mat, near.Group)
	case !chosen.Zero() && (chosen.DType != tensor.I32 || chosen.Rows != q.Rows || chosen.Cols < 1):
		refuse(op, "chosen is %v, need I32 of %d rows", chosen, q.Rows)
	case !dense(sinks, 1, p.Heads):
		refuse(op, "sinks %v of %d heads", sinks, p.Heads)
	}
	checkTables(op, c.Table, c.NearTable)
	return kind
}

// RopeBack rotates x [T, *], F32 or BF16, in place by minus the angles of each row's position, I32 [T, 1]. Row q of table [P, Dim]
// F32 holds the pairs (cos, sin) of position q. A row whose position is not in the table is unchanged.
func RopeBack(l *launch.List, x, positions, table launch.Mat, p device.Rope) {
	const op = "Rope"
	switch {
	case p.Heads < 1 || p.Dim < 0 || p.Dim%2 != 0 || p.Offset < 0 || p.Offset+p.Dim > p.HeadDim || p.Heads*p.HeadDim > x.Cols:
		refuse(op, "%+v does not fit rows of %d", p, x.Cols)
	case positions.Zero() || positions.DType != tensor.I32 || positions.Rows != x.Rows || positions.Cols != 1 || !positions.Dense():
		refuse(op, "positions %v of %d rows", positions, x.Rows)
	case table.Zero() || table.DType != tensor.F32 || table.Cols != p.Dim:
		refuse(op, "table %v for %d", table, p.Dim)
	}
	if x.Rows == 0 || p.Dim == 0 {
		return
	}
	l.Add(kRopeBack, rowBlocks(x.Rows, turnThreads),
		launch.P(x.At), wide(op, x), launch.I32(x.Stride), launch.P(positions.At), launch.P(table.At), launch.I32(table.Stride), launch.I32(table.Rows),
		launch.I32(p.Heads), launch.I32(p.HeadDim), launch.I32(p.Offset), launch.I32(p.Dim), flag(p.Interleaved))
}

func rowBlocks(rows, threads int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(rows)}, Block: launch.Dim{X: uint32(threads)}, PDL: true}
}

// dense reports whether m is F32 [rows, cols] without gaps.
func dense(m launch.Mat, rows, cols int) bool {
	return !m.Zero() && m.DType == tensor.F32 && m.Rows == rows && m.Cols == cols && m.Dense()
}

func checkTables(op string, tables ...launch.Mat) {
	for _, t := range tables {
		if t.Zero() || t.DType != tensor.I32 || t.At%16 != 0 {
			refuse(op, "a table of spans %v", t)
		}
	}
}

// cacheKind returns the number of a cache's type, as in latent.cuh.
func cacheKind(op string, c *launch.KV, cols int) int {
	if c.Zero() || c.Cols != cols || c.Stride < cols {
		refuse(op, "a cache %v, rows have %d", c.Mat, cols)
	}
	switch c.DType {
	case tensor.F32:
		return 0
	case tensor.BF16:
		return 1
	case tensor.F8E4M3:
		return 2
	case tensor.I8:
		if c.Scales.Zero() || c.Group < 1 || cols%c.Group != 0 || c.Scales.Cols != cols/c.Group {
			refuse(op, "scales %v of groups of %d in rows of %d", c.Scales, c.Group, cols)
		}
		return 3
	}
	refuse(op, "a cache of %s", c.DType)
	return -1
}

// wide returns 1 for F32, 0 for BF16.
func wide(op string, m launch.Mat) launch.Arg {
	if m.DType != tensor.F32 && m.DType != tensor.BF16 {
		refuse(op, "%v, need F32 or BF16", m)
	}
	return flag(m.DType == tensor.F32)
}

func flag(b bool) launch.Arg {
	if b {
		return launch.I32(1)
	}
	return launch.I32(0)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
