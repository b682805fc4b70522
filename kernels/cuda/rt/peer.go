//go:build cuda

package rt

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

// Peer reports whether the GPU can copy from the memory of another without the host, and lets it.
func (c *GPU) Peer(from *GPU) bool {
	if from.dev == c.dev {
		return true
	}
	can := 0
	err := c.do(func() (err error) {
		if can, err = c.dev.CanAccessPeer(from.dev); err != nil || can == 0 {
			return err
		}
		if err = from.ctx.EnablePeerAccess(0); driver.PeerEnabled(err) {
			return nil
		}
		return err
	})
	return err == nil && can != 0
}

// PeerCopy is a copy from the memory of one GPU to that of another.
type PeerCopy struct {
	Dst, Src launch.Ptr
	Bytes    int
}

// CopyPeer adds copies from the memory of another GPU to that of this one, and sends them.
func (s *Stream) CopyPeer(from *GPU, copies []PeerCopy) {
	s.send(func() error {
		for _, c := range copies {
			if err := cu.MemcpyPeerAsync(cu.DevicePtr(c.Dst), s.gpu.ctx, cu.DevicePtr(c.Src), from.ctx, int64(c.Bytes), s.s); err != nil {
				return fmt.Errorf("copy of %d bytes from GPU %d to GPU %d: %w", c.Bytes, from.dev, s.gpu.dev, err)
			}
		}
		return nil
	})
}

// send sends the gathered work, and what f enqueues behind it.
func (s *Stream) send(f func() error) {
	if s.err == nil {
		s.Fail(s.gpu.do(func() error {
			if err := s.flush(); err != nil {
				return err
			}
			return f()
		}))
	}
	s.clear()
}

// Cut sends the gathered work, or the step that is replayed. Unlike Flush it is for the end of a step,
// which stays one that can be replayed.
func (s *Stream) Cut() { s.send(func() error { return nil }) }

// Gate is a point of one stream that another one waits for, and that the host can pass instead. It is
// a word of pinned memory which says how often it was opened.
type Gate struct {
	gpu   *GPU
	at    cu.DevicePtr
	word  *uint32
	count uint32 // of the latest Open
}

// NewGate makes a gate of the first 4 bytes of b, which MapHost has given, for streams of this GPU.
func (c *GPU) NewGate(b []byte, at launch.Ptr) *Gate {
	return &Gate{gpu: c, at: cu.DevicePtr(at), word: (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))}
}

// OpenGate opens g once what was added to the stream is done, and sends that. It returns the
// stream's error.
func (s *Stream) OpenGate(g *Gate) error {
	g.count++
	s.send(func() error { return driver.WriteValue32(s.s, g.at, g.count) })
	if s.err != nil {
		g.count--
	}
	return s.err
}

// PassGate makes the stream wait for the latest OpenGate.
func (s *Stream) PassGate(g *Gate) {
	if len(s.downs) > 0 || s.keep && len(s.List.Ops) > 0 {
		s.Flush()
	}
	s.step.cut = true
	if s.err == nil {
		s.holds = append(s.holds, hold{gate: g, count: g.count, uploads: len(s.uploads), ops: len(s.List.Ops)})
	}
}

// Passed reports whether the gate is open for those who have asked to pass so far.
func (g *Gate) Passed() bool { return int32(atomic.LoadUint32(g.word)-g.count) >= 0 }

// Force opens the gate.
func (g *Gate) Force() { atomic.StoreUint32(g.word, g.count) }
