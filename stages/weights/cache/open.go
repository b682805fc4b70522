//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"krater/kernels/device"
)

// Options of Open and Build.
type Options struct {
	Plan   Plan
	Source Source // asked only for what has to be built
	Model  string // the model's folder, "" for an embedded model
	Dir    string // --cache-dir, "": see folders
	// Copy brings the file into memory of the device instead of mapping it.
	Copy bool
	// Threads verify (and copy) layers; 0: all cores.
	Threads int
	// Progress is called after every expert converted and every layer read, not by
	// two goroutines at once.
	Progress func(Progress)
	// Notice gets lines for people: a file that is not used and why, a wait.
	Notice func(line string)

	onStep func(string)          // tests: where a build is
	wrap   func(storage) storage // tests: a disk that fails
}

func (o *Options) notice(format string, args ...any) {
	if o.Notice != nil {
		o.Notice(fmt.Sprintf(format, args...))
	}
}

// Cache is the experts of a model on a device, from a file.
type Cache struct {
	Path   string
	Plan   Plan // of the file: its Method may be better than asked for
	Bytes  int64
	Report *Report // of the build, nil when the file was used as it was

	layers map[int][]device.QExpert
	bufs   []device.Buffer
	mapped []byte
}

// Experts are the experts of a layer, nil for a dense layer. Not to be changed;
// valid until Close.
func (c *Cache) Experts(layer int) []device.QExpert { return c.layers[layer] }

// Close gives the memory back. Nothing may run on the experts any more.
func (c *Cache) Close() error {
	for _, b := range c.bufs {
		b.Free()
	}
	mapped := c.mapped
	c.bufs, c.layers, c.mapped = nil, nil, nil
	if mapped == nil {
		return nil
	}
	return unmapFile(mapped)
}

// Open finds the cache of a model, or builds it, and puts it on dev. A file that
// is damaged, stale, unfinished or not a cache is named by Notice and built anew.
// A mapped file must not be shortened while it is open.
func Open(ctx context.Context, dev device.Device, o Options) (*Cache, error) {
	list, err := o.folders()
	if err != nil {
		return nil, err
	}
	for _, dir := range list {
		path := filepath.Join(dir, o.Plan.FileName())
		c, err := load(ctx, dev, path, &o)
		if err == nil {
			return c, nil
		}
		if absent(err) {
			continue
		}
		if !unusable(err) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		o.notice("%s: %v; not used", path, err)
	}
	r, err := Build(ctx, o)
	if err != nil {
		return nil, err
	}
	c, err := load(ctx, dev, r.Path, &o)
	if err != nil {
		return nil, fmt.Errorf("%s, just built: %w", r.Path, err)
	}
	c.Report = r
	return c, nil
}

// unusable tells a file that is to be built anew from a failure to use a good one.
func unusable(err error) bool {
	for _, e := range []error{ErrForeign, ErrVersion, ErrStale, ErrTruncated, ErrUnfinished, ErrDamaged, fs.ErrPermission} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// absent tells that there is no file, or no folder that could hold it.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// Build makes sure that the file exists and is whole, without a device. Of two at
// once, in one process or several, the second waits and uses the first's file.
func Build(ctx context.Context, o Options) (*Report, error) {
	list, err := o.folders()
	if err != nil {
		return nil, err
	}
	dir, err := writable(list)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, o.Plan.FileName())
	unlock, err := lock(ctx, path, func() { o.notice("%s: another process builds it; waiting", path) })
	if err != nil {
		return nil, err
	}
	defer unlock()
	r := &Report{Path: path}
	if r.Bytes, err = o.Plan.Bytes(); err != nil {
		return nil, err
	}
	switch err := verify(ctx, path, &o); {
	case err == nil:
		r.Found = true
		return r, nil
	case !unusable(err) && !absent(err):
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := build(ctx, path, &o, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
