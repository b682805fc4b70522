package quant

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
)

// normal makes weights of one of several shapes: normal, heavy-tailed, with
// columns of different size, tiny, huge.
func normal(r *rand.Rand, n, kind int) []float32 {
	w := make([]float32, n)
	for i := range w {
		v := r.NormFloat64()
		switch kind % 5 {
		case 1:
			v = v * v * v
		case 2:
			v *= float64(1 + i%7*3)
		case 3:
			v *= 1e-37
		case 4:
			v *= 1e36
		}
		w[i] = float32(v)
	}
	return w
}

func square(w []float32, m *Matrix, weight []float32) float64 {
	var sum float64
	for i, v := range m.Dequantize() {
		d := float64(w[i]) - float64(v)
		h := 1.0
		if weight != nil {
			h = float64(weight[i%m.Cols])
		}
		sum += h * d * d
	}
	return sum
}

func must(t *testing.T, w []float32, rows, cols int, spec Spec, o Options) *Matrix {
	t.Helper()
	m, err := Quantize(w, rows, cols, spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFormat(t *testing.T) {
	for _, x := range []struct{ group, cols, want int }{
		{128, 2048, 128}, {128, 1408, 128}, {128, 64, 64}, {64, 64, 64}, {64, 96, 32}, {128, 192, 64},
		{32, 256, 32}, {128, 100, 128}, {0, 100, 128}, {0, 7168, 7168}, {64, 1, 32},
	} {
		f, err := Spec{Bits: 4, Group: x.group}.Format(8, x.cols)
		if err != nil || f.Group != x.want {
			t.Errorf("group %d of %d columns: got %d, %v, want %d", x.group, x.cols, f.Group, err, x.want)
		}
	}
	for _, s := range []Spec{{3, 64}, {0, 64}, {4, 48}, {8, -1}, {4, 256}} {
		if _, err := s.Format(8, 64); !errors.Is(err, ErrSpec) {
			t.Errorf("%+v: got %v", s, err)
		}
	}
}

// TestSearchNeverAboveAbsmax over shapes, bits, groups and column weights.
func TestSearchNeverAboveAbsmax(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		rows, cols := 1+r.IntN(9), 1+r.IntN(300)
		spec := Spec{Bits: 4 + 4*(i%2), Group: []int{0, 32, 64, 128}[i/2%4]}
		w := normal(r, rows*cols, i)
		var weight []float32
		if i%3 == 0 {
			weight = make([]float32, cols)
			for c := range weight {
				weight[c] = r.Float32() * float32(c%4)
			}
		}
		plain := must(t, w, rows, cols, spec, Options{Method: Absmax})
		found := must(t, w, rows, cols, spec, Options{Weight: weight})
		if a, b := square(w, found, weight), square(w, plain, weight); !(a <= b*(1+1e-12)) {
			t.Errorf("case %d [%d, %d] %+v: searched %g, plain %g", i, rows, cols, spec, a, b)
		}
	}
}

// TestAbsmaxByDefinition recomputes the baseline with other means.
func TestAbsmaxByDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	w := normal(r, 3*96, 0)
	m := must(t, w, 3, 96, Spec{Bits: 4, Group: 32}, Options{Method: Absmax})
	for i, v := range w {
		var top float32
		for _, x := range w[i/32*32 : i/32*32+32] {
			top = max(top, float32(math.Abs(float64(x))))
		}
		scale := tensor.BF16ToF32(tensor.F32ToBF16(top / 7))
		q := min(7, math.RoundToEven(float64(v)/float64(scale)))
		if m.Scales[i/32] != scale || float64(m.Values[i]) != q {
			t.Fatalf("weight %d: %d x %v, want %v x %v", i, m.Values[i], m.Scales[i/32], q, scale)
		}
	}
}

// TestSearchAgainstAllScales: an oracle tries every bfloat16 number of either
// sign. The search may miss the optimum, not by much: 0.2 % on average, 10 % in
// the worst group of 200, and never find anything better than it.
func TestSearchAgainstAllScales(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n = 32
	var ratio float64
	const rounds = 200
	for i := range rounds {
		w := normal(r, n, i%3)
		least := math.Inf(1)
		for bits := range 1 << 16 {
			scale := float64(tensor.BF16ToF32(uint16(bits)))
			var sum float64
			for _, v := range w {
				q := max(-8, min(7, math.RoundToEven(float64(v)/scale)))
				d := float64(v) - q*scale
				sum += d * d
			}
			if sum < least {
				least = sum
			}
		}
		got := square(w, must(t, w, 1, n, Spec{Bits: 4, Group: 32}, Options{}), nil)
		if got < least*(1-1e-9) || got > least*1.1 {
			t.Errorf("group %d: searched %g, best %g", i, got, least)
		}
		ratio += got / least / rounds
	}
	t.Logf("error over the optimum: %.5f", ratio)
	if ratio > 1.002 {
		t.Errorf("%.4f times the optimum on average", ratio)
	}
}

// TestRepresentable: integers times a bfloat16 scale come back exactly, and what
// came out of a quantisation stays as it is.
func TestRepresentable(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 200 {
		bits, top := 4, 8
		if i%2 == 1 {
			bits, top = 8, 127
		}
		w := make([]float32, 64)
		for g := range 2 {
			scale := tensor.BF16ToF32(tensor.F32ToBF16(float32(r.NormFloat64() * math.Exp(r.NormFloat64()*5))))
			for j := range 32 {
				w[32*g+j] = float32(r.IntN(2*top)-top) * scale
			}
			if bits == 8 {
				w[32*g] = 127 * scale
				for j := range 32 {
					w[32*g+j] = max(w[32*g+j], -127*scale)
					w[32*g+j] = min(w[32*g+j], float32(math.Abs(float64(127*scale))))
				}
				if scale < 0 {
					for j := range 32 {
						w[32*g+j] = float32(r.IntN(255)-127) * scale
					}
					w[32*g] = 127 * scale
				}
			}
		}
		if e := square(w, must(t, w, 1, 64, Spec{Bits: bits, Group: 32}, Options{}), nil); e != 0 {
			t.Errorf("case %d, %d bits: error %g", i, bits, e)
		}
	}
}

func TestIdempotent(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for i := range 40 {
		spec := Spec{Bits: 4 + 4*(i%2), Group: 64}
		first := must(t, normal(r, 4*256, i), 4, 256, spec, Options{}).Dequantize()
		second := must(t, first, 4, 256, spec, Options{}).Dequantize()
		if !slices.Equal(first, second) {
			t.Errorf("case %d: requantising changed the matrix", i)
		}
	}
}

func TestZeroRows(t *testing.T) {
	w := make([]float32, 3*64)
	w[64+5] = 1
	w[2*64] = math.SmallestNonzeroFloat32 // no bfloat16 scale is as small
	h := NewHessian(64)
	h.Add(w[64:128])
	back, err := Feedback(w, 3, 64, Spec{Bits: 4, Group: 32}, h, FeedbackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Matrix{must(t, w, 3, 64, Spec{Bits: 4, Group: 32}, Options{}), must(t, w, 3, 64, Spec{Bits: 8, Group: 0}, Options{Method: Absmax}), back} {
		for i, v := range m.Dequantize() {
			if want := w[i]; i/64 < 2 && math.Abs(float64(v-want)) > 1e-2 || i/64 == 2 && math.Abs(float64(v)) > 1e-40 {
				t.Errorf("weight %d: %v, want %v", i, v, want)
			}
		}
	}
}

func TestNotFinite(t *testing.T) {
	for _, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		w := make([]float32, 128)
		w[64+3] = float32(v)
		_, err := Quantize(w, 2, 64, Spec{Bits: 4, Group: 32}, Options{})
		if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), fmt.Sprintf("row 1, column 3 is %v", v)) {
			t.Errorf("%v: got %v", v, err)
		}
	}
	if _, err := Quantize(make([]float32, 63), 1, 64, Spec{Bits: 4, Group: 32}, Options{}); err == nil {
		t.Error("63 weights for 64 columns passed")
	}
	if _, err := Quantize(make([]float32, 64), 1, 64, Spec{Bits: 4, Group: 32}, Options{Weight: make([]float32, 63)}); err == nil {
		t.Error("63 column weights for 64 columns passed")
	}
	bad := make([]float32, 64)
	bad[2] = -1
	if _, err := Quantize(make([]float32, 64), 1, 64, Spec{Bits: 4, Group: 32}, Options{Weight: bad}); err == nil {
		t.Error("a negative column weight passed")
	}
}

// TestDeterministic: the number of workers does not matter, and the largest
// numbers do not overflow.
func TestDeterministic(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	w := normal(r, 50*128, 4)
	w[7] = math.MaxFloat32
	h := inputs(r, 128, 300)
	spec := Spec{Bits: 4, Group: 64}
	one := must(t, w, 50, 128, spec, Options{Threads: 1})
	three := must(t, w, 50, 128, spec, Options{Threads: 3})
	fed, err := Feedback(w, 50, 128, spec, h, FeedbackOptions{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Feedback(w, 50, 128, spec, h, FeedbackOptions{Threads: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range [][2]*Matrix{{one, three}, {fed, again}} {
		if !slices.Equal(p[0].Values, p[1].Values) || !slices.Equal(p[0].Scales, p[1].Scales) {
			t.Error("the result depends on the number of workers")
		}
		for _, s := range p[0].Scales {
			if math.IsInf(float64(s), 0) || s != s {
				t.Errorf("scale %v", s)
			}
		}
	}
}

// TestPacks: what the quantiser gives fits format B at every size.
func TestPacks(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for i := range 20 {
		rows, cols := 1+r.IntN(40), 1+r.IntN(200)
		m := must(t, normal(r, rows*cols, i), rows, cols, Spec{Bits: 4 + 4*(i%2), Group: 64}, Options{})
		values, scales := make([]byte, m.ValueBytes()), make([]byte, m.ScaleBytes())
		m.Pack(values, m.Values)
		m.PackScales(scales, m.Scales)
		got := make([]float32, cols)
		want := m.Dequantize()
		for row := range rows {
			m.FormatB.Row(got, values, scales, row)
			if !slices.Equal(got, want[row*cols:(row+1)*cols]) {
				t.Fatalf("case %d row %d differs after packing", i, row)
			}
		}
	}
}

// TestFormatsAgree: the GPU's and the CPU's format hold the same integers and
// scales.
func TestFormatsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for i := range 12 {
		rows, cols := 16*(1+r.IntN(9)), 1+r.IntN(300)
		spec := Spec{Bits: 4 + 4*(i%2), Group: []int{0, 32, 64, 128}[i%4]}
		m := must(t, normal(r, rows*cols, i), rows, cols, spec, Options{})
		a := tensor.FormatA{Rows: rows, Cols: cols, Bits: m.Bits, Group: m.Group, Joined: i%3 == 0}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		values, scales := make([]byte, m.ValueBytes()), make([]byte, m.ScaleBytes())
		m.Pack(values, m.Values)
		m.PackScales(scales, m.Scales)
		valuesA, scalesA := make([]byte, a.ValueBytes()), make([]byte, a.ScaleBytes())
		a.Pack(valuesA, m.Values)
		a.PackScales(scalesA, m.Scales)
		for row := range rows {
			for c := range cols {
				if a.Value(valuesA, row, c) != m.Value(values, row, c) || a.Scale(scalesA, row, c/a.Group) != m.Scale(scales, row, c/m.Group) {
					t.Fatalf("%+v: row %d, column %d differs between the formats", a, row, c)
				}
			}
		}
	}
}

func BenchmarkQuantize(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	w := normal(r, 256*2048, 0)
	for _, x := range []struct {
		name   string
		bits   int
		method Method
	}{{"absmax4", 4, Absmax}, {"search4", 4, Search}, {"search8", 8, Search}} {
		b.Run(x.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Quantize(w, 256, 2048, Spec{Bits: x.bits, Group: 64}, Options{Method: x.method, Threads: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(w))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}
