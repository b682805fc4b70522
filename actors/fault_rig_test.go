package actors

import (
	"fmt"
	"sync"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages/load"
)

// faults makes chosen calls of device operators panic. It is safe for
// concurrent use.
type faults struct {
	mu    sync.Mutex
	calls map[string]int
	at    func(op string, call int) bool // the call-th call of op, from 1, panics
}

// arm starts counting anew.
func (f *faults) arm(at func(op string, call int) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.at = map[string]int{}, at
}

// check panics if it is the call's turn.
func (f *faults) check(op string) {
	f.mu.Lock()
	fail := false
	if f.at != nil {
		f.calls[op]++
		fail = f.at(op, f.calls[op])
	}
	f.mu.Unlock()
	if fail {
		panic(fmt.Sprintf("injected: %s", op))
	}
}

// faultyDevice fails before an operator runs, as one with bad shapes does.
type faultyDevice struct {
	load.Device
	faults *faults
}

// faultNames are the operators that can fail, as tests call them.
var faultNames = map[device.Kind]string{device.OpGatherRows: "gather", device.OpMatMul: "matmul", device.OpFFN: "ffn", device.OpExperts: "experts", device.OpWeightedSum: "sum"}

func (d *faultyDevice) Run(s device.Stream, l device.List) {
	for part := range l.Parts(d.Device) {
		if name, ok := faultNames[part.Ops[0].Kind]; ok {
			d.faults.check(name)
		}
		d.Device.Run(s, part)
	}
}

// hook is a node with something before it. It panics, waits or looks on behalf
// of a test.
type hook struct {
	node
	before func(c *turn, m any)
}

func (h hook) receive(c *turn, m any) {
	h.before(c, m)
	h.node.receive(c, m)
}

// held implements holder for the node inside.
func (h hook) held() []*msg.Batch {
	if n, ok := h.node.(holder); ok {
		return n.held()
	}
	return nil
}
