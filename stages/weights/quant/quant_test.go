package quant

import (
	"cmp"
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

func square(w []float32, m *tensor.Matrix, weight []float32) float64 {
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

func must(t *testing.T, w []float32, rows, cols int, spec tensor.Format, o Options) *tensor.Matrix {
	t.Helper()
	m, err := Quantize(w, rows, cols, spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSearchNeverAboveAbsmax over shapes, bits, groups and column weights.
func TestSearchNeverAboveAbsmax(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		rows, cols := 1+r.IntN(9), 1+r.IntN(300)
		spec := []tensor.Format{tensor.INT4.By([]int{0, 32, 64, 128}[i/3%4]), tensor.INT8.By([]int{0, 32, 64, 128}[i/3%4]), tensor.INT3.By([]int{32, 64, 128}[i/3%3])}[i%3]
		w := normal(r, rows*cols, i)
		var weight []float32
		if i%5 < 2 {
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
	m := must(t, w, 3, 96, tensor.INT4.By(32), Options{Method: Absmax})
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
	searchAgainstAllScales(t, tensor.INT4.By(32))
	searchAgainstAllScales(t, tensor.INT3.By(64))
}

func searchAgainstAllScales(t *testing.T, f tensor.Format) {
	r := rand.New(rand.NewPCG(5, 6))
	n, levels := f.Group, f.Levels()
	var ratio float64
	rounds := 200
	if testing.Short() {
		rounds = 60
	}
	for i := range rounds {
		w := normal(r, n, i%3)
		large := slices.SortedFunc(slices.Values(w), func(a, b float32) int { return cmp.Compare(math.Abs(float64(b)), math.Abs(float64(a))) })
		least := math.Inf(1)
		for bits := range 1 << 16 {
			scale := float64(tensor.BF16ToF32(uint16(bits)))
			if math.Abs(scale) > 2*math.Abs(float64(large[0])) {
				continue // all values are zero
			}
			var sum float64
			for _, v := range large { // most sums are too large after one or two
				d := math.Inf(1)
				for _, q := range levels {
					d = min(d, math.Abs(float64(v)-float64(q)*scale))
				}
				if sum += d * d; sum >= least {
					break
				}
			}
			if sum < least {
				least = sum
			}
		}
		got := square(w, must(t, w, 1, n, f, Options{}), nil)
		if got < least*(1-1e-9) || got > least*1.1 {
			t.Errorf("%s, group %d: searched %g, best %g", f, i, got, least)
		}
		ratio += got / least / float64(rounds)
	}
	t.Logf("%s: error over the optimum: %.5f", f, ratio)
	if ratio > 1.002 {
		t.Errorf("%s: %.4f times the optimum on average", f, ratio)
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
		if e := square(w, must(t, w, 1, 64, tensor.Integers(bits).By(32), Options{}), nil); e != 0 {
			t.Errorf("case %d, %d bits: error %g", i, bits, e)
		}
	}
}

func TestIdempotent(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for i := range 60 {
		spec := []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8}[i%3].By(64)
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
	back, err := Feedback(w, 3, 64, tensor.INT4.By(32), h, FeedbackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*tensor.Matrix{must(t, w, 3, 64, tensor.INT4.By(32), Options{}), must(t, w, 3, 64, tensor.INT8.By(0), Options{Method: Absmax}), back} {
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
		_, err := Quantize(w, 2, 64, tensor.INT4.By(32), Options{})
		if !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), fmt.Sprintf("row 1, column 3 is %v", v)) {
			t.Errorf("%v: got %v", v, err)
		}
	}
	if _, err := Quantize(make([]float32, 63), 1, 64, tensor.INT4.By(32), Options{}); err == nil {
		t.Error("63 weights for 64 columns passed")
	}
	if _, err := Quantize(make([]float32, 64), 1, 64, tensor.INT4.By(32), Options{Weight: make([]float32, 63)}); err == nil {
		t.Error("63 column weights for 64 columns passed")
	}
	bad := make([]float32, 64)
	bad[2] = -1
	if _, err := Quantize(make([]float32, 64), 1, 64, tensor.INT4.By(32), Options{Weight: bad}); err == nil {
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
	spec := tensor.INT4.By(64)
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
	for _, p := range [][2]*tensor.Matrix{{one, three}, {fed, again}} {
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

// TestPacks: what the quantiser gives fits the layout of every kind of device at every size.
func TestPacks(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for i := range 20 {
		rows, cols := 16*(1+r.IntN(9)), 1+r.IntN(300)
		m := must(t, normal(r, rows*cols, i), rows, cols, tensor.Integers(4+4*(i%2)).By([]int{0, 32, 64, 128}[i%4]), Options{})
		for _, l := range []tensor.Layout{
			{Format: m.Format, Rows: rows, Cols: cols}, {Format: m.Format, Rows: rows, Cols: cols, For: tensor.GPU, Joined: i%3 == 0},
		} {
			if err := l.Check(); err != nil {
				t.Fatal(err)
			}
			values, scales := make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())
			l.Pack(values, scales, m)
			if got := l.Unpack(values, scales); !slices.Equal(got.Values, m.Values) || !slices.Equal(got.Scales, m.Scales) {
				t.Errorf("%+v: another matrix comes back", l)
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
				if _, err := Quantize(w, 256, 2048, tensor.Integers(x.bits).By(64), Options{Method: x.method, Threads: 1}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(w))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
		})
	}
}
