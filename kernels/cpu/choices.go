package cpu

import (
	"fmt"

	"krater/kernels/cpu/level"
)

// Choices are the variants that integer products use on this device, for reports.
// No choice changes a bit of a result.
type Choices struct {
	Level level.Level
	VNNI  bool // AVX-512's integer dot products; without them level AVX512 uses those of AVX2
	// Bytes ahead of their use that weights are asked for: groups below 128 (and
	// several rows), and others with one row.
	PrefetchFine, PrefetchCoarse int
	// The tile unit takes products from UnitRows rows on (0: never), of groups of
	// UnitColumns columns and more.
	UnitRows, UnitColumns int
}

// Choices tells which variants are in use.
func (d *Device) Choices() Choices {
	return Choices{
		Level: d.level, VNNI: d.level == level.AVX512 && level.VNNI(),
		PrefetchFine: d.fetch.fine, PrefetchCoarse: d.fetch.coarse,
		UnitRows: d.unit.rows, UnitColumns: d.unit.columns,
	}
}

// String is one line for people.
func (c Choices) String() string {
	unit := "unused"
	if c.UnitRows > 0 {
		unit = fmt.Sprintf("from %d rows and groups of %d on", c.UnitRows, c.UnitColumns)
	}
	return fmt.Sprintf("level %s, VNNI %v, prefetch %d bytes ahead (%d for groups from %d on), tile unit %s",
		c.Level, c.VNNI, c.PrefetchFine, c.PrefetchCoarse, fineGroup, unit)
}
