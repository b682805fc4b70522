package cpu

// NodeRun runs a loop on a node's team.
func (d *Device) NodeRun(node, parts int, fn func(part int)) { d.homes[node].team.Run(parts, fn) }

// NodeScratch returns the bytes mapped as scratch of the nodes' streams.
func (d *Device) NodeScratch() (n int64) {
	for _, b := range d.pieces {
		n += int64(len(b))
	}
	return n
}

// Worker is a resident thread that is bound to processors.
type Worker struct {
	Node   int // index of the device's node
	Thread int // as the system numbers it
}

// CPUs returns the processors the system lets the worker run on.
func (w Worker) CPUs() ([]int, error) { return threadCPUs(w.Thread) }

// Workers lists the bound threads; without real nodes there are none.
func (d *Device) Workers() []Worker {
	var all []Worker
	for i := range d.homes {
		for _, id := range d.homes[i].crew.threads {
			all = append(all, Worker{Node: i, Thread: id})
		}
	}
	return all
}
