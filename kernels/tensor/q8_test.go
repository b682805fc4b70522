package tensor

import (
	"bytes"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestF32ToF16: every half comes back, what lies between two goes to the nearer one, and to the
// even one from the middle. What is too large becomes the largest.
func TestF32ToF16(t *testing.T) {
	for bits := range 0x7c00 {
		h := uint16(bits)
		v := F16ToF32(h)
		if got := F32ToF16(v); got != h {
			t.Fatalf("%#x came back as %#x", h, got)
		}
		if got := F32ToF16(-v); got != h|0x8000 {
			t.Fatalf("-%#x came back as %#x", h, got)
		}
		if h == 0x7bff {
			continue
		}
		middle, even := v+(F16ToF32(h+1)-v)/2, h+h&1
		for x, want := range map[float32]uint16{
			middle: even, math.Nextafter32(middle, 0): h, math.Nextafter32(middle, math.MaxFloat32): h + 1,
		} {
			if got := F32ToF16(x); got != want {
				t.Fatalf("%g became %#x, want %#x", x, got, want)
			}
		}
	}
	for _, v := range []float32{65504, 65519, 65520, 1e30, float32(math.Inf(1))} {
		if got := F32ToF16(v); got != 0x7bff {
			t.Errorf("%g became %#x", v, got)
		}
	}
	if got := F32ToF16(float32(math.NaN())); F16ToF32(got) == F16ToF32(got) {
		t.Errorf("NaN became %#x", got)
	}
}

// TestQ8 holds the rule against its definition: the error of a weight is at most half a step and
// what the scale loses, a group of zeros is zero, and ties go away from zero.
func TestQ8(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 9))
	f, err := Named("q8_0", 128) // it has groups of its own
	if err != nil || f != Q8_0.By(32) || f.String() != "q8_0" {
		t.Fatalf("%s, %v", f, err)
	}
	const cols = 100 // the last group has four
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * float32(math.Exp2(float64(i/32*4-6)))
	}
	clear(x[64:96])
	x[96], x[97], x[98], x[99] = 127, 2.5, -2.5, 0
	m := NewMatrix(f.Of(cols), 1, cols)
	m.Quantize(x, 0)
	got := m.Dequantize()
	for i, v := range x {
		step := float64(m.Scales[i/32])
		if diff := math.Abs(float64(v - got[i])); diff > step*(0.5+127*0x1p-11) {
			t.Errorf("weight %d: %g became %g, the step is %g", i, v, got[i], step)
		}
	}
	if want := []int8{127, 3, -3, 0}; !slices.Equal(m.Values[96:], want) || m.Scales[3] != 1 || m.Scales[2] != 0 || got[70] != 0 {
		t.Errorf("values %v, scales %v", m.Values[96:], m.Scales)
	}
}

// TestQ8Vector is a block of the gguf package of llama.cpp: the scale, then
// the values.
func TestQ8Vector(t *testing.T) {
	const block = "352d810cea08fd6bfee305fb4ef01e01fa31e117fd0814d30ffa06f8c508f605db39"
	want, err := hex.DecodeString(block)
	if err != nil {
		t.Fatal(err)
	}
	x, got := make([]float32, 32), make([]byte, 2)
	for i := range x {
		x[i] = float32(math.Ldexp(float64(i*37%64-31), -(i%5)) / 3)
	}
	m := NewMatrix(Q8_0.By(32), 1, 32)
	m.Quantize(x, 0)
	putHalf(got, m.Scales[0])
	for _, v := range m.Values {
		got = append(got, byte(v))
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
