package batchqueue

import (
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

// TestTwoProcesses: a second process is refused, and let in when the first has gone.
func TestTwoProcesses(t *testing.T) {
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

// TestForeign: what is no store of this version is refused with a line that says so,
// and left as it is.
func TestForeign(t *testing.T) {
	database := func(change func(*bolt.Tx) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
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
	whole := func(t *testing.T, path string) {
		s := openStore(t, filepath.Dir(path), Options{})
		for range 8 {
			begin(t, s, requests(50))
		}
		s.Close()
	}
	bytes := func(change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			whole(t, path)
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		make func(*testing.T, string)
		want error
	}{
		"a text": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database\n", 5000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, ErrForeign},
		"another database": {database(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("users"))
			return err
		}), ErrForeign},
		"another meta": {database(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket(metaBucket)
			return err
		}), ErrForeign},
		"another version": {func(t *testing.T, path string) {
			whole(t, path)
			database(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte("99")) })(t, path)
		}, ErrForeign},
		"a bad record": {func(t *testing.T, path string) {
			whole(t, path)
			database(func(tx *bolt.Tx) error { return tx.Bucket(batchesBucket).Put([]byte("batch_1"), []byte("{")) })(t, path)
		}, ErrDamaged},
		"a bad entry": {func(t *testing.T, path string) {
			whole(t, path)
			database(func(tx *bolt.Tx) error {
				b, err := tx.Bucket(linesBucket).CreateBucket([]byte("batch_1"))
				if err == nil {
					err = b.Put(lineKey(0), []byte("short"))
				}
				return err
			})(t, path)
		}, ErrDamaged},
		"cut":         {bytes(func(b []byte) []byte { return b[:len(b)/2] }), ErrDamaged},
		"cut to meta": {bytes(func(b []byte) []byte { return b[:8192] }), ErrDamaged},
		"overwritten": {bytes(func(b []byte) []byte {
			for i := 8192; i < len(b); i++ {
				b[i] = 0xA5
			}
			return b
		}), ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, databaseName)
			c.make(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 { // the second time shows that the first released it
				s, err := Open(dir, Options{LockTimeout: 50 * time.Millisecond})
				if err == nil {
					s.Close()
				}
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%d: %v, want %v", i, err, c.want)
				}
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(before) {
				t.Errorf("the file was changed, %v", err)
			}
		})
	}
}
