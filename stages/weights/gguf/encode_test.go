package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"krater/kernels/tensor"
)

// encodeInput are the values that generate.py encodes: uniform from -2 to 2.
func encodeInput() []float32 {
	b := randomBytes(1000, 4<<16)
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = (float32(binary.LittleEndian.Uint32(b[4*i:])>>8)/(1<<24) - 0.5) * 4
	}
	clear(x[:64])
	return x
}

// TestEncode: the types that the Python package gguf encodes as ggml does have its bits.
func TestEncode(t *testing.T) {
	x := encodeInput()
	for _, v := range readVectors[[]struct{ Type, Blocks string }](t, "encoded.json") {
		kind, _ := ParseType(v.Type)
		b := kind.Block()
		dst := make([]byte, len(x)/b.Elements*b.Bytes)
		if err := kind.Encode(dst, x); err != nil {
			t.Error(err)
		} else if sum(dst) != v.Blocks {
			t.Errorf("%s: other bytes; the first are %x", kind, dst[b.Bytes*2:][:8])
		}
	}
}

// TestEncodeError: what is decoded differs from what was encoded by no more than rounding of
// the values and of the scales allows.
func TestEncodeError(t *testing.T) {
	x := encodeInput()
	for i := range x[:4096] { // small, of one sign, and far from zero
		x[i] = x[i]*x[i]*1e-3 + float32(i/1024)
	}
	for kind, limit := range map[Type]float64{
		F32: 0, F16: 1e-3, BF16: 8e-3, Q8_0: 1. / 254 * 2.1, Q4_0: 2.2 / 8, Q4_K: 4. / 30 * 1.6, IQ3_S: 0.5, Q6_K: 2.2 / 32,
		Q5_K: 4. / 62 * 1.6, IQ4_XS: 0.25, MXFP4: 0.5} {
		b := kind.Block()
		dst := make([]byte, len(x)/b.Elements*b.Bytes)
		got := make([]float32, len(x))
		if err := errors.Join(kind.Encode(dst, x), kind.Decode(got, dst)); err != nil {
			t.Fatal(err)
		}
		worst := 0.
		for i, v := range got {
			worst = max(worst, math.Abs(float64(v-x[i])))
		}
		if worst > limit*1.5 || limit > 0 && worst < limit/20 {
			t.Errorf("%s: off by %g, want about %g", kind, worst, limit)
		}
	}
	if err := IQ2_S.Encode(make([]byte, 82), x[:256]); !errors.Is(err, ErrType) {
		t.Error(err)
	}
	if err := Q8_0.Encode(make([]byte, 33), x[:32]); !errors.Is(err, ErrLength) {
		t.Error(err)
	}
}

// TestHalf: every binary16 comes back, and what lies between goes to the nearest.
func TestHalf(t *testing.T) {
	for h := range uint16(0x7c00) {
		v, next := tensor.F16ToF32(h), tensor.F16ToF32(h+1)
		if h == 0x7bff {
			next = 65536
		}
		middle := v + (next-v)/2
		even := h + h&1
		if toHalf(v) != h || toHalf(-v) != h|0x8000 || toHalf(middle) != even ||
			toHalf(math.Nextafter32(middle, 0)) != h || toHalf(math.Nextafter32(middle, 1e9)) != h+1 {
			t.Fatalf("%#x: %g, %#x, %#x", h, v, toHalf(v), toHalf(middle))
		}
	}
	if toHalf(float32(math.NaN()))&0x7fff != 0x7e00 || toHalf(1e30) != 0x7c00 {
		t.Error("NaN or a large value")
	}
}
