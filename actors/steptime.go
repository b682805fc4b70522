package actors

import (
	"fmt"
	"time"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
)

// clocked says whether the device takes the time of the step that a batch begins.
func clocked(b *msg.Batch, on bool) {
	b.Parts = b.Parts[:0]
	if t, ok := b.Stream.(device.StepTimer); ok {
		t.Time(on)
	}
}

// part ends a part of a batch's step on the device.
func part(b *msg.Batch, kind trace.Kind) {
	if t, ok := b.Stream.(device.StepTimer); ok && !b.Quiet && !b.Abandoned.Load() && t.Mark() {
		b.Parts = append(b.Parts, kind)
	}
}

// deviceRing is the lane of a device's order of steps in the trace.
func (p *Pipeline) deviceRing(home int) string {
	if p.homes < 2 {
		return p.device
	}
	return fmt.Sprintf("%s.%d", p.device, home)
}

// stepTimes notes how long the device took for the parts of a step that has just ended.
// The device's clock is its own: only lengths come from there, so that the parts stand
// before the moment at which the host saw the end.
func (n *sampleNode) stepTimes(c *turn, b *msg.Batch) {
	t, ok := b.Stream.(device.StepTimer)
	if !ok || b.Quiet || b.Home >= len(n.devices) {
		return
	}
	took := t.Took()
	at := c.now()
	for _, d := range took {
		at -= int64(d)
	}
	for i, d := range took {
		e := trace.Event{Kind: trace.Device, Started: at, Ended: at + int64(d), Device: c.event.Device}
		switch {
		case i < len(b.Parts):
			e.Kind = b.Parts[i]
		case len(took) > 1:
			e.Kind = trace.DeviceHead
		}
		e.Batch, e.Lane, e.Epoch, e.Rows, e.Layer, e.Others = b.ID, uint8(b.Lane), b.Epoch, uint32(b.State.Total()), -1, b.Others
		n.devices[b.Home].Record(&e)
		at += int64(max(d, time.Duration(0)))
	}
}
