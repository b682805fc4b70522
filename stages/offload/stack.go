package offload

import (
	"errors"
	"fmt"

	"krater/kernels/device"
	"krater/stages/load"
)

// stack is the slotStore of an accelerator, which finds experts by their slots itself. Those that
// are copied again and again lie on the host as they do in a slot, pinned; others are laid
// out when they are copied.
type stack struct {
	x       *Experts
	slots   *load.Slots
	layers  map[int]device.Buffer // of those copied again and again
	release []func() error        // unpins them
	room    []byte                // of one expert
}

func newStack(x *Experts) (*stack, error) {
	t := &stack{x: x, slots: x.parts.Slots, layers: map[int]device.Buffer{}}
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
	if pile := t.layers[layer]; pile != nil {
		s.CopyIn(bytesOf(slots, at*step, n*step), pile.Host()[e*step:(e+n)*step])
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

// The accelerator gets the places of experts from a View.
func (t *stack) present(device.Buffer, int, int, int) {}
func (t *stack) absent(int, int)                      {}

// Keep arranges the experts of a layer in host memory for repeated copies. For devices
// other than accelerators they are arranged already.
func (x *Experts) Keep(layer int) error {
	t, ok := x.store.(*stack)
	if !ok || t.layers[layer] != nil {
		return nil
	}
	pile, err := t.slots.Pile(x.host, layer, x.parts.Config.MoE.Experts)
	if err != nil {
		return fmt.Errorf("offload: experts of layer %d on the host: %w", layer, err)
	}
	t.layers[layer] = pile
	t.release = append(t.release, x.pin(pile.Host()))
	return nil
}

func (t *stack) close() {
	for _, release := range t.release {
		_ = release() // a lost GPU has let go
	}
	t.layers, t.release = nil, nil
}
