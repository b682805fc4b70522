package batchqueue

import (
	"context"
	"errors"
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

// folder is a store that has ended a batch and runs another one, half of whose lines are answered.
type folder struct {
	dir                  string
	older                string // a copy of the database from before the second batch
	input, output, plain File   // of the running batch; of the ended one; of none
	running              string // the batch's id
}

func newFolder(t *testing.T) folder {
	t.Helper()
	f := folder{dir: t.TempDir(), older: filepath.Join(t.TempDir(), "older.db")}
	s := openStore(t, f.dir, Options{})
	done := begin(t, s, requests(2))
	if _, err := s.Settle([]Settled{answer(t, done.ID, 0, "line-0", "first", 200), answer(t, done.ID, 1, "line-1", "second", 200)}); err != nil {
		t.Fatal(err)
	}
	ended, err := s.Finish(t.Context(), done.ID)
	if err == nil {
		f.output, err = s.File("", ended.Output)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	copyFile(t, filepath.Join(f.dir, databaseName), f.older)
	s = openStore(t, f.dir, Options{})
	f.plain = upload(t, s, "", "not of a batch")
	b := begin(t, s, requests(4))
	if _, err := s.Settle([]Settled{answer(t, b.ID, 0, "line-0", "third", 200), answer(t, b.ID, 1, "line-1", "fourth", 200)}); err != nil {
		t.Fatal(err)
	}
	f.running = b.ID
	if f.input, err = s.File("", b.Input); err != nil {
		t.Fatal(err)
	}
	s.Close()
	return f
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The ways to spoil a file.
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

// TestDatabaseSpoiled: a store whose database or contents are missing or cannot be read is refused, the
// error names the part and the way out, and nothing is changed.
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
				if err == nil {
					var db *bolt.DB
					if db, err = bolt.Open(path, 0o600, nil); err == nil {
						err = db.Close()
					}
				}
			case "other version":
				var db *bolt.DB
				if db, err = bolt.Open(path, 0o600, nil); err == nil {
					err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte("0")) })
					err = errors.Join(err, db.Close())
				}
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

// asNobody gives a folder away, and has the rest of the test, which root runs, read files as its new
// owner does.
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

// everything is what a folder holds, as text.
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
		b.WriteString(path[len(dir):] + ": " + string(data[:min(len(data), 32)]) + " " + string(rune('0'+len(data)%64)) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestContentSpoiled: a content that is missing or not whole fails what needs it, by name, and nothing
// else; all others stay.
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

// TestNothingForeignIsDeleted: with an older database, or with files of others in the folder, no such
// file is deleted; what the store itself left unfinished is removed.
func TestNothingForeignIsDeleted(t *testing.T) {
	made := newFolder(t)
	copyFile(t, made.older, filepath.Join(made.dir, databaseName))
	foreign := []string{"notes.txt", "file-mine", "file-abc.part", "batch_1.answers", "batch_1"}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(made.dir, contentsName, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := contentNames(t, made.dir)
	s := openStore(t, made.dir, Options{})
	own := filepath.Join(made.dir, contentsName, filePrefix+s.name+"-1"+partSuffix)
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := append(slices.Clone(foreign[1:]), made.input.ID, made.plain.ID, made.running+logSuffix)
	got := slices.Clone(s.Unknown())
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("unknown are %v, want %v", got, want)
	}
	if content(t, s, "", made.output.ID) == "" {
		t.Error("what the older database knows cannot be read")
	}
	s.Close()
	s = openStore(t, made.dir, Options{})
	upload(t, s, "", "one more")
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	after := contentNames(t, openStore(t, made.dir, Options{}).dir)
	for _, n := range before {
		if !slices.Contains(after, n) {
			t.Errorf("%s was deleted", n)
		}
	}
	if slices.Contains(after, filepath.Base(own)) {
		t.Error("an upload of its own that nobody finished is left")
	}
}

// TestContentWhileItIsNamed: a file is readable from its commit on, also while its content gets its name.
func TestContentWhileItIsNamed(t *testing.T) {
	var s *Store
	seen := map[string]int{}
	s = openStore(t, t.TempDir(), Options{watch: func(point string) {
		if point != "file committed" && point != "file named" {
			return
		}
		list, _, err := s.Files("", "", "", 10, true)
		if err != nil || len(list) != 1 || content(t, s, "", list[0].ID) != "x" {
			t.Errorf("%s: %v, %v", point, list, err)
		}
		seen[point]++
	}})
	upload(t, s, "", "x")
	if len(seen) != 2 {
		t.Errorf("looked at %v", seen)
	}
	// And by one who reads meanwhile.
	s = openStore(t, t.TempDir(), Options{})
	over, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for {
			list, _, err := s.Files("", "", "", 1, false) // the newest
			for _, f := range list {
				var r *os.File
				if r, err = s.openContent(&f, true); err == nil {
					r.Close()
				}
			}
			if err != nil {
				t.Error(err)
			}
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	for range 100 {
		upload(t, s, "", "x")
	}
	close(over)
	<-read
}

// TestFinishIsCutShort: a stop while the output is written leaves nothing, and the next call writes it.
func TestFinishIsCutShort(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	b := begin(t, s, requests(1))
	if _, err := s.Settle([]Settled{answer(t, b.ID, 0, "line-0", "answered", 200)}); err != nil {
		t.Fatal(err)
	}
	before, used := contentNames(t, dir), s.used
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.Finish(ctx, b.ID); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if after := contentNames(t, dir); !slices.Equal(after, before) || s.used != used {
		t.Errorf("%v and %+v became %v and %+v", before, used, after, s.used)
	}
	if b, err := s.Finish(t.Context(), b.ID); err != nil || b.Status != Completed {
		t.Errorf("%s, %v", b.Status, err)
	}
}

// TestKeysShareTheStore: with several keys none can fill the store with files, bytes or batches; the
// error has what the key has and what it may have.
func TestKeysShareTheStore(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{MaxFiles: 8, MaxBytes: 8000, MaxBatches: 4, Shared: true})
	says := func(err error, words ...string) {
		t.Helper()
		if !errors.Is(err, ErrFull) {
			t.Fatalf("%v", err)
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v does not say %q", err, w)
			}
		}
	}
	var last File
	for range 6 {
		last = upload(t, s, "a", "x")
	}
	_, err := s.Upload("a")
	says(err, "this key", "has 6 files", "6 of the 8")
	upload(t, s, "b", "x")
	if err := s.Delete("a", last.ID); err != nil {
		t.Fatal(err)
	}
	u, err := s.Upload("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Upload("a"); err == nil { // an open one counts
		t.Error("a seventh file beside an open upload")
	}
	_, err = u.Write(make([]byte, 5996))
	says(err, "has 5 bytes", "6000 of the 8000")
	u.Abort()
	if u, err = s.Upload("b"); err != nil {
		t.Fatal(err)
	}
	if _, err = u.Write(make([]byte, 2000)); err != nil {
		t.Errorf("another's bytes: %v", err)
	}
	u.Abort()
	list, _, err := s.Files("a", "", "", 10, true)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.Create(order(list[0])); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Create(order(list[0]))
	says(err, "3 of its batches", "3 of the 4")
	if list, _, err = s.Files("b", "", "", 10, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(order(list[0])); err != nil {
		t.Errorf("another's batch: %v", err)
	}
}

// FuzzDatabase: whatever a database holds, Open gives a store or an error, and deletes no content.
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

// TestWithdraw: a store that nobody used leaves nothing that it has made, and anything else alone.
func TestWithdraw(t *testing.T) {
	for name, c := range map[string]struct {
		before func(dir string) // the store is opened in dir/a/b
		use    func(s *Store)
		left   string
	}{
		"unused":             {left: ""},
		"an upload":          {use: func(s *Store) { upload(t, s, "", "kept") }, left: "a/b/queue.db"},
		"a folder beside it": {before: func(dir string) { mkdir(t, filepath.Join(dir, "a", "other")) }, left: "a/other"},
		"its folder exists":  {before: func(dir string) { mkdir(t, filepath.Join(dir, "a", "b")) }, left: "a/b/queue.db"},
	} {
		dir := t.TempDir()
		if c.before != nil {
			c.before(dir)
		}
		s := openStore(t, filepath.Join(dir, "a", "b"), Options{})
		if c.use != nil {
			c.use(s)
		}
		if err := s.Withdraw(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.left == "" {
			if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
				t.Errorf("%s: left %v, %v", name, list, err)
			}
		} else if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(c.left))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.use == nil && c.before != nil && c.left == "a/other" && !missing(filepath.Join(dir, "a", "b")) {
			t.Errorf("%s: a/b is left", name)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
