package batchqueue

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	databaseName = "queue.db"
	contentsName = "files"
	filePrefix   = "file-"
	batchPrefix  = "batch_"
	partSuffix   = ".part"
	logSuffix    = ".answers"

	formatName = "krater batch queue"
	version    = "1"
)

// The buckets of the database.
var (
	metaBucket    = []byte("meta")
	filesBucket   = []byte("files")   // id -> File as JSON
	batchesBucket = []byte("batches") // id -> Batch as JSON
	linesBucket   = []byte("lines")   // id -> bucket of line (u32, big-endian) -> entry
	goneBucket    = []byte("gone")    // id of a deleted file whose content may still be there
	formatKey     = []byte("format")
	versionKey    = []byte("version")
	nameKey       = []byte("name") // of this store, in the names of its uploads
)

// Options are a store's settings; a zero field has its default.
type Options struct {
	Now         func() time.Time // time.Now
	LockTimeout time.Duration    // how long to wait for another process; 1 s

	MaxFile    int64         // bytes of an uploaded file; 200 MB
	MaxLines   int           // of an input file; 50,000
	MaxLine    int           // bytes of a line; 9 MiB: a request of 8 and its envelope
	MaxBytes   int64         // of all contents together, for uploads; 16 GiB
	MaxFiles   int           // for uploads; 4,096
	MaxBatches int           // remembered; 1,024
	Shared     bool          // there are several owners: each may have three quarters of these limits
	Keep       time.Duration // how long files and ended batches are kept; 30 days

	// watch is called after everything durable with what it was; tests stop there.
	watch func(point string)
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.watch == nil {
		o.watch = func(string) {}
	}
	def(&o.LockTimeout, time.Second)
	def(&o.MaxFile, 200e6)
	def(&o.MaxLines, 50_000)
	def(&o.MaxLine, 9<<20)
	def(&o.MaxBytes, 16<<30)
	def(&o.MaxFiles, 4096)
	def(&o.MaxBatches, 1024)
	def(&o.Keep, 30*24*time.Hour)
	return o
}

func def[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Store is an open queue. Close it.
type Store struct {
	dir string
	opt Options
	db  *bolt.DB

	// mu orders everything that writes. Contents of uploads are written outside it.
	mu    sync.Mutex
	logs  map[string]*os.File // of batches that are being answered
	used  share               // by all, open uploads included
	owned map[string]share    // the same by owner
	gone  []string            // deleted contents that the database does not know to be gone
	noted bool                // records were saved

	made    []string // folders that Open made, each before the one that it is in
	name    string   // of this store
	unknown []string // contents that no record names
}

// share is one owner's part of the store.
type share struct {
	files int
	bytes int64
}

// Open opens the store in a folder, which it makes if it is not there, and removes
// what a crash left half done: nothing that it does not know to be its own. It is
// ErrLocked while another process has it, ErrForeign or ErrDamaged for what it cannot
// read, and ErrIncomplete where the database or all contents are missing; nothing is
// changed then.
func Open(dir string, opt Options) (*Store, error) {
	s := &Store{dir: dir, opt: opt.withDefaults(), logs: map[string]*os.File{}, owned: map[string]share{}}
	names := []string{dir} // folders that get a new name
	for d := dir; missing(d); d = filepath.Dir(d) {
		s.made = append(s.made, d)
		names = append(names, filepath.Dir(d))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	contents, err := s.contents()
	if err == nil {
		err = s.open(filepath.Join(dir, databaseName), len(contents))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if err := s.restore(contents, names); err != nil {
		s.db.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return s, nil
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// syncNames makes the names in these folders durable: what is synced in a folder whose own name
// is not may be gone when the power was. One that may not be read is left out.
func syncNames(folders []string) error {
	for _, path := range folders {
		if err := syncFolder(path); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// open opens and checks the database. contents is the number of contents next to it. A
// file that was cut or overwritten makes bbolt panic or fault in its mapped memory;
// both become ErrDamaged.
func (s *Store) open(path string, contents int) (err error) {
	// bbolt would make one of a missing or empty file.
	switch info, err := os.Stat(path); {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no regular file", ErrForeign, databaseName)
	case contents > 0 && (errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0):
		return forgotten(contents)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var db *bolt.DB
	var file *os.File
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, cause)
		}
		switch {
		case err == nil:
		case db != nil:
			db.Close()
		case file != nil:
			// bbolt fell while it opened, with the file mapped, which holds the lock.
			_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
			file.Close()
		}
	}()
	db, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout: s.opt.LockTimeout, FreelistType: bolt.FreelistMapType, NoStatistics: true,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrLocked
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %s is something else", ErrForeign, databaseName)
	case errors.Is(err, bolterrors.ErrChecksum):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			return err
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err := check(db, path, contents); err != nil {
		return err
	}
	s.db = db
	return nil
}

// check wants a database of this format, or an empty one without contents, which
// becomes one. It reads every record, so that damage shows here and not in the middle
// of a batch.
func check(db *bolt.DB, path string, contents int) error {
	empty := false
	err := db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: %s has %d of %d bytes", ErrDamaged, databaseName, info.Size(), tx.Size())
		}
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			first, _ := tx.Cursor().First()
			if empty = first == nil; !empty {
				return fmt.Errorf("%w: %s is a database of something else", ErrForeign, databaseName)
			}
			return nil
		}
		if name := meta.Get(formatKey); string(name) != formatName {
			return fmt.Errorf("%w: %s is a database of something else", ErrForeign, databaseName)
		}
		if v := meta.Get(versionKey); string(v) != version {
			return fmt.Errorf("%w of this version: it has %s, this program reads %s", ErrForeign, clip(string(v)), version)
		}
		return readAll(tx)
	})
	if err != nil || !empty {
		return err
	}
	if contents > 0 {
		return forgotten(contents)
	}
	return db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		for _, name := range [][]byte{filesBucket, batchesBucket, linesBucket} {
			if err == nil {
				_, err = tx.CreateBucket(name)
			}
		}
		if err == nil {
			err = meta.Put(formatKey, []byte(formatName))
		}
		if err == nil {
			err = meta.Put(versionKey, []byte(version))
		}
		return err
	})
}

func readAll(tx *bolt.Tx) error {
	for _, name := range [][]byte{filesBucket, batchesBucket, linesBucket} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: it has no bucket '%s'", ErrDamaged, name)
		}
	}
	if err := each(tx, filesBucket, func(*File) error { return nil }); err != nil {
		return err
	}
	if err := each(tx, batchesBucket, func(*Batch) error { return nil }); err != nil {
		return err
	}
	lines := tx.Bucket(linesBucket)
	return lines.ForEachBucket(func(id []byte) error {
		return lines.Bucket(id).ForEach(func(k, v []byte) error {
			_, _, err := decodeEntry(k, v)
			return err
		})
	})
}

// Close releases the store to other processes.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range s.logs {
		f.Close()
		delete(s.logs, id)
	}
	return s.db.Close()
}

// Withdraw is Close for a store that was not used: if Open made the folder and nothing was put
// into it, the folder goes, and those that Open made around it.
func (s *Store) Withdraw() error {
	s.mu.Lock()
	unused := len(s.made) > 0 && !s.noted && s.used == share{} && len(s.unknown) == 0
	s.mu.Unlock()
	if err := s.Close(); err != nil || !unused {
		return err
	}
	// Remove spares a folder that is not empty.
	for _, path := range append([]string{filepath.Join(s.dir, contentsName), filepath.Join(s.dir, databaseName)}, s.made...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Limits are the settings in force.
func (s *Store) Limits() Options { return s.opt }

// Now is the store's clock.
func (s *Store) Now() time.Time { return s.opt.Now() }

// path is where a content lies.
func (s *Store) path(name string) string { return filepath.Join(s.dir, contentsName, name) }

// syncContents makes names in the folder of contents durable.
func (s *Store) syncContents() error { return syncFolder(filepath.Join(s.dir, contentsName)) }

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// newID makes an id whose order in the bucket is that of creation and which nobody
// can guess.
func newID(b *bolt.Bucket, prefix string) (string, error) {
	n, err := b.NextSequence()
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf("%s%08x%s", prefix, n, hex.EncodeToString(random[:])), err
}

// load reads a record of the owner's; "*" is any owner.
func load[T File | Batch](tx *bolt.Tx, bucket []byte, owner, id string) (*T, error) {
	data := tx.Bucket(bucket).Get([]byte(id))
	if data == nil {
		return nil, fmt.Errorf("%w: '%s'", ErrNotFound, clip(id))
	}
	v := new(T)
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("%w: the record of %s: %w", ErrDamaged, id, err)
	}
	var of string
	switch v := any(v).(type) {
	case *File:
		of = v.Owner
	case *Batch:
		of = v.Owner
	}
	if owner != anyOwner && owner != of {
		return nil, fmt.Errorf("%w: '%s'", ErrNotFound, clip(id))
	}
	return v, nil
}

// anyOwner is who asks for the driver; no key's hash looks like it.
const anyOwner = "*"

// save writes a record.
func save[T File | Batch](tx *bolt.Tx, bucket []byte, id string, v *T) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(id), data)
}

// each visits all records in order of creation.
func each[T File | Batch](tx *bolt.Tx, bucket []byte, visit func(*T) error) error {
	return tx.Bucket(bucket).ForEach(func(id, _ []byte) error {
		v, err := load[T](tx, bucket, anyOwner, string(id))
		if err != nil {
			return err
		}
		return visit(v)
	})
}

// page gives at most limit records of an owner behind the one called after ("": from
// the start), the newest first or last, and whether there are more.
func page[T File | Batch](tx *bolt.Tx, bucket []byte, owner, after string, limit int, oldest bool, want func(*T) bool) (list []T, more bool, err error) {
	c := tx.Bucket(bucket).Cursor()
	first, next := c.Last, c.Prev
	if oldest {
		first, next = c.First, c.Next
	}
	k, _ := first()
	if after != "" {
		if _, err := load[T](tx, bucket, owner, after); err != nil {
			return nil, false, err
		}
		c.Seek([]byte(after))
		k, _ = next()
	}
	for ; k != nil; k, _ = next() {
		v, err := load[T](tx, bucket, owner, string(k))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if !want(v) {
			continue
		}
		if len(list) == limit {
			return list, true, nil
		}
		list = append(list, *v)
	}
	return list, false, nil
}
