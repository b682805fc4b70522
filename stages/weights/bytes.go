package weights

import (
	"maps"
	"slices"
	"unsafe"
)

// FromBytes reads a model whose files are in memory already, by file name; files
// that are not weights or their index are ignored. The set uses the bytes in
// place, so they must stay unchanged. Only a file that does not start at a
// multiple of 8 is copied, since its tensors could not be used where they are.
func FromBytes(files map[string][]byte) (*Set, error) { return open(memory(files)) }

// memory is a folder of embedded files.
type memory map[string][]byte

func (m memory) names() ([]string, error) { return slices.Collect(maps.Keys(m)), nil }

func (m memory) has(name string) bool {
	_, ok := m[name]
	return ok
}

func (m memory) open(name string) ([]byte, func() error, error) {
	b := m[name]
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		b = slices.Clone(b)
	}
	return b, nil, nil
}
