//go:build cuda

package cuda

import (
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// memory is a buffer that no kernel uses.
type memory struct{ device.Buffer }

// rowsOf makes a matrix in its own memory.
func rowsOf(dt tensor.DType, rows, cols int) device.Mat {
	return device.NewMat(new(memory), dt, rows, cols)
}

// names returns the operators that a list becomes.
func names(d *Device, l device.List) (out []string) {
	for len(l.Ops) > 0 {
		f := d.first(l)
		out = append(out, f.name)
		l = l.From(f.n)
	}
	return out
}

// layer appends a layer with latent or grouped-query attention and experts; all of its rows are
// generated, or none. Gated: the shared network of latent layers has a gate.
func layer(l *device.List, rows int, latent, generated, gated bool, extra func(normed, delta device.Mat)) {
	m := func(dt tensor.DType, cols int) device.Mat { return rowsOf(dt, rows, cols) }
	hidden, normed, delta, out := m(tensor.F32, 64), m(tensor.BF16, 64), m(tensor.BF16, 64), m(tensor.BF16, 64)
	both := m(tensor.BF16, 96)
	q, kv := both.ColRange(0, 64), both.ColRange(64, 96)
	w := &device.Weight{F: rowsOf(tensor.BF16, 96, 64)}
	positions, slots, angles := m(tensor.I32, 1), m(tensor.I32, 1), rowsOf(tensor.F32, 9, 8)
	spans := device.Spans{Decode: generated}
	l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
	l.MatMul(both, normed, device.QRows{}, w)
	if extra != nil {
		extra(normed, delta)
	}
	if latent {
		l.Rope(q, positions, angles, &device.Rope{})
		l.RMSNorm(kv.ColRange(0, 24), kv.ColRange(0, 24), rowsOf(tensor.BF16, 1, 24), 1e-6)
		l.Rope(kv.ColRange(24, 32), positions, angles, &device.Rope{})
		l.StoreRows(device.KV{}, kv, slots)
		l.MLA(out, q, device.KV{}, &device.KVB{}, spans, &device.MLA{})
	} else {
		l.HeadNorm(q, 4, rowsOf(tensor.BF16, 1, 16), 1e-6)
		l.HeadNorm(kv.ColRange(0, 16), 1, rowsOf(tensor.BF16, 1, 16), 1e-6)
		l.Rope(q, positions, angles, &device.Rope{})
		l.Rope(kv.ColRange(0, 16), positions, angles, &device.Rope{})
		l.StoreRows(device.KV{}, kv, slots)
		l.GQA(out, q, device.KV{}, device.Mat{}, spans, &device.GQA{})
	}
	l.MatMul(delta, out, device.QRows{}, w)
	l.Add(hidden, delta)
	l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
	ids, shares, logits, y, shared := m(tensor.I32, 2), m(tensor.F32, 2), m(tensor.F32, 8), rowsOf(tensor.BF16, 2*rows, 64), m(tensor.BF16, 64)
	l.MatMul(logits, normed, device.QRows{}, &device.Weight{F: rowsOf(tensor.F32, 8, 64)})
	l.RouteTopK(ids, shares, logits, device.Mat{}, device.Mat{}, &device.Router{})
	l.ExpertsOn(y, normed, &device.Bank{}, ids)
	if latent {
		l.FFN(shared, normed, device.QRows{}, &device.FFN{})
		if gated {
			l.GateRows(shared, normed, rowsOf(tensor.BF16, 1, 64))
		}
	} else {
		shared = device.Mat{}
	}
	l.WeightedSum(delta, y, shares, shared, ids, device.Mat{})
	l.Add(hidden, delta)
}

// TestFusedBiases: a bias is added by the kernel of its product.
func TestFusedBiases(t *testing.T) {
	for _, c := range []struct {
		rows int
		bias tensor.DType
		want []string
	}{
		{1, tensor.F32, []string{"NormMatMul", "AddMatMul", "NormRoute"}},
		{8, tensor.F32, []string{"RMSNorm", "MatMul", "AddMatMul", "RMSNorm", "Route"}},
		{300, tensor.F32, []string{"RMSNorm", "MatMul", "MatMul", "AddRMSNorm", "Route"}},
		{1, tensor.BF16, []string{"NormMatMul", "AddBias", "MatMul", "AddBias", "AddRMSNorm", "MatMul", "AddBias", "RouteTopK"}},
	} {
		var l device.List
		l.Generated = c.rows % 300
		m := func(dt tensor.DType, cols int) device.Mat { return rowsOf(dt, c.rows, cols) }
		bias := func(cols int) device.Mat { return rowsOf(c.bias, 1, cols) }
		hidden, normed, delta, joined, logits := m(tensor.F32, 64), m(tensor.BF16, 64), m(tensor.BF16, 64), m(tensor.BF16, 96), m(tensor.F32, 8)
		w := &device.Weight{F: rowsOf(tensor.BF16, 96, 64)}
		l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
		l.MatMul(joined, normed, device.QRows{}, w)
		l.AddBias(joined, bias(96))
		l.MatMul(delta, joined.ColRange(0, 64), device.QRows{}, w)
		l.AddBias(delta, bias(64))
		l.Add(hidden, delta)
		l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
		l.MatMul(logits, normed, device.QRows{}, &device.Weight{F: rowsOf(tensor.F32, 8, 64)})
		l.AddBias(logits, bias(8))
		l.RouteTopK(m(tensor.I32, 2), m(tensor.F32, 2), logits, device.Mat{}, device.Mat{}, &device.Router{})
		if got := names(&Device{}, l); !slices.Equal(got, c.want) {
			t.Errorf("%d rows, bias %s: %q, want %q", c.rows, c.bias, got, c.want)
		}
	}
}

// TestFusedDelta: few generated rows of gated DeltaNet become fewer operators.
func TestFusedDelta(t *testing.T) {
	p, float := &device.DeltaNet{KeyHeads: 1, ValueHeads: 2, KeyDim: 16, ValueDim: 16, Taps: 4}, &device.Weight{F: rowsOf(tensor.BF16, 4, 64)}
	packed := &device.Weight{Q: device.QMat{Layout: tensor.Layout{Format: tensor.INT8.By(128), Rows: 96, Cols: 64, For: tensor.GPU}, Values: new(memory)}}
	apart := []string{"RMSNorm", "MatMul", "MatMul", "Conv", "Delta", "GatedNorm", "MatMul", "AddRMSNorm"}
	for _, c := range []struct {
		name    string
		dev     *Device
		rows    int
		decode  bool
		second  *device.Weight
		another bool // operator reads the convolution
		want    []string
	}{
		{"one row", &Device{}, 1, true, float, false, []string{"RMSNorm", "MatMulPair", "DeltaStep", "GatedNorm", "AddMatMul", "RMSNorm"}},
		{"both packed", &Device{}, 1, true, packed, false, []string{"RMSNorm", "MatMul", "MatMul", "DeltaStep", "GatedNorm", "AddMatMul", "RMSNorm"}},
		{"read again", &Device{}, 1, true, float, true, []string{"RMSNorm", "MatMulPair", "Conv", "Delta", "GatedNorm", "AddMatMul", "RMSNorm", "CopyRows"}},
		{"a prompt", &Device{}, 300, false, float, false, apart},
		{"float32", &Device{Layout: Layout{F32: true}}, 1, false, float, false, apart},
	} {
		var l device.List
		l.Generated = c.rows % 300
		m := func(dt tensor.DType, cols int) device.Mat { return rowsOf(dt, c.rows, cols) }
		hidden, normed, delta, both, conv, out := m(tensor.F32, 64), m(tensor.BF16, 64), m(tensor.BF16, 64), m(tensor.BF16, 100), m(tensor.BF16, p.Channels()), m(tensor.BF16, p.Values())
		spans := device.Spans{List: make([]device.Span, 1), Decode: c.decode}
		l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
		l.MatMul(both.ColRange(0, 96), normed, device.QRows{}, packed)
		l.MatMul(both.ColRange(96, 100), normed, device.QRows{}, c.second)
		l.Conv(conv, both.ColRange(0, 96), rowsOf(tensor.F32, 4, 64), device.KV{}, spans, p)
		l.Delta(out, conv, both.ColRange(96, 100), rowsOf(tensor.F32, 1, 2), rowsOf(tensor.F32, 1, 2), device.KV{}, spans, p)
		l.GatedNorm(out, both.ColRange(0, 96), rowsOf(tensor.BF16, 1, 16), 1e-6, p)
		l.MatMul(delta, out, device.QRows{}, float)
		l.Add(hidden, delta)
		l.RMSNorm(normed, hidden, rowsOf(tensor.BF16, 1, 64), 1e-6)
		if c.another {
			l.CopyRows(m(tensor.BF16, p.Channels()), conv)
		}
		if got := names(c.dev, l); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestFused: a layer becomes these operators, and a value that another operator reads is computed
// for it.
func TestFused(t *testing.T) {
	many := 300
	for _, c := range []struct {
		name              string
		dev               *Device
		rows              int
		latent, generated bool
		gated             bool
		extra             func(l *device.List) func(normed, delta device.Mat)
		want              []string
	}{
		{"one generated row", &Device{}, 1, true, true, false, nil, []string{"NormMatMul", "LatentDecode", "AddMatMul", "NormRoute", "AddMix"}},
		{"one with grouped heads", &Device{}, 1, false, true, false, nil, []string{"NormMatMul", "HeadStore", "GQA", "AddMatMul", "NormRoute", "AddMix"}},
		{"a few rows", &Device{}, 8, true, true, false, nil, []string{"RMSNorm", "MatMul", "LatentDecode", "AddMatMul", "RMSNorm", "Route", "AddMix"}},
		{"one behind a gate", &Device{}, 1, true, true, true, nil, []string{"NormMatMul", "LatentDecode", "AddMatMul", "NormRoute", "AddMix"}},
		{"a prompt behind a gate", &Device{}, many, true, false, true, nil, []string{"RMSNorm", "MatMul", "Latent", "MLA", "MatMul", "AddRMSNorm", "Route", "Mix", "Add"}},
		{"a prompt", &Device{}, many, true, false, false, nil, []string{"RMSNorm", "MatMul", "Latent", "MLA", "MatMul", "AddRMSNorm", "Route", "Mix", "Add"}},
		{"float32", &Device{Layout: Layout{F32: true}}, 1, false, true, false, nil, []string{"RMSNorm", "MatMul", "HeadStore", "GQA", "MatMul", "AddRMSNorm", "Route", "Mix", "Add"}},
		{"many generated rows, invariant", &Device{invariant: true}, many, true, true, false, nil, []string{"RMSNorm", "MatMul", "LatentDecode", "AddMatMul", "RMSNorm", "Route", "AddMix"}},
		{"the norm is read again", &Device{}, 1, true, true, false, func(l *device.List) func(normed, delta device.Mat) {
			return func(normed, _ device.Mat) { l.CopyRows(rowsOf(tensor.BF16, 1, 64), normed) }
		}, []string{"RMSNorm", "MatMul", "CopyRows", "LatentDecode", "AddMatMul", "NormRoute", "AddMix"}},
	} {
		var l device.List
		if c.generated {
			l.Generated = c.rows
		}
		var extra func(normed, delta device.Mat)
		if c.extra != nil {
			extra = c.extra(&l)
		}
		layer(&l, c.rows, c.latent, c.generated, c.gated, extra)
		if got := names(c.dev, l); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// The next layer writes the queries again before it reads them.
	var two device.List
	two.Generated = 1
	layer(&two, 1, true, true, false, nil)
	two.Ops = append(two.Ops, two.Ops...)
	want := []string{"NormMatMul", "LatentDecode", "AddMatMul", "NormRoute", "AddMix"}
	if got := names(&Device{}, two); !slices.Equal(got, append(want, want...)) {
		t.Errorf("two layers: %q", got)
	}
	// A value that is read after its sum must be computed.
	var l device.List
	hidden, delta, x := rowsOf(tensor.F32, 1, 64), rowsOf(tensor.BF16, 1, 64), rowsOf(tensor.BF16, 1, 64)
	l.MatMul(delta, x, device.QRows{}, &device.Weight{F: rowsOf(tensor.BF16, 64, 64)})
	l.Add(hidden, delta)
	l.CopyRows(x, delta)
	if got := names(&Device{}, l); !slices.Equal(got, []string{"MatMul", "Add", "CopyRows"}) {
		t.Errorf("a delta that is read again: %q", got)
	}
}

// TestFusedIndex: between the projections and the scores of an index over blocks there is one launch, with a norm of the keys or none.
func TestFusedIndex(t *testing.T) {
	both, norm := rowsOf(tensor.BF16, 3, 80), rowsOf(tensor.BF16, 1, 16)
	positions, slots, angles := rowsOf(tensor.I32, 3, 1), rowsOf(tensor.I32, 3, 1), rowsOf(tensor.F32, 9, 8)
	turn, one := device.Rope{Heads: 4, HeadDim: 16, Dim: 8}, device.Rope{Heads: 1, HeadDim: 16, Dim: 8}
	q, key := both.ColRange(0, 64), both.ColRange(64, 80)
	for _, c := range []struct {
		normed bool
		key    device.Mat
		eps    float32
		want   []string
	}{
		{true, key, 1e-6, []string{"IndexStore"}},
		{false, key, 0, []string{"IndexStore"}},
		{true, key, 1e-5, []string{"HeadNorm", "Rope", "HeadNorm", "Rope", "StoreRows"}},
		{false, both.ColRange(48, 64), 0, []string{"HeadNorm", "Rope", "StoreRows"}},
	} {
		var l device.List
		l.HeadNorm(q, 4, norm, 1e-6)
		l.Rope(q, positions, angles, &turn)
		if c.normed {
			l.HeadNorm(c.key, 1, norm, c.eps)
			l.Rope(c.key, positions, angles, &one)
		}
		l.StoreRows(device.KV{}, c.key, slots)
		if got := names(&Device{}, l); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// streamsLayer appends what lies between streams and a block, as stages/streams does, with grown streams before it.
func streamsLayer(l *device.List, rows int) (out, weights device.Mat) {
	const n, h, rank = 4, 16, 8
	m := func(dt tensor.DType, cols int) device.Mat { return rowsOf(dt, rows, cols) }
	hidden, normed, delta, joined := m(tensor.F32, n*h), m(tensor.BF16, n*h), m(tensor.BF16, h), m(tensor.BF16, 16)
	out, weights = m(tensor.BF16, h), m(tensor.BF16, n*h)
	low, inject, norm := joined.ColRange(0, rank), joined.ColRange(rank, rank+n), rowsOf(tensor.F32, 1, n*h)
	l.Spread(hidden, delta, inject, hidden)
	for s := range n {
		from, to := s*h, (s+1)*h
		l.RMSNorm(normed.ColRange(from, to), hidden.ColRange(from, to), norm.ColRange(from, to), 1e-6)
	}
	l.MatMul(joined, normed, device.QRows{}, &device.Weight{F: rowsOf(tensor.BF16, 16, n*h)})
	l.Sigmoid(low, device.Sigmoid{Silu: true, In: 0.25, Out: 1})
	l.Sigmoid(inject, device.Sigmoid{In: 0.25, Out: 2})
	l.MatMul(weights, low, device.QRows{}, &device.Weight{F: rowsOf(tensor.BF16, n*h, rank)})
	l.Sigmoid(weights, device.Sigmoid{In: 1, Out: 0.25})
	l.Collapse(out, normed, weights)
	return out, weights
}

// TestFusedStreams: what lies between two blocks becomes three operators, unless something else reads the weights.
func TestFusedStreams(t *testing.T) {
	for _, dev := range []*Device{{}, {Layout: Layout{F32: true}}} {
		var l device.List
		streamsLayer(&l, 3)
		if got, want := names(dev, l), []string{"SpreadNorms", "MixLow", "MixIn"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := names(dev, l.From(1)), []string{"StreamNorms", "MixLow", "MixIn"}; !slices.Equal(got, want) {
			t.Errorf("without a block before: %q, want %q", got, want)
		}
		_, weights := streamsLayer(&l, 3)
		l.CopyRows(rowsOf(tensor.BF16, 3, weights.Cols), weights)
		if got, want := names(dev, l.From(11)), []string{"SpreadNorms", "MixLow", "MatMul", "Sigmoid", "Collapse", "CopyRows"}; !slices.Equal(got, want) {
			t.Errorf("weights that are read again: %q, want %q", got, want)
		}
	}
}
