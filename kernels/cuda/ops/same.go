package ops

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/cuda/same"
	"krater/kernels/device"
)

// expertsSame is Experts with a processor's arithmetic.
func (b *Builder) expertsSame(y, x launch.Mat, bank launch.Bank, ids launch.Mat) {
	rows, topK := x.Rows, ids.Cols
	tile := same.Tile(rows*topK, bank.Experts)
	var sorted, sort, memory launch.Ptr
	b.lay(func(a *arena) {
		sorted = a.cut(route.AlignedBytes(rows, topK, bank.Experts, tile))
		sort = a.cut(route.AlignScratch(rows, topK, bank.Experts))
		memory = a.cut(same.ScratchBytes(rows, topK, x.Cols, bank.W2.Cols()))
	})
	a := route.NewAligned(sorted, rows, topK, bank.Experts, tile)
	a.Map = bank.Map
	route.Align(b.List, &a, ids, sort)
	same.Experts(b.List, y, memory, x, bank, a)
}

// SameBytes bounds the scratch memory of experts with a processor's arithmetic.
func SameBytes(s *device.StepSizes) int {
	if s.Experts == 0 {
		return 0
	}
	up := func(n int) int { return (n + 255) &^ 255 }
	return up(sameSorted(s.Rows, s.TopK, s.Experts)) + up(route.AlignScratch(s.Rows, s.TopK, s.Experts)) + up(same.ScratchBytes(s.Rows, s.TopK, s.Hidden, s.ExpertFF))
}

// sameSorted bounds the memory for sorted assignments in expertsSame.
func sameSorted(rows, topK, experts int) int {
	return max(route.AlignedBytes(rows, topK, experts, same.FewTokens), route.AlignedBytes(rows, topK, experts, same.ManyTokens))
}
