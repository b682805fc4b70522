//go:build unix

package cache

import (
	"errors"
	"os"
)

// filler writes a file of matrices.
type filler struct {
	*part
	index  matrixIndex
	unlock func()
}

// newFiller begins an empty file; what an interrupted load left is not used. It
// gives the lock back at its end, or at once if it fails.
func newFiller(path string, o *MatrixOptions, unlock func()) (*filler, error) {
	p, err := newPart(path, &o.hooks)
	if err == nil {
		o.step("truncate")
		if err = p.file.Truncate(0); err != nil {
			err = errors.Join(err, p.file.Close())
		}
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return &filler{part: p, index: newIndex(), unlock: unlock}, nil
}

// add appends the bytes of a matrix.
func (w *filler) add(k key, b []byte) error {
	w.hook.step("write matrix")
	if err := w.put(b, w.index.end); err != nil {
		return err
	}
	w.index.records[k] = record{w.index.end, checksum(b)}
	w.index.end += int64(len(b))
	return nil
}

// seal completes the file.
func (w *filler) seal(o *MatrixOptions) error {
	index, header := w.index.encode(o.Source, o.digest())
	w.hook.step("write index")
	if err := w.put(index, w.index.end); err != nil {
		return err
	}
	w.hook.step("seal")
	if err := w.put(header, 0); err != nil {
		return err
	}
	return w.finish()
}

// close gives file and lock back.
func (w *filler) close() {
	w.file.Close()
	w.unlock()
}

// drop takes an unfinished file away.
func (w *filler) drop() {
	os.Remove(w.name)
	w.close()
}
