package ref

import (
	"math"
	"testing"

	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// A float8 is the nearest of all codes, the even one of two as near.
func TestF8E4M3IsTheNearest(t *testing.T) {
	r := kerneltest.Rand(1)
	for range 20000 {
		x := float32(r.NormFloat64() * math.Ldexp(1, r.IntN(24)-14))
		code := F8E4M3(x)
		off := math.Abs(float64(x) - float64(tensor.F8E4M3ToF32(code)))
		for other := range 256 {
			if other&0x7f == 0x7f {
				continue
			}
			d := math.Abs(float64(x) - float64(tensor.F8E4M3ToF32(uint8(other))))
			if d < off || d == off && code&1 == 1 && other&1 == 0 {
				t.Fatalf("%g became %02x, %02x is nearer", x, code, other)
			}
		}
	}
	for x, want := range map[float32]uint8{
		448: 0x7e, 465: 0x7e, math.MaxFloat32: 0x7e, -1e9: 0xfe, float32(math.Inf(1)): 0x7e, float32(math.Inf(-1)): 0xfe,
		0x1p-10: 0, 0x1.8p-9: 2, 0x1p-6: 0x08, 0x1.fp-7: 0x08, 1: 0x38,
	} {
		if got := F8E4M3(x); got != want {
			t.Errorf("%g became %02x, want %02x", x, got, want)
		}
	}
	if got := F8E4M3(float32(math.NaN())); got != 0 {
		t.Errorf("NaN became %02x", got)
	}
}

func TestI8RowsAreWithinHalfAStep(t *testing.T) {
	const width, group, rows = 48, 16, 5
	x := kerneltest.Normal(kerneltest.Rand(1), rows*width, 3)
	cells, scales := make([]int8, 7*width), make([]float32, 7*width/group)
	slots := []int32{6, 0, 3, 2, 5}
	StoreRowsI8(cells, scales, x, slots, width, group)
	back := WidenI8(cells, scales, width, group)
	for i, v := range x {
		r, c := i/width, i%width
		slot := int(slots[r])
		scale := float64(scales[slot*3+c/group])
		if off := math.Abs(float64(back[slot*width+c]) - float64(v)); off > scale*0.50001 {
			t.Errorf("row %d, column %d: %g became %g, a step is %g", r, c, v, back[slot*width+c], scale)
		}
	}
	for _, unused := range []int{1, 4} {
		if kerneltest.MaxAbs(back[unused*width:][:width]) != 0 {
			t.Errorf("row %d was written", unused)
		}
	}
}

// The two forms of attention with kv_b in integers compute the same but for the rounding of queries
// and latents to 8 bits.
func TestMLAAbsorbedIsMLA(t *testing.T) {
	p := device.MLA{Heads: 3, Nope: 40, Rope: 6, V: 24, Rank: 70, Scale: 0.05, BlockTokens: 4}
	r := kerneltest.Rand(3)
	matrix := func(rows, cols int) QMat {
		f := tensor.Layout{Format: tensor.INT8.By(32), Rows: rows, Cols: cols}
		m := QMat{Layout: f, Values: make([]byte, f.ValueBytes()), Scales: make([]byte, f.ScaleBytes())}
		values := make([]int8, rows*cols)
		for i := range values {
			values[i] = int8(r.IntN(255) - 127)
		}
		scales := make([]float32, rows*f.Groups())
		for i := range scales {
			scales[i] = 0.002 * (1 + r.Float32())
		}
		f.Pack(m.Values, m.Scales, f.Matrix(values, scales))
		return m
	}
	var w KVB
	for range p.Heads {
		w.K, w.V = append(w.K, matrix(p.Rank, p.Nope)), append(w.V, matrix(p.V, p.Rank))
	}
	spans := []device.Span{{Row: 0, Len: 9, Pos: 11, Blocks: []int32{3, 0, 4, 1, 2}}}
	cache, q := kerneltest.Normal(r, 20*(p.Rank+p.Rope), 1), kerneltest.Normal(r, 9*p.Heads*(p.Nope+p.Rope), 1)
	got, want := make([]float32, 9*p.Heads*p.V), make([]float32, 9*p.Heads*p.V)
	MLAAbsorbed(got, q, cache, w, spans, p)
	MLA(want, q, cache, w.Widen(p), spans, p)
	var diff, norm float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		diff, norm = diff+d*d, norm+float64(want[i])*float64(want[i])
	}
	// Rounding to 1/127 of the largest of 32 values: about 0.3/127*2.5 a value.
	if e := math.Sqrt(diff / norm); e > 0.02 || e == 0 {
		t.Errorf("the absorbed form is %g off", e)
	}
}
