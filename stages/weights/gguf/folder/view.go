package folder

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"krater/kernels/tensor"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
)

// View is a tensor of the release, made of rows of stored tensors. It is a weights.Coded.
type View struct {
	Shape []int   // of the release's tensor, row-major
	Scale float32 // what all stored values are multiplied by: 1, but for NVFP4 that has a scale for the tensor

	pieces  []piece
	columns tiles // of the rows
	change  change
}

// piece is a run of rows of a stored tensor. The rows of all its matrices count on.
type piece struct {
	from       gguf.Tensor
	first      int // row
	rows       int
	transposed int // >0: the piece is rows columns of this number of stored rows
	head       int // >0: in every head rows, rows of the first half and of the second alternate
}

// change is a change that llama.cpp makes to the values of a tensor when it converts a model.
type change uint8

const (
	unchanged change = iota
	plusOne          // it stores 1 + w for a norm
	negExp           // it stores -exp(A_log)
)

// width returns the length of a row.
func width(t gguf.Tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// rowBytes returns the size of a row.
func rowBytes(t gguf.Tensor) int {
	b := t.Type.Block()
	return width(t) / b.Elements * b.Bytes
}

// height returns the number of rows of all matrices of a tensor.
func height(t gguf.Tensor) int {
	n := 1
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		n *= d
	}
	return n
}

// Elements returns the number of values.
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
	if len(v.pieces) == 0 || v.change != unchanged || v.columns.per > 0 && !v.columns.whole(v.pieces[0].from.Type) {
		return 0, false
	}
	return v.pieces[0].from.Type, true
}

// Blocks returns the stored rows in the order of the release: the file's own bytes where they lie in
// one run, else a copy. ok is false if they have no Type, or if Scale is not 1.
func (v View) Blocks() (data []byte, ok bool) {
	kind, ok := v.Type()
	if !ok || v.Scale != 1 {
		return nil, false
	}
	if v.run() {
		return v.pieces[0].stored(), true
	}
	for _, p := range v.pieces {
		data = p.append(data)
	}
	if v.columns.per > 0 {
		ordered(v.columns, data, v.columns.bytes(kind))
	}
	return data, true
}

// IntegerRow implements weights.Integers: NVFP4 with a scale for the tensor has blocks with a factor. The
// product of both scales is rounded there, so a value may differ in its last bit.
func (v View) IntegerRow(dst *tensor.Matrix, at, row int) bool {
	kind, ok := v.Type()
	if !ok || kind != gguf.NVFP4 || dst.Encoding != tensor.NVFP4Scaled || dst.Cols != v.rowWidth() || v.Scale < minScale || v.Scale > maxScale {
		return false
	}
	for _, p := range v.pieces {
		if row >= p.rows {
			row -= p.rows
			continue
		}
		if p.head > 0 {
			row = p.at(row)
		}
		n, to := rowBytes(p.from), dst.Blocks[at*dst.RowBytes(dst.Cols):][:dst.RowBytes(dst.Cols)]
		binary.LittleEndian.PutUint32(to, math.Float32bits(v.Scale))
		copy(to[4:], p.stored()[row*n:][:n])
		if v.columns.per > 0 {
			ordered(v.columns, to[4:], v.columns.bytes(kind))
		}
		return dst.CheckBlocks(to, dst.Cols) == nil
	}
	return false
}

// Scales of a tensor between these keep those of blocks normal numbers.
const minScale, maxScale = 1.0 / (1 << 60), 1 << 60

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
		to = append(to, data[p.at(row)*n:][:n]...)
	}
	return to
}

// run reports whether the values lie in one run of the file in the order of the release.
func (v View) run() bool { return len(v.pieces) == 1 && v.pieces[0].head == 0 && v.columns.per == 0 }

// Encoding names how the values are stored, of each type once.
func (v View) Encoding() string {
	var names []string
	for _, p := range v.pieces {
		if name := strings.ToLower(p.from.Type.String()); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Stored lists the memory that the values are read from.
func (v View) Stored() (list [][]byte) {
	for _, p := range v.pieces {
		list = append(list, p.stored())
	}
	return list
}

// rowWidth returns the length of a row of the release's tensor.
func (v View) rowWidth() int {
	if len(v.Shape) == 0 {
		return 1
	}
	return v.Shape[len(v.Shape)-1]
}

// Floats writes the rows that dst has room for, from firstRow on.
func (v View) Floats(dst []float32, firstRow int) error {
	w := v.rowWidth()
	if firstRow < 0 || len(dst)%w != 0 || firstRow*w > v.Elements()-len(dst) {
		return fmt.Errorf("%w: %d values from row %d on for a shape of %v", gguf.ErrLength, len(dst), firstRow, v.Shape)
	}
	at, skip := dst, firstRow*w // values of the pieces before the first row
	for _, p := range v.pieces {
		w := p.width()
		first := min(skip/w, p.rows)
		skip -= first * w
		n := min(p.rows-first, len(at)/w)
		if n == 0 {
			continue
		}
		if err := p.floats(at[:n*w], first); err != nil {
			return fmt.Errorf("tensor %q: %w", p.from.Name, err)
		}
		at = at[n*w:]
	}
	if len(at) > 0 {
		return fmt.Errorf("%w: stored tensors do not fill a shape of %v", gguf.ErrShape, v.Shape)
	}
	if v.columns.per > 0 {
		ordered(v.columns, dst, v.columns.dim)
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

// width returns the length of a row of the piece.
func (p piece) width() int {
	if p.transposed > 0 {
		return p.transposed
	}
	return width(p.from)
}

// floats writes whole rows of the piece from first on.
func (p piece) floats(dst []float32, first int) error {
	stored, n, w := p.stored(), rowBytes(p.from), p.width()
	switch {
	case p.transposed > 0:
		return p.columns(dst, first)
	case p.head == 0:
		return p.from.Type.Decode(dst, stored[first*n:][:len(dst)/w*n])
	}
	for i := range len(dst) / w {
		if err := p.from.Type.Decode(dst[i*w:][:w], stored[p.at(first+i)*n:][:n]); err != nil {
			return err
		}
	}
	return nil
}

// at is where a row of a permuted piece is stored.
func (p piece) at(row int) int {
	i := row % p.head
	return row - i + i%(p.head/2)*2 + i/(p.head/2)
}

// columns writes columns of the stored rows from first on.
func (p piece) columns(dst []float32, first int) error {
	w := width(p.from)
	row := make([]float32, w)
	for j := range p.transposed {
		n := rowBytes(p.from)
		if err := p.from.Type.Decode(row, p.stored()[j*n:][:n]); err != nil {
			return err
		}
		for i := range len(dst) / p.transposed {
			dst[i*p.transposed+j] = row[first+i]
		}
	}
	return nil
}

// tensor returns the view as a set of weights has it: plain numbers where they lie in one run.
func (v View) tensor() weights.Tensor {
	t := weights.Tensor{DType: tensor.F32, Shape: v.Shape, Coded: v}
	plain := map[gguf.Type]tensor.DType{gguf.F32: tensor.F32, gguf.F16: tensor.F16, gguf.BF16: tensor.BF16}
	stored, same := v.Type()
	dtype, ok := plain[stored]
	if !same || !ok || v.Scale != 1 {
		return t
	}
	if v.run() {
		return weights.Tensor{DType: dtype, Shape: v.Shape, Data: v.pieces[0].stored()}
	}
	if dtype == tensor.BF16 {
		t.DType = dtype
	}
	return t
}
