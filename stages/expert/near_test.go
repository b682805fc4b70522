package expert

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/internal/hosttest"
)

// TestNearHasTheRowsThatAreRead, and no others: of floats, and of integers where
// the experts take these.
func TestNearHasTheRowsThatAreRead(t *testing.T) {
	const tokens, hidden, k, experts, group = 9, 64, 2, 5, 32
	r := rand.New(rand.NewPCG(3, 4))
	dev, mem := hosttest.Device{}, newNodeMemory()
	near, err := NewNear(dev, mem, 1, stages.Limits{Tokens: tokens, QuantGroup: group}, hidden)
	if err != nil {
		t.Fatal(err)
	}
	if want := NearBytes(stages.Limits{Tokens: tokens, QuantGroup: group}, hidden); int64(mem.bytes[1]) != want || len(mem.bytes) != 1 {
		t.Errorf("bytes by node %v, want %d on node 1", mem.bytes, want)
	}
	s, _ := dev.NewStream()
	for range 50 {
		rows := 1 + r.IntN(tokens)
		st := routed(choices(r, rows, k, experts), k, experts)
		st.Normed, _ = device.AllocMat(dev, tensor.F32, rows, hidden)
		q, _ := device.AllocQRows(dev, rows, hidden, group)
		for _, m := range []device.Mat{st.Normed, q.Q, q.Scale, q.Bias} {
			for i, b := 0, m.Buf.Host(); i < len(b); i++ {
				b[i] = byte(r.Uint32())
			}
		}
		st.ExpertOut, _ = device.AllocMat(dev, tensor.F32, rows*k, hidden)
		st.Input = stages.NewInput(st.Normed, q)
		work := Split(st)
		work = work[:1+r.IntN(len(work))]
		var read [tokens]bool
		for _, w := range work {
			for _, a := range w.Assign {
				read[a/k] = true
			}
		}
		for _, integers := range []bool{false, true} {
			b := &Bank{Routed: make([]device.Expert, experts)}
			if integers {
				b = &Bank{Integers: make([]device.QExpert, experts)}
			}
			for _, m := range []device.Mat{near.x, near.q.Q, near.q.Scale, near.q.Bias} {
				clear(m.Buf.Host())
			}
			local := near.Fetch(s, st, b, work)
			if local.T != rows || !same(local.ExpertOut, st.ExpertOut) || !same(local.RouterIDs, st.RouterIDs) {
				t.Fatalf("%+v", local)
			}
			// A pair is where a row lies and where it came from.
			pairs := [][2]device.Mat{{local.Normed, st.Normed}, {local.Input.X, st.Normed}}
			if integers {
				pairs = [][2]device.Mat{{local.Input.Q.Q, q.Q}, {local.Input.Q.Scale, q.Scale}, {local.Input.Q.Bias, q.Bias}}
			}
			for row := range rows {
				for _, p := range pairs {
					at, from := bytesOf(p[0], row), bytesOf(p[1], row)
					if _, ok := p[0].Buf.(*nodeBuffer); !ok {
						t.Fatal("the row is not on the node")
					}
					if read[row] != slices.Equal(at, from) || !read[row] && slices.ContainsFunc(at, func(v byte) bool { return v != 0 }) {
						t.Fatalf("integers %v: row %d of %d, read %v", integers, row, rows, read[row])
					}
				}
			}
		}
	}
	near.Close()
	near.Close()
	if mem.freed[1] != mem.bytes[1] {
		t.Errorf("%d of %d bytes freed", mem.freed[1], mem.bytes[1])
	}
}

// same reports whether two matrices are the same memory.
func same(a, b device.Mat) bool {
	return &a.Buf.Host()[a.Off] == &b.Buf.Host()[b.Off] && a.Rows == b.Rows && a.Cols == b.Cols
}

func bytesOf(m device.Mat, row int) []byte {
	from := m.Off + row*m.Stride*m.DType.Size()
	return m.Buf.Host()[from : from+m.Cols*m.DType.Size()]
}

// TestNearFindsNoRoom on any of its allocations: what it had is given back.
func TestNearFindsNoRoom(t *testing.T) {
	for failAt := 1; failAt <= 4; failAt++ {
		mem := newNodeMemory()
		mem.failAt = failAt
		if _, err := NewNear(hosttest.Device{}, mem, 0, stages.Limits{Tokens: 4, QuantGroup: 32}, 64); err == nil {
			t.Errorf("allocation %d failed, but nothing was said", failAt)
		}
		if mem.freed[0] != mem.bytes[0] {
			t.Errorf("allocation %d: %d of %d bytes freed", failAt, mem.freed[0], mem.bytes[0])
		}
	}
}
