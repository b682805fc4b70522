package folder

import (
	"fmt"
	"math"

	"krater/stages/weights/gguf"
)

// View is a tensor of the release, made of rows of stored tensors.
type View struct {
	Shape []int   // of the release's tensor, row-major
	Scale float32 // what all stored values are multiplied by: 1, but for NVFP4 that has a scale for the tensor

	pieces []piece
	change change
}

// piece is a run of rows of a stored tensor. The rows of all its matrices count on.
type piece struct {
	from       gguf.Tensor
	first      int // row
	rows       int
	transposed int // >0: the piece is rows columns of this number of stored rows
	head       int // >0: in every head rows, rows of the first half and of the second alternate
}

// change is what llama.cpp does to the values of a tensor when it converts a model.
type change uint8

const (
	unchanged change = iota
	plusOne          // it stores 1 + w for a norm
	negExp           // it stores -exp(A_log)
)

// width is the length of a row.
func width(t gguf.Tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// rowBytes is the size of a row.
func rowBytes(t gguf.Tensor) int {
	b := t.Type.Block()
	return width(t) / b.Elements * b.Bytes
}

// height is the number of rows of all matrices of a tensor.
func height(t gguf.Tensor) int {
	n := 1
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		n *= d
	}
	return n
}

// Elements is the number of values.
func (v View) Elements() int {
	n := 1
	for _, d := range v.Shape {
		n *= d
	}
	return n
}

// Type is how the values are stored, if all are stored alike and unchanged, so that Blocks gives
// them.
func (v View) Type() (gguf.Type, bool) {
	for _, p := range v.pieces {
		if p.transposed > 0 || p.from.Type != v.pieces[0].from.Type {
			return 0, false
		}
	}
	if len(v.pieces) == 0 || v.change != unchanged {
		return 0, false
	}
	return v.pieces[0].from.Type, true
}

// Blocks returns the stored rows in the order of the release, without Scale: the file's own bytes
// where they lie in one run, else a copy. ok is false where Type's is.
func (v View) Blocks() (data []byte, ok bool) {
	if _, ok := v.Type(); !ok {
		return nil, false
	}
	if len(v.pieces) == 1 && v.pieces[0].head == 0 {
		return v.pieces[0].stored(), true
	}
	for _, p := range v.pieces {
		data = p.append(data)
	}
	return data, true
}

// stored are the rows as they lie in the file.
func (p piece) stored() []byte {
	n, rows := rowBytes(p.from), p.rows
	if p.transposed > 0 {
		rows = p.transposed
	}
	return p.from.Data[p.first*n:][: rows*n : rows*n]
}

// append appends the rows in the order of the release.
func (p piece) append(to []byte) []byte {
	data := p.stored()
	if p.head == 0 {
		return append(to, data...)
	}
	n := rowBytes(p.from)
	for row := range p.rows {
		i := row % p.head
		at := row - i + i%(p.head/2)*2 + i/(p.head/2)
		to = append(to, data[at*n:][:n]...)
	}
	return to
}

// Floats writes all values to dst, which has Elements.
func (v View) Floats(dst []float32) error {
	if len(dst) != v.Elements() {
		return fmt.Errorf("%w: %d values for a shape of %v", gguf.ErrLength, len(dst), v.Shape)
	}
	at := dst
	for _, p := range v.pieces {
		n := p.rows * width(p.from)
		if p.transposed > 0 {
			n = p.rows * p.transposed
		}
		if n > len(at) {
			return fmt.Errorf("%w: %q does not fill a shape of %v", gguf.ErrShape, p.from.Name, v.Shape)
		}
		if err := p.floats(at[:n]); err != nil {
			return fmt.Errorf("tensor %q: %w", p.from.Name, err)
		}
		at = at[n:]
	}
	for i, x := range dst {
		switch v.change {
		case plusOne:
			dst[i] = x - 1
		case negExp:
			dst[i] = float32(math.Log(float64(-x)))
		default:
			dst[i] = x * v.Scale
		}
	}
	return nil
}

func (p piece) floats(dst []float32) error {
	switch {
	case p.transposed > 0:
	case p.head > 0:
		return p.from.Type.Decode(dst, p.append(nil))
	default:
		return p.from.Type.Decode(dst, p.stored())
	}
	w := width(p.from)
	stored := make([]float32, p.transposed*w)
	if err := p.from.Type.Decode(stored, p.stored()); err != nil {
		return err
	}
	for i := range p.rows {
		for j := range p.transposed {
			dst[i*p.transposed+j] = stored[j*w+i]
		}
	}
	return nil
}
