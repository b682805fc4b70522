package cpu_test

import (
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// newBlocks makes a matrix of random blocks.
func newBlocks(t *testing.T, d *cpu.Device, seed uint64, rows, cols int, e *tensor.Encoding) (device.QMat, ref.QMat) {
	t.Helper()
	l, err := e.By(tensor.BlockGroup).On(tensor.CPU, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.FromBlocks(kerneltest.Blocks(kerneltest.Rand(seed), e, rows, cols, nil), rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	w := ref.QMat{Layout: l, Values: make([]byte, 64+l.ValueBytes()), Scales: make([]byte, 6+l.ScaleBytes())}
	vb, _ := d.Wrap(w.Values)
	sb, _ := d.Wrap(w.Scales)
	w.Values, w.Scales = w.Values[64:], w.Scales[6:]
	l.Pack(w.Values, w.Scales, m)
	return device.QMat{Layout: l, Values: vb, ValueAt: 64, Scales: sb, ScaleAt: 6}, w
}

// Every level, thread count and number of rows gives the bits of ref with weights that are blocks.
func TestMatMulQBlocks(t *testing.T) {
	most := 140
	if testing.Short() {
		most = 70
	}
	wants := map[string][]float32{} // of all levels
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, name := range tensor.StoredEncodings() {
			e := tensor.EncodingOf(name)
			columns, _ := e.Block()
			n, k := 21+16*(i%2), (1+256/columns)*columns
			w, rw := newBlocks(t, d, uint64(i), n, k, e)
			x := kerneltest.Normal(kerneltest.Rand(uint64(i)+7), most*k, 1)
			want, made := wants[name]
			if !made {
				want = make([]float32, most*n)
				ref.MatMulQ(want, ref.QuantizeRows(x, k, tensor.BlockGroup), rw)
				wants[name] = want
			}
			for _, m := range []int{1, 2, 3, 5, 8, 11, 64, 65, most} {
				m = min(m, most)
				got := kerneltest.Guard[float32](m*n, 4*(m%16))
				d.MatMulQ(s, f32s(d, got.Data, m, n), quantized(d, s, x[:m*k], m, k, tensor.BlockGroup), w)
				if err := kerneltest.SameBits(got.Data, want[:m*n]); err != nil {
					t.Fatalf("%s [%d, %d], %d rows: %v", name, n, k, m, err)
				}
				if err := got.Check(); err != nil {
					t.Fatalf("%s, %d rows: %v", name, m, err)
				}
			}
		}
	})
}

// Experts whose gate and up are another encoding than down.
func TestExpertsOfBlocks(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i := range tensor.StoredEncodings() {
			tokens := 8
			if i == 0 {
				tokens = 80
			}
			expertsOfBlocks(t, d, s, i, tokens, func(a int) int { return (a*a + a/7) % 2 })
		}
	})
}

// expertsOfBlocks compares two experts, in encoding i and the next, with the reference; of says which of
// them has an assignment.
func expertsOfBlocks(t *testing.T, d *cpu.Device, s device.Stream, i, tokens int, of func(a int) int) {
	t.Helper()
	const h, f, experts, topK = 256, 256, 2, 2
	names := tensor.StoredEncodings()
	up, down := tensor.EncodingOf(names[i]), tensor.EncodingOf(names[(i+1)%len(names)])
	var bank []device.QExpert
	var refs []ref.QExpert
	for e := range experts {
		w13, r13 := newBlocks(t, d, uint64(10*i+e), 2*f, h, up)
		w2, r2 := newBlocks(t, d, uint64(10*i+e+5), h, f, down)
		bank, refs = append(bank, device.QExpert{W13: w13, W2: w2}), append(refs, ref.QExpert{W13: r13, W2: r2})
	}
	x := kerneltest.Normal(kerneltest.Rand(uint64(i)), tokens*h, 1)
	work := make([]device.ExpertRows, experts)
	for a := range tokens * topK {
		e := of(a)
		work[e].Expert, work[e].Assign = int32(e), append(work[e].Assign, int32(a))
	}
	got := make([]float32, tokens*topK*h)
	d.ExpertsQ(s, f32s(d, got, tokens*topK, h), quantized(d, s, x, tokens, h, tensor.BlockGroup), bank, work, topK)
	for e, item := range work {
		want := composed(d, ref.QuantizeRows(x, h, tensor.BlockGroup), tokens, refs[e])
		for _, a := range item.Assign {
			if err := kerneltest.SameBits(got[int(a)*h:][:h], want[int(a)/topK*h:][:h]); err != nil {
				t.Fatalf("%s, %s: expert %d, assignment %d: %v", up.Name(), down.Name(), e, a, err)
			}
		}
	}
}
