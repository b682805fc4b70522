package offload

import (
	"fmt"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
)

// Link lets an accelerator copy some missing experts by itself, in the middle of a step, over the link to spare
// slots. The accelerator chooses them by the rows of the step (device.OpPickExperts), so the step can be
// replayed. Every layer uses the same slots, so steps with a Link run one after another.
type Link struct {
	x     *Experts
	now   device.Mat           // [1, E] I32: the slots of a layer's experts in this step
	list  device.Mat           // [1, 2*most] I32: what is copied
	soon  device.Mat           // [1, slots] I32: marks of what is being copied, 0 otherwise
	terms device.Mat           // [1, 1+most] I32, see device.List.PickExperts
	have  []int32              // what of terms was enqueued last
	doubt bool                 // whether it may be lost
	slots device.Mat           // [slots, N] F32
	piles map[int]device.Mat   // [E, N] F32, by layer
	first map[int]device.Mat   // [E, n] F32, by layer: what of piles an expert's first matrix is
	banks map[int]*device.Bank // by layer, with now
	where map[int]device.Mat   // [1, E] I32, by layer: the slots of the experts that stay
}

// NewLink allocates memory for copies of up to most experts of a layer. v has the slots of the experts. All layers
// must be kept (Keep). NewLink returns nil if the accelerator cannot read the host's memory.
func (x *Experts) NewLink(v *View, most int) (*Link, error) {
	t, ok := x.store.(*stack)
	if !ok || most < 1 || len(x.slots) == 0 || x.size%16 != 0 {
		return nil, nil
	}
	n, width := x.parts.Config.MoE.Experts, x.size/4
	l := &Link{x: x, have: make([]int32, 1+most), doubt: true, piles: map[int]device.Mat{}, first: map[int]device.Mat{}, banks: map[int]*device.Bank{}, where: map[int]device.Mat{},
		slots: device.NewMat(x.room, tensor.F32, x.places(), width)}
	for _, layer := range x.Layers() {
		pile := t.layers[layer]
		if pile == nil {
			return nil, nil
		}
		view, ok := x.accel.View(pile.Host())
		if !ok {
			return nil, nil
		}
		l.piles[layer] = device.NewMat(view, tensor.F32, n, width)
	}
	for _, m := range []struct {
		*device.Mat
		cols int
	}{{&l.now, n}, {&l.list, 2 * most}, {&l.soon, x.places()}, {&l.terms, 1 + most}} {
		var err error
		if *m.Mat, err = device.AllocMat(x.dev, tensor.I32, 1, m.cols); err != nil {
			l.Close()
			return nil, fmt.Errorf("offload: tables of copies: %w", err)
		}
	}
	for _, layer := range x.Layers() {
		b := *v.Bank(layer)
		l.where[layer], b.Map, b.Coming = b.Map, l.now, l.soon
		l.banks[layer], l.first[layer] = &b, l.piles[layer].ColRange(0, firstBytes(&b, x.size)/4)
	}
	return l, nil
}

// firstBytes returns how many of a slot's size bytes an expert's first matrix takes. Its biases, if there are any, lie behind the second.
func firstBytes(b *device.Bank, size int) int {
	at := b.W2.F.Off - b.W13.F.Off
	if !b.W13.Q.Zero() {
		at = b.W2.Q.ValueAt - b.W13.Q.ValueAt
	}
	if b.Extra.Bytes() > 0 || at%16 != 0 {
		return size
	}
	return at
}

// Most returns the largest number of experts of a layer that are copied.
func (l *Link) Most() int { return len(l.have) - 1 }

// Set makes steps that are enqueued on s from now on copy share/256 of the missing experts of a layer to slots, at
// most Most of them. None of the slots may hold an expert that stays.
func (l *Link) Set(s device.Stream, share int, slots []int32) {
	terms := append(make([]int32, 0, len(l.have)), int32(share))
	for i := range l.Most() {
		if i < len(slots) {
			terms = append(terms, int32(l.x.place(int(slots[i]))))
		} else {
			terms = append(terms, -1)
		}
	}
	if !l.doubt && slices.Equal(terms, l.have) {
		return
	}
	if l.doubt { // a step that was lost may have left marks
		s.CopyIn(l.soon, make([]byte, l.soon.Bytes()))
	}
	l.doubt = false
	copy(l.have, terms)
	s.CopyIn(l.terms, hostInts(l.have))
}

// Doubt records that the work of the last Set may not have reached the device.
func (l *Link) Doubt() { l.doubt = true }

// Pick enqueues the choice of the experts of a layer that are copied, and returns where the layer's experts are in
// this step.
func (l *Link) Pick(s device.Stream, st *stages.State, layer int) *device.Bank {
	p := st.On(l.x.dev, s, nil)
	p.PickExperts(l.now, l.list, l.soon, st.RouterIDs, l.where[layer], l.terms)
	p.Send()
	return l.banks[layer]
}

// Bring enqueues the copies of the experts that Pick has chosen.
func (l *Link) Bring(s device.Stream, st *stages.State, layer int) {
	p := st.On(l.x.dev, s, nil)
	p.BringExperts(l.slots, l.piles[layer], l.first[layer], l.list, l.soon)
	p.Send()
}

// Close frees the tables.
func (l *Link) Close() {
	if l == nil {
		return
	}
	for _, m := range []*device.Mat{&l.now, &l.list, &l.soon, &l.terms} {
		if !m.Zero() {
			m.Buf.Free()
			*m = device.Mat{}
		}
	}
}
