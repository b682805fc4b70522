package tensor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Kind is a kind of device. Each has a layout of its own for packed weights.
type Kind uint8

const (
	CPU Kind = iota
	GPU
	kinds
)

// String is the kind's name in names of files.
func (k Kind) String() string { return [...]string{CPU: "cpu", GPU: "gpu"}[k] }

// Encoding is how the weights of a matrix become bits. Each is declared in a file of its
// own, and kernels find what they need by it in tables.
type Encoding struct {
	name string // as in flags, files, caches and messages
	bits int    // of a weight; scales are not counted
	// levels are the integers that a weight may be before it is scaled, the smallest first.
	levels []int8
	// groups are the numbers of columns that may share a scale, the largest first; 0 stands
	// for a whole row.
	groups []int
	// packings are the layouts; nil: no device of the kind multiplies with the encoding.
	packings [kinds]Packing
	// shared: a GPU has the encoding in the bands of a CPU.
	shared bool
	// quantize makes row r of m from x [Cols]. nil: integers, whose scales package
	// stages/weights/quant finds.
	quantize func(m *Matrix, x []float32, r int)
	// widen writes row r of m to dst [Cols].
	widen func(dst []float32, m *Matrix, r int)
	// stored has the properties of an encoding of a file's blocks; nil for the others.
	stored *stored
}

// Name is the name in flags, files, caches and messages.
func (e *Encoding) Name() string { return e.name }

// Bits is the size of a weight; scales are not counted. 0 without an encoding.
func (e *Encoding) Bits() int {
	if e == nil {
		return 0
	}
	return e.bits
}

// Levels are the integers that a weight may be before it is scaled, the smallest first. Nothing
// may write to them.
func (e *Encoding) Levels() []int8 { return e.levels }

// Range is the smallest and the largest level.
func (e *Encoding) Range() (least, most int) {
	return int(e.levels[0]), int(e.levels[len(e.levels)-1])
}

// Shared reports whether a GPU keeps matrices of the encoding in a CPU's bands, to the byte: a host's
// copy is a GPU's.
func (e *Encoding) Shared() bool { return e != nil && e.shared }

// HasRule reports whether the encoding has a rule of its own for how weights are rounded
// (Matrix.Quantize). The others are integers, whose scales package stages/weights/quant finds.
func (e *Encoding) HasRule() bool { return e.quantize != nil }

// GroupSizes are the numbers of columns that may share a scale, the largest first; 0 stands
// for a whole row.
func (e *Encoding) GroupSizes() []int { return e.groups }

// Packing is how a kind of device lays out the matrices of an encoding: in bands of rows,
// one after the other. Values and scales lie apart. Layouts that it is given have passed its
// Check.
type Packing interface {
	// Check names what a layout cannot have.
	Check(l Layout) error
	// BandBytes is the size of the values and of the scales of a band.
	BandBytes(l Layout) (values, scales int)
	// Pack writes one band of m, with zeros where the matrix does not fill it. A value that
	// the encoding does not have is a programmer error and panics.
	Pack(l Layout, values, scales []byte, m *Matrix, band int)
	// Unpack reads row r of a packed matrix into row to of m.
	Unpack(l Layout, values, scales []byte, r int, m *Matrix, to int)
}

var registry = map[string]*Encoding{}

// register enters an encoding under its name.
func register(e *Encoding) *Encoding {
	if registry[e.name] != nil {
		panic("tensor: two encodings named " + e.name)
	}
	registry[e.name] = e
	return e
}

// EncodingOf is the encoding of a name, nil if there is none.
func EncodingOf(name string) *Encoding { return registry[name] }

// Encodings are the names of the encodings that a matrix of floats can be made in, sorted. The others
// come from files (StoredEncodings).
func Encodings() []string { return names(func(e *Encoding) bool { return !e.Stored() }) }

// StoredEncodings are the names of the encodings of blocks, sorted.
func StoredEncodings() []string { return names((*Encoding).Stored) }

// SharedEncodings are the names of the encodings that a GPU has in a CPU's bands, sorted.
func SharedEncodings() []string { return names((*Encoding).Shared) }

func names(has func(*Encoding) bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(registry)), func(name string) bool { return !has(registry[name]) })
}

// Format is how the weights of a matrix are kept: an encoding and, where that leaves it
// open, a group size. The zero Format stands for "as the file holds it". Formats are
// compared with ==.
type Format struct {
	*Encoding
	Group int // columns that share a scale; 0: a whole row
}

// By is the encoding with a group size.
func (e *Encoding) By(group int) Format {
	if e == nil {
		return Format{}
	}
	return Format{e, group}
}

// Named is the encoding of a name with a group size. An encoding without a choice of groups
// has its own.
func Named(name string, group int) (Format, error) {
	e := registry[name]
	if e == nil {
		return Format{}, fmt.Errorf("no number format %q: there are %s", name, strings.Join(Encodings(), ", "))
	}
	if len(e.groups) == 1 {
		group = e.groups[0]
	}
	f := e.By(group)
	return f, f.checkGroup()
}

// checkGroup refuses a group size that the encoding does not offer.
func (f Format) checkGroup() error {
	if !slices.Contains(f.groups, f.Group) {
		return fmt.Errorf("%s has no groups of %d columns, but of %v (0: a whole row)", f.name, f.Group, f.groups)
	}
	return nil
}

// Zero reports whether the weights are as the file holds them.
func (f Format) Zero() bool { return f.Encoding == nil }

// String is the name of the format in files and messages: "int4_g128", "int4_row".
func (f Format) String() string {
	switch {
	case f.Zero():
		return "as in the file"
	case len(f.groups) == 1:
		return f.name
	case f.Group == 0:
		return f.name + "_row"
	}
	return fmt.Sprintf("%s_g%d", f.name, f.Group)
}

// Of is the format that a matrix of cols columns gets. A group that does not divide the
// columns, rounded up to 32, falls to the largest smaller one that does.
func (f Format) Of(cols int) Format {
	if f.Zero() {
		return f
	}
	if f.Group == 0 {
		f.Group = Padded(cols)
		return f
	}
	for _, g := range f.groups {
		if g > 0 && g <= f.Group && Padded(cols)%g == 0 {
			f.Group = g
			break
		}
	}
	return f
}

// On is how a kind of device keeps a matrix [rows, cols].
func (f Format) On(k Kind, rows, cols int) (Layout, error) {
	l := Layout{Format: f, Rows: rows, Cols: cols, For: k}
	if f.Zero() {
		return l, fmt.Errorf("matrix [%d, %d]: no number format", rows, cols)
	}
	if err := f.checkGroup(); err != nil {
		return l, err
	}
	l.Format = f.Of(cols)
	return l, l.Check()
}

// Network is how a kind of device keeps a SwiGLU network: gate and up [2*ff, hidden], which
// GPUs want joined, and down [hidden, ff].
func (f Format) Network(k Kind, hidden, ff int) (w13, w2 Layout, err error) {
	return f.NetworkWith(f, k, hidden, ff)
}

// NetworkWith is Network with down in another format.
func (f Format) NetworkWith(down Format, k Kind, hidden, ff int) (w13, w2 Layout, err error) {
	if w13, err = f.On(k, 2*ff, hidden); err != nil {
		return w13, w2, err
	}
	if w13.Joined = k == GPU && !f.shared; w13.Joined {
		if err = w13.Check(); err != nil {
			return w13, w2, err
		}
	}
	w2, err = down.On(k, hidden, ff)
	return w13, w2, err
}
