package route

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
)

// part is the number of assignments that a block of Align places.
const part = 4096

// AlignScratch returns the scratch memory of Align in bytes: 0 if one block does the work.
func AlignScratch(tokens, topK, experts int) int {
	if n := tokens * topK; n > part {
		return 4 * experts * ((n + part - 1) / part)
	}
	return 0
}

// Align writes out from the router's ids [T, K] I32, without gaps. Ids outside 0..E-1, and
// experts that out.Map leaves out, are skipped. scratch is AlignScratch bytes, aligned to 4. It
// appends one launch up to 4096 assignments and two beyond. It appends none if the last launch of
// l is a Route in one launch that chooses these ids: then that launch also sorts them.
func Align(l *launch.List, out *Aligned, ids launch.Mat, scratch launch.Ptr) {
	const op = "Align"
	n := ids.Rows * ids.Cols
	switch {
	case ids.DType != tensor.I32 || !ids.Dense() || ids.Cols != out.TopK || n != out.Assignments:
		refuse(op, "ids are %v, need %d assignments, %d a row", ids, out.Assignments, out.TopK)
	case out.Experts < 1 || out.Experts > MaxExperts || out.Tile < 1:
		refuse(op, "%d experts, tiles of %d", out.Experts, out.Tile)
	case AlignScratch(ids.Rows, ids.Cols, out.Experts) > 0 && scratch == 0:
		refuse(op, "no scratch memory for %d assignments", n)
	}
	if sortInRoute(l, out, ids) {
		return
	}
	blocks := max(1, (n+part-1)/part)
	threads := 512
	if n < part {
		threads = min(512, max(128, (n+31)&^31))
	}
	counts := launch.Ptr(0)
	each := min(part, n)
	if blocks > 1 {
		counts = scratch
		l.Add(kAlignCount, config(blocks, 512, 4*out.Experts),
			launch.P(counts), launch.P(ids.At), launch.I32(n), launch.I32(out.Experts), launch.I32(part))
	}
	l.Add(kAlign, config(blocks, threads, 4*out.Experts*(threads/32+2)),
		launch.P(out.Slots), launch.P(out.Tiles), launch.P(out.Count), launch.P(out.Loads), launch.P(ids.At), launch.I32(n),
		launch.I32(out.Experts), launch.I32(out.Tile), launch.I32(each), launch.P(counts), launch.P(out.Map))
}

// mostSorted is the most assignments that Route sorts.
const mostSorted = 2048

// sortInRoute makes the last launch of l sort the ids that it chooses, if these are ids and its
// scratch memory does not overlap the result.
func sortInRoute(l *launch.List, out *Aligned, ids launch.Mat) bool {
	if len(l.Ops) == 0 || out.Assignments > mostSorted {
		return false
	}
	o := &l.Ops[len(l.Ops)-1]
	if o.Kind != launch.Run || o.Kernel != kLogitsFew[0] && o.Kernel != kLogitsFew[1] {
		return false
	}
	args := l.OpArgs(o)
	if args[argTurn] == launch.P(0) || args[argIDs] != launch.P(ids.At) || args[argTokens] != launch.I32(ids.Rows) || args[argTopK] != launch.I32(ids.Cols) ||
		args[argExperts] != launch.I32(out.Experts) {
		return false
	}
	parts, cols := pointer(args[argParts]), int(number(args[argCols]))
	end := out.Count + launch.Ptr(AlignedBytes(ids.Rows, ids.Cols, out.Experts, out.Tile))
	if out.Count < parts+launch.Ptr(Scratch(ids.Rows, out.Experts, cols)) && parts < end {
		return false
	}
	sorted := out.args()
	copy(args[argSorted:], sorted[:])
	return true
}

// args returns the arguments for the result, the tile and the map.
func (a *Aligned) args() [6]launch.Arg {
	return [6]launch.Arg{launch.P(a.Slots), launch.P(a.Tiles), launch.P(a.Count), launch.P(a.Loads), launch.I32(a.Tile), launch.P(a.Map)}
}

func config(blocks, threads, shared int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(blocks)}, Block: launch.Dim{X: uint32(threads)}, Shared: uint32(shared), PDL: true}
}
