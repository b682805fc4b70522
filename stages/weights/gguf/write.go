package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Pair is a metadata key and its value: a string, bool, uint32, uint64, int32 or float32, or a
// slice of strings, int32 or float32.
type Pair struct {
	Key   string
	Value any
}

// Write writes a file of version 3 with the default alignment. The tensors' Data must have the
// sizes that their types and shapes need.
func Write(w io.Writer, meta []Pair, tensors []Tensor) error {
	b, err := Head(meta, tensors)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if size, _ := t.Size(); size != int64(len(t.Data)) {
			return fmt.Errorf("tensor %q: %w: %d bytes, %v of %s take %d", t.Name, ErrLength, len(t.Data), t.Shape, t.Type, size)
		}
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, Padding(int64(len(t.Data))))); err != nil {
			return err
		}
	}
	return nil
}

// Size returns the number of bytes that the tensor's type and shape need.
func (t *Tensor) Size() (int64, error) {
	n, err := t.Type.size(t.Shape)
	return int64(n), err
}

// Padding returns the number of padding bytes after a tensor of n bytes, for the default alignment.
func Padding(n int64) int { return int(-n & (defaultAlignment - 1)) }

// Head returns the part of a file before the tensors, which follow in the order of the list with Padding
// after each. Their Data is not looked at.
func Head(meta []Pair, tensors []Tensor) ([]byte, error) {
	b := append([]byte(magic), 3, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(meta)))
	for _, p := range meta {
		var err error
		if b, err = appendValue(appendText(b, p.Key), p.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Key, err)
		}
	}
	offset := int64(0)
	for _, t := range tensors {
		size, err := t.Size()
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		b = binary.LittleEndian.AppendUint32(appendText(b, t.Name), uint32(len(t.Shape)))
		for d := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Shape[len(t.Shape)-1-d]))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, uint64(offset))
		offset += size + int64(Padding(size))
	}
	return append(b, make([]byte, Padding(int64(len(b))))...), nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendValue writes the kind of a value and the value.
func appendValue(b []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	kind := func(k Kind) []byte { return le.AppendUint32(b, uint32(k)) }
	array := func(k Kind, n int) []byte {
		return le.AppendUint64(le.AppendUint32(kind(Array), uint32(k)), uint64(n))
	}
	switch x := value.(type) {
	case string:
		return appendText(kind(String), x), nil
	case bool:
		if x {
			return append(kind(Bool), 1), nil
		}
		return append(kind(Bool), 0), nil
	case uint32:
		return le.AppendUint32(kind(Uint32), x), nil
	case uint64:
		return le.AppendUint64(kind(Uint64), x), nil
	case int32:
		return le.AppendUint32(kind(Int32), uint32(x)), nil
	case float32:
		return le.AppendUint32(kind(Float32), math.Float32bits(x)), nil
	case []string:
		b = array(String, len(x))
		for _, s := range x {
			b = appendText(b, s)
		}
		return b, nil
	case []bool:
		b = array(Bool, len(x))
		for _, v := range x {
			b = append(b, map[bool]byte{true: 1}[v])
		}
		return b, nil
	case []int32:
		b = array(Int32, len(x))
		for _, v := range x {
			b = le.AppendUint32(b, uint32(v))
		}
		return b, nil
	case []float32:
		b = array(Float32, len(x))
		for _, v := range x {
			b = le.AppendUint32(b, math.Float32bits(v))
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: a %T cannot be written", ErrKeyType, value)
}
