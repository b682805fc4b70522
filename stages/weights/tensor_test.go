package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"krater/kernels/tensor"
)

// bytesOf is a code whose values are bytes, twice their size, [rows, width].
type bytesOf struct {
	stored []byte
	width  int
}

var errCode = errors.New("a bad code")

func (bytesOf) Encoding() string         { return "bytes" }
func (c bytesOf) Blocks() ([]byte, bool) { return c.stored, true }
func (c bytesOf) Stored() [][]byte       { return [][]byte{c.stored[:1], c.stored[1:]} }

func (c bytesOf) Floats(dst []float32, firstRow int) error {
	for i := range dst {
		if dst[i] = 2 * float32(c.stored[firstRow*c.width+i]); dst[i] == 510 {
			return errCode
		}
	}
	return nil
}

func TestOf(t *testing.T) {
	freed, released := 0, []string{}
	s := Of([]Named{
		{"b", Tensor{DType: tensor.BF16, Shape: []int{2, 2}, Data: make([]byte, 8)}},
		{"a", Tensor{DType: tensor.BF16, Shape: []int{3}}},
		{"c", Tensor{DType: tensor.F32, Shape: []int{1, 3}, Coded: bytesOf{[]byte("xyz"), 3}}},
	}, func() error { freed++; return nil }, func(b []byte) { released = append(released, string(b)) })
	if !slices.Equal(s.Names(), []string{"b", "a", "c"}) || s.Bytes() != 11 {
		t.Errorf("%v, %d bytes", s.Names(), s.Bytes())
	}
	if x, ok := s.Tensor("a"); !ok || !slices.Equal(x.Shape, []int{3}) || x.Encoding() != "BF16" {
		t.Errorf("%v, %v", x, ok)
	}
	c, _ := s.Tensor("c")
	v := s.View([]Named{{"part", c}})
	if len(s.Names()) != 0 || !slices.Equal(v.Names(), []string{"part"}) || c.Encoding() != "bytes" {
		t.Errorf("%v and %v", s.Names(), v.Names())
	}
	v.Release("part")
	v.Release("none")
	if !slices.Equal(released, []string{"x", "yz"}) {
		t.Errorf("released %q", released)
	}
	if err := errors.Join(s.Close(), v.Close(), v.Close()); err != nil || freed != 1 {
		t.Errorf("close: %v, freed %d times", err, freed)
	}
}

// TestCoded: values of a code come in pieces of any rows, as one type or another, over more rows
// than a goroutine takes at once.
func TestCoded(t *testing.T) {
	const rows, width = 3000, 77
	code := bytesOf{make([]byte, rows*width), width}
	for i := range code.stored {
		code.stored[i] = byte(i % 127) // twice that is a BF16
	}
	x := Tensor{DType: tensor.BF16, Shape: []int{rows / 3, 3, width}, Coded: code}
	for _, at := range [][2]int{{0, rows}, {0, 1}, {rows - 1, 1}, {17, 2000}, {rows, 0}} {
		got := make([]float32, at[1]*width)
		if err := x.Floats(got, at[0]); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != float32(2*code.stored[at[0]*width+i]) {
				t.Fatalf("rows %v: value %d is %v", at, i, v)
			}
		}
	}
	for _, bad := range [][2]int{{-1, 1}, {rows, 1}, {1, rows}} {
		if err := x.Floats(make([]float32, bad[1]*width), bad[0]); err == nil {
			t.Errorf("rows %v were read", bad)
		}
	}
	if err := x.Floats(make([]float32, width+1), 0); err == nil {
		t.Error("a part of a row was read")
	}
	var f32, bf16 []byte
	for _, b := range code.stored {
		f32 = binary.LittleEndian.AppendUint32(f32, math.Float32bits(2*float32(b)))
		bf16 = binary.LittleEndian.AppendUint16(bf16, tensor.F32ToBF16(2*float32(b)))
	}
	plain := Tensor{DType: tensor.BF16, Shape: x.Shape, Data: bf16}
	for _, y := range []Tensor{x, plain} {
		for _, want := range []struct {
			as   tensor.DType
			data []byte
		}{{tensor.F32, f32}, {tensor.BF16, bf16}} {
			got := make([]byte, len(want.data))
			if err := y.Write(got, want.as); err != nil || !bytes.Equal(got, want.data) {
				t.Errorf("%s as %s: %v", y.Encoding(), want.as, err)
			}
		}
	}
	x.DType = tensor.F32
	if err := x.Write(make([]byte, len(bf16)), tensor.BF16); err == nil {
		t.Error("F32 was rounded to BF16")
	}
	plain.Data = bf16[:len(bf16)-2]
	if err := errors.Join(plain.Floats(make([]float32, width), 0), plain.Write(make([]byte, len(bf16)), tensor.BF16)); err == nil {
		t.Error("a short tensor was read")
	}
	code.stored[len(code.stored)-1] = 255
	if err := x.Write(make([]byte, len(f32)), tensor.F32); !errors.Is(err, errCode) {
		t.Errorf("a bad code: %v", err)
	}
}

// blocksOf is a matrix of a file's blocks.
type blocksOf struct {
	e    string
	data []byte
}

func (b blocksOf) Encoding() string            { return b.e }
func (b blocksOf) Blocks() ([]byte, bool)      { return b.data, true }
func (b blocksOf) Stored() [][]byte            { return nil }
func (b blocksOf) Floats([]float32, int) error { return nil }

// TestExactly: blocks are taken as they are, joined where the encodings agree, and refused where a
// scale is not finite.
func TestExactly(t *testing.T) {
	of := func(e string, rows, cols, bytes int, fill byte) Tensor {
		b := make([]byte, bytes)
		for i := range b {
			b[i] = fill
		}
		return Tensor{DType: tensor.F32, Shape: []int{rows, cols}, Coded: blocksOf{e, b}}
	}
	a, b := of("q4_k", 3, 512, 3*2*144, 1), of("q4_k", 2, 512, 2*2*144, 2)
	f := FormatOf(a)
	if f != tensor.Q4_K.By(32) {
		t.Fatalf("format %s", f)
	}
	m, err := Exactly(f, 512, a, b)
	if err != nil || m == nil || m.Rows != 5 || m.Blocks[0] != 1 || m.Blocks[len(m.Blocks)-1] != 2 {
		t.Fatalf("%v, %v", m, err)
	}
	if m, err := Exactly(f, 512, a, of("q6_k", 2, 512, 2*2*210, 1)); m != nil || err != nil {
		t.Errorf("two encodings: %v, %v", m, err)
	}
	if _, err := Exactly(f, 512, of("q4_k", 1, 512, 2*144, 0xff)); !errors.Is(err, tensor.ErrScale) {
		t.Errorf("no number as a scale: %v", err)
	}
	q8 := of("q8_0", 2, 64, 2*2*34, 0x80)
	if m, err := Exactly(FormatOf(q8), 64, q8); err != nil || m.Values[5] != -128 {
		t.Errorf("%v, %v", m, err)
	}
	for name, x := range map[string]Tensor{
		"an encoding without kernels": of("q5_0", 1, 512, 16*22, 1), "part of a block": of("q4_k", 1, 320, 180, 1),
		"codes and scales apart": of("mxfp4", 1, 64, 3, 1), "plain numbers": {DType: tensor.F32, Shape: []int{1, 4}}, "a vector": {Shape: []int{4}, Coded: blocksOf{"q8_0", nil}},
	} {
		if f := FormatOf(x); !f.Zero() {
			t.Errorf("%s has format %s", name, f)
		}
	}
}
