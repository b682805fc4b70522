package batchqueue

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// contents lists the files beside the database that a store may have made. There are
// none where their folder is missing.
func (s *Store) contents() (names []string, err error) {
	entries, err := os.ReadDir(s.path(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filePrefix) || strings.HasPrefix(e.Name(), batchPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// forgotten is the error of contents without their database.
func forgotten(contents int) error {
	return fmt.Errorf("%w: %s is missing or empty, and the folder '%s' holds %d files that it had named; "+
		"put %s back from a copy, or move '%s' away to begin anew", ErrIncomplete, databaseName, contentsName, contents, databaseName, contentsName)
}

// restore counts what is there, ends what a crash left half done, and notes contents
// that nothing knows. folders get a new name.
func (s *Store) restore(contents, folders []string) error {
	there := map[string]bool{}
	for _, name := range contents {
		there[name] = true
	}
	known, files, err := s.known(there)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path(""), 0o700); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	if err := syncNames(folders); err != nil {
		return err
	}
	for _, f := range files {
		if !there[f.ID] && there[f.Part] {
			if err := os.Rename(s.path(f.Part), s.path(f.ID)); err != nil {
				return err
			}
			there[f.Part], there[f.ID] = false, true
		}
	}
	for _, name := range contents {
		rest, part := strings.CutPrefix(name, filePrefix+s.name+"-")
		part = part && strings.HasSuffix(rest, partSuffix)
		gone := known[name] == useless
		switch {
		case !there[name] || known[name] == needed:
		case part || gone:
			if err := os.Remove(s.path(name)); err != nil {
				return err
			}
		default:
			s.unknown = append(s.unknown, name)
		}
	}
	if err := s.db.Update(s.settleGone); err != nil {
		return err
	}
	return s.Sweep()
}

// use says whether a content that the database knows is needed.
type use uint8

const (
	needed  use = 1 + iota
	useless     // it was to be removed
)

// known counts what the database names, and says what is known of contents by their
// names. It is ErrIncomplete if there should be some and not one is there.
func (s *Store) known(there map[string]bool) (known map[string]use, files []File, err error) {
	known = map[string]use{}
	lost := 0
	err = s.db.View(func(tx *bolt.Tx) error {
		if gone := tx.Bucket(goneBucket); gone != nil {
			_ = gone.ForEach(func(id, _ []byte) error { // no error of its own
				known[string(id)] = useless
				s.gone = append(s.gone, string(id))
				return nil
			})
		}
		err := each(tx, filesBucket, func(f *File) error {
			known[f.ID] = needed
			files = append(files, *f)
			s.own(f.Owner, share{1, f.Bytes})
			if !there[f.ID] && !there[f.Part] {
				lost++
			}
			return nil
		})
		if err != nil {
			return err
		}
		return each(tx, batchesBucket, func(b *Batch) error {
			known[b.ID+logSuffix] = useless
			if !b.Status.Ended() {
				known[b.ID+logSuffix] = needed
				s.own(b.Owner, share{0, b.LogBytes})
			}
			return nil
		})
	})
	if err == nil && lost > 0 && lost == len(files) {
		err = fmt.Errorf("%w: %s names %d files, and the folder '%s' holds none of them; put the folder back, or move %s away to begin anew",
			ErrIncomplete, databaseName, lost, contentsName, databaseName)
	}
	return known, files, err
}

// prepare gives a store what one of an earlier program lacks: a name, and a list of
// what is to be removed.
func (s *Store) prepare() error {
	lacks := true
	err := s.db.View(func(tx *bolt.Tx) error {
		s.name = string(tx.Bucket(metaBucket).Get(nameKey))
		lacks = s.name == "" || tx.Bucket(goneBucket) == nil
		return nil
	})
	if err != nil || !lacks {
		return err
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(goneBucket); err != nil {
			return err
		}
		var random [6]byte
		_, _ = rand.Read(random[:]) // never fails
		s.name = hex.EncodeToString(random[:])
		return tx.Bucket(metaBucket).Put(nameKey, []byte(s.name))
	})
}

// Unknown lists files in the folder of contents that look like files of a store but were not made by this
// store, or were made by a later state of it. The store does not change them.
func (s *Store) Unknown() []string { return s.unknown }

// ContentFolder returns the folder of contents, which has the Unknown files.
func (s *Store) ContentFolder() string { return filepath.Join(s.dir, contentsName) }
