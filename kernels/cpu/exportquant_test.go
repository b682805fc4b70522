package cpu

// SetAhead changes how far ahead of their use weights are asked for.
func (d *Device) SetAhead(bytes int) { d.fetch = prefetch{bytes, bytes} }

// UseUnit makes products of rows rows and more go to the tile unit, with every group it can have.
func (d *Device) UseUnit(rows int) { d.unit = unitUse{fine: rows, coarse: rows, blocks: rows} }
