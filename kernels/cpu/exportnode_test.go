package cpu

// NodeRun runs a loop on a node's team.
func (d *Device) NodeRun(node, parts int, fn func(part int)) { d.homes[node].team.Run(parts, fn) }

// NodeScratch is the bytes mapped as scratch of the nodes' streams.
func (d *Device) NodeScratch() (n int64) {
	for _, b := range d.pieces {
		n += int64(len(b))
	}
	return n
}
