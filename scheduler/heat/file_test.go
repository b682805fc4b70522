package heat

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func same(a, b *Map) bool {
	return a.Same(b) == nil && slices.Equal(a.tokens, b.tokens) && slices.Equal(a.counts, b.counts)
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.heat")
	for seed := range uint64(3) { // over what is there, too
		m := random(t, seed, 1000)
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil || !same(got, m) {
			t.Fatalf("%v: %+v, want %+v", err, got, m)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
	if _, err := Load(path + ".not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := random(t, 1, 1).Save(filepath.Join(path, "x")); err == nil {
		t.Error("saved into a folder that is none")
	}
}

// sealed gives bytes the checksum they need to be looked at.
func sealed(b []byte) []byte {
	b = b[:len(b)-sha256.Size]
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// TestReadRefuses every cut, every changed byte, and what a checksum vouches for but
// no router gives.
func TestReadRefuses(t *testing.T) {
	m := random(t, 1, 100)
	whole := m.encode()
	for n := range whole {
		if _, err := Read(bytes.NewReader(whole[:n])); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		changed := slices.Clone(whole)
		changed[n] ^= 0x10
		if _, err := Read(bytes.NewReader(changed)); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
	}
	if _, err := Read(bytes.NewReader(append(slices.Clone(whole), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte too many: %v", err)
	}
	word := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	long := func(at int, v uint64) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
	}
	tokens := headerSize + 4*3
	for name, x := range map[string]struct {
		change func([]byte)
		err    error
	}{
		"another version":           {word(8, 2), ErrFormat},
		"no layers":                 {word(12, 0), ErrDamaged},
		"more layers than any":      {word(12, layersMost+1), ErrShape},
		"more cells than any":       {word(16, expertsMost), ErrDamaged},
		"experts past 2^32":         {word(16, 1<<31), ErrShape},
		"top_k 0":                   {word(20, 0), ErrShape},
		"top_k over experts":        {word(20, 9), ErrShape},
		"layers that do not rise":   {word(headerSize+4, 0), ErrShape},
		"a layer below 0":           {word(headerSize, 1<<31), ErrShape},
		"tokens past 2^53":          {long(tokens, countMost+1), ErrCounts},
		"more counts than tokens":   {long(tokens+8*3+8*4, 101), ErrCounts},
		"counts without any tokens": {long(tokens+8, 0), ErrCounts},
	} {
		b := slices.Clone(whole)
		x.change(b)
		if _, err := Read(bytes.NewReader(sealed(b))); !errors.Is(err, x.err) {
			t.Errorf("%s: %v, want %v", name, err, x.err)
		}
	}
	path := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(path, whole[:70], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

// FuzzRead: whatever is read as a map can be used as one, and is written as it was.
func FuzzRead(f *testing.F) {
	f.Add(random(f, 1, 10).encode(), true)
	f.Add(random(f, 2, 0).encode(), false)
	f.Add([]byte(magic), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) > sha256.Size {
			b = sealed(slices.Clone(b))
		}
		m, err := Read(bytes.NewReader(b))
		if err != nil {
			if m != nil || !errors.Is(err, ErrFormat) && !errors.Is(err, ErrDamaged) {
				t.Fatalf("%v", err)
			}
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Fatal("it is written otherwise than it was read")
		}
		if c := m.Whole(); c[len(c)-1] != 1 {
			t.Fatalf("all experts do %v", c[len(c)-1])
		}
		m.Report()
		m.Rank(nil)
		if err := m.Clone().Decay(0.5); err != nil {
			t.Fatal(err)
		}
	})
}
