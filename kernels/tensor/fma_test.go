package tensor

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exact is x*y + z rounded once, by unbounded arithmetic.
func exact(x, y, z float32) float32 {
	b := func(v float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(v)) }
	sum := b(0).Mul(b(x), b(y))
	f, _ := sum.Add(sum, b(z)).Float32()
	return f
}

func TestFMARoundsOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	twice := 0 // results that rounding twice would get wrong
	for i := range 400000 {
		x, y, z := float32(rng.NormFloat64()), float32(rng.NormFloat64()), float32(rng.NormFloat64())
		if i%4 == 1 {
			// Near a tie: the product lies a little beside half a step of z.
			z = 1 + float32(rng.IntN(1<<23))*0x1p-23
			e := float32(1+rng.IntN(8)) * 0x1p-23
			x, y = 0x1p-24*(1+e), 1-e
		}
		if i%4 == 2 {
			y *= float32(math.Ldexp(1, rng.IntN(80)-100))
			z *= 0x1p-126
		}
		if i%4 == 3 {
			z = -x * y // cancels but for the rounding
		}
		want := exact(x, y, z)
		if got := FMA(x, y, z); math.Float32bits(got) != math.Float32bits(want) && !(got == 0 && want == 0) {
			t.Fatalf("FMA(%g, %g, %g) = %g, want %g", x, y, z, got, want)
		}
		if float32(float64(x)*float64(y)+float64(z)) != want {
			twice++
		}
	}
	if twice == 0 {
		t.Error("no case would show a second rounding")
	}
}

func TestFMAOfSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	if FMA(inf, 1, 2) != inf || FMA(2, -inf, 1) != -inf || FMA(1, 2, inf) != inf || FMA(math.MaxFloat32, 2, 0) != inf {
		t.Error("infinity is lost")
	}
	for _, v := range []float32{FMA(nan, 1, 2), FMA(0, inf, 1), FMA(inf, 1, -inf), FMA(1, 1, nan)} {
		if v == v {
			t.Errorf("%g, want NaN", v)
		}
	}
}
