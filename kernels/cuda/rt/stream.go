//go:build cuda

package rt

import (
	"fmt"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

const (
	// stepSpin is how long the GPU's thread polls for the next step before it sleeps.
	stepSpin = 2 * time.Millisecond
	// stagingBytes is a stream's pinned memory for copies from and to the host, stagedMax the
	// largest copy that uses it.
	stagingBytes = 16 << 20
	stagedMax    = 1 << 20
	// firstOps and moreOps are how many ops Begin sends at once: about a layer for a GPU without
	// work, then many, because each sending wakes the GPU's thread.
	firstOps = 16
	moreOps  = 128
)

// Stream is a queue of work on a GPU. Ops are appended to List. They are sent to the GPU
// together, with the next Submit, event, wait, or copy to the GPU. Long lists that do not become
// graphs are sent in pieces (Begin), and the work of other goroutines may come between two pieces. The first error stays, and every later wait
// returns it, until Recover.
type Stream struct {
	List launch.List

	gpu    *GPU
	s      cu.Stream
	own    bool // s is not another Stream's
	graphs graphs
	keep   bool // whole lists become graphs
	step   step
	timing timing

	holds   []hold
	uploads []upload
	downs   []down // to be enqueued after List
	outs    []out
	points  points
	marked  uint64 // the newest of points
	staging []byte // pinned
	used    int
	done    []byte  // a mapped word that the GPU writes when it gets there
	word    *uint32 // the same
	doneAt  cu.DevicePtr
	count   uint32
	sent    bool // the GPU will write count
	began   bool // the GPU has work that no Synchronize has waited for
	usual   usual
	err     error
}

// hold is an event, or that a gate opens the count-th time, that the stream waits for after that many
// uploads and ops, between two timestamps if the wait is timed. Without either it is only a timestamp.
type hold struct {
	ev           *Event
	gate         *Gate
	count        uint32
	from, to     *Timestamp
	uploads, ops int
}

// upload is a copy to the GPU that waits for its list. out is a copy to the host that waits in
// pinned memory for the stream.
type upload struct {
	dst launch.Ptr
	src []byte // in staging, or pinned by GPU.Pin
}

type down struct {
	dst []byte // pinned
	src launch.Ptr
}

type out struct{ dst, src []byte }

// NewStream makes a stream whose work may run at the same time as that of others.
func (c *GPU) NewStream() (*Stream, error) { return c.newStream(nil) }

// Sibling makes a separate stream whose work is in one order with that of s: the order in which
// both are submitted. s must outlive it.
func (s *Stream) Sibling() (*Stream, error) { return s.gpu.newStream(s) }

func (c *GPU) newStream(on *Stream) (*Stream, error) {
	s := &Stream{gpu: c, own: on == nil, graphs: graphs{max: c.graph, kept: &c.kept}}
	s.points.gpu = c
	err := c.do(func() error {
		var err error
		if on != nil {
			s.s = on.s
		} else if s.s, err = cu.MakeStream(cu.NonBlocking); err != nil {
			return err
		}
		s.points.s = s.s
		if s.done, err = driver.HostAlloc(64, driver.DeviceMap); err != nil {
			return err
		}
		s.word = (*uint32)(unsafe.Pointer(unsafe.SliceData(s.done)))
		s.doneAt, err = driver.HostDevicePtr(s.done)
		return err
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("stream: %w", err)
	}
	return s, nil
}

// Close frees the stream; its work must be done.
func (s *Stream) Close() {
	_ = s.gpu.do(func() error { // there is no caller to report it to
		s.graphs.clear()
		s.points.close()
		s.timing.close()
		if s.staging != nil {
			_ = driver.HostFree(s.staging)
		}
		if s.done != nil {
			_ = driver.HostFree(s.done)
		}
		if !s.own {
			return nil
		}
		return s.s.Destroy()
	})
}

// GPU returns the stream's GPU.
func (s *Stream) GPU() *GPU { return s.gpu }

// Keep declares that the next lists will repeat unchanged. Then a list is sent only when it is
// complete, and from its second time on it is a graph. The caller decides where lists end
// (Flush).
func (s *Stream) Keep(on bool) {
	if s.keep == on {
		return
	}
	s.Flush()
	s.keepStep(on)
}

// Begin must be called before appending to List. It sends what copies to the host must precede, and
// enough of a long list that the GPU works while the rest is appended.
func (s *Stream) Begin() {
	enough := firstOps
	if s.began {
		enough = moreOps
	}
	if len(s.downs) > 0 || !s.keep && len(s.List.Ops) >= enough {
		s.Flush()
	}
}

// step is the state of a step that Repeat has begun.
type step struct {
	key    uint64
	cut    bool   // it was sent in several pieces
	replay *entry // this graph replaces it
}

// Repeat begins a step that key identifies.
func (s *Stream) Repeat(key uint64) bool {
	if s.graphs.max < 0 {
		key = 0
	}
	s.step.key, s.step.cut, s.step.replay = 0, false, nil
	s.keepStep(key != 0)
	if key == 0 {
		return false
	}
	s.step.replay = s.graphs.steps[key]
	if s.step.replay != nil {
		return true
	}
	s.step.key = key
	return false
}

// keepStep is Keep. Earlier work does not belong to the step.
func (s *Stream) keepStep(on bool) {
	if len(s.List.Ops) > 0 {
		s.Flush()
		s.step.cut = false
	}
	s.keep = on
	if on {
		s.gpu.owner.SetSpin(s.gpu.spin())
	} else {
		s.gpu.owner.SetSpin(0)
	}
}

// Forget drops all graphs, because memory they use was freed. The stream must be idle.
func (s *Stream) Forget() {
	s.Fail(s.gpu.do(func() error { s.graphs.clear(); return nil }))
}

// Flush sends the gathered work to the GPU. It does not wait for it.
func (s *Stream) Flush() {
	if s.err == nil && s.gathered() {
		s.step.cut = true
		s.Fail(s.gpu.do(s.flush))
	}
	s.clear()
}

// gathered reports whether there is work to send.
func (s *Stream) gathered() bool {
	return len(s.holds)+len(s.uploads)+len(s.List.Ops)+len(s.downs) > 0
}

func (s *Stream) clear() {
	clear(s.holds) // events belong to other streams, which may be closed
	s.holds, s.uploads, s.downs = s.holds[:0], s.uploads[:0], s.downs[:0]
	s.List.Reset()
}

// Fail sets the error of the stream, unless it already has one.
func (s *Stream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// flush is Flush on the owner's thread.
func (s *Stream) flush() error {
	s.began = true
	if err := s.begins(); err != nil {
		return err
	}
	held := 0
	hold := func(uploads, ops int) error {
		for ; held < len(s.holds) && s.holds[held].uploads <= uploads && s.holds[held].ops <= ops; held++ {
			if err := s.holds[held].pass(s.s); err != nil {
				return err
			}
		}
		return nil
	}
	for i, u := range s.uploads {
		if err := hold(i, 0); err != nil {
			return err
		}
		if err := cu.MemcpyHtoDAsync(cu.DevicePtr(u.dst), unsafe.Pointer(unsafe.SliceData(u.src)), int64(len(u.src)), s.s); err != nil {
			return fmt.Errorf("copy of %d bytes to the GPU: %w", len(u.src), err)
		}
	}
	if err := hold(len(s.uploads), 0); err != nil {
		return err
	}
	if err := s.runList(s.holds[held:]); err != nil {
		return err
	}
	for _, d := range s.downs {
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(d.dst)), cu.DevicePtr(d.src), int64(len(d.dst)), s.s); err != nil {
			return fmt.Errorf("copy of %d bytes from the GPU: %w", len(d.dst), err)
		}
	}
	return nil
}

// pass makes s wait, and the GPU read its clock. It runs on the owner's thread.
func (h *hold) pass(s cu.Stream) error {
	if err := h.from.record(s); err != nil {
		return err
	}
	if h.ev != nil {
		if err := h.ev.of.hold(s, h.ev.n); err != nil {
			return fmt.Errorf("wait for another stream: %w", err)
		}
	}
	if h.gate != nil {
		if err := s.WaitOnValue32(h.gate.at, h.count, 0); err != nil { // until the word is at least count
			return fmt.Errorf("wait for a gate: %w", err)
		}
	}
	return h.to.record(s)
}

// runList sends List, split at holds. There are none if lists become graphs. It runs on the
// owner's thread.
func (s *Stream) runList(holds []hold) error {
	switch {
	case s.step.replay != nil:
		return s.graphs.replay(s)
	case s.keep && len(s.List.Ops) > 1:
		return s.graphs.run(s)
	}
	at := 0
	for i := range holds {
		h := &holds[i]
		if err := s.gpu.run.run(&s.gpu.mods, &s.List, at, h.ops, s.s); err != nil {
			return err
		}
		if err := h.pass(s.s); err != nil {
			return err
		}
		at = h.ops
	}
	return s.gpu.run.run(&s.gpu.mods, &s.List, at, len(s.List.Ops), s.s)
}

// CopyIn copies src to the GPU, after earlier work. Pinned memory (GPU.Pin) is read when the GPU
// gets there. Other memory may change after CopyIn has returned, which for a large copy is when
// it is done.
func (s *Stream) CopyIn(dst launch.Ptr, src []byte) {
	if len(src) == 0 || s.err != nil {
		return
	}
	if len(s.List.Ops)+len(s.downs) > 0 {
		s.Flush()
	}
	if s.gpu.pins.covers(src) {
		s.uploads = append(s.uploads, upload{dst, src})
		return
	}
	if len(src) > stagedMax {
		s.Flush()
		s.Fail(s.gpu.do(func() error { return s.upload(dst, src) }))
		return
	}
	pinned := s.room(len(src))
	copy(pinned, src)
	s.uploads = append(s.uploads, upload{dst, pinned})
}

// upload copies through pinned memory piece by piece. From pageable memory the driver does the
// same, more slowly.
func (s *Stream) upload(dst launch.Ptr, src []byte) error {
	if s.staging == nil {
		var err error
		if s.staging, err = driver.HostAlloc(stagingBytes, 0); err != nil {
			return err
		}
	}
	if err := s.s.Synchronize(); err != nil { // staging may be in use
		return err
	}
	s.deliver()
	half := len(s.staging) / 2
	for i := 0; len(src) > 0; i++ {
		if i >= 2 {
			if err := s.s.Synchronize(); err != nil {
				return err
			}
		}
		p := s.staging[i%2*half:][:min(half, len(src))]
		copy(p, src)
		if err := cu.MemcpyHtoDAsync(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(p)), int64(len(p)), s.s); err != nil {
			return err
		}
		src, dst = src[len(p):], dst+launch.Ptr(len(p))
	}
	return s.s.Synchronize()
}

// room returns n bytes of pinned memory that are not used otherwise until the next Synchronize.
func (s *Stream) room(n int) []byte {
	const line = 64
	if s.staging == nil {
		s.Fail(s.gpu.do(func() (err error) { s.staging, err = driver.HostAlloc(stagingBytes, 0); return err }))
		if s.err != nil {
			return make([]byte, n) // no copy will use them any more
		}
	}
	if s.used+n > len(s.staging) {
		s.Fail(s.Synchronize())
	}
	p := s.staging[s.used : s.used+n : s.used+n]
	s.used += (n + line - 1) / line * line
	return p
}

// CopyOut copies from the GPU to dst, which has the bytes after the next Synchronize, and
// may have some of them before if it is pinned.
func (s *Stream) CopyOut(dst []byte, src launch.Ptr) {
	if len(dst) == 0 || s.err != nil {
		return
	}
	if s.gpu.pins.covers(dst) {
		s.downs = append(s.downs, down{dst, src})
		return
	}
	for len(dst) > 0 && s.err == nil {
		n := min(len(dst), stagedMax)
		pinned := s.room(n)
		s.downs = append(s.downs, down{pinned, src})
		s.outs = append(s.outs, out{dst[:n], pinned})
		dst, src = dst[n:], src+launch.Ptr(n)
	}
}

// Submit sends the gathered work to the GPU, which signals when all of it is done: a following
// Synchronize only waits. It ends the last part of a timed step.
func (s *Stream) Submit() { s.submit(true) }

func (s *Stream) submit(ends bool) {
	if s.err != nil {
		return
	}
	s.count++
	want := s.count
	s.Fail(s.gpu.do(func() error {
		if err := s.flush(); err != nil {
			return err
		}
		if ends && len(s.timing.marks) > 0 {
			if err := s.mark(); err != nil {
				return err
			}
		}
		return driver.WriteValue32(s.s, s.doneAt, want)
	}))
	s.clear()
	s.sent = s.err == nil
	if !s.keep {
		s.gpu.owner.SetSpin(0) // Record may have made it poll
	}
}

// Synchronize waits until the GPU has done all work and the host has all requested data. It
// returns the stream's first error.
func (s *Stream) Synchronize() error {
	if !s.sent || s.gathered() {
		s.submit(false)
	}
	s.sent = false
	if s.err == nil {
		s.Fail(s.wait())
	}
	s.clear()
	if s.err == nil {
		s.points.reach(s.marked)
		s.deliver()
	}
	s.outs, s.used, s.began = s.outs[:0], 0, false
	return s.err
}

// deliver copies the requested data that the GPU has copied to pinned memory.
func (s *Stream) deliver() {
	for _, o := range s.outs {
		copy(o.dst, o.src)
	}
	s.outs = s.outs[:0]
}
