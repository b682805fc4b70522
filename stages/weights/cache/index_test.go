//go:build unix

package cache

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"krater/kernels/tensor"
)

// FuzzMatrixFile: no header and index make the reader panic or allocate beyond the
// file; what is accepted encodes to the same bytes.
func FuzzMatrixFile(f *testing.F) {
	x := newIndex()
	for _, w := range wanted() {
		layout, err := w.On(tensor.CPU, w.rows, w.cols)
		if err != nil {
			f.Fatal(err)
		}
		x.records[key{w.name, layout}] = record{x.end, uint32(x.end)}
		x.end += int64(sizeOf(layout))
	}
	o, _ := matrixOptions("")
	index, header := x.encode(o.Source, o.digest())
	f.Add(header, index)
	f.Add(header[:100], index[:100])
	f.Fuzz(func(t *testing.T, header, index []byte) {
		header = slices.Clone(header)
		if len(header) >= page { // the fuzzer cannot guess a checksum
			binary.LittleEndian.PutUint32(header[sumAtD:], checksum(index))
			putSeal(header[:page], sealAtD)
		}
		size := int64(len(header) + len(index))
		if len(header) >= 24 {
			if at := int64(binary.LittleEndian.Uint64(header[16:])); at > 0 && at < maxBytes {
				size = at + int64(len(index))
			}
		}
		p, err := parsePreamble(header, size, o.Source, o.digest())
		if err == nil {
			var x matrixIndex
			if p.length != int64(len(index)) {
				return
			}
			if x, err = p.parseIndex(index); err == nil && !p.first {
				again, head := x.encode(o.Source, o.digest())
				if !bytes.Equal(again, index) || !bytes.Equal(head[:sumAtD], header[:sumAtD]) {
					t.Errorf("another index: % x, % x", again, index)
				}
			}
		}
		if err != nil && !unusable(err) {
			t.Errorf("an error of no kind: %v", err)
		}
	})
}
