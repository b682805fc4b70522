package load

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/weights/cache"
	"krater/stages/weights/quant"
)

// card is what loading on an accelerator takes: weights are copied there, integers in
// tiles.
type card struct {
	dev   device.Device
	tiles func(layer, expert int) (ExpertTiles, error)
	made  func(name string, f tensor.FormatB) (*quant.Matrix, error)
	slots *Slots
	s     device.Stream
}

// ExpertTiles is a routed expert in format A, in host memory.
type ExpertTiles struct{ W13, W2 MatrixTiles }

// MatrixTiles is a matrix in format A, in host memory.
type MatrixTiles struct {
	tensor.FormatA
	Values, Scales []byte
}

// cardAlign is what every matrix on an accelerator starts at.
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
func (b *binder) alloc(name string, n int) device.Buffer {
	if b.err != nil {
		return nil
	}
	buf, err := b.dev.Alloc(n)
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

// stacked is the rows of several tensors of equal width and type as one matrix.
func (b *binder) stacked(rows, cols int, names ...string) device.Mat {
	t, _ := b.set.Tensor(names[0])
	kept, err := floatType(t.DType)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", names[0], err)
		return device.Mat{}
	}
	buf, at := b.alloc(names[0], rows*cols*kept.Size()), 0
	for _, name := range names {
		x, _ := b.set.Tensor(name)
		if x.DType != t.DType && b.err == nil {
			b.err = fmt.Errorf("load: %s is %s, %s is %s", names[0], t.DType, name, x.DType)
		}
		data := x.Data
		if kept != x.DType {
			data = widen(make([]byte, 2*len(data)), data)
		}
		b.put(buf, at, data)
		at += len(data)
	}
	if b.err != nil {
		return device.Mat{}
	}
	return device.NewMat(buf, kept, rows, cols)
}

// pack quantises a matrix [rows, cols] into tiles on the host.
func (b *binder) pack(key string, bits, rows, cols int, joined bool, fill func([]float32) error) (MatrixTiles, error) {
	m, err := b.quantize(key, bits, rows, cols, fill)
	if err != nil {
		return MatrixTiles{}, fmt.Errorf("%s: %w", key, err)
	}
	f := tensor.FormatA{Rows: rows, Cols: cols, Bits: bits, Group: m.Group, Joined: joined}
	if err := f.Check(); err != nil {
		return MatrixTiles{}, fmt.Errorf("%s: %w", key, err)
	}
	t := MatrixTiles{FormatA: f, Values: make([]byte, f.ValueBytes()), Scales: make([]byte, f.ScaleBytes())}
	cache.PackA(t.Values, t.Scales, f, m, 0)
	return t, nil
}

// quantize is a matrix as integers, given or made.
func (b *binder) quantize(key string, bits, rows, cols int, fill func([]float32) error) (*quant.Matrix, error) {
	spec := quant.Spec{Bits: bits, Group: b.precision.Group}
	if b.card.made != nil {
		f, err := spec.Format(rows, cols)
		if err != nil {
			return nil, err
		}
		return b.card.made(key, f)
	}
	x := make([]float32, rows*cols)
	if err := fill(x); err != nil {
		return nil, err
	}
	return quant.Quantize(x, rows, cols, spec, quant.Options{})
}

// tiles is a matrix in bits on the device.
func (b *binder) tiles(key string, bits, rows, cols int, joined bool, fill func([]float32) error) device.Tiles {
	if b.err != nil {
		return device.Tiles{}
	}
	t, err := b.pack(key, bits, rows, cols, joined, fill)
	if err != nil {
		b.err = fmt.Errorf("load: %w", err)
		return device.Tiles{}
	}
	scaleAt := aligned(len(t.Values))
	buf := b.alloc(key, scaleAt+len(t.Scales))
	b.put(buf, 0, t.Values)
	b.put(buf, scaleAt, t.Scales)
	return device.Tiles{FormatA: t.FormatA, Values: buf, Scales: buf, ScaleAt: scaleAt}
}

// bankHere is the routed experts of a layer in one piece of the device's memory.
func (b *binder) bankHere(layer int) device.Bank {
	x := b.slots(layer)
	if b.err != nil {
		return device.Bank{}
	}
	buf, room := b.alloc(fmt.Sprintf("experts of layer %d", layer), x.Step*b.cfg.MoE.Experts), make([]byte, x.Step)
	for e := range b.cfg.MoE.Experts {
		if b.err == nil {
			b.err = x.Put(room, layer, e)
		}
		b.put(buf, e*x.Step, room)
	}
	return x.Bank(buf, b.cfg.MoE.Experts)
}

// expertTiles is a routed expert, given or made.
func (b *binder) expertTiles(layer, e int) (ExpertTiles, error) {
	if b.card.tiles != nil {
		return b.card.tiles(layer, e)
	}
	n, f, h, bits := b.cfg.ExpertNames(layer, e), b.cfg.MoE.FF, b.cfg.Hidden, b.precision.Experts
	key := fmt.Sprintf("experts.%d.%d", layer, e)
	w13, err := b.pack(key+".w13", bits, 2*f, h, true, b.rows(n.Gate, n.Up))
	if err != nil {
		return ExpertTiles{}, err
	}
	w2, err := b.pack(key+".w2", bits, h, f, false, b.rows(n.Down))
	return ExpertTiles{W13: w13, W2: w2}, err
}
