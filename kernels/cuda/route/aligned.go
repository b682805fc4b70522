package route

import "krater/kernels/cuda/launch"

// Aligned is the work of the routed experts of a batch: its assignments sorted by expert and cut
// into tiles, each of one expert. Align writes it on the GPU, and the grouped products read it;
// the host knows the shapes only.
//
// An assignment is token*K + rank: its input is row assignment/K of x, its output row assignment
// of y. Experts rise, and so do the assignments of an expert, so the same batch gives the same
// bytes in every run. Assignments without an expert (id -1) are left out, and with a Map also
// those of experts without a slot.
//
// Slots has Tile entries per tile: the first of tile i is i*Tile. Grids are sized for MaxTiles. A
// block whose tile is not below *Count exits; neither Slots nor Tiles are defined from there on.
type Aligned struct {
	Slots launch.Ptr // I32 [MaxTiles*Tile]: an assignment, or -1 after the rows of a tile; aligned to 16
	Tiles launch.Ptr // I32 [MaxTiles][4]: expert (its slot by Map), first slot, rows (1..Tile), 0 (a reader may count in it); aligned to 16
	Count launch.Ptr // I32 [1]: tiles in use; may be 0
	Loads launch.Ptr // I32 [E]: assignments of every expert
	Map   launch.Ptr // of launch.Bank; Align reads it

	Assignments int // T*K
	TopK        int
	Experts     int
	Tile        int // rows per tile
}

// MaxTiles returns the most tiles for that many assignments over that many experts: each expert
// in use has at most one tile that is not full.
func MaxTiles(assignments, experts, tile int) int {
	return (assignments + min(assignments, experts)*(tile-1)) / tile
}

// MaxTiles returns the bound for a's shape.
func (a *Aligned) MaxTiles() int { return MaxTiles(a.Assignments, a.Experts, a.Tile) }

// AlignedBytes returns the memory that NewAligned needs for tokens*topK assignments.
func AlignedBytes(tokens, topK, experts, tile int) int {
	n := MaxTiles(tokens*topK, experts, tile)
	return 16 + 16*n + up16(4*n*tile) + up16(4*experts)
}

// NewAligned lays the parts out in AlignedBytes of memory at at (aligned to 16). The memory need
// not be cleared.
func NewAligned(at launch.Ptr, tokens, topK, experts, tile int) Aligned {
	a := Aligned{Assignments: tokens * topK, TopK: topK, Experts: experts, Tile: tile, Count: at}
	n := a.MaxTiles()
	a.Tiles = a.Count + 16
	a.Slots = a.Tiles + launch.Ptr(16*n)
	a.Loads = a.Slots + launch.Ptr(up16(4*n*tile))
	return a
}

func up16(n int) int { return (n + 15) &^ 15 }
