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
	b := append([]byte(magic), 3, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(meta)))
	for _, p := range meta {
		var err error
		if b, err = appendValue(appendText(b, p.Key), p.Value); err != nil {
			return fmt.Errorf("%s: %w", p.Key, err)
		}
	}
	offset := uint64(0)
	for _, t := range tensors {
		size, err := t.Type.size(t.Shape)
		if err == nil && size != uint64(len(t.Data)) {
			err = fmt.Errorf("%w: %d bytes, %v of %s take %d", ErrLength, len(t.Data), t.Shape, t.Type, size)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		b = binary.LittleEndian.AppendUint32(appendText(b, t.Name), uint32(len(t.Shape)))
		for d := range t.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Shape[len(t.Shape)-1-d]))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Type))
		b = binary.LittleEndian.AppendUint64(b, offset)
		offset += (size + defaultAlignment - 1) / defaultAlignment * defaultAlignment
	}
	if err := writePadded(w, b); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := writePadded(w, t.Data); err != nil {
			return err
		}
	}
	return nil
}

// writePadded writes b and fills up to the alignment.
func writePadded(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	if n := -len(b) & (defaultAlignment - 1); err == nil && n > 0 {
		_, err = w.Write(make([]byte, n))
	}
	return err
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
