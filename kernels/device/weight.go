package device

import "krater/kernels/tensor"

// Weight is the matrix [N, K] of a linear layer: F as its file holds it, or Q packed in a
// format. Both absent means the layer does not exist.
type Weight struct {
	F Mat
	Q QMat
}

// Zero reports whether w is absent.
func (w *Weight) Zero() bool { return w.F.Zero() && w.Q.Zero() }

// Integer reports whether w multiplies rows of integers (QRows).
func (w *Weight) Integer() bool { return w.Q.integer() }

// integer reports whether q multiplies rows of integers: a GPU multiplies rows as they are.
func (q *QMat) integer() bool { return !q.Zero() && q.For == tensor.CPU }

// Bytes returns the number of bytes that a pass over the matrix reads.
func (w *Weight) Bytes() int {
	if w.Q.Encoding != nil {
		return w.Q.Bytes()
	}
	return w.F.Bytes()
}

// FFN is one SwiGLU network: F as its file holds it, or Q packed in a format. Both absent
// means the layer has none.
type FFN struct {
	F Expert
	Q QExpert
}

// Zero reports whether n is absent.
func (n *FFN) Zero() bool { return n.F.Gate.Zero() && n.Q.W13.Zero() }

// Integer reports whether n multiplies rows of integers (QRows).
func (n *FFN) Integer() bool { return n.Q.W13.integer() }

// Bytes returns the number of bytes that a pass over the network reads.
func (n *FFN) Bytes() int {
	if !n.Q.W13.Zero() {
		return n.Q.Bytes()
	}
	return n.F.Bytes()
}

// Bytes returns the number of bytes that a pass over the network reads.
func (e *Expert) Bytes() int { return e.Gate.Bytes() + e.Up.Bytes() + e.Down.Bytes() + e.Extra.Bytes() }

// Bytes returns the number of bytes that a pass over the network reads.
func (e *QExpert) Bytes() int { return e.W13.Bytes() + e.W2.Bytes() + e.Extra.Bytes() }

// Bytes returns the size of the biases in bytes.
func (e *Extra) Bytes() int { return e.B13.Bytes() + e.B2.Bytes() }

// KVB is MLA's kv_b_proj, which turns a compressed row of the cache into the keys
// and values of every head: F [Heads*(Nope+V), Rank], or packed, cut by head
// and use as the absorbed form of attention multiplies with them.
//
// With packed weights the queries and sums of generated rows are quantised where they are multiplied,
// in MatMulQ's arithmetic. The keys and values of prompts are computed from the weights widened to
// float32.
type KVB struct {
	F Mat
	K []QMat // [Heads] of [Rank, Nope]: a head's key rows transposed
	V []QMat // [Heads] of [V, Rank]
}

// Zero reports whether w is absent.
func (w *KVB) Zero() bool { return w.F.Zero() && len(w.K) == 0 }

// Integer reports whether w is kept as integers.
func (w *KVB) Integer() bool { return len(w.K) > 0 }

// Bytes returns the number of bytes that a pass over the matrix reads.
func (w *KVB) Bytes() int {
	if !w.Integer() {
		return w.F.Bytes()
	}
	n := 0
	for i := range w.K {
		n += w.K[i].Bytes() + w.V[i].Bytes()
	}
	return n
}

// KV is a cache of keys and values: a row a slot, of one layer.
//
// What is stored is rounded to nearest, ties to even. In 8 bits it saturates, at 448
// (F8E4M3) or 2^127 (I8), infinities too, and NaN is stored as zero: such a cache
// never holds one, so no later token meets it. Marks tell which rows had one,
// whatever the type. I8 is QuantizeRows' arithmetic by
// groups of Group columns. Attention computes with the exact values of F8E4M3 and
// with float32(integer) * scale of I8.
type KV struct {
	Mat // [slots, width] BF16, F32, F8E4M3 or I8
	// Scales [slots, width/Group] F32 belong to a cache of I8: a value is its
	// integer times the scale of its Group columns. Absent otherwise.
	Scales Mat
	Group  int // divides what a row is made of: heads, compressed part, rotated part
	// Marks [T, 1] I32, unless absent, receives marks from StoreRows: a stored row with a value
	// that is NaN or infinite gets Mark (> 0), unless it has a mark already.
	Marks Mat
	Mark  int32
}

// Bytes returns the size of the cache.
func (c *KV) Bytes() int { return c.Mat.Bytes() + c.Scales.Bytes() }

// KVRowBytes returns the size of a row of width values in a cache of type dt, whose scales are
// each of group values where dt has any.
func KVRowBytes(dt tensor.DType, width, group int) int {
	if dt == tensor.I8 {
		return width + 4*(width/group)
	}
	return width * dt.Size()
}

// AllocKV allocates a zeroed cache on d. group counts for I8 only.
func AllocKV(d Device, dt tensor.DType, slots, width, group int) (KV, error) {
	return AllocKVBy(d.Alloc, dt, slots, width, group)
}

// AllocKVBy is AllocKV in memory of alloc.
func AllocKVBy(alloc func(n int) (Buffer, error), dt tensor.DType, slots, width, group int) (KV, error) {
	rows, err := allocMat(alloc, dt, slots, width)
	if err != nil || dt != tensor.I8 {
		return KV{Mat: rows}, err
	}
	scales, err := allocMat(alloc, tensor.F32, slots, width/group)
	if err != nil {
		rows.Buf.Free()
		return KV{}, err
	}
	return KV{Mat: rows, Scales: scales, Group: group}, nil
}

// Free gives the cache's memory back.
func (c *KV) Free() {
	c.Buf.Free()
	if !c.Scales.Zero() {
		c.Scales.Buf.Free()
	}
}

// AllocQRows allocates quantised rows [rows, cols] in groups of group columns on
// d; cols is filled up to a multiple of 32. The stride keeps rows out of each
// other's way, see QRows.
func AllocQRows(d Device, rows, cols, group int) (QRows, error) {
	k := tensor.Padded(cols)
	stride := k
	if stride%4096 == 0 {
		stride += 64
	}
	x := QRows{Group: group}
	var err error
	if x.Q, err = AllocMat(d, tensor.I8, rows, stride); err != nil {
		return QRows{}, err
	}
	x.Q = x.Q.ColRange(0, k)
	if x.Scale, err = AllocMat(d, tensor.F32, rows, k/group); err == nil {
		if x.Bias, err = AllocMat(d, tensor.I32, rows, k/group); err == nil {
			return x, nil
		}
		x.Scale.Buf.Free()
	}
	x.Q.Buf.Free()
	return QRows{}, err
}

// Zero reports whether x is absent.
func (x *QRows) Zero() bool { return x.Q.Zero() }

// RowRange views rows [from, to).
func (x QRows) RowRange(from, to int) QRows {
	x.Q, x.Scale, x.Bias = x.Q.RowRange(from, to), x.Scale.RowRange(from, to), x.Bias.RowRange(from, to)
	return x
}

// Free gives the memory of AllocQRows back.
func (x *QRows) Free() {
	if x.Zero() {
		return
	}
	x.Q.Buf.Free()
	x.Scale.Buf.Free()
	x.Bias.Buf.Free()
	*x = QRows{}
}

// QRowsBytes returns the number of bytes that AllocQRows allocates.
func QRowsBytes(rows, cols, group int) int {
	k := tensor.Padded(cols)
	stride := k
	if stride%4096 == 0 {
		stride += 64
	}
	return rows * (stride + 8*(k/group))
}
