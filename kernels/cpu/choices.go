package cpu

import (
	"fmt"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/level"
)

// Choices are the kernel variants that integer products use on this device, for reports. No choice
// changes a bit of a result.
type Choices struct {
	Level level.Level
	VNNI  bool // integer dot products are used; without them level AVX512 uses the products of AVX2
	// Prefetch distance of weights in bytes: for groups below 128 (and several rows), and for other
	// groups with one row.
	PrefetchFine, PrefetchCoarse int
	// Number of rows from which products run on the tile unit (0: never): for groups of 64 to 127
	// columns, for larger ones, and for blocks of a file by the kind of their panels.
	UnitFine, UnitCoarse int
	UnitBlocks           [blockdot.Kinds]int
}

// Choices returns the variants in use.
func (d *Device) Choices() Choices {
	return Choices{
		Level: d.level, VNNI: d.level == level.AVXVNNI || d.level == level.AVX512 && level.VNNI(),
		PrefetchFine: d.fetch.fine, PrefetchCoarse: d.fetch.coarse,
		UnitFine: d.unit.fine, UnitCoarse: d.unit.coarse, UnitBlocks: d.unit.blocks,
	}
}

// String is one line for people.
func (c Choices) String() string {
	unit := "unused"
	if c.UnitFine > 0 || c.UnitCoarse > 0 || c.UnitBlocks != [blockdot.Kinds]int{} {
		unit = fmt.Sprintf("from %d rows on (groups below 128: %d; blocks of files: %d, with minima %d, FP8 %d)", c.UnitCoarse, c.UnitFine,
			c.UnitBlocks[blockdot.Plain], c.UnitBlocks[blockdot.Mins], c.UnitBlocks[blockdot.Digits])
	}
	return fmt.Sprintf("level %s, VNNI %v, prefetch %d bytes ahead (%d for groups from %d on), tile unit %s",
		c.Level, c.VNNI, c.PrefetchFine, c.PrefetchCoarse, fineGroup, unit)
}
