package load

import (
	"fmt"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

// weight binds a tensor in a format. key names it in the store.
func (b *binder) weight(key, name string, f tensor.Format) device.Weight {
	if f.Zero() || b.err != nil {
		return device.Weight{F: b.mat(name)}
	}
	t, ok := b.set.Tensor(name)
	if !ok || len(t.Shape) != 2 {
		b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, name)
		return device.Weight{}
	}
	return b.packed(key, f, t.Shape[0], t.Shape[1], name)
}

// joint binds the rows of several tensors of equal width as one matrix in a format.
func (b *binder) joint(key string, f tensor.Format, names ...string) device.Weight {
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
	if f.Zero() {
		return device.Weight{F: b.stacked(rows, cols, names...)}
	}
	return b.packed(key, f, rows, cols, names...)
}

// ffn binds a network in a format.
func (b *binder) ffn(key string, n model.FFNNames, part model.Part, store Store) device.FFN {
	t, t2 := b.precision.format(b.cfg, part, n.Gate), b.precision.format(b.cfg, part, n.Down)
	if b.err != nil || t.Zero() && b.card == nil {
		return device.FFN{F: b.expert(b.dev, n)}
	}
	gate, ok := b.set.Tensor(n.Gate)
	if !ok || len(gate.Shape) != 2 {
		b.err = fmt.Errorf("load: %w: %s", model.ErrTensorMissing, n.Gate)
		return device.FFN{}
	}
	f, h := gate.Shape[0], gate.Shape[1]
	if t.Zero() { // an accelerator reads gate and up as one matrix
		both := b.stacked(2*f, h, n.Gate, n.Up)
		return device.FFN{F: device.Expert{Gate: both.RowRange(0, f), Up: both.RowRange(f, 2*f), Down: b.mat(n.Down)}}
	}
	w13, w2, err := t.NetworkWith(t2, b.precision.kind, h, f)
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", key, err)
		return device.FFN{}
	}
	return device.FFN{Q: device.QExpert{
		W13: b.keep(key+".w13", w13, t, store, b.rows(n.Gate, n.Up)), W2: b.keep(key+".w2", w2, t2, store, b.rows(n.Down)),
	}}
}

// packed returns the matrix [rows, cols] in a format made of the rows of the named tensors.
func (b *binder) packed(key string, f tensor.Format, rows, cols int, names ...string) device.Weight {
	return device.Weight{Q: b.matrix(key, f, rows, cols, b.rows(names...))}
}

// values gives the values of a matrix.
type values struct {
	fill func([]float32) error // writes them
	// exact is the matrix in a format that has them exactly; nil: it does not.
	exact func(f tensor.Format, cols int) (*tensor.Matrix, error)
}

// rows returns the rows of the named tensors, one after the other.
func (b *binder) rows(names ...string) values {
	fill := func(x []float32) error {
		for _, name := range names {
			n, err := b.read(x, name)
			if err != nil {
				return err
			}
			x = x[n:]
		}
		return nil
	}
	exact := func(f tensor.Format, cols int) (*tensor.Matrix, error) {
		var list []weights.Tensor
		for _, name := range names {
			t, _ := b.set.Tensor(name)
			list = append(list, t)
		}
		m, err := weights.Exactly(f, cols, list...)
		for i := 0; m != nil && i < len(names); i++ {
			b.set.Release(names[i])
		}
		return m, err
	}
	return values{fill, exact}
}

// kvB binds MLA's kv_b_proj [heads*(nope+v), rank] in a format.
func (b *binder) kvB(key, name string, f tensor.Format, heads, nope, v, rank int) device.KVB {
	if f.Zero() || b.err != nil {
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
		w.K = append(w.K, b.matrix(fmt.Sprintf("%s.%d.k", key, h), f, rank, nope, values{fill: func(x []float32) error {
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
		}}))
		w.V = append(w.V, b.matrix(fmt.Sprintf("%s.%d.v", key, h), f, v, rank, values{fill: func(x []float32) error {
			rows, err := head(h)
			if err != nil {
				return err
			}
			copy(x, rows[nope*rank:])
			return nil
		}}))
	}
	return w
}

// read writes the values of a tensor to the start of x and tells how many values it has.
func (b *binder) read(x []float32, name string) (int, error) {
	t, ok := b.set.Tensor(name)
	if !ok {
		return 0, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
	}
	rows, width := t.Rows()
	n := rows * width
	if n > len(x) {
		return 0, fmt.Errorf("%s has %d values, room is for %d", name, n, len(x))
	}
	if err := t.Floats(x[:n], 0); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	b.set.Release(name)
	return n, nil
}

// matrix returns a matrix [rows, cols] in a format; v gives its values.
func (b *binder) matrix(key string, f tensor.Format, rows, cols int, v values) device.QMat {
	l, err := f.On(b.precision.kind, rows, cols)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("load: %s: %w", key, err)
	}
	return b.keep(key, l, f, b.store, v)
}

// keep asks a store for a matrix that is to lie as l, in the format f that was asked for;
// v gives its values.
func (b *binder) keep(key string, l tensor.Layout, f tensor.Format, store Store, v values) device.QMat {
	if b.err != nil {
		return device.QMat{}
	}
	if b.card != nil {
		return b.copied(key, l, f, v)
	}
	q, err := store.Matrix(key, l, func() (*tensor.Matrix, error) { return b.quantize(key, l, f, v) })
	if err != nil {
		b.err = fmt.Errorf("load: %s: %w", key, err)
		return device.QMat{}
	}
	b.parts.WeightBytes += int64(q.Bytes())
	b.bound(int64(q.Bytes()))
	return q
}

// quantize makes a matrix that is to lie as l, in the format f, or is given it.
func (b *binder) quantize(key string, l tensor.Layout, f tensor.Format, v values) (*tensor.Matrix, error) {
	if b.card != nil && b.card.made != nil {
		return b.card.made(key, l)
	}
	if v.exact != nil {
		if m, err := v.exact(f, l.Cols); m != nil || err != nil {
			return m, err
		}
	}
	if f.Stored() {
		return nil, fmt.Errorf("the files do not have it as %s: a scale or a value is no number, or a scale is too small", f)
	}
	x := make([]float32, l.Rows*l.Cols)
	if err := v.fill(x); err != nil {
		return nil, err
	}
	return quant.Quantize(x, l.Rows, l.Cols, f, quant.Options{})
}

// bank returns the routed experts of a layer, packed for the host.
func (b *binder) bank(layer int) []device.QExpert {
	list := b.experts(layer)
	if len(list) != b.cfg.MoE.Experts {
		b.err = fmt.Errorf("load: layer %d: %d packed experts, the model has %d", layer, len(list), b.cfg.MoE.Experts)
		return nil
	}
	h, f, group := b.cfg.Hidden, b.cfg.MoE.FF, b.parts.Limits.QuantGroup
	if b.card != nil && len(list) > 0 { // an accelerator's rows are not quantised
		group = list[0].W13.Group
	}
	list = slices.Clone(list)
	for i := range list {
		e := &list[i]
		if e.W13.Rows != 2*f || e.W13.Cols != h || e.W2.Rows != h || e.W2.Cols != f || e.W13.Group != group {
			b.err = fmt.Errorf("load: layer %d, expert %d: %s and %s, want [%d, %d] in groups of %d and [%d, %d]",
				layer, i, e.W13.Layout, e.W2.Layout, 2*f, h, group, h, f)
			return nil
		}
		b.parts.WeightBytes += int64(e.Bytes())
		e.Extra = b.extraBeside(e.W13.Values, b.cfg.ExpertNames(layer, i))
	}
	return list
}
