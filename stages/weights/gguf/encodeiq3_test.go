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
