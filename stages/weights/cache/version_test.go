//go:build unix

package cache

import (
	"bytes"
	"compress/gzip"
	"io"
	"path/filepath"
	"testing"

	"krater/kernels/tensor"
)

// firstVersion is a file that a program wrote which knew only version 1.
func firstVersion(t testing.TB, name string) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join("testdata", "version1", name+".gz"))))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFirstVersion: experts' files of version 1 are used under their own names, by a start and
// by a conversion. One that is damaged gives way to a file of this version.
func TestFirstVersion(t *testing.T) {
	for _, kind := range []tensor.Kind{tensor.CPU, tensor.GPU} {
		o, src, lines := options(t, t.TempDir())
		o.Plan = Plan{For: kind, Format: tensor.INT4.By(32), Layers: []int{1}, Experts: 2, Hidden: 40, FF: 16, Method: Search, Source: Fingerprint{1, 2, 3}}
		name := o.Plan.fileNames()[1]
		path, file := filepath.Join(filepath.Dir(pathOf(o)), name), firstVersion(t, name)
		write(t, path, file)
		for _, o.Copy = range []bool{false, true} {
			if c := whole(t, o); c.Report != nil || c.Path != path || len(src.asked) != 0 {
				t.Errorf("%s was not used: %+v, %q", name, c.Report, *lines)
			}
		}
		if r, err := Build(t.Context(), *o); err != nil || !r.Found || r.Path != path {
			t.Errorf("%s was built again: %+v, %v", name, r, err)
		}
		if kept, err := o.Kept(); err != nil || len(kept) != 1 || kept[0].Format != o.Plan.Format || kept[0].For != kind {
			t.Errorf("%s is not among the files that are there: %+v, %v", name, kept, err)
		}
		file[len(file)-1] ^= 1
		write(t, path, file)
		if c := whole(t, o); c.Report == nil || c.Path != pathOf(o) || !mentions(*lines, path, "damaged") {
			t.Errorf("%s, damaged: %+v, %q", name, c.Report, *lines)
		}
	}
}

// TestFirstVersionMatrices: what a file of version 1 has is used, and goes into the file of
// this version that a load makes which wants more.
func TestFirstVersionMatrices(t *testing.T) {
	o, lines := matrixOptions(t.TempDir())
	write(t, pathOfMatrices(o), firstVersion(t, "dense.bin"))
	if made, err := fillMatrices(t, o, wanted()[:2]); made != 0 || err != nil || len(*lines) != 0 {
		t.Errorf("%d made, %v, %q", made, err, *lines)
	}
	for _, want := range []int{1, 0} {
		if made, err := fillMatrices(t, o, wanted()[:3]); made != want || err != nil {
			t.Errorf("%d made, %v, want %d", made, err, want)
		}
	}
	if v := read(t, pathOfMatrices(o))[8]; v != versionD {
		t.Errorf("a file of version %d was written", v)
	}
}
