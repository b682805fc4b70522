package offload

import (
	"errors"
	"fmt"
	"sync"

	"krater/kernels/device"
	"krater/stages/load"
)

// stack is the shelf of an accelerator, which finds experts by their slots itself. Those that
// are copied again and again lie on the host as they do in a slot, pinned; others are laid
// out when they are copied.
type stack struct {
	x      *Experts
	slots  *load.Slots
	layers map[int]*pile // of those copied again and again
	room   []byte        // of one expert
}

// pile is all experts of a layer on the host.
type pile struct {
	buf     device.Buffer
	release func() error // unpins it; nil: it is not pinned
}

func newStack(x *Experts) (*stack, error) {
	t := &stack{x: x, slots: x.parts.Slots, layers: map[int]*pile{}}
	if t.slots == nil && len(x.banks) > 0 {
		return nil, errors.New("offload: the model was loaded with its experts on the device")
	}
	for _, b := range x.banks {
		b.dev.Routed, b.dev.Integers = nil, nil // the host's
	}
	return t, nil
}

func (t *stack) bytes() int {
	if t.slots == nil {
		return 0
	}
	return t.slots.Step
}

func (t *stack) copy(s device.Stream, slots device.Buffer, at, layer, e, n int) error {
	step := t.slots.Step
	if p := t.layers[layer]; p != nil {
		s.CopyIn(bytesOf(slots, at*step, n*step), p.buf.Host()[e*step:(e+n)*step])
		return nil
	}
	if t.room == nil {
		t.room = make([]byte, step)
	}
	for i := range n {
		if err := t.slots.Put(t.room, layer, e+i); err != nil {
			return err
		}
		s.CopyIn(bytesOf(slots, (at+i)*step, step), t.room)
		if err := s.Synchronize(); err != nil { // the room is used again
			return err
		}
	}
	return nil
}

// The accelerator is told by a View.
func (t *stack) present(device.Buffer, int, int, int) {}
func (t *stack) absent(int, int)                      {}

// Keep lays the experts of a layer out on the host for copies that come again and again. On
// other devices than accelerators they lie there already.
func (x *Experts) Keep(layer int) error {
	t, ok := x.shelf.(*stack)
	if !ok || t.layers[layer] != nil {
		return nil
	}
	step, n := t.slots.Step, x.parts.Config.MoE.Experts
	buf, err := x.host.Alloc(step * n)
	if err != nil {
		return fmt.Errorf("offload: experts of layer %d on the host: %w", layer, err)
	}
	p := &pile{buf: buf}
	t.layers[layer] = p
	if err := t.fill(buf.Host(), layer, n); err != nil {
		return err
	}
	if pin, ok := x.dev.(device.Pinner); ok {
		if p.release, err = pin.Pin(buf.Host()); err != nil {
			return fmt.Errorf("offload: experts of layer %d on the host: %w", layer, err)
		}
	}
	return nil
}

// fillThreads is how many experts are laid out at a time.
const fillThreads = 8

// fill lays n experts out.
func (t *stack) fill(dst []byte, layer, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, min(n, fillThreads))
	for i := range errs {
		wg.Go(func() {
			for e := i; e < n && errs[i] == nil; e += len(errs) {
				errs[i] = t.slots.Put(dst[e*t.slots.Step:], layer, e)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (t *stack) close() {
	for _, p := range t.layers {
		if p.release != nil {
			_ = p.release() // a lost card has let go
		}
		p.buf.Free()
	}
	t.layers = nil
}

// KeptBytes is the size of a layer's experts after Keep, 0 on other devices than
// accelerators.
func (x *Experts) KeptBytes() int64 {
	if t, ok := x.shelf.(*stack); ok && t.slots != nil {
		return int64(t.slots.Step) * int64(x.parts.Config.MoE.Experts)
	}
	return 0
}
