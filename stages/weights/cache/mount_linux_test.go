package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk on a real file system of 32 KiB, where the tests may mount one.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
		t.Skipf("no mount: %v; TestFailingDisk has the same with a failing writer", err)
	}
	defer unix.Unmount(dir, 0)
	o, src, _ := options(t, dir)
	_, err := Open(context.Background(), nil, *o)
	if !errors.Is(err, ErrFull) || len(src.asked) != 0 {
		t.Errorf("got %v after %d experts", err, len(src.asked))
	}
	if list, _ := filepath.Glob(filepath.Join(filepath.Dir(pathOf(o)), "*.part")); len(list) != 0 {
		t.Errorf("left %v", list)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	whole(t, o)
}

// TestFullDiskOthers: both formats, and the matrices of a load.
func TestFullDiskOthers(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=140k"); err != nil { // room for one format
		t.Skipf("no mount: %v; TestFailingDisk has the same with a failing writer", err)
	}
	defer unix.Unmount(dir, 0)
	o, src, _ := both(t, dir)
	if _, err := Open(t.Context(), nil, *o); !errors.Is(err, ErrFull) || len(src.asked) != 0 {
		t.Errorf("got %v after %d experts", err, len(src.asked))
	}
	if list, _ := filepath.Glob(filepath.Join(filepath.Dir(pathOf(o)), "*.part")); len(list) != 0 {
		t.Errorf("left %v", list)
	}
	write(t, filepath.Join(dir, "ballast"), make([]byte, 130<<10))
	m, lines := matrixOptions(dir)
	if made, err := fillMatrices(t, m, wanted()); made != len(wanted()) || !errors.Is(err, ErrFull) || !mentions(*lines, "--cache-dir") {
		t.Errorf("made %d, %v, notices %q", made, err, *lines)
	}
	onlyFiles(t, filepath.Dir(pathOfMatrices(m)), m.fileName())
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=2m"); err != nil {
		t.Fatal(err)
	}
	wholeBoth(t, o)
	loadAll(t, m)
	if made := loadAll(t, m); made != 0 {
		t.Errorf("%d made again", made)
	}
}

// TestReadOnlyModel: the cache of a model folder that cannot be written to goes to
// the user's cache folder; one that lies in the model's folder already is used.
func TestReadOnlyModel(t *testing.T) {
	model, user := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", user)
	o, src, _ := options(t, "")
	o.Model = model
	if err := os.WriteFile(filepath.Join(model, folderName), nil, 0o644); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	c := whole(t, o)
	if want := filepath.Join(user, "krater", o.Plan.Source.String(), "experts_cpu_int4_g64.bin"); c.Path != want {
		t.Errorf("built at %s, want %s", c.Path, want)
	}
	file := read(t, c.Path)
	o.Model = ""
	if c := whole(t, o); c.Report != nil {
		t.Error("an embedded model does not find it")
	}
	o.Model = t.TempDir()
	if err := unix.Mount("tmpfs", o.Model, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no mount: %v", err)
	}
	defer unix.Unmount(o.Model, 0)
	path := filepath.Join(o.Model, folderName, o.Plan.FileName())
	write(t, path, file)
	if err := unix.Mount("tmpfs", o.Model, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	src.asked = nil
	if c := whole(t, o); c.Path != path || c.Report != nil {
		t.Errorf("used %s", c.Path)
	}
	o.Plan.Source[0] = 77 // other weights: stale there, to be built in the user's folder
	c = whole(t, o)
	if !strings.HasPrefix(c.Path, user) || len(src.asked) != 12 || !bytes.Equal(read(t, path), file) {
		t.Errorf("built at %s after %d experts", c.Path, len(src.asked))
	}
	t.Setenv("XDG_CACHE_HOME", filepath.Join(model, folderName, "x"))
	o.Plan.Source[0] = 78
	if _, err := Build(context.Background(), *o); !errors.Is(err, ErrNoFolder) || !strings.Contains(err.Error(), "--cache-dir") {
		t.Errorf("no folder at all: got %v", err)
	}
}
