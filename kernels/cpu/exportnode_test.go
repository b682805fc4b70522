package cpu

// NodeRun runs a loop on a node's team.
func (d *Device) NodeRun(node, parts int, fn func(part int)) { d.homes[node].team.Run(parts, fn) }
