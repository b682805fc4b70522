// Package amx reports whether the tile unit of Intel's processors (AMX, from Sapphire Rapids on)
// can be used, and holds what its kernels (qtile, btile) share.
//
// Tile registers belong to the thread of the operating system. A goroutine may move to another
// thread whenever Go preempts it, but Go does not preempt assembly: a routine that configures,
// computes and releases in one call needs no lock. The first tile instruction of a thread traps
// once (some 20 us).
package amx

// EnvAMX is the environment variable that keeps the unit unused when it is "off".
const EnvAMX = "KRATER_CPU_AMX"

const (
	// Rows is the most rows of a tile.
	Rows = 16
	// RowBytes is the most bytes of a row.
	RowBytes = 64
	// Tiles is the number of tile registers.
	Tiles = 8
)

// Config is the operand of LDTILECFG.
type Config [64]byte

// NewConfig returns the only palette there is, with all tiles unused.
func NewConfig() Config { return Config{0: 1} }

// Set sets the rows and the bytes per row of tile t.
func (c *Config) Set(t, rows, bytes int) {
	c[16+2*t], c[48+t] = byte(bytes), byte(rows)
}
