package gguf

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// TestEncodeIQ3S: normal values lose little, and where errors are weighted the weighted error falls.
func TestEncodeIQ3S(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x, weight := make([]float32, 64*superblock), make([]float32, 64*superblock)
	var power float64
	for i := range x {
		x[i], weight[i] = float32(r.NormFloat64()), float32(1+i%4*i%4*3)
		power += float64(x[i]) * float64(x[i])
	}
	loss := func(weights []float32) (plain, weighted float64) {
		b, got := make([]byte, 64*IQ3_S.Block().Bytes), make([]float32, len(x))
		if err := errors.Join(IQ3_S.EncodeWeighted(b, x, weights), IQ3_S.Decode(got, b)); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			d := math.Pow(float64(v-x[i]), 2)
			plain, weighted = plain+d/power, weighted+d*float64(weight[i])
		}
		return plain, weighted
	}
	plain, before := loss(nil)
	_, after := loss(weight)
	t.Logf("squared error %.4f of the values' squares; weighted %.3f of that without weights", plain, after/before)
	if plain > 0.022 || after > 0.97*before {
		t.Errorf("squared error %.4f of the values' squares, want at most 0.022; weighted %.3f of that without weights, want at most 0.97", plain, after/before)
	}
}

// TestEncodeGrids: normal values lose what the bits of a type let expect, more with fewer of them, and
// the blocks of zeros are zeros.
func TestEncodeGrids(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x := make([]float32, 64*superblock)
	var power float64
	for i := range x[superblock:] {
		x[superblock+i] = float32(r.NormFloat64())
		power += float64(x[superblock+i]) * float64(x[superblock+i])
	}
	before := 0.0
	for _, c := range []struct {
		Type
		most float64 // the squared error, as a share of the values' squares
	}{{Q8_0, 1e-4}, {Q6_K, 5e-4}, {Q5_K, 0.002}, {Q4_K, 0.008}, {IQ4_XS, 0.008}, {MXFP4, 0.016}, {IQ3_XXS, 0.036}, {IQ2_XS, 0.09}, {IQ2_XXS, 0.12}} {
		b, got := make([]byte, len(x)/c.Block().Elements*c.Block().Bytes), make([]float32, len(x))
		if err := errors.Join(c.Encode(b, x), c.Decode(got, b)); err != nil {
			t.Fatal(err)
		}
		loss := 0.0
		for i, v := range got {
			loss += math.Pow(float64(v-x[i]), 2) / power
			if i < superblock && v != 0 {
				t.Fatalf("%s: %g for 0", c, v)
			}
		}
		t.Logf("%s: %.5f", c, loss)
		if loss > c.most || loss < before/2 {
			t.Errorf("%s: squared error %.5f of the values' squares, want at most %g", c, loss, c.most)
		}
		before = loss
	}
}
