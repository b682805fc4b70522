package route

import (
	"encoding/binary"
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
)

// Counter is a probe that counts how often each expert is chosen, on any device: it
// fetches the router's choice of every layer, which costs a wait each, so it is for
// warm-ups and tests. It is not safe for concurrent use.
type Counter struct {
	Tokens []uint64   // [layers of the model] rows that passed the router
	Counts [][]uint64 // [layers of the model, experts]
	Err    error      // the first one; counts are worthless then

	host []byte
}

// NewCounter makes a counter for a model with the given numbers of layers and experts.
func NewCounter(layers, experts int) *Counter {
	c := &Counter{Tokens: make([]uint64, layers), Counts: make([][]uint64, layers)}
	for l := range c.Counts {
		c.Counts[l] = make([]uint64, experts)
	}
	return c
}

// Observe implements stages.Probe.
func (c *Counter) Observe(s device.Stream, layer int, op string, m device.Mat, _ *stages.State) {
	if op != "router_ids" || c.Err != nil {
		return
	}
	if m.DType != tensor.I32 {
		c.Err = fmt.Errorf("route: ids of type %s", m.DType)
		return
	}
	if n := m.Bytes(); len(c.host) < n {
		c.host = make([]byte, n)
	}
	host := c.host[:m.Bytes()]
	s.CopyOut(host, m)
	if c.Err = s.Synchronize(); c.Err != nil {
		return
	}
	c.Tokens[layer] += uint64(m.Rows)
	for ; len(host) > 0; host = host[4:] {
		e := binary.LittleEndian.Uint32(host)
		if int(e) >= len(c.Counts[layer]) {
			c.Err = fmt.Errorf("route: expert %d of %d in layer %d", int32(e), len(c.Counts[layer]), layer)
			return
		}
		c.Counts[layer][e]++
	}
}
