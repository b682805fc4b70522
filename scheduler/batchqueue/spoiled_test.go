package batchqueue

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// spoils are the ways to spoil a file.
var spoils = map[string]func(path string) error{
	"missing": os.RemoveAll,
	"empty":   func(path string) error { return os.Truncate(path, 0) },
	"cut": func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	},
	"garbage": func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(strings.Repeat("\xA5", int(info.Size()))), 0o600)
	},
	"a folder": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	"locked":   func(path string) error { return os.Chmod(path, 0) },
}

// TestDatabaseSpoiled: Open refuses a store whose database or contents are missing or cannot be read.
// The error names the part and what to do, and nothing is changed.
func TestDatabaseSpoiled(t *testing.T) {
	made := newFolder(t)
	for _, c := range []struct {
		name, how string
		want      error
		words     string
	}{
		{databaseName, "missing", ErrIncomplete, "put queue.db back"},
		{databaseName, "empty", ErrIncomplete, "put queue.db back"},
		{databaseName, "no buckets", ErrIncomplete, "put queue.db back"},
		{databaseName, "cut", ErrDamaged, databaseName},
		{databaseName, "garbage", ErrForeign, databaseName},
		{databaseName, "other version", ErrForeign, "it has 0, this program reads 1"},
		{databaseName, "a folder", ErrForeign, "no regular file"},
		{databaseName, "locked", os.ErrPermission, databaseName},
		{contentsName, "missing", ErrIncomplete, "put the folder back"},
		{contentsName, "no files", ErrIncomplete, "put the folder back"},
		{contentsName, "a file", nil, contentsName},
		{contentsName, "locked", os.ErrPermission, contentsName},
	} {
		t.Run(c.name+" "+c.how, func(t *testing.T) {
			dir := copyStore(t, made.dir)
			path := filepath.Join(dir, c.name)
			var err error
			switch c.how {
			case "no buckets":
				err = os.Remove(path)
				updateDatabase(func(*bolt.Tx) error { return nil })(t, path)
			case "other version":
				updateDatabase(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte("0")) })(t, path)
			case "no files":
				err = errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700))
			case "a file":
				err = errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600))
			default:
				err = spoils[c.how](path)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := everything(t, dir)
			if c.how == "locked" && os.Geteuid() == 0 {
				asNobody(t, dir)
			}
			s, err := Open(dir, Options{})
			if err == nil {
				s.Close()
				t.Fatal("it is opened")
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, want %v with %q", err, c.want, c.words)
			}
			if c.how != "locked" && everything(t, dir) != before {
				t.Errorf("the folder was changed from\n%s to\n%s", before, everything(t, dir))
			}
		})
	}
}

// asNobody makes the user nobody the owner of a folder and runs the rest of the test, which root runs,
// with that user's access to files.
func asNobody(t *testing.T, dir string) {
	t.Helper()
	const nobody = 65534
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if err := unix.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setfsuid(0); err == nil {
			runtime.UnlockOSThread()
		}
	})
}

// everything returns what a folder contains, as text.
func everything(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		data := []byte(nil)
		if d.Type().IsRegular() {
			data, err = os.ReadFile(path)
		}
		fmt.Fprintf(&b, "%s %v: %d bytes, %x\n", path[len(dir):], d.Type(), len(data), sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestContentSpoiled: what needs a content that is missing or incomplete fails with an error that names it.
// Nothing else fails, and all other contents are kept.
func TestContentSpoiled(t *testing.T) {
	made := newFolder(t)
	log := made.running + logSuffix
	for _, name := range []string{made.input.ID, made.output.ID, made.plain.ID, log} {
		for _, how := range []string{"missing", "empty", "cut", "garbage", "a folder"} {
			dir := copyStore(t, made.dir)
			before := contentNames(t, dir)
			if err := spoils[how](filepath.Join(dir, contentsName, name)); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir, Options{})
			if err != nil {
				t.Errorf("%s %s: %v", name, how, err)
				continue
			}
			for _, f := range []File{made.input, made.output, made.plain} {
				r, _, err := s.Content("", f.ID)
				lost := f.ID == name && how != "garbage"
				if (err != nil) != lost || lost && !errors.Is(err, ErrLost) {
					t.Errorf("%s %s: the content of %s: %v", name, how, f.ID, err)
				}
				if err == nil {
					_, _ = io.Copy(io.Discard, r)
					r.Close()
				}
			}
			b, err := s.Cancel("", made.running)
			if err == nil {
				b, err = s.Finish(t.Context(), made.running)
			}
			switch whole := how != "a folder" || name != log; {
			case !whole && err == nil:
				t.Errorf("%s %s: the batch ended as %s", name, how, b.Status)
			case whole && (err != nil || b.Status != Cancelled || b.Counts.Total != 4):
				t.Errorf("%s %s: the batch: %+v, %v", name, how, b.Counts, err)
			case whole && name == log && b.Counts.Completed != 0 && how != "cut":
				t.Errorf("%s %s: %d answers, and they were lost", name, how, b.Counts.Completed)
			case whole && name != log && b.Counts.Completed != 2:
				t.Errorf("%s %s: %d answers, want 2", name, how, b.Counts.Completed)
			}
			after := contentNames(t, dir)
			for _, n := range before {
				if n != name && n != log && !slices.Contains(after, n) {
					t.Errorf("%s %s: %s was deleted", name, how, n)
				}
			}
			s.Close()
		}
	}
}

// FuzzDatabase: whatever a database contains, Open returns a store or an error, and deletes no content.
func FuzzDatabase(f *testing.F) {
	dir := f.TempDir()
	s := openStore(f, dir, Options{})
	begin(f, s, requests(3))
	s.Close()
	whole, err := os.ReadFile(filepath.Join(dir, databaseName))
	if err != nil {
		f.Fatal(err)
	}
	before := contentNames(f, dir)
	f.Add(uint32(16), []byte{0xED}, uint32(len(whole)))
	f.Add(uint32(4096*2+16), []byte("\xff\xff\xff\xff"), uint32(len(whole)))
	f.Add(uint32(0), []byte{}, uint32(0))
	f.Add(uint32(4096), []byte{1, 2, 3}, uint32(5000))
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, size uint32) {
		data := slices.Clone(whole[:min(int(size), len(whole))])
		if int(at) < len(data) {
			copy(data[at:], patch)
		}
		if err := os.WriteFile(filepath.Join(dir, databaseName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{})
		if err == nil {
			s.Close()
		}
		for _, name := range before {
			if !slices.Contains(contentNames(t, dir), name) {
				t.Fatalf("%s was deleted; Open says %v", name, err)
			}
		}
	})
}
