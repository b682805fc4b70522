package batchqueue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// holder makes the test binary a process that holds a store until its input ends.
const holder = "TEST_BATCH_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holder); dir != "" {
		_, err := Open(dir, Options{})
		fmt.Println(err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestSecondProcess: a second process is refused, and let in when the first has gone.
func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holder+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 6)
	if _, err := io.ReadFull(out, said); err != nil || string(said) != "<nil>\n" {
		t.Fatalf("the first process says %q, %v", said, err)
	}
	if _, err := Open(dir, Options{LockTimeout: 50 * time.Millisecond}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("beside another process: %v", err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	openStore(t, dir, Options{})
}

// updateDatabase returns a function that changes the database at a path, which it makes if there is none.
func updateDatabase(change func(*bolt.Tx) error) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(change); err != nil {
			t.Fatal(err)
		}
	}
}

// makeStore makes a store with some batches. The path is that of its database.
func makeStore(t *testing.T, path string) {
	t.Helper()
	s := openStore(t, filepath.Dir(path), Options{})
	for range 8 {
		begin(t, s, requests(50))
	}
	s.Close()
}

// changeBytes returns a function that changes the bytes of a file.
func changeBytes(change func([]byte) []byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, change(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeign: Open refuses a database that is damaged or not of this version with an error of one
// line. It does not change the file, and it releases the lock.
func TestForeign(t *testing.T) {
	type steps []func(t *testing.T, path string)
	createBucket := func(name []byte) func(*testing.T, string) {
		return updateDatabase(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket(name)
			return err
		})
	}
	put := func(bucket, key []byte, value string) func(*testing.T, string) {
		return updateDatabase(func(tx *bolt.Tx) error { return tx.Bucket(bucket).Put(key, []byte(value)) })
	}
	for name, c := range map[string]struct {
		make steps
		want error
	}{
		"a text": {steps{func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database\n", 5000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}}, ErrForeign},
		"another database": {steps{createBucket([]byte("users"))}, ErrForeign},
		"another meta":     {steps{createBucket(metaBucket)}, ErrForeign},
		"another version":  {steps{makeStore, put(metaBucket, versionKey, "99")}, ErrForeign},
		"a bad record":     {steps{makeStore, put(batchesBucket, []byte("batch_1"), "{")}, ErrDamaged},
		"a bad entry": {steps{makeStore, updateDatabase(func(tx *bolt.Tx) error {
			b, err := tx.Bucket(linesBucket).CreateBucket([]byte("batch_1"))
			if err == nil {
				err = b.Put(lineKey(0), []byte("short"))
			}
			return err
		})}, ErrDamaged},
		"cut":         {steps{makeStore, changeBytes(func(b []byte) []byte { return b[:len(b)/2] })}, ErrDamaged},
		"cut to meta": {steps{makeStore, changeBytes(func(b []byte) []byte { return b[:8192] })}, ErrDamaged},
		"overwritten": {steps{makeStore, changeBytes(func(b []byte) []byte {
			return append(b[:8192], bytes.Repeat([]byte{0xA5}, len(b)-8192)...)
		})}, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), databaseName)
			for _, step := range c.make {
				step(t, path)
			}
			refusedTwice(t, path, c.want)
		})
	}
}

// refusedTwice checks that Open refuses the folder of a database and leaves the file as it is. The second
// call shows that the first released the lock.
func refusedTwice(t *testing.T, path string, want error) {
	t.Helper()
	dir := filepath.Dir(path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		s, err := Open(dir, Options{LockTimeout: 50 * time.Millisecond})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%d: %v, want %v", i, err, want)
		}
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file was changed, %v", err)
	}
}
