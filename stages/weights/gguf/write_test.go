package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// TestWrite: what is written is read again.
func TestWrite(t *testing.T) {
	meta := []Pair{{"s", "text"}, {"b", true}, {"c", false}, {"u", uint32(1)}, {"v", uint64(2)}, {"i", int32(-3)}, {"f", float32(0.5)},
		{"ss", []string{"a", ""}}, {"ii", []int32{1, -2}}, {"ff", []float32{0.25}}}
	tensors := []Tensor{
		{"a", I8, []int{3}, []byte{1, 2, 3}},
		{"b", Q8_0, []int{2, 1, 32}, randomBytes(1, 68)},
		{"c", F32, nil, []byte{0, 0, 0, 0}},
	}
	var out bytes.Buffer
	if err := Write(&out, meta, tensors); err != nil {
		t.Fatal(err)
	}
	f, err := Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range tensors {
		if got, _ := f.Tensor(want.Name); got.Type != want.Type || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	text, _ := f.String("s")
	b, _ := f.Bool("b")
	c, _ := f.Bool("c")
	v, _ := f.Int("v")
	i, _ := f.Int("i")
	x, _ := f.Float("f")
	ss, _ := f.Strings("ss")
	ii, _ := f.Ints("ii")
	ff, _ := f.Floats("ff")
	if got := fmt.Sprint(text, b, c, v, i, x, ss, ii, ff, len(f.Keys())); got != "texttrue false 2 -3 0.5 [a ] [1 -2] [0.25] 10" {
		t.Error(got)
	}
	for _, bad := range []error{
		Write(&out, []Pair{{"x", 1.5}}, nil),
		Write(&out, nil, []Tensor{{"x", F32, []int{1}, nil}}),
		Write(&out, nil, []Tensor{{"x", Q4_K, []int{1}, nil}}),
		Write(&out, nil, []Tensor{{"x", 9, []int{1}, nil}}),
	} {
		if !errors.Is(bad, ErrKeyType) && !errors.Is(bad, ErrLength) && !errors.Is(bad, ErrShape) && !errors.Is(bad, ErrType) {
			t.Error(bad)
		}
	}
}

// TestQuantisation: the file's own word counts, if it is known.
func TestQuantisation(t *testing.T) {
	for number, want := range map[uint32]string{15: "Q4_K_M", 38: "MXFP4_MOE", 4711: "Q8_0"} {
		var out bytes.Buffer
		if err := Write(&out, []Pair{{"general.file_type", number}}, []Tensor{{"a", Q8_0, []int{32}, randomBytes(1, 34)}, {"b", F32, nil, []byte{0, 0, 0, 0}}}); err != nil {
			t.Fatal(err)
		}
		f, err := Parse(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Quantisation(); got != want {
			t.Errorf("%d: %s, want %s", number, got, want)
		}
	}
}
