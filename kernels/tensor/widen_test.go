package tensor

import (
	"encoding/binary"
	"math"
	"testing"
)

// value reads the bits of a small binary format by its definition, in float64.
// special is the reading of the largest exponent.
func value(bits uint64, expBits, manBits uint, special func(man uint64) float64) float64 {
	bias := 1<<(expBits-1) - 1
	man := bits & (1<<manBits - 1)
	exp := int(bits >> manBits & (1<<expBits - 1))
	var v float64
	switch {
	case special != nil && exp == 1<<expBits-1:
		v = special(man)
	case exp == 0:
		v = math.Ldexp(float64(man), 1-bias-int(manBits))
	default:
		v = math.Ldexp(float64(1<<manBits+man), exp-bias-int(manBits))
	}
	if bits>>(expBits+manBits)&1 == 1 {
		v = math.Copysign(v, -1)
	}
	return v
}

func ieee(man uint64) float64 {
	if man != 0 {
		return math.NaN()
	}
	return math.Inf(1)
}

// same is equality of values, with NaN equal to NaN and zeros told apart.
func same(got float32, want float64) bool {
	if math.IsNaN(want) {
		return got != got
	}
	return float64(got) == want && math.Signbit(float64(got)) == math.Signbit(want)
}

// TestSmallFloats tries every bit pattern of every small format.
func TestSmallFloats(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		if got, want := F16ToF32(h), value(uint64(h), 5, 10, ieee); !same(got, want) {
			t.Fatalf("F16 %#04x: %v, want %v", h, got, want)
		}
		if got, want := BF16ToF32(h), value(uint64(h), 8, 7, ieee); !same(got, want) {
			t.Fatalf("BF16 %#04x: %v, want %v", h, got, want)
		}
	}
	fn := func(man uint64) float64 { // e4m3fn: the top exponent is ordinary but for one NaN
		if man == 7 {
			return math.NaN()
		}
		return math.Ldexp(float64(8+man), 15-7-3)
	}
	for i := range 256 {
		b := uint8(i)
		if got, want := F8E4M3ToF32(b), value(uint64(b), 4, 3, fn); !same(got, want) {
			t.Errorf("E4M3 %#02x: %v, want %v", b, got, want)
		}
		if got, want := F8E5M2ToF32(b), value(uint64(b), 5, 2, ieee); !same(got, want) {
			t.Errorf("E5M2 %#02x: %v, want %v", b, got, want)
		}
		want := math.Ldexp(1, i-127)
		if i == 255 {
			want = math.NaN()
		}
		if got := F8E8M0ToF32(b); !same(got, want) {
			t.Errorf("E8M0 %#02x: %v, want %v", b, got, want)
		}
	}
	if F8E4M3ToF32(0x7e) != 448 || F8E5M2ToF32(0x7b) != 57344 || F16ToF32(0x7bff) != 65504 {
		t.Error("the largest values are wrong")
	}
}

// TestRoundBF16 holds the rounding to a search of the nearest value, over all
// exponents and around every tie.
func TestRoundBF16(t *testing.T) {
	for i := range 1 << 16 {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			bits := uint32(i)<<16 | low
			f := math.Float32frombits(bits)
			got := F32ToBF16(f)
			if f != f {
				if g := BF16ToF32(got); g == g {
					t.Fatalf("%#08x: NaN became %v", bits, g)
				}
				continue
			}
			want := uint16(i)
			if low > 0x8000 || low == 0x8000 && i&1 == 1 {
				want++ // away from zero; past the largest value this is infinity
			}
			if got != want {
				t.Fatalf("%#08x: %#04x, want %#04x", bits, got, want)
			}
		}
	}
}

// TestWiden converts a few elements of every type.
func TestWiden(t *testing.T) {
	le := binary.LittleEndian
	tests := []struct {
		dt   DType
		src  []byte
		want []float32
	}{
		{Bool, []byte{0, 1}, []float32{0, 1}},
		{U8, []byte{0, 255}, []float32{0, 255}},
		{I8, []byte{0x80, 0x7f}, []float32{-128, 127}},
		{F8E4M3, []byte{0x38, 0xb8}, []float32{1, -1}},
		{F8E5M2, []byte{0x3c, 0xc0}, []float32{1, -2}},
		{F8E8M0, []byte{127, 128}, []float32{1, 2}},
		{U16, le.AppendUint16(nil, 65535), []float32{65535}},
		{I16, le.AppendUint16(nil, 0x8000), []float32{-32768}},
		{F16, le.AppendUint16(nil, 0xc000), []float32{-2}},
		{BF16, le.AppendUint16(nil, 0xc040), []float32{-3}},
		{U32, le.AppendUint32(nil, 1<<31), []float32{1 << 31}},
		{I32, le.AppendUint32(nil, 1<<31), []float32{-1 << 31}},
		{F32, le.AppendUint32(nil, math.Float32bits(1.5)), []float32{1.5}},
		{U64, le.AppendUint64(nil, 1<<63), []float32{1 << 63}},
		{I64, le.AppendUint64(nil, 1<<63), []float32{-1 << 63}},
		{F64, le.AppendUint64(nil, math.Float64bits(0.1)), []float32{0.1}},
	}
	tried := map[DType]bool{}
	for _, tt := range tests {
		tried[tt.dt] = true
		got := make([]float32, len(tt.want))
		if err := Widen(got, tt.dt, tt.src); err != nil {
			t.Errorf("%s: %v", tt.dt, err)
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%s: %v, want %v", tt.dt, got, tt.want)
			}
		}
		if err := Widen(got, tt.dt, tt.src[1:]); err == nil {
			t.Errorf("%s: accepted too few bytes", tt.dt)
		}
	}
	for dt := Bool; dt.Size() > 0; dt++ {
		if !tried[dt] {
			t.Errorf("%s is not converted", dt)
		}
		if back, ok := ParseDType(dt.String()); !ok || back != dt {
			t.Errorf("%s is read back as %s", dt, back)
		}
	}
	if err := Widen(nil, Invalid, nil); err == nil {
		t.Error("accepted the invalid type")
	}
}
