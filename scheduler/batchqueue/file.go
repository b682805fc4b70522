package batchqueue

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The purposes of files.
const (
	PurposeInput  = "batch"
	PurposeOutput = "batch_output"
)

// File is the record of a content.
type File struct {
	ID      string    `json:"id"`
	Owner   string    `json:"owner,omitzero"`
	Name    string    `json:"name"`
	Purpose string    `json:"purpose"`
	Bytes   int64     `json:"bytes"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"` // removed then, unless a batch needs it
}

// Upload is a file that is being written. It ends with Commit or Abort; Abort after
// Commit does nothing. It belongs to one goroutine.
type Upload struct {
	store *Store
	part  *os.File
	out   *bufio.Writer
	bytes int64
	free  bool // its size is not limited: an output of accepted work
	err   error
}

// Upload begins a file. Nothing is kept of it before Commit.
func (s *Store) Upload() (*Upload, error) {
	full := false
	err := s.db.View(func(tx *bolt.Tx) error {
		full = tx.Bucket(filesBucket).Stats().KeyN >= s.opt.MaxFiles
		return nil
	})
	if err != nil {
		return nil, err
	}
	if full {
		return nil, fmt.Errorf("%w: it holds %d files; delete some", ErrFull, s.opt.MaxFiles)
	}
	return s.begin(false)
}

func (s *Store) begin(free bool) (*Upload, error) {
	f, err := os.CreateTemp(s.path(""), filePrefix+"*"+partSuffix)
	if err != nil {
		return nil, full(err)
	}
	return &Upload{store: s, part: f, out: bufio.NewWriterSize(f, 256<<10), free: free}, nil
}

// Write adds to the content. It is ErrTooLarge or ErrFull beyond the limits.
func (u *Upload) Write(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if u.err = u.reserve(int64(len(p))); u.err != nil {
		return 0, u.err
	}
	u.bytes += int64(len(p))
	n, err := u.out.Write(p)
	u.err = full(err)
	return n, u.err
}

// full makes ErrFull of a disk that takes no more, which a client can be told of.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: the disk takes no more", ErrFull)
	}
	return err
}

func (u *Upload) reserve(n int64) error {
	s := u.store
	if !u.free && u.bytes+n > s.opt.MaxFile {
		return fmt.Errorf("%w: it may have %d bytes", ErrTooLarge, s.opt.MaxFile)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !u.free && s.used+n > s.opt.MaxBytes {
		return fmt.Errorf("%w: its files may have %d bytes together; delete some", ErrFull, s.opt.MaxBytes)
	}
	s.used += n
	return nil
}

// Abort forgets the file.
func (u *Upload) Abort() {
	if u.part == nil {
		return
	}
	u.part.Close()
	_ = os.Remove(u.part.Name()) // Open removes what is left
	u.part = nil
	u.store.mu.Lock()
	defer u.store.mu.Unlock()
	u.store.used -= u.bytes
}

// Commit makes the file durable under a new id.
func (u *Upload) Commit(owner, name, purpose string) (File, error) {
	defer u.Abort()
	s := u.store
	if err := u.sync(); err != nil {
		return File{}, err
	}
	s.opt.watch("file synced")
	s.mu.Lock()
	defer s.mu.Unlock()
	var f File
	err := s.db.Update(func(tx *bolt.Tx) (err error) {
		f, err = s.place(tx, u, owner, name, purpose)
		return err
	})
	if err != nil {
		s.misplaced(f)
		return File{}, full(err)
	}
	u.part = nil
	s.opt.watch("file committed")
	return f, nil
}

// sync brings the content to the disk and closes it.
func (u *Upload) sync() error {
	err := u.err
	if err == nil {
		err = u.out.Flush()
	}
	if err == nil {
		err = u.part.Sync()
	}
	if closing := u.part.Close(); err == nil {
		err = closing
	}
	return full(err)
}

// place names a synced upload and adds its record to tx. s.mu is held.
func (s *Store) place(tx *bolt.Tx, u *Upload, owner, name, purpose string) (File, error) {
	id, err := newID(tx.Bucket(filesBucket), filePrefix)
	if err != nil {
		return File{}, err
	}
	now := s.Now()
	f := File{ID: id, Owner: owner, Name: name, Purpose: purpose, Bytes: u.bytes, Created: now, Expires: now.Add(s.opt.Keep)}
	if err := os.Rename(u.part.Name(), s.path(id)); err != nil {
		return File{}, err
	}
	if err := s.syncContents(); err != nil {
		return f, err
	}
	s.opt.watch("file named")
	return f, save(tx, filesBucket, id, &f)
}

// misplaced removes the content of a file whose record was not committed.
func (s *Store) misplaced(f File) {
	if f.ID != "" {
		_ = os.Remove(s.path(f.ID)) // Open removes what is left
	}
}

// File gives the record of an owner's file.
func (s *Store) File(owner, id string) (f File, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		p, err := load[File](tx, filesBucket, owner, id)
		if err == nil {
			f = *p
		}
		return err
	})
	return f, err
}

// Files lists an owner's files; purpose "" is any.
func (s *Store) Files(owner, purpose, after string, limit int, oldest bool) (list []File, more bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		list, more, err = page(tx, filesBucket, owner, after, limit, oldest, func(f *File) bool {
			return purpose == "" || purpose == f.Purpose
		})
		return err
	})
	return list, more, err
}

// Content opens an owner's file for reading. It stays readable when it is deleted.
func (s *Store) Content(owner, id string) (io.ReadCloser, File, error) {
	f, err := s.File(owner, id)
	if err != nil {
		return nil, f, err
	}
	r, err := os.Open(s.path(f.ID))
	return r, f, err
}

// Delete removes an owner's file; ErrInUse while a batch needs it.
func (s *Store) Delete(owner, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone *File
	err := s.db.Update(func(tx *bolt.Tx) (err error) {
		if gone, err = load[File](tx, filesBucket, owner, id); err != nil {
			return err
		}
		needed, err := s.needed(tx)
		if err != nil {
			return err
		}
		if batch := needed[id]; batch != "" {
			return fmt.Errorf("%w: %s", ErrInUse, batch)
		}
		return tx.Bucket(filesBucket).Delete([]byte(id))
	})
	if err != nil {
		return err
	}
	s.opt.watch("file deleted")
	return s.drop(gone.ID, gone.Bytes)
}

// needed maps the inputs of batches that have not ended to their batch.
func (s *Store) needed(tx *bolt.Tx) (map[string]string, error) {
	ids := map[string]string{}
	err := each(tx, batchesBucket, func(b *Batch) error {
		if !b.Status.Ended() {
			ids[b.Input] = b.ID
		}
		return nil
	})
	return ids, err
}

// drop removes a content that no record names any more. s.mu is held.
func (s *Store) drop(name string, bytes int64) error {
	s.used -= bytes
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes files whose time is over, unless a batch needs them, and batches that
// ended that long ago.
func (s *Store) Sweep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	var files []File
	var batches []string
	err := s.db.View(func(tx *bolt.Tx) error {
		needed, err := s.needed(tx)
		if err == nil {
			err = each(tx, filesBucket, func(f *File) error {
				if now.After(f.Expires) && needed[f.ID] == "" {
					files = append(files, *f)
				}
				return nil
			})
		}
		if err == nil {
			err = each(tx, batchesBucket, func(b *Batch) error {
				if b.Status.Ended() && now.After(b.EndedAt.Add(s.opt.Keep)) {
					batches = append(batches, b.ID)
				}
				return nil
			})
		}
		return err
	})
	if err != nil || len(files)+len(batches) == 0 {
		return err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		var errs []error
		for _, f := range files {
			errs = append(errs, tx.Bucket(filesBucket).Delete([]byte(f.ID)))
		}
		for _, id := range batches {
			errs = append(errs, tx.Bucket(batchesBucket).Delete([]byte(id)))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		errs = append(errs, s.drop(f.ID, f.Bytes))
	}
	return errors.Join(errs...)
}
