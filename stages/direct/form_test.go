package direct_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/compare/goldens"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/weights"
)

// half is a float32 as F16, cut; what is too small is 0.
func half(f float32) uint16 {
	b := math.Float32bits(f)
	e := int(b>>23&0xff) - 127 + 15
	if e < 1 || e > 30 {
		return 0
	}
	return uint16(b>>16&0x8000) | uint16(e<<10) | uint16(b>>13&0x3ff)
}

// TestWeightForms: weights at odd addresses, as files without padding have them, and F16
// weights give the bits that the same values give otherwise.
func TestWeightForms(t *testing.T) {
	// odd is a copy of b that starts at an odd address.
	odd := func(b []byte) []byte { return append(make([]byte, 1, len(b)+9), b...)[1:] }
	for _, name := range goldens.Names(t) {
		cfg, set := files(t, folder(name), "config.json")
		logits := func(change func(x weights.Tensor, f []float32) weights.Tensor) (all []float32) {
			var list []weights.Named
			for name, x := range set.All() {
				f := make([]float32, len(x.Data)/x.DType.Size())
				if err := tensor.Widen(f, x.DType, x.Data); err != nil {
					t.Fatal(err)
				}
				list = append(list, weights.Named{Name: name, Tensor: change(x, f)})
			}
			dev := processor(t, 2)
			parts, err := load.Model(dev, cfg, weights.Of(list, nil), load.Options{Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			defer parts.Close()
			m, err := direct.New(dev, parts)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			see := func(_ int, x []float32) { all = append(all, x...) }
			if err := drive.Run(m, []*drive.Sequence{{Prompt: []int32{1, 5, 9, 300, 77, 6, 8, 2, 11}, All: true, See: see}}, drive.Options{}); err != nil {
				t.Fatal(err)
			}
			return all
		}
		want := logits(func(x weights.Tensor, _ []float32) weights.Tensor { return x })
		got := logits(func(x weights.Tensor, _ []float32) weights.Tensor { x.Data = odd(x.Data); return x })
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: odd addresses change the logits", name)
		}
		le := binary.LittleEndian
		want = logits(func(x weights.Tensor, f []float32) weights.Tensor {
			x.DType, x.Data = tensor.F32, nil
			for _, v := range f {
				x.Data = le.AppendUint32(x.Data, math.Float32bits(tensor.F16ToF32(half(v))))
			}
			return x
		})
		got = logits(func(x weights.Tensor, f []float32) weights.Tensor {
			x.DType, x.Data = tensor.F16, nil
			for _, v := range f {
				x.Data = le.AppendUint16(x.Data, half(v))
			}
			x.Data = odd(x.Data)
			return x
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: F16 weights give other logits than the same values as F32", name)
		}
	}
}
