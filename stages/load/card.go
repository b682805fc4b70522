package load

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights/cache"
)

// card loads weights on an accelerator: it packs them for the device and copies them.
type card struct {
	dev     device.Device
	experts func(layer, expert int) (device.QExpert, error)
	made    func(name string, l tensor.Layout) (*tensor.Matrix, error)
	slots   *Slots
	s       device.Stream
}

// cardAlign is the alignment of matrices on an accelerator, in bytes.
const cardAlign = 256

func aligned(n int) int { return (n + cardAlign - 1) / cardAlign * cardAlign }

// upload copies b to buf from at on and waits.
func (c *card) upload(buf device.Buffer, at int, b []byte) error {
	if c.s == nil {
		var err error
		if c.s, err = c.dev.NewStream(); err != nil {
			return err
		}
	}
	c.s.CopyIn(device.Mat{Buf: buf, Off: at, DType: tensor.U8, Rows: 1, Cols: len(b), Stride: len(b)}, b)
	return c.s.Synchronize()
}

func (c *card) close() {
	if c.s != nil {
		c.s.Close()
	}
}

// alloc makes memory of the parts for what has a name.
func (b *binder) alloc(name string, n int) device.Buffer { return b.allocBy(b.dev.Alloc, name, n) }

// allocBy is alloc in memory of alloc.
func (b *binder) allocBy(alloc func(n int) (device.Buffer, error), name string, n int) device.Buffer {
	if b.err != nil {
		return nil
	}
	buf, err := alloc(n)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", name, err)
		return nil
	}
	b.parts.bufs = append(b.parts.bufs, buf)
	b.parts.WeightBytes += int64(n)
	return buf
}

// put copies bytes to memory of the parts.
func (b *binder) put(buf device.Buffer, at int, data []byte) {
	if b.err == nil {
		b.err = b.card.upload(buf, at, data)
		b.bound(int64(len(data)))
	}
}

// stacked returns the rows of several tensors of equal width as one matrix. Rows behind them are zeros.
func (b *binder) stacked(rows, cols int, names ...string) device.Mat {
	return b.stackedBy(b.dev.Alloc, rows, cols, names...)
}

// stackedBy is stacked in memory of alloc.
func (b *binder) stackedBy(alloc func(n int) (device.Buffer, error), rows, cols int, names ...string) device.Mat {
	kept, err := b.kept(names[0], names[1:]...)
	if err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return device.Mat{}
	}
	buf, at := b.allocBy(alloc, names[0], rows*cols*kept.Size()), 0
	for _, name := range names {
		t, _ := b.set.Tensor(name)
		data := t.Data
		if t.Coded != nil || t.DType != kept {
			n, width := t.Rows()
			data = make([]byte, n*width*kept.Size())
			if err := t.Write(data, kept); err != nil && b.err == nil {
				b.err = fmt.Errorf("load: %s: %w", name, err)
			}
			b.set.Release(name)
		}
		b.put(buf, at, data)
		at += len(data)
	}
	if b.err != nil {
		return device.Mat{}
	}
	return device.NewMat(buf, kept, rows, cols)
}

// copied returns a packed matrix on the device.
func (b *binder) copied(key string, l tensor.Layout, f tensor.Format, v values) device.QMat {
	q, err := b.pack(key, l, f, v)
	if err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return device.QMat{}
	}
	buf := b.alloc(key, q.ScaleAt+l.ScaleBytes())
	b.put(buf, 0, q.Values.Host())
	q.Values, q.Scales = buf, buf
	return q
}

// pack makes a matrix that is to lie as l, in the format f, in host memory.
func (b *binder) pack(key string, l tensor.Layout, f tensor.Format, v values) (device.QMat, error) {
	if f.Shared() && b.own != nil { // the host's copy is the accelerator's
		host := l
		host.For = tensor.CPU
		q, err := b.own.Matrix(key, host, func() (*tensor.Matrix, error) { return b.quantize(key, host, f, v) })
		q.For = tensor.GPU
		return q, err
	}
	m, err := b.quantize(key, l, f, v)
	if err != nil {
		return device.QMat{}, fmt.Errorf("%s: %w", key, err)
	}
	scaleAt := aligned(l.ValueBytes())
	room := make(hostBytes, scaleAt+l.ScaleBytes())
	cache.Pack(cache.Packed{Layout: l, Values: room, Scales: room[scaleAt:]}, m, 0)
	return device.QMat{Layout: l, Values: room, Scales: room, ScaleAt: scaleAt}, nil
}

// hostBytes is memory of this process as a buffer.
type hostBytes []byte

func (b hostBytes) Size() int    { return len(b) }
func (b hostBytes) Host() []byte { return b }
func (b hostBytes) Free()        {}

// bankHere returns the routed experts of a layer in one piece of the device's memory.
func (b *binder) bankHere(layer int) device.Bank {
	x := b.slots(layer)
	if b.err != nil {
		return device.Bank{}
	}
	at, err := x.lay(layer)
	if err != nil {
		b.err = fmt.Errorf("load: layer %d: %w", layer, err)
		return device.Bank{}
	}
	buf, room := b.alloc(fmt.Sprintf("experts of layer %d", layer), at.bytes*b.cfg.MoE.Experts), make([]byte, at.bytes)
	for e := range b.cfg.MoE.Experts {
		if b.err == nil {
			b.err = x.Put(room, layer, e)
		}
		b.put(buf, e*at.bytes, room)
	}
	return at.bank(buf, b.cfg.MoE.Experts, at.bytes)
}

// packedExpert returns a routed expert in host memory, as the accelerator wants it: given or made.
func (b *binder) packedExpert(layer, e int) (device.QExpert, error) {
	if b.card.experts != nil {
		return b.card.experts(layer, e)
	}
	n, key := b.cfg.ExpertNames(layer, e), fmt.Sprintf("experts.%d.%d", layer, e)
	f, f2 := b.precision.format(b.cfg, model.Experts, n.Gate), b.precision.format(b.cfg, model.Experts, n.Down)
	w13, w2, err := f.NetworkWith(f2, tensor.GPU, b.cfg.Hidden, b.cfg.MoE.FF)
	if err != nil {
		return device.QExpert{}, err
	}
	var x device.QExpert // its biases lie in the slot
	if x.W13, err = b.pack(key+".w13", w13, f, b.rows(n.Gate, n.Up)); err == nil {
		x.W2, err = b.pack(key+".w2", w2, f2, b.rows(n.Down))
	}
	return x, err
}
