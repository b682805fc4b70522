package load

import (
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights/quant"
)

// weight binds a tensor in bits, 0: as it is. key names it in the store.
func (b *binder) weight(key, name string, bits int) device.Weight {
	if bits == 0 || b.err != nil {
		return device.Weight{F: b.mat(name)}
	}
	t, ok := b.set.Tensor(name)
	if !ok || len(t.Shape) != 2 {
		b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, name)
		return device.Weight{}
	}
	return b.integers(key, bits, t.Shape[0], t.Shape[1], name)
}

// joint binds the rows of several tensors of equal width as one matrix of bits, 0: as
// they are.
func (b *binder) joint(key string, bits int, names ...string) device.Weight {
	rows, cols := 0, 0
	for _, name := range names {
		t, ok := b.set.Tensor(name)
		if (!ok || len(t.Shape) != 2) && b.err == nil {
			b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, name)
		}
		if b.err != nil {
			return device.Weight{}
		}
		rows, cols = rows+t.Shape[0], t.Shape[1]
	}
	if bits == 0 {
		return device.Weight{F: b.stacked(rows, cols, names...)}
	}
	return b.integers(key, bits, rows, cols, names...)
}

// ffn binds a network in bits, 0: as it is.
func (b *binder) ffn(key string, n model.FFNNames, bits int) device.FFN {
	if b.err != nil || bits == 0 && b.card == nil {
		return device.FFN{F: b.expert(b.dev, n)}
	}
	t, ok := b.set.Tensor(n.Gate)
	if !ok || len(t.Shape) != 2 {
		b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, n.Gate)
		return device.FFN{}
	}
	f, h := t.Shape[0], t.Shape[1]
	if bits == 0 { // an accelerator reads gate and up as one matrix
		both := b.stacked(2*f, h, n.Gate, n.Up)
		return device.FFN{F: device.Expert{Gate: both.RowRange(0, f), Up: both.RowRange(f, 2*f), Down: b.mat(n.Down)}}
	}
	if b.card != nil {
		return device.FFN{T: device.TExpert{
			W13: b.tiles(key+".w13", bits, 2*f, h, true, b.rows(n.Gate, n.Up)), W2: b.tiles(key+".w2", bits, h, f, false, b.rows(n.Down)),
		}}
	}
	return device.FFN{Q: device.QExpert{
		W13: b.keep(key+".w13", bits, 2*f, h, b.rows(n.Gate, n.Up)),
		W2:  b.keep(key+".w2", bits, h, f, b.rows(n.Down)),
	}}
}

// integers is the matrix [rows, cols] made of the rows of the named tensors.
func (b *binder) integers(key string, bits, rows, cols int, names ...string) device.Weight {
	if b.card != nil {
		return device.Weight{T: b.tiles(key, bits, rows, cols, false, b.rows(names...))}
	}
	return device.Weight{Q: b.keep(key, bits, rows, cols, b.rows(names...))}
}

// rows reads the rows of the named tensors, one after the other.
func (b *binder) rows(names ...string) func([]float32) error {
	return func(x []float32) error {
		for _, name := range names {
			n, err := b.read(x, name)
			if err != nil {
				return err
			}
			x = x[n:]
		}
		return nil
	}
}

// kvB binds MLA's kv_b_proj [heads*(nope+v), rank] in bits, 0: as it is.
func (b *binder) kvB(key, name string, bits, heads, nope, v, rank int) device.KVB {
	if bits == 0 || b.err != nil {
		return device.KVB{F: b.mat(name)}
	}
	if b.card != nil {
		b.err = fmt.Errorf("load: %s keeps kv_b_proj as its files hold it", b.dev.Name())
		return device.KVB{}
	}
	whole := func() ([]float32, error) {
		x := make([]float32, heads*(nope+v)*rank)
		_, err := b.read(x, name)
		return x, err
	}
	var all []float32 // read once for all heads, if any has to be made
	head := func(h int) ([]float32, error) {
		if all == nil {
			var err error
			if all, err = whole(); err != nil {
				return nil, err
			}
		}
		return all[h*(nope+v)*rank : (h+1)*(nope+v)*rank], nil
	}
	var w device.KVB
	for h := range heads {
		w.K = append(w.K, b.keep(fmt.Sprintf("%s.%d.k", key, h), bits, rank, nope, func(x []float32) error {
			rows, err := head(h)
			if err != nil {
				return err
			}
			for i := range nope {
				for r := range rank {
					x[r*nope+i] = rows[i*rank+r]
				}
			}
			return nil
		}))
		w.V = append(w.V, b.keep(fmt.Sprintf("%s.%d.v", key, h), bits, v, rank, func(x []float32) error {
			rows, err := head(h)
			if err != nil {
				return err
			}
			copy(x, rows[nope*rank:])
			return nil
		}))
	}
	return w
}

// read widens a tensor into the start of x and tells how many values it has.
func (b *binder) read(x []float32, name string) (int, error) {
	t, ok := b.set.Tensor(name)
	if !ok {
		return 0, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
	}
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	if n > len(x) {
		return 0, fmt.Errorf("%s has %d values, room is for %d", name, n, len(x))
	}
	if err := tensor.Widen(x[:n], t.DType, t.Data); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	b.set.Release(name)
	return n, nil
}

// keep asks the store for a matrix; fill writes its values [rows, cols].
func (b *binder) keep(key string, bits, rows, cols int, fill func([]float32) error) device.QMat {
	if b.err != nil {
		return device.QMat{}
	}
	f, err := b.precision.format(bits, rows, cols)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", key, err)
		return device.QMat{}
	}
	q, err := b.store.Matrix(key, f, func() (*quant.Matrix, error) {
		x := make([]float32, rows*cols)
		if err := fill(x); err != nil {
			return nil, err
		}
		return quant.Quantize(x, rows, cols, quant.Spec{Bits: bits, Group: b.precision.Group}, quant.Options{})
	})
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", key, err)
		return device.QMat{}
	}
	b.parts.WeightBytes += int64(q.Bytes())
	b.bound(int64(q.Bytes()))
	return q
}

// bank is the routed experts of a layer as integers.
func (b *binder) bank(layer int) []device.QExpert {
	list := b.experts(layer)
	h, f, group := b.cfg.Hidden, b.cfg.MoE.FF, b.parts.Limits.QuantGroup
	if b.card != nil && len(list) > 0 {
		group = list[0].W13.Group // the accelerator's rows are not quantised
	}
	if len(list) != b.cfg.MoE.Experts {
		b.err = fmt.Errorf("load: layer %d: %d experts as integers, the model has %d", layer, len(list), b.cfg.MoE.Experts)
		return nil
	}
	for i := range list {
		e := &list[i]
		if e.W13.Rows != 2*f || e.W13.Cols != h || e.W2.Rows != h || e.W2.Cols != f || e.W13.Group != group {
			b.err = fmt.Errorf("load: layer %d, expert %d: [%d, %d] in groups of %d and [%d, %d], want [%d, %d] in groups of %d and [%d, %d]",
				layer, i, e.W13.Rows, e.W13.Cols, e.W13.Group, e.W2.Rows, e.W2.Cols, 2*f, h, group, h, f)
			return nil
		}
		b.parts.WeightBytes += int64(e.Bytes())
	}
	return list
}
