package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	magic            = "GGUF"
	alignmentKey     = "general.alignment"
	defaultAlignment = 32
)

// Tensor is one tensor as stored.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int  // row-major, so the last one counts the elements of a row: the file lists them the other way round
	Data  []byte // at any address; read-only, valid until File.Close
}

// part is one parsed file.
type part struct {
	meta    Metadata
	tensors []Tensor // in the order of their bytes
}

// parse checks a whole file. An error wraps one of this package's and names the key or the
// tensor at fault; the caller adds the file's name.
func parse(file []byte) (*part, error) {
	s := &scanner{b: file[:min(len(file), maxHeader)], n: len(file)}
	if err := s.version(); err != nil {
		return nil, err
	}
	tensors, err := s.count(maxTensors, 0, "the number of tensors")
	if err != nil {
		return nil, err
	}
	keys, err := s.count(maxKeys, 13, "the number of metadata keys") // a key of one byte, its length, its type, a value
	if err != nil {
		return nil, err
	}
	p := &part{}
	if err := s.metadata(&p.meta, keys); err != nil {
		return nil, err
	}
	align, err := alignment(&p.meta)
	if err != nil {
		return nil, err
	}
	if err := s.need(uint64(tensors)*25, fmt.Sprintf("the list of %d tensors", tensors)); err != nil { // a name of one byte, its length, no sizes, a type, an offset
		return nil, err
	}
	entries := make([]entry, 0, tensors)
	seen := make(map[string]bool, tensors)
	for i := range tensors {
		e, err := s.entry(i)
		if err != nil {
			return nil, err
		}
		if seen[e.Name] {
			return nil, fmt.Errorf("tensor %q: %w", clip(e.Name), ErrDuplicate)
		}
		seen[e.Name] = true
		entries = append(entries, e)
	}
	start := (s.i + align - 1) / align * align
	p.tensors, err = place(entries, file, start, align)
	return p, err
}

// version reads what comes before the counts.
func (s *scanner) version() error {
	head := s.b[:min(4, len(s.b))]
	if string(head) != magic {
		if len(head) == 4 && slices.Contains([]string{"lmgg", "fmgg", "tjgg", "algg"}, string(head)) {
			return fmt.Errorf("%w: it is of a format before GGUF (%q); convert the model again with a current llama.cpp", ErrMagic, head)
		}
		if len(head) == 0 {
			return fmt.Errorf("%w: it is empty; its download may not have ended", ErrMagic)
		}
		return fmt.Errorf("%w: it starts with %q", ErrMagic, head)
	}
	s.i = 4
	v, err := s.u32("the version")
	switch {
	case err != nil:
		return err
	case v == 2 || v == 3:
		return nil
	case v == 0x02000000 || v == 0x03000000 || v == 0x01000000:
		return fmt.Errorf("%w (version %d): convert the model on a little-endian machine", ErrBigEndian, v>>24)
	case v == 1:
		return fmt.Errorf("%w 1: convert the model again with a current llama.cpp; versions 2 and 3 are read", ErrVersion)
	}
	return fmt.Errorf("%w %d: versions 2 and 3 are read", ErrVersion, v)
}

// metadata reads n keys and values.
func (s *scanner) metadata(m *Metadata, n int) error {
	m.keys, m.values = make([]string, 0, n), make(map[string]Value, n)
	spans := make([]span, 0, n)
	for i := range n {
		key, err := s.name(maxKey, fmt.Sprintf("metadata key %d", i))
		if err != nil {
			return err
		}
		if _, dup := m.values[key]; dup {
			return fmt.Errorf("metadata key %q: %w", clip(key), ErrDuplicate)
		}
		kind, err := s.u32("the type of " + clip(key))
		if err == nil {
			var v span
			if v, err = s.value(Kind(kind), 0); err == nil {
				spans = append(spans, v)
			}
		}
		if err != nil {
			return fmt.Errorf("metadata key %q: %w", clip(key), err)
		}
		m.keys, m.values[key] = append(m.keys, key), Value{}
	}
	head := string(s.b[:s.i]) // a copy: the file may be unmapped later
	for i, v := range spans {
		v.raw = head[v.at:][:v.size]
		m.values[m.keys[i]] = v.Value
	}
	return nil
}

// alignment returns the alignment of tensors, in bytes.
func alignment(m *Metadata) (int, error) {
	n, err := m.Int(alignmentKey)
	switch {
	case errors.Is(err, ErrKeyMissing):
		return defaultAlignment, nil
	case err != nil:
		return 0, err
	case n < 1 || n > maxAlign || n&(n-1) != 0:
		return 0, fmt.Errorf("%w: %s is %d, want a power of two up to %d", ErrHeader, alignmentKey, n, maxAlign)
	}
	return int(n), nil
}

// entry is a tensor as the header lists it.
type entry struct {
	Tensor
	offset, size uint64 // from the start of the tensors' bytes
}

// entry reads the i-th tensor of the list.
func (s *scanner) entry(i int) (e entry, err error) {
	if e.Name, err = s.name(maxName, fmt.Sprintf("the name of tensor %d", i)); err != nil {
		return e, err
	}
	fail := func(err error) (entry, error) { return e, fmt.Errorf("tensor %q: %w", clip(e.Name), err) }
	dims, err := s.u32("the number of dimensions")
	if err != nil {
		return fail(err)
	}
	if dims > maxDims {
		return fail(fmt.Errorf("%w: %d dimensions, at most %d are possible", ErrShape, dims, maxDims))
	}
	e.Shape = make([]int, dims)
	for d := range e.Shape {
		n, err := s.u64("a size")
		if err != nil {
			return fail(err)
		}
		if n > math.MaxInt64 {
			return fail(fmt.Errorf("%w: size %d of dimension %d", ErrShape, n, d))
		}
		e.Shape[len(e.Shape)-1-d] = int(n)
	}
	kind, err := s.u32("the type")
	if err != nil {
		return fail(err)
	}
	e.Type = Type(kind)
	if e.offset, err = s.u64("the offset"); err == nil {
		e.size, err = e.Type.size(e.Shape)
	}
	if err != nil {
		return fail(err)
	}
	return e, nil
}

// size returns the number of bytes of a tensor, refused where it overflows or a row is not whole
// blocks.
func (t Type) size(shape []int) (uint64, error) {
	if !t.known() {
		return 0, fmt.Errorf("%w %s", ErrType, t)
	}
	row, elements := 1, uint64(1)
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	block := t.Block()
	if row%block.Elements != 0 {
		return 0, fmt.Errorf("%w: rows of %d elements, and %s has blocks of %d", ErrShape, row, t, block.Elements)
	}
	for _, d := range shape {
		if d != 0 && elements > math.MaxInt64/uint64(d)/uint64(block.Bytes) {
			return 0, fmt.Errorf("%w: %v of %s", ErrShape, shape, t)
		}
		elements *= uint64(d)
	}
	return elements / uint64(block.Elements) * uint64(block.Bytes), nil
}

// place gives each tensor its bytes. They must lie in the file, aligned, and without overlap.
func place(entries []entry, file []byte, start, align int) ([]Tensor, error) {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.size, b.size))
	})
	var data []byte
	if start < len(file) {
		data = file[start:]
	}
	out := make([]Tensor, len(entries))
	at, before := uint64(0), ""
	for i, e := range entries {
		out[i] = e.Tensor
		fail := func(err error, format string, args ...any) error {
			return fmt.Errorf("tensor %q: %w: %s", clip(e.Name), err, fmt.Sprintf(format, args...))
		}
		switch {
		case e.offset%uint64(align) != 0:
			return nil, fail(ErrAlign, "offset %d is no multiple of %d", e.offset, align)
		case e.size == 0: // wherever it lies
			continue
		case e.offset > uint64(len(data)) || e.size > uint64(len(data))-e.offset:
			return nil, fail(ErrTruncated, "%d bytes from offset %d on, and the file has %d bytes of tensors",
				e.size, e.offset, len(data))
		case e.offset < at:
			return nil, fail(ErrOverlap, "it starts at offset %d, and %q ends at %d", e.offset, clip(before), at)
		}
		out[i].Data = data[e.offset : e.offset+e.size : e.offset+e.size]
		at, before = e.offset+e.size, e.Name
	}
	return out, nil
}
