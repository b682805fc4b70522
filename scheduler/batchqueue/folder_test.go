package batchqueue

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
