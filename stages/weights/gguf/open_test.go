package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/scheduler/files"
)

// partFile is part no (from 0) of count, with one tensor.
func partFile(no, count, total int, name string) []byte {
	b := builder(header(1, 3, func(b *builder) {
		b.pair(splitNo, uint16(no))
		b.pair(splitCount, uint16(count))
		b.pair(splitTensors, int32(total))
		b.tensor(name, I8, 0, 3)
	}))
	b.pad(32)
	return append(b, byte(no), 1, 2)
}

// folder writes files into a new folder.
func folder(t *testing.T, content map[string][]byte) string {
	dir := t.TempDir()
	for name, data := range content {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOpen(t *testing.T) {
	dir := folder(t, map[string][]byte{"model.gguf": small(), "mmproj-model.gguf": small(), "model.imatrix.gguf": small(), "README": nil})
	for _, path := range []string{dir, filepath.Join(dir, "model.gguf")} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		q, _ := f.Tensor("q")
		before := bytes.Clone(q.Data)
		f.Release(q.Data)
		f.Release(nil)
		if !bytes.Equal(before, q.Data) || len(f.Paths()) != 1 {
			t.Errorf("%x, %v", q.Data, f.Paths())
		}
		if err := errors.Join(f.Close(), f.Close()); err != nil {
			t.Error(err)
		}
		if s, err := f.Strings("s"); err != nil || len(s) != 3 { // metadata outlive the mapping
			t.Error(s, err)
		}
	}
}

func TestParts(t *testing.T) {
	three := func() map[string][]byte {
		return map[string][]byte{
			"m-00001-of-00003.gguf": partFile(0, 3, 3, "a"), "m-00002-of-00003.gguf": partFile(1, 3, 3, "b"), "m-00003-of-00003.gguf": partFile(2, 3, 3, "c"),
		}
	}
	dir := folder(t, three())
	for _, path := range []string{dir, filepath.Join(dir, "m-00001-of-00003.gguf"), filepath.Join(dir, "m-00003-of-00003.gguf")} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(f.Names()) != "[a b c]" || len(f.Paths()) != 3 || f.Bytes() != 9 {
			t.Errorf("%v, %v, %d", f.Names(), f.Paths(), f.Bytes())
		}
		if c, _ := f.Tensor("c"); c.Data[0] != 2 {
			t.Error(c)
		}
		f.Close()
	}
	for name, x := range map[string]struct {
		change func(map[string][]byte)
		open   string
		want   error
		words  string
	}{
		"missing":        {func(m map[string][]byte) { delete(m, "m-00002-of-00003.gguf") }, "", ErrPartMissing, "m-00002-of-00003.gguf"},
		"unfinished":     {func(m map[string][]byte) { m["m-00002-of-00003.gguf.part"] = nil; delete(m, "m-00002-of-00003.gguf") }, "", ErrPartMissing, "download has not ended"},
		"count":          {func(m map[string][]byte) { m["m-00002-of-00003.gguf"] = partFile(1, 4, 3, "b") }, "", ErrPart, "split.count is 4"},
		"number":         {func(m map[string][]byte) { m["m-00002-of-00003.gguf"] = partFile(2, 3, 3, "b") }, "", ErrPart, "split.no is 2"},
		"total":          {func(m map[string][]byte) { m["m-00001-of-00003.gguf"] = partFile(0, 3, 4, "a") }, "", ErrPart, "3 tensors"},
		"tensor twice":   {func(m map[string][]byte) { m["m-00002-of-00003.gguf"] = partFile(1, 3, 3, "a") }, "", ErrDuplicate, `"a"`},
		"cut":            {func(m map[string][]byte) { m["m-00002-of-00003.gguf"] = partFile(1, 3, 3, "b")[:130] }, "", ErrTruncated, "m-00002-of-00003.gguf"},
		"two models":     {func(m map[string][]byte) { m["other.gguf"] = small() }, "", ErrSeveral, "m-00001-of-00003.gguf, other.gguf"},
		"none":           {func(m map[string][]byte) { clear(m) }, "", ErrNoFile, ""},
		"part 4 of 3":    {func(m map[string][]byte) { m["m-00004-of-00003.gguf"] = nil }, "m-00004-of-00003.gguf", ErrPart, "part 4 of 3"},
		"absent":         {func(map[string][]byte) {}, "n.gguf", fs.ErrNotExist, "n.gguf"},
		"renamed":        {func(m map[string][]byte) { m["n.gguf"] = partFile(1, 3, 3, "b") }, "n.gguf", ErrPart, "-00002-of-00003.gguf"},
		"pointer":        {func(m map[string][]byte) { m["n.gguf"] = []byte("version https://git-lfs.github.com/spec/v1\n") }, "n.gguf", files.ErrPointer, "git lfs pull"},
		"huge number":    {func(m map[string][]byte) { m["m-00001-of-99999.gguf"] = nil }, "m-00001-of-99999.gguf", ErrPart, "99999"},
		"empty file":     {func(m map[string][]byte) { m["n.gguf"] = nil }, "n.gguf", ErrMagic, "n.gguf"},
		"folder, no ext": {func(m map[string][]byte) { m["n"] = small() }, "n", nil, ""},
	} {
		m := three()
		x.change(m)
		dir := folder(t, m)
		f, err := Open(filepath.Join(dir, x.open))
		if !errors.Is(err, x.want) || x.want != nil && (!strings.Contains(err.Error(), x.words) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			f.Close()
		}
	}
}

// TestCut: a file that is cut while it is open is an error that names it, for a caller that
// guards its reads as all of this program do.
func TestCut(t *testing.T) {
	var b builder
	b.start(1, 0)
	b.tensor("t", I8, 0, 3<<16)
	b.pad(32)
	b = append(b, make([]byte, 3<<16)...)
	path := filepath.Join(folder(t, map[string][]byte{"m.gguf": b}), "m.gguf")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 1<<16); err != nil {
		t.Fatal(err)
	}
	x, _ := f.Tensor("t")
	err = files.Guard(func() error { return x.Type.Decode(make([]float32, 3<<16), x.Data) })
	if lost, ok := errors.AsType[*files.LostError](err); !ok || lost.Name != "m.gguf" {
		t.Error(err)
	}
}
