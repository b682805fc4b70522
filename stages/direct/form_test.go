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

// coded is values as a code: the float32 they are.
type coded struct {
	values []float32
	width  int
}

func (coded) Encoding() string       { return "coded" }
func (coded) Blocks() ([]byte, bool) { return nil, false }
func (coded) Stored() [][]byte       { return nil }
func (c coded) Floats(dst []float32, firstRow int) error {
	copy(dst, c.values[firstRow*c.width:])
	return nil
}

// changed is a tensor in another form. f are its values.
type changed func(x weights.Tensor, f []float32) weights.Tensor

// logitsOf runs a golden with its tensors changed.
func logitsOf(t *testing.T, name string, p load.Precision, change changed) (all []float32) {
	t.Helper()
	cfg, set := files(t, folder(name), "config.json")
	var list []weights.Named
	for name, x := range set.All() {
		rows, width := x.Rows()
		f := make([]float32, rows*width)
		if err := x.Floats(f, 0); err != nil {
			t.Fatal(err)
		}
		list = append(list, weights.Named{Name: name, Tensor: change(x, f)})
	}
	dev := processor(t, 2)
	parts, err := load.Model(dev, cfg, weights.Of(list, nil, nil), load.Options{Limits: limits, Precision: p})
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

// same is a tensor in the form that it has.
func same(x weights.Tensor, _ []float32) weights.Tensor { return x }

// TestWeightForms: weights at odd addresses, as files without padding have them, and F16
// weights give the bits that the same values give otherwise.
func TestWeightForms(t *testing.T) {
	// odd is a copy of b that starts at an odd address.
	odd := func(b []byte) []byte { return append(make([]byte, 1, len(b)+9), b...)[1:] }
	for _, name := range goldens.Names(t) {
		logits := func(change changed) []float32 { return logitsOf(t, name, load.Precision{}, change) }
		want := logits(same)
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

// TestCodedForms: encoded weights give the bits that the same values give as plain numbers, with
// and without a format.
func TestCodedForms(t *testing.T) {
	as := func(dt tensor.DType) changed {
		return func(x weights.Tensor, f []float32) weights.Tensor {
			if x.DType != tensor.BF16 {
				return x
			}
			x.DType, x.Data = dt, nil
			_, width := x.Rows()
			x.Coded = coded{f, width}
			return x
		}
	}
	f32 := func(x weights.Tensor, f []float32) weights.Tensor {
		x.DType, x.Data = tensor.F32, nil
		for _, v := range f {
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
		}
		return x
	}
	int8 := tensor.INT8.By(64)
	precisions := []load.Precision{{}, {Attention: int8, KVB: int8, Shared: int8, Dense: int8, Head: int8}}
	for golden, name := range goldens.Names(t) {
		for i, p := range precisions {
			if !turn(golden, i, len(precisions)) {
				continue
			}
			want, got := logitsOf(t, name, p, same), logitsOf(t, name, p, as(tensor.BF16))
			if len(want) == 0 || !slices.Equal(got, want) || !slices.Equal(logitsOf(t, name, p, as(tensor.F32)), logitsOf(t, name, p, f32)) {
				t.Errorf("%s as %s: encoded weights give other logits than the same values", name, p.Any())
			}
		}
	}
}
