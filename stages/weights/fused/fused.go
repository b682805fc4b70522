// Package fused presents tensors that hold a matrix of every expert as one tensor for each expert. A
// family says how they lie (model.Fused); the numbers may be plain or quantised.
package fused

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

var (
	// ErrShape: a fused tensor has another shape than the config implies.
	ErrShape = errors.New("fused: the shape of a tensor of all experts")
	// ErrTwice: an expert has a tensor of its own beside that of all experts.
	ErrTwice = errors.New("fused: an expert's tensor is there twice")
)

// View presents the fused tensors of cfg in set as the tensors of experts; others stay. It takes
// over the memory of set, which is empty from then on, and closes it after an error. Without fused
// tensors set stays as it is.
func View(cfg *model.Config, set *weights.Set) (*weights.Set, error) {
	all := cfg.FusedTensors()
	if !slices.ContainsFunc(set.Names(), func(name string) bool { _, ok := all[name]; return ok }) {
		return set, nil
	}
	list, err := split(all, set)
	if err != nil {
		set.Close()
		return nil, err
	}
	return set.View(list), nil
}

func split(all map[string]model.FusedTensor, set *weights.Set) (list []weights.Named, err error) {
	for name, t := range set.All() {
		f, ok := all[name]
		if !ok {
			list = append(list, weights.Named{Name: name, Tensor: t})
			continue
		}
		f.Transposed = f.Transposed && t.Coded == nil
		want := []int{f.Experts, f.Out}
		switch {
		case f.In == 0:
			f.Transposed = false
		case f.Transposed:
			want = []int{f.Experts, f.In, f.Out}
		default:
			want = append(want, f.In)
		}
		if !slices.Equal(t.Shape, want) {
			return nil, fmt.Errorf("%w: %.100q is %v, the config implies %v", ErrShape, name, t.Shape, want)
		}
		if bytes := f.Experts * f.Out * max(1, f.In) * t.DType.Size(); t.Coded == nil && len(t.Data) != bytes {
			return nil, fmt.Errorf("%w: %.100q has %d bytes, want %d", ErrShape, name, len(t.Data), bytes)
		}
		for _, p := range f.Pieces {
			if _, twice := set.Tensor(p.Name); twice {
				return nil, fmt.Errorf("%w: %.100q beside %.100q", ErrTwice, p.Name, name)
			}
			list = append(list, weights.Named{Name: p.Name, Tensor: piece(&f, p, t)})
		}
	}
	return list, nil
}

// piece returns a tensor of one expert in the fused tensor t.
func piece(f *model.FusedTensor, p model.Piece, t weights.Tensor) weights.Tensor {
	rows, cols := p.Shape[0], 1
	if f.In > 0 {
		cols = f.In
	}
	x := &part{whole: t, rows: rows, cols: cols, vector: f.In == 0, at: p.Expert*f.Out + p.First, step: p.Step, stored: share(t, p.Expert, f.Experts)}
	out := weights.Tensor{DType: t.DType, Shape: p.Shape}
	switch size := t.DType.Size(); {
	case f.Transposed:
		x.plain, x.across, x.down = t.Data[p.Expert*f.Out*f.In*size:][:f.Out*f.In*size], p.Step, f.Out
		x.plain = x.plain[p.First*size:]
	case t.Coded == nil && p.Step == 1:
		out.Data = t.Data[x.at*cols*size:][:rows*cols*size]
		return out
	case t.Coded == nil:
		x.plain, x.across, x.down = t.Data[x.at*cols*size:], p.Step*cols, 1
	}
	if p.First > 0 {
		x.stored = nil // the first part's
	}
	out.Coded = x
	return out
}

// share returns the part of the memory of t that expert e of n has: all pieces lie by expert.
func share(t weights.Tensor, e, n int) (list [][]byte) {
	for _, b := range t.Stored() {
		if size := len(b) / n; len(b)%n == 0 {
			list = append(list, b[e*size:(e+1)*size])
		}
	}
	return list
}

// part is the rows of one expert's tensor in a fused one (weights.Coded).
type part struct {
	whole      weights.Tensor
	rows, cols int
	vector     bool // [rows], which counts as one row
	at, step   int  // row i is row at + i*step of whole, if that is quantised
	// Of plain numbers, element (row, col) is element row*across + col*down of plain.
	plain        []byte
	across, down int
	stored       [][]byte
}

// Encoding implements weights.Coded.
func (x *part) Encoding() string { return x.whole.Encoding() }

// Blocks implements weights.Coded: rows lie apart.
func (x *part) Blocks() ([]byte, bool) { return nil, false }

// IntegerRow implements weights.Integers, if whole does.
func (x *part) IntegerRow(dst *tensor.Matrix, at, row int) bool {
	w, ok := x.whole.Coded.(weights.Integers)
	return ok && !x.vector && w.IntegerRow(dst, at, x.at+row*x.step)
}

// Stored implements weights.Coded. Of several parts that lie between one another, the first has all.
func (x *part) Stored() [][]byte { return x.stored }

// Floats implements weights.Coded.
func (x *part) Floats(dst []float32, firstRow int) error {
	cols := x.cols
	if x.vector {
		firstRow *= x.rows
	}
	n := len(dst) / cols
	if firstRow < 0 || len(dst)%cols != 0 || n > x.rows-firstRow {
		return fmt.Errorf("fused: %d values from row %d of %d rows of %d", len(dst), firstRow, x.rows, cols)
	}
	if x.plain == nil {
		for i := range n {
			if err := x.whole.Floats(dst[i*cols:(i+1)*cols], x.at+(firstRow+i)*x.step); err != nil {
				return err
			}
		}
		return nil
	}
	size := x.whole.DType.Size()
	for c := range cols { // neighbours in a transposed matrix are rows
		for i := range n {
			at := ((firstRow+i)*x.across + c*x.down) * size
			dst[i*cols+c] = number(x.plain[at:], x.whole.DType)
		}
	}
	return nil
}

// number returns a plain number.
func number(b []byte, dt tensor.DType) float32 {
	switch dt {
	case tensor.BF16:
		return tensor.BF16ToF32(binary.LittleEndian.Uint16(b))
	case tensor.F16:
		return tensor.F16ToF32(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}
