//go:build unix

package cache

import (
	"bytes"
	"fmt"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// TestBlockMatrices: blocks of files are kept from one load to the next, every encoding in one file.
func TestBlockMatrices(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	o := MatrixOptions{Source: Fingerprint{1}, Precision: "native", Dir: t.TempDir(), Threads: 1}
	for load := range 2 {
		m, err := OpenMatrices(t.Context(), dev, o)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range tensor.StoredEncodings() {
			e := tensor.EncodingOf(name)
			l, err := e.By(tensor.BlockGroup).On(tensor.CPU, 37, 512)
			if err != nil {
				t.Fatal(err)
			}
			want := kerneltest.Blocks(kerneltest.Rand(uint64(i)), e, l.Rows, l.Cols, nil)
			q, err := m.Matrix(fmt.Sprintf("layer.%d.o", i), l, func() (*tensor.Matrix, error) {
				if load > 0 {
					t.Errorf("%s is made again", name)
				}
				return e.FromBlocks(want, l.Rows, l.Cols)
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Unpack(q.Values.Host()[q.ValueAt:], q.Scales.Host()[q.ScaleAt:]); !bytes.Equal(got.Blocks, want) {
				t.Errorf("%s: load %d gives other blocks", name, load)
			}
		}
		if err := m.Seal(); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
