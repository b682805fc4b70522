package cpu

import "krater/kernels/tensor"

// SetAhead changes how far ahead of their use weights are asked for.
func (d *Device) SetAhead(bytes int) { d.fetch = prefetch{bytes, bytes, bytes} }

// UseUnit makes products of rows rows and more go to the tile unit, with every group it can have.
func (d *Device) UseUnit(rows int) { d.unit = unitFrom(rows) }

// Gain is how many times as fast as AVX-512 the tile unit is with some rows.
func (d *Device) Gain(f tensor.Format, rows int) float64 { return d.gains(f, []int{rows})[0] }
