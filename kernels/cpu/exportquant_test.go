package cpu

import (
	"unsafe"

	"krater/kernels/cpu/level"
)

// SetAhead changes how far ahead of their use weights are asked for.
func (d *Device) SetAhead(bytes int) { d.fetch = prefetch{bytes, bytes} }

// Read reads all of b but the last incomplete 64 KB on the device's team, with
// the loop that ReadBandwidth measures.
func (d *Device) Read(b []byte) {
	load := readWords
	if d.level >= level.AVX2 {
		load = readVectors
	}
	const piece = 64 << 10
	parts := len(b) / piece
	cut := max(1, min(parts, 8*d.team.Threads()))
	d.team.Run(cut, func(i int) {
		from, to := i*parts/cut, (i+1)*parts/cut
		load(unsafe.SliceData(b[from*piece:]), (to-from)*piece)
	})
}

// UseUnit makes products of rows rows and more go to the tile unit, with every
// group it can have.
func (d *Device) UseUnit(rows int) { d.unit = unitUse{rows: rows} }
