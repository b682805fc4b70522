// Package offload keeps routed experts in host memory for a device that cannot hold all of them. The
// device has slots for some of them, and a host device computes the others. Other packages decide
// which experts are in slots; this one copies them.
//
//	x, err := offload.New(dev, host, parts)    // parts loaded with routed experts on the host
//	_, err = x.Room(slots)
//	err = x.Load(s, slot, layer, expert)       // enqueued
//	m, err := x.NewMirror()                    // one per batch in flight
//
// In a layer, after group.Attend, m.Fetch copies the input rows of experts to the host. When that
// stream is synchronised, x.Compute runs the host's work on a stream of the host device, while the
// device computes its own with group.Experts. m.Return then copies the output rows to the device,
// before group.Combine. It copies the rows of experts, not their sum, so that the sum has the same bits
// whichever device computed them.
package offload

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/arena"
	"krater/stages/expert"
	"krater/stages/group"
	"krater/stages/load"
	"krater/stages/model"
)

// Host is a device that computes on host memory.
type Host interface {
	device.Device
	// WeightedSumOf is out [T, H] = the sum, by rising k, of weights[t*K+k] * y[t*K+k] where
	// ids[t*K+k] is not below 0; y [T*K, H] F32.
	WeightedSumOf(s device.Stream, out []float32, y device.Mat, weights []float32, ids []int32)
}

// Experts are the routed experts of a model on both sides. Load and Room are called by one goroutine
// at a time, and not by one that runs the groups.
type Experts struct {
	dev   device.Device
	accel device.Accelerator // dev as one; nil: it is none
	host  Host
	parts *load.Parts
	banks map[int]*bank // by layer
	store slotStore
	size  int           // bytes of a slot
	room  device.Buffer // all slots, one behind the other
	slots []slot
	lent  int // with an arena: its shared slots are those from here on
	plain unpinned

	asked, there atomic.Int64 // see Asked
}

// slotStore is how a kind of device keeps experts in slots.
type slotStore interface {
	// bytes returns the size of a slot.
	bytes() int
	// copy enqueues the copy of n experts from e on to slots from at on.
	copy(s device.Stream, slots device.Buffer, at, layer, e, n int) error
	// present records that the expert lies in a slot, absent that it lies in none.
	present(slots device.Buffer, at, layer, e int)
	absent(layer, e int)
	close()
}

// bank is a layer's experts.
type bank struct {
	host expert.Bank  // the experts that the host computes, without the shared one
	dev  *expert.Bank // the group's
	held []int32      // [E] number of slots that hold an expert
}

// slot is room for one expert on the device.
type slot struct{ layer, expert int } // layer -1: free

// New takes the routed experts of parts away from the groups: the device cannot use them until they are
// loaded to slots. They must be in memory that the host can address. The caller keeps parts, but must not
// use them without the result until Close.
func New(dev device.Device, host Host, parts *load.Parts) (*Experts, error) {
	x := &Experts{dev: dev, accel: dev.Accelerator(), host: host, parts: parts, banks: map[int]*bank{}}
	_ = x.each(func(g *group.Group, layer int) error {
		b := g.Bank(layer)
		x.banks[layer] = &bank{host: expert.Bank{Routed: b.Routed, Integers: b.Integers}, dev: b, held: make([]int32, parts.Config.MoE.Experts)}
		return nil
	})
	var err error
	if x.accel != nil {
		x.store, err = newStack(x)
	} else {
		x.store, err = newLists(x)
	}
	if err != nil {
		return nil, err
	}
	x.size = x.store.bytes()
	for layer, b := range x.banks {
		for e := range b.held {
			x.store.absent(layer, e)
		}
	}
	return x, nil
}

// each calls f for every layer that has experts.
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

// Layers returns the layers that have routed experts, in rising order.
func (x *Experts) Layers() []int {
	var layers []int
	_ = x.each(func(_ *group.Group, layer int) error { layers = append(layers, layer); return nil })
	return layers
}

// Any reports whether there are slots.
func (x *Experts) Any() bool { return len(x.slots) > 0 }

// Rows returns the most rows that layers see.
func (x *Experts) Rows() int { return x.parts.Limits.LayerRows() }

// ReturnsSums reports whether an accelerator gets the weighted sum of the host's results instead of their
// rows.
func (x *Experts) ReturnsSums() bool { return x.accel != nil && !x.accel.HostRows() }

// WholeSum reports whether a layer norms the sum of its experts or divides it among several residual streams, instead of only adding it
// to the residual stream. Then the host's results must be part of that sum.
func (x *Experts) WholeSum() bool {
	cfg := x.parts.Config
	return cfg.Streams.Several() || cfg.MoE.OwnNorms || cfg.Layers[0].NormsAfter
}

// AnswersRows reports whether the host answers a call of an accelerator with rows of experts instead of their weighted sum.
func (x *Experts) AnswersRows() bool { return x.accel.HostRows() || x.WholeSum() }

// Host returns the host device.
func (x *Experts) Host() Host { return x.host }

// SlotBytes returns the size of a slot for a model's experts on a device with that layout.
func SlotBytes(cfg *model.Config, p load.Precision, l device.Layout) (int64, error) {
	if l != nil {
		return load.SlotBytes(cfg, p)
	}
	f, h, dt := cfg.MoE.FF, cfg.Hidden, load.KeptType(cfg, model.Experts)
	e := device.Expert{Gate: device.NewMat(nil, dt, f, h), Up: device.NewMat(nil, dt, f, h), Down: device.NewMat(nil, dt, h, f)}
	extra := load.Extra(cfg)
	e.Extra = extra
	list := places(&e, nil)
	switch {
	case p.Experts.Zero():
		return int64(sizeOf(list)), nil
	case p.Experts.PerTensor():
		return nativeSlot(cfg, p.Experts, extra)
	}
	w13, w2, err := p.Experts.Network(tensor.CPU, h, f)
	return packedSlot(w13, w2, extra), err
}

// sizeOf returns the size of a slot for the parts of an expert.
func sizeOf(list []place) (n int) {
	for _, p := range list {
		n += aligned(p.bytes)
	}
	return n
}

func packedSlot(w13, w2 tensor.Layout, extra device.Extra) int64 {
	if w13.Zero() || w2.Zero() {
		return 0
	}
	return int64(sizeOf(places(nil, &device.QExpert{W13: device.QMat{Layout: w13}, W2: device.QMat{Layout: w2}, Extra: extra})))
}

// nativeSlot returns the size of a slot for the largest of a model's experts, which have a format of each tensor.
func nativeSlot(cfg *model.Config, f tensor.Format, extra device.Extra) (most int64, err error) {
	for layer := range cfg.Layers {
		for e := 0; cfg.MoELayer(layer) && e < cfg.MoE.Experts; e++ {
			n := cfg.ExpertNames(layer, e)
			w13, w2, err := load.Of(cfg, f, n.Gate).NetworkWith(load.Of(cfg, f, n.Down), tensor.CPU, cfg.Hidden, cfg.MoE.FF)
			if err != nil {
				return 0, err
			}
			most = max(most, packedSlot(w13, w2, extra))
		}
	}
	return most, nil
}

// SlotBytes returns the size of a slot: of the largest expert.
func (x *Experts) SlotBytes() int { return x.size }

// Room allocates the slots. It may succeed only once. After an error no slot is allocated; if the device has
// too little memory, Room returns the number of slots that would fit. With an arena (load.Options.Arena) the slots are in the arena
// and include all of its shared ones.
func (x *Experts) Room(slots int) (int, error) {
	if slots == 0 || x.size == 0 {
		return slots, nil
	}
	var err error
	if a := x.parts.Arena; a == nil {
		x.room, err = x.dev.Alloc(slots * x.size)
	} else if most := a.Plain + len(a.Slots); slots > most {
		return most, fmt.Errorf("offload: %d slots for experts of %d bytes, an arena of %d: %w", slots, x.size, most, device.ErrOutOfMemory)
	} else if x.room = a.Buf; slots < len(a.Slots) || a.Step != x.size {
		return 0, fmt.Errorf("offload: %d slots of %d bytes in an arena with %d shared slots of %d", slots, x.size, len(a.Slots), a.Step)
	}
	if err == nil {
		x.slots = make([]slot, slots)
		for i := range x.slots {
			x.slots[i].layer = -1
		}
		return slots, nil
	}
	err = fmt.Errorf("offload: %d slots for experts of %d bytes: %w", slots, x.size, err)
	if !errors.Is(err, device.ErrOutOfMemory) {
		return 0, err
	}
	return x.fit(slots - 1), err
}

// Arena returns the arena that slots share with KV blocks, nil if slots have memory of their own.
func (x *Experts) Arena() *arena.Arena { return x.parts.Arena }

// Share makes the slots from first on the shared slots of the arena. It must be called after Room and before any Load.
func (x *Experts) Share(first int) { x.lent = first }

// places returns the size of room in slots.
func (x *Experts) places() int {
	if a := x.parts.Arena; a != nil {
		return a.Steps()
	}
	return len(x.slots)
}

// place is where a slot lies in room, in slots from its start.
func (x *Experts) place(slot int) int {
	a := x.parts.Arena
	switch {
	case a == nil || slot < x.lent:
		return slot
	case slot < x.lent+len(a.Slots):
		return a.Slots[slot-x.lent].At
	}
	return slot - len(a.Slots)
}

// fit returns the number of slots that can be allocated, at most most.
func (x *Experts) fit(most int) int {
	if m := x.dev.Memory(); m.Total > 0 {
		most = min(most, int((m.Total-m.Used)/int64(x.size)))
	}
	for most > 0 {
		if b, err := x.dev.Alloc(most * x.size); err == nil {
			b.Free()
			return most
		}
		most = most * 15 / 16 // memory is fragmented
	}
	return 0
}

// Load enqueues the copies of n consecutive experts of a layer, from e on, to slots from at on, and
// replaces the experts that are there. Other work must wait for s before it uses the experts, and s
// must wait for the work that used the former ones. Load panics if the device refuses a copy, and
// then leaves the slots free.
func (x *Experts) Load(s device.Stream, at, layer, e, n int) error {
	b := x.banks[layer]
	if b == nil || n < 1 || e < 0 || e+n > len(b.held) || at < 0 || at+n > len(x.slots) {
		return fmt.Errorf("offload: experts %d to %d of layer %d to slots from %d on, of %d", e, e+n-1, layer, at, len(x.slots))
	}
	for i := range n {
		x.leave(at + i)
	}
	for done := 0; done < n; { // neighbours in the arena at once
		from, run := x.place(at+done), 1
		for done+run < n && x.place(at+done+run) == from+run {
			run++
		}
		if err := x.store.copy(s, x.room, from, layer, e+done, run); err != nil {
			return err
		}
		done += run
	}
	for i := range n {
		x.slots[at+i] = slot{layer, e + i}
		b.held[e+i]++
		x.store.present(x.room, x.place(at+i), layer, e+i)
	}
	return nil
}

// Leave frees a slot whose copy did not reach the device.
func (x *Experts) Leave(at int) { x.leave(at) }

// leave frees a slot. Its expert is then in another slot, or in none.
func (x *Experts) leave(at int) {
	old := x.slots[at]
	x.slots[at].layer = -1
	if old.layer < 0 {
		return
	}
	b := x.banks[old.layer]
	if b.held[old.expert]--; b.held[old.expert] == 0 {
		x.store.absent(old.layer, old.expert)
		return
	}
	x.store.present(x.room, x.place(slices.Index(x.slots, old)), old.layer, old.expert)
}

// Compute runs work of a layer on a stream of the host device. st is the state of the batch's mirror,
// or one made from it. After Prepare, several streams may run Compute at once with lists that share
// no assignment.
func (x *Experts) Compute(s device.Stream, st *stages.State, layer int, work []device.ExpertRows) {
	x.banks[layer].host.Run(s, x.host, st, work)
}

// Bank returns a layer's routed experts in host memory, for callers that run them on Mirror.State
// themselves.
func (x *Experts) Bank(layer int) *expert.Bank { return &x.banks[layer].host }

// Prepare converts the rows that Mirror.Fetch has copied to the form that Compute takes.
func (x *Experts) Prepare(s device.Stream, m *Mirror, layer int) {
	m.back.widen(m)
	x.prepare(s, &m.st, layer)
}

// prepare quantises the rows of st if a layer's experts are integers.
func (x *Experts) prepare(s device.Stream, st *stages.State, layer int) {
	p := st.On(x.host, s, nil)
	x.banks[layer].host.Prepare(&p.List, st)
	p.Send()
}

// Close frees the slots and returns the experts to the groups.
func (x *Experts) Close() {
	if x.store != nil {
		x.store.close()
	}
	for _, b := range x.banks {
		b.dev.Routed, b.dev.Integers, b.dev.Here = b.host.Routed, b.host.Integers, device.Bank{}
	}
	if x.room != nil && x.parts.Arena == nil {
		x.room.Free()
	}
	x.room, x.slots, x.banks = nil, nil, nil
}
