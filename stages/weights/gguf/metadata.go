package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// Kind is the type of a metadata value.
type Kind uint32

// The kinds, by their numbers in the file.
const (
	Uint8 Kind = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var kinds = [...]struct {
	name string
	size int // bytes; 0 for those of any size
}{
	{"uint8", 1}, {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"uint32", 4}, {"int32", 4}, {"float32", 4},
	{"bool", 1}, {"string", 0}, {"array", 0}, {"uint64", 8}, {"int64", 8}, {"float64", 8},
}

func (k Kind) String() string {
	if int(k) >= len(kinds) {
		return fmt.Sprintf("Kind(%d)", uint32(k))
	}
	return kinds[k].name
}

// Value is one metadata value. It lies in a copy of the header, so it stays valid after the
// file is closed.
type Value struct {
	Kind Kind
	elem Kind   // of an array
	n    int    // elements of an array
	raw  string // the bytes of the value; of an array, those of all elements; of a string, its text
}

// Metadata are the values of a file by key.
type Metadata struct {
	keys   []string
	values map[string]Value
}

// Keys lists the keys in the order of the file. Not to be changed.
func (m *Metadata) Keys() []string { return m.keys }

// Has reports whether a key is there.
func (m *Metadata) Has(key string) bool {
	_, ok := m.values[key]
	return ok
}

// Value returns the value of a key.
func (m *Metadata) Value(key string) (Value, bool) {
	v, ok := m.values[key]
	return v, ok
}

// get returns what read makes of a value. It must be there and of a type that read accepts.
func get[T any](m *Metadata, key, want string, read func(Value) (T, bool)) (T, error) {
	var zero T
	v, ok := m.values[key]
	if !ok {
		return zero, fmt.Errorf("%s: %w", key, ErrKeyMissing)
	}
	x, ok := read(v)
	if !ok {
		return zero, fmt.Errorf("%s: %w: want %s, got %s", key, ErrKeyType, want, v)
	}
	return x, nil
}

// Int returns a whole number of any width.
func (m *Metadata) Int(key string) (int64, error) { return get(m, key, "a whole number", Value.Int) }

// Float returns a number of any type.
func (m *Metadata) Float(key string) (float64, error) { return get(m, key, "a number", Value.Float) }

// Bool returns a truth value.
func (m *Metadata) Bool(key string) (bool, error) { return get(m, key, "a bool", Value.Bool) }

// String returns a text.
func (m *Metadata) String(key string) (string, error) { return get(m, key, "a string", Value.Text) }

// Strings returns an array of texts.
func (m *Metadata) Strings(key string) ([]string, error) {
	return get(m, key, "an array of strings", func(v Value) ([]string, bool) { return list(v, Value.Text) })
}

// Ints returns an array of whole numbers.
func (m *Metadata) Ints(key string) ([]int64, error) {
	return get(m, key, "an array of whole numbers", func(v Value) ([]int64, bool) { return list(v, Value.Int) })
}

// Floats returns an array of numbers.
func (m *Metadata) Floats(key string) ([]float64, error) {
	return get(m, key, "an array of numbers", func(v Value) ([]float64, bool) { return list(v, Value.Float) })
}

// Bools returns an array of truth values.
func (m *Metadata) Bools(key string) ([]bool, error) {
	return get(m, key, "an array of bools", func(v Value) ([]bool, bool) { return list(v, Value.Bool) })
}

// String describes a value in a few words.
func (v Value) String() string {
	if v.Kind != Array {
		return v.Kind.String()
	}
	return fmt.Sprintf("array of %d %s", v.n, v.elem)
}

// Len returns the number of elements of an array, 0 for others.
func (v Value) Len() int { return v.n }

// bytes returns the bytes of a number.
func (v Value) bytes() []byte { return unsafe.Slice(unsafe.StringData(v.raw), len(v.raw)) }

// Int returns a whole number of any width; a uint64 over the largest int64 is none.
func (v Value) Int() (int64, bool) {
	b := v.bytes()
	switch v.Kind {
	case Uint8:
		return int64(b[0]), true
	case Int8:
		return int64(int8(b[0])), true
	case Uint16:
		return int64(binary.LittleEndian.Uint16(b)), true
	case Int16:
		return int64(int16(binary.LittleEndian.Uint16(b))), true
	case Uint32:
		return int64(binary.LittleEndian.Uint32(b)), true
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	case Uint64, Int64:
		n := binary.LittleEndian.Uint64(b)
		return int64(n), v.Kind == Int64 || n <= math.MaxInt64
	}
	return 0, false
}

// Float returns a number of any type.
func (v Value) Float() (float64, bool) {
	switch b := v.bytes(); v.Kind {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	}
	n, ok := v.Int()
	return float64(n), ok
}

// Bool returns a truth value.
func (v Value) Bool() (x, ok bool) {
	if v.Kind != Bool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Text returns a string. It need not be UTF-8.
func (v Value) Text() (string, bool) { return v.raw, v.Kind == String }

// Elements returns the elements of an array.
func (v Value) Elements() ([]Value, bool) {
	return list(v, func(e Value) (Value, bool) { return e, true })
}

// list reads the elements of an array, all with the same function.
func list[T any](v Value, read func(Value) (T, bool)) ([]T, bool) {
	if v.Kind != Array {
		return nil, false
	}
	out := make([]T, v.n)
	s := scanner{b: v.bytes(), n: len(v.raw)}
	for i := range out {
		e, err := s.value(v.elem, 0) // cannot fail: it was checked when the file was read
		if err != nil {
			return nil, false
		}
		e.raw = v.raw[e.at:][:e.size]
		x, ok := read(e.Value)
		if !ok {
			return nil, false
		}
		out[i] = x
	}
	return out, true
}

// span is a value and where its bytes lie.
type span struct {
	Value
	at, size int
}

// value reads a value of a kind without keeping its bytes. depth is how many arrays it lies in.
func (s *scanner) value(k Kind, depth int) (v span, err error) {
	v.Kind = k
	switch {
	case int(k) >= len(kinds):
		return v, fmt.Errorf("%w: unknown metadata type %d at byte %d", ErrHeader, uint32(k), s.i)
	case k == String:
		if v.size, err = s.count(maxHeader, 1, "the length of a string"); err != nil {
			return v, err
		}
		v.at = s.i
		s.i += v.size
	case k == Array:
		return s.array(v, depth)
	default:
		v.at, v.size = s.i, kinds[k].size
		if err := s.need(uint64(v.size), "a value"); err != nil {
			return v, err
		}
		if k == Bool && s.b[s.i] > 1 {
			return v, fmt.Errorf("%w: the bool at byte %d is %d", ErrHeader, s.i, s.b[s.i])
		}
		s.i += v.size
	}
	return v, nil
}

// array reads the elements of an array, to know where it ends.
func (s *scanner) array(v span, depth int) (span, error) {
	if depth == maxNesting {
		return v, fmt.Errorf("%w: arrays nested more than %d deep at byte %d", ErrLimit, maxNesting, s.i)
	}
	at := s.i
	elem, err := s.u32("an array's type")
	if err != nil {
		return v, err
	}
	if v.elem = Kind(elem); int(elem) >= len(kinds) {
		return v, fmt.Errorf("%w: array of unknown metadata type %d at byte %d", ErrHeader, elem, at)
	}
	size := kinds[elem].size // the least that an element takes
	switch v.elem {
	case String:
		size = 8
	case Array:
		size = 12
	}
	if v.n, err = s.count(maxArray, uint64(size), "an array's length"); err != nil {
		return v, err
	}
	v.at = s.i
	if kinds[elem].size > 0 && v.elem != Bool {
		s.i += v.n * size
	} else {
		for range v.n {
			if _, err := s.value(v.elem, depth+1); err != nil {
				return v, err
			}
		}
	}
	v.size = s.i - v.at
	return v, nil
}
