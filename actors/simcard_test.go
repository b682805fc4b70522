package actors

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// simCard is an accelerator that runs lists in the order in which they are submitted, each operator in the same time
// of a clock, copies and changes of logits in less. A change of logits waits for its masks. Of the model it computes nothing but which tokens its rows are of, so that the tokens that it chooses
// follow from those: see simToken.
type simCard struct {
	otherwise // what no test asks for
	clock     *ticking
	op        time.Duration // of an operator, or a copy

	mu      sync.Mutex
	pending []simWork
	waits   bool          // the first of pending has been seen to wait for masks
	free    time.Duration // when all before pending has run
	busy    time.Duration
	steps   int           // that were waited for
	fails   map[int]error // what a wait for a step returns
	failed  int
	changes int          // of logits
	late    map[int]bool // the masks of these do not come in time
}

// simWork is an operator or a copy that was submitted.
type simWork struct {
	stream *simStream
	at     time.Duration
	cost   time.Duration
	ready  func() bool // nil: at once
	run    func()
}

type otherwise = device.Accelerator

type simMemory struct {
	data []byte
}

func (m *simMemory) Size() int    { return len(m.data) }
func (m *simMemory) Host() []byte { return nil }
func (m *simMemory) Free()        {}

func (c *simCard) Name() string                         { return "simcard" }
func (c *simCard) Alloc(n int) (device.Buffer, error)   { return &simMemory{make([]byte, n)}, nil }
func (c *simCard) Wrap(b []byte) (device.Buffer, error) { return &simMemory{b}, nil }
func (c *simCard) NewStream() (device.Stream, error)    { return &simStream{card: c}, nil }
func (c *simCard) Fused(device.List) int                { return 1 }
func (c *simCard) Accelerator() device.Accelerator      { return c }
func (c *simCard) Memory() device.Memory                { return device.Memory{} }
func (c *simCard) Close() error                         { return nil }

func (c *simCard) NewQueueStream(int) (device.AcceleratorStream, error) {
	return &simStream{card: c}, nil
}
func (c *simCard) AllocShared(n int) (device.Buffer, []byte, error) {
	m := &simMemory{make([]byte, n)}
	return m, m.data, nil
}
func (c *simCard) RowType() tensor.DType                              { return tensor.F32 }
func (c *simCard) HostRows() bool                                     { return false }
func (c *simCard) StepKey([]device.Span) uint64                       { return 1 }
func (c *simCard) DrawWords() int                                     { return 2 }
func (c *simCard) PutDraw(dst []int32, d device.Draw)                 { dst[0], dst[1] = int32(d.Seed), int32(d.N) }
func (c *simCard) Check(*device.StepSizes) error                      { return nil }
func (c *simCard) ScratchBytes(*device.StepSizes) int                 { return 0 }
func (c *simCard) SpanWords(int, int) int                             { return 1 }
func (c *simCard) PutSpans([]int32, []device.Span, []device.Span) int { return 1 }

// simToken is the token of a row: the first allowed one from a place on that the token before it, its number in the
// answer and the seed give. mask may be nil.
func simToken(seed, n, before int32, vocab int, mask []uint32) int32 {
	at := int(uint32(seed*31+n*17+before*7) % uint32(vocab))
	for i := range vocab {
		if id := (at + i) % vocab; mask == nil || mask[id/32]>>(id%32)&1 == 1 {
			return int32(id)
		}
	}
	return device.DrawMasked
}

// word is a cell of a matrix of 32-bit values.
func word(m device.Mat, row, col int) []byte {
	return m.Buf.(*simMemory).data[m.Off+4*(row*m.Stride+col):][:4]
}

func simInt(m device.Mat, row, col int) int32 {
	return int32(binary.LittleEndian.Uint32(word(m, row, col)))
}

// run computes an operator. The first column of hidden rows and of logits is the token that the row is of.
func (c *simCard) run(o *device.Op) {
	switch o.Kind {
	case device.OpGatherRows:
		embeds := o.W.DType != tensor.F32
		for r := range o.Out.Rows {
			id := simInt(o.A, r, 0)
			if embeds {
				binary.LittleEndian.PutUint32(word(o.Out, r, 0), uint32(id))
			} else {
				copy(word(o.Out, r, 0), word(o.W, int(id), 0))
			}
		}
	case device.OpRMSNorm, device.OpMatMul:
		if o.X.DType == tensor.F32 && o.Out.DType == tensor.F32 {
			for r := range o.Out.Rows {
				copy(word(o.Out, r, 0), word(o.X, r, 0))
			}
		}
	case device.OpChangeLogits:
		x := o.Changes
		c.changes++
		late := c.late[c.changes]
		for r := range o.Out.Rows {
			words, number := (o.Out.Cols+31)/32, simInt(x.Table, r, 1)
			if late && number != 0 {
				binary.LittleEndian.PutUint32(word(x.Masks, r, device.MaskFlag(o.Out.Cols)+1), uint32(number))
			}
			for i := range words {
				w := ^uint32(0)
				if number != 0 {
					if w = 0; !late && maskFlag(x, r, o.Out.Cols)&1 == 1 {
						w = uint32(simInt(x.Masks, r, i))
					}
				}
				binary.LittleEndian.PutUint32(word(o.Out, r, 1+i), w)
			}
			binary.LittleEndian.PutUint32(word(o.Out, r, 1+words), math.MaxUint32) // it has a mask
		}
	case device.OpChoose:
		words := (o.X.Cols + 31) / 32
		for r := range o.Out.Rows {
			var mask []uint32
			if last := word(o.X, r, 1+words); binary.LittleEndian.Uint32(last) == math.MaxUint32 {
				for i := range words {
					mask = append(mask, binary.LittleEndian.Uint32(word(o.X, r, 1+i)))
				}
				clear(last)
			}
			id := simToken(simInt(o.A, 0, 2*r), simInt(o.A, 0, 2*r+1), simInt(o.X, r, 0), o.X.Cols, mask)
			binary.LittleEndian.PutUint32(word(o.Out, r, 0), uint32(id))
		}
	}
}

// maskFlag is the flag of a row's mask.
func maskFlag(x *device.LogitChanges, row, vocab int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&word(x.Masks, row, device.MaskFlag(vocab))[0])))
}

// masked reports whether all masks that an operator needs are there, or none will come.
func masked(o *device.Op) bool {
	for r := range o.Out.Rows {
		if n := simInt(o.Changes.Table, r, 1); n != 0 && maskFlag(o.Changes, r, o.Out.Cols)/2 != uint32(n) {
			return false
		}
	}
	return true
}

// simStream submits work to the device. The host has copies when it waits.
type simStream struct {
	device.Immediate
	card  *simCard
	queue []simWork
	left  int // of those submitted
	outs  []func()
	ends  time.Duration
	err   error
}

func (s *simStream) Device() device.Device { return s.card }
func (s *simStream) Reserve(int) error     { return nil }
func (s *simStream) Time(bool)             {}
func (s *simStream) Mark() bool            { return false }
func (s *simStream) Took() []time.Duration { return nil }
func (s *simStream) End() device.Timestamp { return nil }
func (s *simStream) Submit()               { s.submit() }
func (s *simStream) Flush()                {}

// Run implements device.Device.
func (c *simCard) Run(s device.Stream, l device.List) {
	own := s.(*simStream)
	for _, o := range l.Ops {
		if o.Changes != nil {
			changes := *o.Changes
			o.Changes = &changes
		}
		w := simWork{cost: c.op, run: func() { c.run(&o) }}
		if o.Kind == device.OpChangeLogits {
			w.cost, w.ready = simCopy, func() bool { return masked(&o) }
		}
		own.queue = append(own.queue, w)
	}
}

// simCopy is the time of a small copy or kernel.
const simCopy = 8 * time.Microsecond

func (s *simStream) copy(run func()) { s.queue = append(s.queue, simWork{cost: simCopy, run: run}) }

func (s *simStream) CopyIn(dst device.Mat, src []byte) {
	own := append([]byte(nil), src...)
	s.copy(func() {
		row := dst.Cols * dst.DType.Size()
		for r := range dst.Rows {
			copy(dst.Buf.(*simMemory).data[dst.Off+r*dst.Stride*dst.DType.Size():][:row], own[r*row:])
		}
	})
}

func (s *simStream) CopyOut(dst []byte, src device.Mat) {
	s.copy(func() {
		own := append([]byte(nil), src.Buf.(*simMemory).data[src.Off:][:len(dst)]...)
		s.outs = append(s.outs, func() { copy(dst, own) })
	})
}

func (s *simStream) submit() {
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.err == nil {
		for _, w := range s.queue {
			w.stream, w.at = s, c.clock.Now()
			c.pending = append(c.pending, w)
		}
		s.left += len(s.queue)
		s.queue = s.queue[:0]
	}
	c.advance()
}

// advance runs what can run; c.mu is held.
func (c *simCard) advance() {
	for len(c.pending) > 0 {
		w := &c.pending[0]
		if w.ready != nil && !w.ready() {
			c.waits = true
			return
		}
		begin := max(c.free, w.at)
		if c.waits {
			c.waits, begin = false, max(begin, c.clock.Now())
		}
		w.run()
		c.free, c.busy = begin+w.cost, c.busy+w.cost
		w.stream.ends = c.free
		w.stream.left--
		c.pending = c.pending[1:]
	}
}

// settle waits until all that the stream has submitted has run. A device that waits for masks that nobody gives fails the test.
func (s *simStream) settle() {
	c := s.card
	for begin := time.Now(); ; time.Sleep(20 * time.Microsecond) {
		c.mu.Lock()
		c.advance()
		left := s.left
		c.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Since(begin) > time.Minute {
			panic("simcard: masks do not come")
		}
	}
}

// Synchronize fails with the steps that fails has errors for.
func (s *simStream) Synchronize() error {
	s.submit()
	if s.err != nil {
		return s.err
	}
	s.settle()
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.outs) == 0 {
		return nil
	}
	c.steps++
	if s.err = c.fails[c.steps]; s.err != nil {
		c.failed++
		return s.err
	}
	c.clock.at = max(c.clock.at, s.ends)
	for _, out := range s.outs {
		out()
	}
	s.outs = s.outs[:0]
	return nil
}

func (s *simStream) Recover() error {
	s.settle()
	s.queue, s.outs, s.err = s.queue[:0], s.outs[:0], nil
	return nil
}

func (s *simStream) Clock() device.Clock { return simClock{} }

type simClock struct{}

func (simClock) Timestamp() device.Timestamp { return nil }
func (simClock) Cost() time.Duration         { return 0 }
func (simClock) WaitTimed(device.Event) (from, to device.Timestamp) {
	return nil, nil
}

var errSimCard = errors.New("a call was refused")

// hash mixes the bits of a number.
func hash(x uint64) uint64 {
	hi, lo := bits.Mul64(x^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}
