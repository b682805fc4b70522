package actors

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"sync"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// simCard is an accelerator that runs lists in the order in which they are submitted, each operator in the same time
// of a clock, copies and changes of logits in less. Of the model it computes nothing but which tokens its rows are of, so that the tokens that it chooses
// follow from those: see simToken.
type simCard struct {
	otherwise // what no test asks for
	clock     *ticking
	op        time.Duration // of an operator, or a copy

	mu     sync.Mutex
	free   time.Duration // when all that was submitted has run
	busy   time.Duration
	steps  int           // that were waited for
	fails  map[int]error // what a wait for a step returns
	failed int
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
		for r := range o.Out.Rows {
			for i := range x.Masks.Cols {
				w := ^uint32(0)
				if simInt(x.Table, r, 1) != 0 {
					w = uint32(simInt(x.Masks, r, i))
				}
				binary.LittleEndian.PutUint32(word(o.Out, r, 1+i), w)
			}
			binary.LittleEndian.PutUint32(word(o.Out, r, 1+x.Masks.Cols), math.MaxUint32) // it has a mask
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

// simStream runs what it has when that is submitted. The host has copies when it waits.
type simStream struct {
	device.Immediate
	card  *simCard
	queue []func()
	cost  time.Duration // of the queue
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
func (s *simStream) Submit()               { s.Send() }
func (s *simStream) Flush()                {}

// Run implements device.Device.
func (c *simCard) Run(s device.Stream, l device.List) {
	own := s.(*simStream)
	for _, o := range l.Ops {
		if o.Changes != nil {
			changes := *o.Changes
			o.Changes = &changes
		}
		cost := c.op
		if o.Kind == device.OpChangeLogits {
			cost = simCopy
		}
		own.add(cost, func() { c.run(&o) })
	}
}

// simCopy is the time of a small copy or kernel.
const simCopy = 8 * time.Microsecond

func (s *simStream) add(cost time.Duration, run func()) {
	s.queue, s.cost = append(s.queue, run), s.cost+cost
}

func (s *simStream) CopyIn(dst device.Mat, src []byte) {
	own := append([]byte(nil), src...)
	s.add(simCopy, func() {
		row := dst.Cols * dst.DType.Size()
		for r := range dst.Rows {
			copy(dst.Buf.(*simMemory).data[dst.Off+r*dst.Stride*dst.DType.Size():][:row], own[r*row:])
		}
	})
}

func (s *simStream) CopyOut(dst []byte, src device.Mat) {
	s.add(simCopy, func() {
		own := append([]byte(nil), src.Buf.(*simMemory).data[src.Off:][:len(dst)]...)
		s.outs = append(s.outs, func() { copy(dst, own) })
	})
}

func (s *simStream) Send() {
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(s.queue) == 0 || s.err != nil {
		return
	}
	for _, run := range s.queue {
		run()
	}
	c.free = max(c.free, c.clock.Now()) + s.cost
	c.busy += s.cost
	s.ends, s.queue, s.cost = c.free, s.queue[:0], 0
}

// Synchronize fails with the steps that fails has errors for.
func (s *simStream) Synchronize() error {
	s.Send()
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.err != nil || len(s.outs) == 0 {
		return s.err
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
	s.queue, s.cost, s.outs, s.err = s.queue[:0], 0, s.outs[:0], nil
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
