package load

import (
	"errors"
	"fmt"
	"sync"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages/model"
)

// Slots are room for routed experts in an accelerator's memory, one behind the other:
// where the parts of one lie in its slot, and who brings it there.
type Slots struct {
	Step int // bytes of a slot for an expert of any layer, a multiple of 256
	lay  func(layer int) (*slot, error)
	put  func(dst []byte, at *slot, layer, e int) error

	mu    sync.Mutex
	piles map[int]device.Buffer // by layer
}

// slot is how an expert of a layer lies in a slot. Layers differ where the files have their experts in
// several encodings.
type slot struct {
	w13, w2 device.Weight // of the first, without memory
	extra   device.Extra  // also
	bytes   int           // used, a multiple of 256
}

// packedSlot returns the slot of an expert of two packed matrices.
func packedSlot(cfg *model.Config, w13, w2 tensor.Layout) *slot {
	q13, q2 := device.QMat{Layout: w13}, device.QMat{Layout: w2}
	q13.ScaleAt = aligned(w13.ValueBytes())
	q2.ValueAt = q13.ScaleAt + aligned(w13.ScaleBytes())
	q2.ScaleAt = q2.ValueAt + aligned(w2.ValueBytes())
	x := &slot{w13: device.Weight{Q: q13}, w2: device.Weight{Q: q2}}
	x.extra, x.bytes = extraOf(cfg, q2.ScaleAt+aligned(w2.ScaleBytes()))
	return x
}

// Pile is all experts of a layer on the host, as they lie in slots one behind the other. It is
// made once and stays until the parts are closed, before host is.
func (x *Slots) Pile(host device.Device, layer, experts int) (device.Buffer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.piles[layer]; b != nil {
		return b, nil
	}
	b, err := host.Alloc(x.Step * experts)
	if err != nil {
		return nil, fmt.Errorf("load: experts of layer %d: %w", layer, err)
	}
	if err := x.fill(b.Host(), layer, experts); err != nil {
		b.Free()
		return nil, err
	}
	if x.piles == nil {
		x.piles = map[int]device.Buffer{}
	}
	x.piles[layer] = b
	return b, nil
}

// fillThreads is how many experts are laid out at a time.
const fillThreads = 8

func (x *Slots) fill(dst []byte, layer, experts int) error {
	var wg sync.WaitGroup
	errs := make([]error, min(experts, fillThreads))
	for i := range errs {
		wg.Go(func() {
			for e := i; e < experts && errs[i] == nil; e += len(errs) {
				errs[i] = files.Guard(func() error { return x.Put(dst[e*x.Step:], layer, e) })
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// close frees the piles.
func (x *Slots) close() {
	for _, b := range x.piles {
		b.Free()
	}
	x.piles = nil
}

// Put fills dst, Step bytes of host memory, with an expert as it lies in a slot. It may
// be called by several goroutines at once while what the model was loaded from is open.
func (x *Slots) Put(dst []byte, layer, e int) error {
	at, err := x.lay(layer)
	if err == nil {
		err = x.put(dst[:at.bytes], at, layer, e)
	}
	if err != nil {
		return fmt.Errorf("load: layer %d, expert %d: %w", layer, e, err)
	}
	return nil
}

// Bank returns a layer's experts in slots of buf.
func (x *Slots) Bank(buf device.Buffer, layer, experts int) (device.Bank, error) {
	at, err := x.lay(layer)
	if err != nil {
		return device.Bank{}, fmt.Errorf("load: layer %d: %w", layer, err)
	}
	return at.bank(buf, experts, x.Step), nil
}

// bank is experts at a distance of step bytes in buf.
func (x *slot) bank(buf device.Buffer, experts, step int) device.Bank {
	b := device.Bank{Experts: experts, Step: step, W13: x.w13, W2: x.w2, Extra: in(x.extra, buf)}
	for _, w := range []*device.Weight{&b.W13, &b.W2} {
		if w.F.DType != tensor.Invalid {
			w.F.Buf = buf
		} else {
			w.Q.Values, w.Q.Scales = buf, buf
		}
	}
	return b
}

// SlotBytes returns the Step of a model's experts as p keeps them on an accelerator.
func SlotBytes(cfg *model.Config, p Precision) (int64, error) {
	f, h := cfg.MoE.FF, cfg.Hidden
	if p.Experts.Zero() {
		dt := KeptType(cfg, model.Experts)
		_, end := extraOf(cfg, aligned(2*f*h*dt.Size())+aligned(f*h*dt.Size()))
		return int64(end), nil
	}
	if p.Experts.Encoding == tensor.Native {
		n, err := nativeStep(cfg)
		return int64(n), err
	}
	w13, w2, err := p.Experts.Network(tensor.GPU, h, f)
	if err != nil {
		return 0, err
	}
	return int64(packedSlot(cfg, w13, w2).bytes), nil
}

// slots returns the layout of experts on the accelerator. The first call computes it from the first
// expert of layer.
func (b *binder) slots(layer int) *Slots {
	switch {
	case b.err != nil || b.card.slots != nil:
	case b.precision.Experts.Zero():
		b.card.slots = b.plainSlots(layer)
	case b.precision.Experts.Encoding == tensor.Native:
		b.card.slots = b.nativeSlots()
	default:
		b.card.slots = b.packedSlots(layer)
	}
	return b.card.slots
}

// packedSlots is slots of packed experts.
func (b *binder) packedSlots(layer int) *Slots {
	f, h := b.cfg.MoE.FF, b.cfg.Hidden
	first, err := b.packedExpert(layer, 0)
	if w := first.W13; err == nil && (w.Rows != 2*f || w.Cols != h || first.W2.Rows != h || first.W2.Cols != f) {
		err = fmt.Errorf("experts %s and %s, want [%d, %d] and [%d, %d]", w.Layout, first.W2.Layout, 2*f, h, h, f)
	}
	if err != nil {
		b.err = fmt.Errorf("load: layer %d: %w", layer, err)
		return nil
	}
	all := packedSlot(b.cfg, first.W13.Layout, first.W2.Layout)
	return &Slots{Step: all.bytes, lay: func(int) (*slot, error) { return all, nil }, put: b.putPacked}
}

// putPacked writes a packed expert to its slot.
func (b *binder) putPacked(dst []byte, at *slot, layer, e int) error {
	x, err := b.packedExpert(layer, e)
	if err != nil {
		return err
	}
	for _, q := range [2]struct{ from, to *device.QMat }{{&x.W13, &at.w13.Q}, {&x.W2, &at.w2.Q}} {
		if q.from.Layout != q.to.Layout {
			return fmt.Errorf("%s, where other experts are %s", q.from.Layout, q.to.Layout)
		}
		copy(dst[q.to.ValueAt:], q.from.Values.Host()[q.from.ValueAt:][:q.to.ValueBytes()])
		copy(dst[q.to.ScaleAt:], q.from.Scales.Host()[q.from.ScaleAt:][:q.to.ScaleBytes()])
	}
	return b.putExtra(dst, at.extra, b.cfg.ExpertNames(layer, e))
}

// plainSlots is slots of experts as the files hold them.
func (b *binder) plainSlots(layer int) *Slots {
	f, h := b.cfg.MoE.FF, b.cfg.Hidden
	kept, err := b.kept(b.cfg.ExpertNames(layer, 0).Gate)
	if err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return nil
	}
	if all, ok := b.cfg.Types[model.Experts]; ok {
		kept = all // of all layers
	}
	size := kept.Size()
	downAt := aligned(2 * f * h * size)
	down := device.NewMat(nil, kept, h, f)
	down.Off = downAt
	cfg, set := b.cfg, b.set
	extra, end := extraOf(cfg, downAt+aligned(f*h*size))
	all := &slot{w13: device.Weight{F: device.NewMat(nil, kept, 2*f, h)}, w2: device.Weight{F: down}, extra: extra, bytes: end}
	return &Slots{Step: end, lay: func(int) (*slot, error) { return all, nil }, put: func(dst []byte, _ *slot, layer, e int) error {
		n := cfg.ExpertNames(layer, e)
		for _, x := range []struct {
			name string
			at   int
		}{{n.Gate, 0}, {n.Up, f * h * size}, {n.Down, downAt}} {
			t, ok := set.Tensor(x.name)
			if !ok {
				return fmt.Errorf("%w: %s", model.ErrTensorMissing, x.name)
			}
			if err := t.Write(dst[x.at:][:f*h*size], kept); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
		}
		return b.putExtra(dst, extra, n)
	}}
}
