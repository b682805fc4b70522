// Package offload is for models on a device whose memory does not hold all routed
// experts: these lie in host memory, the device has slots for some of them, and a
// host device computes what it is given. What goes where is decided elsewhere;
// here are the copies.
//
//	x, err := offload.New(dev, host, parts)    // parts loaded with routed experts on the host
//	_, err = x.Room(slots)
//	err = x.Load(s, slot, layer, expert)       // enqueued
//	m, err := x.NewMirror()                    // one a batch in flight
//
// In a layer, after group.Attend: m.Fetch copies the rows experts take to the
// host; once that stream is synchronised x.Compute runs the host's work on a
// stream of the host device, while the device computes its own with group.Experts;
// m.Return then copies the rows that came out to the device, before group.Combine.
// Rows of experts travel, not their sum, so that the sum has the same bits
// wherever they were computed.
package offload

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/group"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights/quant"
)

// Host is a device that computes on host memory.
type Host interface {
	device.Device
	expert.Ops
}

// Experts are the routed experts of a model on both sides. Load and Room belong
// to one goroutine at a time and to none that runs the groups.
type Experts struct {
	dev   device.Device
	host  Host
	parts *load.Parts
	banks map[int]*bank // by layer
	size  int           // bytes of a slot
	slots []slot
}

// bank is a layer's experts.
type bank struct {
	host expert.Bank  // all of them, without the shared one
	dev  *expert.Bank // the group's: what lies in slots, and the shared one
	held []int32      // [E] slots that an expert lies in
}

// slot is room for one expert on the device.
type slot struct {
	buf           device.Buffer
	layer, expert int // layer -1: free
}

// New takes the routed experts of parts, which must lie in memory the host can
// address, off the groups: until they are loaded to slots the device cannot use
// them. parts stay the caller's; until Close they must not be used without x.
func New(dev device.Device, host Host, parts *load.Parts) (*Experts, error) {
	x := &Experts{dev: dev, host: host, parts: parts, banks: map[int]*bank{}}
	err := x.each(func(g *group.Group, layer int) error {
		b := g.Bank(layer)
		for e := range b.Len() {
			n := 0
			for _, p := range pieces(b, e) {
				if p.host() == nil {
					return fmt.Errorf("offload: layer %d, expert %d: %d bytes are not in host memory", layer, e, p.bytes)
				}
				n = p.at + aligned(p.bytes)
			}
			x.size = max(x.size, n)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, x.each(func(g *group.Group, layer int) error {
		b := g.Bank(layer)
		own := &bank{host: expert.Bank{Routed: b.Routed, Integers: b.Integers}, dev: b, held: make([]int32, b.Len())}
		x.banks[layer] = own
		if b.Routed != nil {
			b.Routed = make([]device.Expert, len(b.Routed))
		}
		if b.Integers != nil {
			b.Integers = make([]device.QExpert, len(b.Integers))
		}
		for e := range b.Len() {
			own.absent(e)
		}
		return nil
	})
}

// each calls f for every layer with experts.
func (x *Experts) each(f func(g *group.Group, layer int) error) error {
	for _, g := range x.parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if !g.MoE(layer) {
				continue
			}
			if err := f(g, layer); err != nil {
				return err
			}
		}
	}
	return nil
}

// Layers are the layers that have routed experts, rising.
func (x *Experts) Layers() []int {
	var layers []int
	_ = x.each(func(_ *group.Group, layer int) error { layers = append(layers, layer); return nil })
	return layers
}

// Host is the host device.
func (x *Experts) Host() Host { return x.host }

// SlotBytes is the size of a slot for a model's experts as they will be kept.
func SlotBytes(cfg *model.Config, p load.Precision) (int64, error) {
	f, h, dt := cfg.MoE.FF, cfg.Hidden, cfg.DType
	if dt == tensor.Invalid {
		dt = tensor.BF16
	}
	e := device.Expert{Gate: device.NewMat(nil, dt, f, h), Up: device.NewMat(nil, dt, f, h), Down: device.NewMat(nil, dt, h, f)}
	list := places(&e, nil)
	if p.Experts != 0 {
		spec := quant.Spec{Bits: p.Experts, Group: p.Group}
		w13, err := spec.Format(2*f, h)
		if err != nil {
			return 0, err
		}
		w2, err := spec.Format(h, f)
		if err != nil {
			return 0, err
		}
		list = places(nil, &device.QExpert{W13: device.QMat{FormatB: w13}, W2: device.QMat{FormatB: w2}})
	}
	n := 0
	for _, p := range list {
		n += aligned(p.bytes)
	}
	return int64(n), nil
}

// SlotBytes is the size of a slot: of the largest expert.
func (x *Experts) SlotBytes() int { return x.size }

// Room allocates slots, besides those there are. On an error it has allocated none, and
// tells how many there was memory for.
func (x *Experts) Room(slots int) (int, error) {
	had := len(x.slots)
	for n := range slots {
		buf, err := x.dev.Alloc(x.size)
		if err != nil {
			for _, s := range x.slots[had:] {
				s.buf.Free()
			}
			x.slots = x.slots[:had]
			return n, fmt.Errorf("offload: slot %d for experts of %d bytes: %w", had+n+1, x.size, err)
		}
		x.slots = append(x.slots, slot{buf: buf, layer: -1})
	}
	return slots, nil
}

// Load enqueues the copy of an expert to a slot, in place of the one that is
// there. What else runs must have passed s before it uses the expert, and s what
// used the former one. A copy that the device refuses panics and leaves the slot free.
func (x *Experts) Load(s device.Stream, at, layer, e int) error {
	b := x.banks[layer]
	if b == nil || e < 0 || e >= b.host.Len() || at < 0 || at >= len(x.slots) {
		return fmt.Errorf("offload: expert %d of layer %d to slot %d of %d", e, layer, at, len(x.slots))
	}
	place := &x.slots[at]
	x.leave(at)
	for _, p := range join(pieces(&b.host, e)) {
		s.CopyIn(bytesOf(place.buf, p.at, p.bytes), p.host())
	}
	place.layer, place.expert = layer, e
	b.held[e]++
	b.present(e, place.buf)
	return nil
}

// leave makes a slot free: its expert is where another slot has it, or nowhere.
func (x *Experts) leave(at int) {
	old := x.slots[at]
	x.slots[at].layer = -1
	if old.layer < 0 {
		return
	}
	b := x.banks[old.layer]
	if b.held[old.expert]--; b.held[old.expert] == 0 {
		b.absent(old.expert)
		return
	}
	for _, s := range x.slots {
		if s.layer == old.layer && s.expert == old.expert {
			b.present(old.expert, s.buf)
			return
		}
	}
}

// Compute runs work of a layer on a stream of the host device; st is that of the
// batch's mirror, or one made of it. It may run on several streams at once with
// lists that share no assignment, once they have passed Prepare.
func (x *Experts) Compute(s device.Stream, st *stages.State, layer int, work []device.ExpertRows) {
	x.banks[layer].host.Run(s, x.host, st, work)
}

// Bank is a layer's routed experts in host memory, for those who run them by
// themselves: on Mirror.State.
func (x *Experts) Bank(layer int) *expert.Bank { return &x.banks[layer].host }

// Prepare makes what Compute takes and would otherwise make, several streams at once.
func (x *Experts) Prepare(s device.Stream, m *Mirror, layer int) {
	x.banks[layer].host.Prepare(s, x.host, &m.st)
}

// Close gives the slots back and the groups their experts.
func (x *Experts) Close() {
	for _, b := range x.banks {
		b.dev.Routed, b.dev.Integers = b.host.Routed, b.host.Integers
	}
	for _, s := range x.slots {
		s.buf.Free()
	}
	x.slots, x.banks = nil, nil
}
