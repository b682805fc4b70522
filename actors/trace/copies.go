package trace

import "fmt"

// CopyLane names the row of the trace for copies of experts to a device, from the device's name.
func CopyLane(device string) string { return device + " copy" }

// KVLane names the row for KV blocks that are copied to host memory and back, from the name of the
// row of the steps that move them: steps of two queues may do so at the same time.
func KVLane(device string) string { return device + " kv" }

// PhaseLane names the row for the phases of a pool's work, from the pool's name.
func PhaseLane(pool string) string { return pool + " phases" }

// aside reports whether a kind is of a lane beside those of actors and devices: of copies, or
// of the phases of what an actor's own lane has in one piece. Nobody waits there.
func (k Kind) aside() bool {
	switch k {
	case CopyExperts, CopyKV, SaveKV, PoolRows, PoolUp, PoolDown, PoolSum:
		return true
	}
	return false
}

// copyWanted words what a device stood still for in a CopyWait.
func (e *Event) copyWanted() string {
	if e.Layer < 0 {
		return "waiting for the copy of KV blocks"
	}
	return fmt.Sprintf("waiting for the copy of layer %d's experts", e.Layer)
}
