//go:build cuda

package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// matrices are random matrices of an encoding on the GPU, one after the other, and their values.
type matrices struct {
	launch.Weight
	step, scaleStep int64
	exact           [][]float32 // [rows * cols]
	rounded         [][]float32 // to bfloat16
}

func random(t *testing.T, c *cudatest.GPU, rng *rand.Rand, name string, n, rows, cols int) (m matrices) {
	t.Helper()
	e := tensor.EncodingOf(name)
	l, err := e.By(tensor.BlockGroup).On(tensor.GPU, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	var values, scales []byte
	for range n {
		x := tensor.NewMatrix(l.Format, rows, cols)
		size := 1 / math.Sqrt(float64(cols))
		if e.Stored() {
			if x, err = e.FromBlocks(kerneltest.ScaledBlocks(rng, e, rows, cols, size), rows, cols); err != nil {
				t.Fatal(err)
			}
		} else {
			for i := range x.Values {
				x.Values[i] = int8(rng.IntN(256) - 128)
			}
			for i := range x.Scales {
				x.Scales[i] = tensor.F16ToF32(tensor.F32ToF16(float32(size * (1 + rng.Float64()) / 100)))
			}
		}
		v, s := make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())
		l.Pack(v, s, x)
		// A slot is aligned, its end is not data.
		values, scales = append(values, aligned(v)...), append(scales, aligned(s)...)
		exact := x.Dequantize()
		narrow := slices.Clone(exact)
		for i, v := range narrow {
			narrow[i] = bf16(v)
		}
		m.exact, m.rounded = append(m.exact, exact), append(m.rounded, narrow)
	}
	m.step, m.scaleStep = int64(len(values)/n), int64(len(scales)/n)
	m.A = launch.Tiles{Layout: l, Values: c.Bytes(values), Scales: c.Bytes(scales)}
	return m
}

func aligned(b []byte) []byte { return append(b, make([]byte, (256-len(b)%256)%256)...) }

func bf16(v float32) float32 { return tensor.BF16ToF32(tensor.F32ToBF16(v)) }

// rig is a mixture on the GPU.
type rig struct {
	c                   *cudatest.GPU
	sms                 int // of one: a block goes over several parts
	rows, topK, experts int
	hidden, width       int
	w13, w2             matrices
	bank                launch.Bank
	act                 device.Activation
	biases              []float32 // of an expert 2*width+hidden values; nil: none
	ids                 []int32
	x                   []float32
}

func newRig(t *testing.T, c *cudatest.GPU, rng *rand.Rand, gateUp, down string, rows, topK, experts, hidden, width int, act device.Activation) *rig {
	r := &rig{c: c, rows: rows, topK: topK, experts: experts, hidden: hidden, width: width}
	r.w13 = random(t, c, rng, gateUp, experts, 2*width, hidden)
	r.w2 = random(t, c, rng, down, experts, hidden, width)
	r.bank = launch.Bank{Experts: experts, W13: r.w13.Weight, W2: r.w2.Weight,
		Step: r.w13.step, ScaleStep: r.w13.scaleStep, Step2: r.w2.step, ScaleStep2: r.w2.scaleStep}
	r.act = act
	r.bank.Extra = launch.Extra{Alpha: act.Alpha, Limit: act.Limit, Shift: act.Shift, Cubic: act.Cubic}
	if act.Limit > 0 {
		n := 2*width + hidden
		r.biases = cudatest.Normal(rng, experts*n)
		all := c.F32(r.biases, 1, len(r.biases))
		r.bank.B13, r.bank.B2, r.bank.BiasStep = all.At, all.ColRange(2*width, n).At, int64(4*n)
	}
	r.ids = make([]int32, rows*topK)
	for i := range r.ids {
		r.ids[i] = int32(rng.IntN(experts+1)) - 1 // -1: none
	}
	r.x = cudatest.Normal(rng, rows*hidden)
	return r
}

// expert is the output of an expert for a row, of weights that are exact or rounded; hidden values are
// rounded by round.
func (r *rig) expert(e int32, x []float32, exact bool, round func(float32) float32) []float64 {
	w13, w2 := r.w13.rounded[e], r.w2.rounded[e]
	if exact {
		w13, w2 = r.w13.exact[e], r.w2.exact[e]
	}
	b := make([]float32, 2*r.width+r.hidden)
	if r.biases != nil {
		b = r.biases[int(e)*len(b):][:len(b)]
	}
	mid := make([]float32, r.width)
	for f := range mid {
		g := dot(w13[f*r.hidden:][:r.hidden], x) + float64(b[f])
		u := dot(w13[(r.width+f)*r.hidden:][:r.hidden], x) + float64(b[r.width+f])
		mid[f] = round(float32(r.act.Of(g, u)))
	}
	out := make([]float64, r.hidden)
	for i := range out {
		out[i] = dot(w2[i*r.width:][:r.width], mid) + float64(b[2*r.width+i])
	}
	return out
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// The largest errors of a row, relative to its norm. Hidden values may round the other way than in the
// reference. Rounding to bfloat16 is up to 2^-8 off.
const (
	boundSame    = 2e-3     // for weights that are rounded as in the kernel
	boundRounded = 2 / 256. // for exact ones: gate, up, hidden values and down are rounded, each on its own
	boundBF16    = 2.5e-3   // of results, besides
	boundPlain   = 2e-5
)

// check compares the rows of y, which was poisoned.
func (r *rig) check(t *testing.T, what string, y launch.Mat, exact bool, round func(float32) float32, bound float64, none float32) {
	t.Helper()
	got := r.c.Floats(y)
	for s, e := range r.ids {
		row := got[s*r.hidden:][:r.hidden]
		if e < 0 {
			for i, v := range row {
				if v != none && !(v != v && none != none) {
					t.Fatalf("%s: slot %d has no expert, column %d is %v", what, s, i, v)
				}
			}
			continue
		}
		want := r.expert(e, r.x[s/r.topK*r.hidden:][:r.hidden], exact, round)
		var d, n float64
		for i, w := range want {
			d, n = d+(float64(row[i])-w)*(float64(row[i])-w), n+w*w
		}
		if off := math.Sqrt(d / n); !(off <= bound) {
			t.Fatalf("%s: slot %d, expert %d: off by %.3g of its norm %.3g: %v... for %v...", what, s, e, off, math.Sqrt(n), row[:4], want[:4])
		}
	}
}

func (r *rig) input(dt tensor.DType) launch.Mat {
	x := r.c.Strided(dt, r.rows, r.hidden, r.hidden+8)
	for i := range r.rows {
		row := r.x[i*r.hidden:][:r.hidden]
		one := r.c.F32(row, 1, r.hidden)
		if dt == tensor.BF16 {
			one = r.c.BF16(row, 1, r.hidden)
		}
		r.c.Run(func(l *launch.List) { l.Copy(x.RowRange(i, i+1).At, one.At, int64(r.hidden*dt.Size())) })
	}
	return x
}

// kept is the number of values of a row between the products.
func (r *rig) kept() int {
	if r.bank.Apart() {
		return 3 * r.width
	}
	return r.width
}

// grouped runs Experts with tiles of a size.
func (r *rig) grouped(y, x launch.Mat, tile int) {
	idm := r.c.I32(r.ids, r.rows, r.topK)
	a := route.NewAligned(r.c.Alloc(route.AlignedBytes(r.rows, r.topK, r.experts, tile)), r.rows, r.topK, r.experts, tile)
	h := r.c.Alloc(HiddenBytes(r.rows*r.topK, r.kept(), tensor.BF16))
	r.c.Run(func(l *launch.List) {
		route.Align(l, &a, idm, 0)
		Experts(l, launch.GPU{SMs: r.sms}, y, h, x, r.bank, a)
	})
}

var encodings = []string{"q8_0", "fp8", "nvfp4_scaled", "q4_0", "mxfp4", "nvfp4", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq3_s"}

// TestEncodings: there are kernels for every encoding that a GPU shares with a CPU.
func TestEncodings(t *testing.T) {
	if want := tensor.SharedEncodings(); len(list) != len(want) {
		t.Errorf("%d encodings, want %v", len(list), want)
	} else if got := slices.Sorted(slices.Values(encodings)); !slices.Equal(got, want) {
		t.Errorf("tested are %v, want %v", got, want)
	}
}

// activations: that of gpt-oss, which comes with biases, SiLU, and GELU, which is computed between the products.
var activations = []device.Activation{{Alpha: 1.702, Limit: 7, Shift: 1}, {}, device.GELUTanh}

// TestExperts: every encoding in gate and up, with another in down, in all kernels, over odd numbers
// of rows, columns and tokens.
func TestExperts(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(7, 1))
	for i, name := range encodings {
		other := encodings[(i+5)%len(encodings)]
		unit := func(name string) int { // of columns
			if e := tensor.EncodingOf(name); e.Stored() {
				n, _ := e.Block()
				return n
			}
			return 32
		}
		hidden, width := unit(name), unit(other)
		if i%2 == 1 {
			hidden *= 2
		}
		if hidden%256 != 0 {
			hidden = hidden*2 + unit(name) // an odd number of groups, a band that is not full
		}
		if width < 64 {
			width = 96
		}
		shape := [][3]int{{3, 2, 3}, {9, 1, 2}, {1, 3, 4}, {21, 2, 2}}[i%4]
		t.Run(fmt.Sprintf("%s and %s", name, other), func(t *testing.T) {
			r := newRig(t, c, rng, name, other, shape[0], shape[1], shape[2], hidden, width, activations[i%3])
			slots := r.rows * r.topK
			r.sms = 1 + i%2*131
			nan := float32(math.NaN())
			same := func(v float32) float32 { return v }
			idm := c.I32(r.ids, r.rows, r.topK)
			y, h := c.Mat(tensor.F32, slots, hidden), c.Alloc(HiddenBytes(slots, r.kept(), tensor.F32))
			x := r.input(tensor.F32)
			c.Run(func(l *launch.List) { Plain(l, y, h, x, r.bank, idm) })
			r.check(t, "plain", y, true, same, boundPlain, 0)

			x = r.input(tensor.BF16)
			for _, tile := range []int{FewTokens, ManyTokens} {
				what := fmt.Sprintf("tiles of %d", tile)
				y = c.Mat(tensor.F32, slots, hidden)
				r.grouped(y, x, tile)
				exact := tile == FewTokens
				bound := boundSame
				if r.bank.Apart() { // gate and up are rounded too
					bound = boundRounded
				}
				r.check(t, what, y, exact, bf16, bound, nan)
				r.check(t, what+", exact weights and hidden values", y, true, same, boundRounded, nan)
				narrow := c.Strided(tensor.BF16, slots, hidden, hidden+8)
				r.grouped(narrow, x, tile)
				r.check(t, what+", bfloat16", narrow, exact, bf16, boundBF16+bound, nan)
				// A token alone has the same bits.
				all, one := c.Floats(y), *r
				one.rows, one.ids, one.x = 1, r.ids[:r.topK], r.x[:hidden]
				first := c.Mat(tensor.F32, r.topK, hidden)
				one.grouped(first, x.RowRange(0, 1), tile)
				for j, v := range c.Floats(first) {
					if math.Float32bits(v) != math.Float32bits(all[j]) {
						t.Fatalf("%s: a token alone has %v, not %v", what, v, all[j])
					}
				}
			}
		})
	}
}
