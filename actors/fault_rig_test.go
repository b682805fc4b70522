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

func (d *faultyDevice) GatherRows(s device.Stream, out, table, ids device.Mat) {
	d.faults.check("gather")
	d.Device.GatherRows(s, out, table, ids)
}

func (d *faultyDevice) MatMul(s device.Stream, out, x, w device.Mat) {
	d.faults.check("matmul")
	d.Device.MatMul(s, out, x, w)
}

func (d *faultyDevice) FFN(s device.Stream, out, x device.Mat, e device.Expert) {
	d.faults.check("ffn")
	d.Device.FFN(s, out, x, e)
}

func (d *faultyDevice) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	d.faults.check("experts")
	d.Device.Experts(s, y, x, bank, work, topK)
}

func (d *faultyDevice) WeightedSum(s device.Stream, out, y, weights, base device.Mat) {
	d.faults.check("sum")
	d.Device.WeightedSum(s, out, y, weights, base)
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
