package batchqueue

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	Part    string    `json:"part,omitzero"` // the content's file until it is renamed to the id
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"` // removed then, unless a batch needs it
}

// Upload is a file that is being written. It ends with Commit or Abort; Abort after
// Commit does nothing. It belongs to one goroutine.
type Upload struct {
	store *Store
	owner string
	part  *os.File
	out   *bufio.Writer
	bytes int64
	free  bool // its size is not limited: an output of accepted work
	err   error
}

// Upload begins a file of an owner. Without Commit nothing of it is kept.
func (s *Store) Upload(owner string) (*Upload, error) { return s.begin(owner, false) }

// begin begins a file, whatever there is already if it is free.
func (s *Store) begin(owner string, free bool) (*Upload, error) {
	u := &Upload{store: s, owner: owner, free: free}
	if err := u.reserve(share{files: 1}); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.path(""), filePrefix+s.name+"-*"+partSuffix)
	if err != nil {
		u.giveBack()
		return nil, full(err)
	}
	u.part, u.out = f, bufio.NewWriterSize(f, 256<<10)
	return u, nil
}

// Write appends to the content. Beyond the limits it returns ErrTooLarge or ErrFull.
func (u *Upload) Write(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if u.err = u.reserve(share{bytes: int64(len(p))}); u.err != nil {
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

func (u *Upload) reserve(more share) error {
	s := u.store
	if !u.free && u.bytes+more.bytes > s.opt.MaxFile {
		return fmt.Errorf("%w: it may have %d bytes", ErrTooLarge, s.opt.MaxFile)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !u.free {
		if err := s.room(u.owner, more); err != nil {
			return err
		}
	}
	s.own(u.owner, more)
	return nil
}

// own adds to what an owner has. s.mu is held.
func (s *Store) own(owner string, more share) {
	s.used = share{s.used.files + more.files, s.used.bytes + more.bytes}
	x := s.owned[owner]
	x = share{x.files + more.files, x.bytes + more.bytes}
	if s.owned[owner] = x; x == (share{}) {
		delete(s.owned, owner)
	}
}

// room returns an error if an owner may not use more. All owners together have a limit, and one
// of several owners may use three quarters of it, so that none fills the store. s.mu is held.
func (s *Store) room(owner string, more share) error {
	for _, l := range []struct {
		what           string
		more, all, own int64
		most           int64
	}{
		{"files", int64(more.files), int64(s.used.files), int64(s.owned[owner].files), int64(s.opt.MaxFiles)},
		{"bytes", more.bytes, s.used.bytes, s.owned[owner].bytes, s.opt.MaxBytes},
	} {
		switch each := part(l.most, s.opt.Shared); {
		case l.more == 0:
		case l.own+l.more > each && s.opt.Shared:
			return fmt.Errorf("%w for this key: it has %d %s, and may have %d of the %d of all keys; delete some", ErrFull, l.own, l.what, each, l.most)
		case l.all+l.more > l.most:
			return fmt.Errorf("%w: it holds %d %s, and may hold %d; delete some", ErrFull, l.all, l.what, l.most)
		}
	}
	return nil
}

// part is how much of a limit one owner may have.
func part(limit int64, shared bool) int64 {
	if shared {
		return max(1, limit-limit/4)
	}
	return limit
}

// Abort drops the file.
func (u *Upload) Abort() {
	if u.part == nil {
		return
	}
	u.part.Close()
	_ = os.Remove(u.part.Name()) // Open removes what is left
	u.part = nil
	u.giveBack()
}

func (u *Upload) giveBack() {
	u.store.mu.Lock()
	defer u.store.mu.Unlock()
	u.store.own(u.owner, share{-1, -u.bytes})
}

// Commit makes the file durable under a new id.
func (u *Upload) Commit(name, purpose string) (File, error) {
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
		f, err = s.record(tx, u, name, purpose)
		return err
	})
	if err != nil {
		return File{}, full(err)
	}
	s.opt.watch("file committed")
	s.place(u, f)
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

// record adds the record of a synced upload to tx. s.mu is held.
func (s *Store) record(tx *bolt.Tx, u *Upload, name, purpose string) (File, error) {
	id, err := newID(tx.Bucket(filesBucket), filePrefix)
	if err != nil {
		return File{}, err
	}
	now := s.Now()
	f := File{
		ID: id, Owner: u.owner, Name: name, Purpose: purpose, Bytes: u.bytes, Part: filepath.Base(u.part.Name()),
		Created: now, Expires: now.Add(s.opt.Keep),
	}
	return f, save(tx, filesBucket, id, &f)
}

// place gives a committed upload its name. Where it fails the content stays where the record says
// that it is, and the next Open tries again.
func (s *Store) place(u *Upload, f File) {
	u.part = nil
	if os.Rename(s.path(f.Part), s.path(f.ID)) == nil {
		_ = s.syncContents()
		s.opt.watch("file named")
	}
}

// File returns the record of an owner's file.
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

// Files lists an owner's files with a purpose; "" means any purpose.
func (s *Store) Files(owner, purpose, after string, limit int, oldest bool) (list []File, more bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		list, more, err = page(tx, filesBucket, owner, after, limit, oldest, func(f *File) bool {
			return purpose == "" || purpose == f.Purpose
		})
		return err
	})
	return list, more, err
}

// Content opens an owner's file for reading. The content stays readable after the file is deleted.
func (s *Store) Content(owner, id string) (io.ReadCloser, File, error) {
	f, err := s.File(owner, id)
	if err != nil {
		return nil, f, err
	}
	r, err := s.openContent(&f, true)
	return r, f, err
}

// openContent opens the content of a file, ErrLost if it is not there, or is to be whole and is
// not.
func (s *Store) openContent(f *File, whole bool) (*os.File, error) {
	var r *os.File
	err := fs.ErrNotExist
	for _, name := range []string{f.ID, f.Part, f.ID} { // it may get its name in between
		if name != "" && errors.Is(err, fs.ErrNotExist) {
			r, err = os.Open(s.path(name))
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrLost, f.ID)
	}
	if err != nil {
		return nil, err
	}
	info, err := r.Stat()
	if err != nil || !info.Mode().IsRegular() || whole && info.Size() != f.Bytes {
		r.Close()
		return nil, fmt.Errorf("%w: %s has not the %d bytes that it had", ErrLost, f.ID, f.Bytes)
	}
	return r, nil
}

// Delete removes an owner's file. It returns ErrInUse while a batch needs the file.
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
		return s.remove(tx, gone)
	})
	if err != nil {
		return err
	}
	s.opt.watch("file deleted")
	return s.drop(gone)
}

// remove takes a file's record out of the database, which remembers that the content is to be
// removed. s.mu is held.
func (s *Store) remove(tx *bolt.Tx, f *File) error {
	return errors.Join(s.settleGone(tx), tx.Bucket(goneBucket).Put([]byte(f.ID), nil), tx.Bucket(filesBucket).Delete([]byte(f.ID)))
}

// settleGone forgets contents that are gone by now. s.mu is held.
func (s *Store) settleGone(tx *bolt.Tx) error {
	for _, id := range s.gone {
		if err := tx.Bucket(goneBucket).Delete([]byte(id)); err != nil {
			return err
		}
	}
	s.gone = nil
	return nil
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

// drop removes the content of a removed file. s.mu is held.
func (s *Store) drop(f *File) error {
	s.own(f.Owner, share{-1, -f.Bytes})
	err := s.unlink(f.ID)
	if err == nil && f.Part != "" {
		err = s.unlink(f.Part)
	}
	if err == nil {
		s.gone = append(s.gone, f.ID)
	}
	return err
}

// unlink removes a content if it is there.
func (s *Store) unlink(name string) error {
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes files whose time is over, unless a batch needs them, and batches that
// ended as long ago.
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
			errs = append(errs, s.remove(tx, &f))
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
		errs = append(errs, s.drop(&f))
	}
	return errors.Join(errs...)
}
