package expert

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
)

// Near is memory on the node of a pool's experts for the rows that they read. A
// row has some kilobytes, and every core of the node reads it for every expert.
// Near serves one batch after another.
type Near struct {
	x     device.Mat   // [Tokens, H] F32
	q     device.QRows // the same as integers; absent where no layer has them
	state stages.State // what Bank.Run takes
	seen  []uint64     // [Tokens] the round that last fetched a row
	round uint64
}

// onNode is a device whose memory is that of one node.
type onNode struct {
	device.Device
	mem  Memory
	node int
}

func (d onNode) Alloc(n int) (device.Buffer, error) { return d.mem.AllocOn(d.node, n) }

// NewNear allocates memory on a node of dev for batches within lim of rows of
// hidden values. mem must be the same device as dev.
func NewNear(dev device.Device, mem Memory, node int, lim stages.Limits, hidden int) (*Near, error) {
	n := &Near{seen: make([]uint64, lim.LayerRows()), state: stages.State{Rows: new(stages.Rows)}}
	on := onNode{dev, mem, node}
	var err error
	if n.x, err = device.AllocMat(on, tensor.F32, lim.LayerRows(), hidden); err == nil && lim.QuantGroup > 0 {
		n.q, err = device.AllocQRows(on, lim.LayerRows(), hidden, lim.QuantGroup)
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("expert: rows of %d tokens on node %d: %w", lim.LayerRows(), node, err)
	}
	return n, nil
}

// NearBytes returns the number of bytes that NewNear allocates.
func NearBytes(lim stages.Limits, hidden int) int64 {
	n := lim.LayerRows() * hidden * 4
	if lim.QuantGroup > 0 {
		n += device.QRowsBytes(lim.LayerRows(), hidden, lim.QuantGroup)
	}
	return int64(n)
}

// Close frees the memory.
func (n *Near) Close() {
	if !n.x.Zero() {
		n.x.Buf.Free()
		n.x = device.Mat{}
	}
	n.q.Free()
}

// Fetch copies the rows of st that work reads. It returns a state with the copies
// in place of st's rows, for Bank.Run of b only; the results go to st.ExpertOut.
// The state is valid until the next Fetch. Prepare must have run for st.
func (n *Near) Fetch(s device.Stream, st *stages.State, b *Bank, work []device.ExpertRows) *stages.State {
	k := int32(st.RouterIDs.Cols)
	local := &n.state
	local.T, local.ExpertOut, local.RouterIDs = st.T, st.ExpertOut, st.RouterIDs
	local.Normed, local.Input = st.Normed, st.Input
	integers := len(b.Integers) > 0
	if integers {
		local.Input.Q = n.q.RowRange(0, st.T)
	} else {
		local.Normed = n.x.RowRange(0, st.T)
		local.Input.X = local.Normed
	}
	n.round++
	for i := range work {
		for _, a := range work[i].Assign {
			t := int(a / k)
			if n.seen[t] == n.round {
				continue
			}
			n.seen[t] = n.round
			if !integers {
				fetchRow(s, local.Normed, st.Normed, t)
				continue
			}
			fetchRow(s, local.Input.Q.Q, st.Input.Q.Q, t)
			fetchRow(s, local.Input.Q.Scale, st.Input.Q.Scale, t)
			fetchRow(s, local.Input.Q.Bias, st.Input.Q.Bias, t)
		}
	}
	return local
}

// fetchRow copies row t of src, which is host memory.
func fetchRow(s device.Stream, dst, src device.Mat, t int) {
	from := src.Off + t*src.Stride*src.DType.Size()
	s.CopyIn(dst.RowRange(t, t+1), src.Buf.Host()[from:from+src.Cols*src.DType.Size()])
}
