//go:build unix

package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// MatrixOptions of OpenMatrices.
type MatrixOptions struct {
	Source Fingerprint // MatrixFingerprintOf
	// Experts is the fingerprint of the experts, whose folder the file shares where
	// folders are named after one. Zero: Source.
	Experts Fingerprint
	// Precision says in whatever words how the parts are kept that this file is for.
	// Each precision has a file of its own.
	Precision string
	Model     string // the model's folder, "" for an embedded model
	Dir       string // --cache-dir, "": see folders
	// Copy brings the file into memory of the device instead of mapping it.
	Copy    bool
	Threads int // verify, copy and pack; 0: all cores
	// Progress is called after every matrix read, not by two goroutines at once.
	Progress Progress
	// Notice gets lines for people: a file that is not used and why, a wait.
	Notice func(line string)

	hooks
}

func (o *MatrixOptions) notice(format string, args ...any) {
	if o.Notice != nil {
		o.Notice(fmt.Sprintf(format, args...))
	}
}

func (o *MatrixOptions) digest() [32]byte { return sha256.Sum256([]byte(o.Precision)) }

// fileName returns the name of the file in its folder.
func (o *MatrixOptions) fileName() string {
	d := o.digest()
	return "dense_cpu_" + hex.EncodeToString(d[:8]) + ".bin"
}

func (o *MatrixOptions) folders() ([]string, error) {
	id := o.Experts
	if id == (Fingerprint{}) {
		id = o.Source
	}
	return folders(o.Dir, o.Model, id)
}

// Matrices keeps the packed matrices of a model that are not routed experts from
// one load to the next (it is a load.Store). What the file has is used as it lies
// there; what it lacks is made, kept in memory of the device, and written to a new
// file that takes the place of the old one when the load is complete (Seal).
//
// A file that cannot be written ends no load: the matrices are in memory, Seal
// says what went wrong, and they are made again at the next start.
type Matrices struct {
	Path  string // "": there is no folder to write to
	Found bool   // the file was there and whole
	Taken int    // matrices taken from it
	Made  int    // matrices made

	mu     sync.Mutex
	ctx    context.Context
	dev    device.Device
	o      MatrixOptions
	file   *matrixFile // nil: none
	given  map[key]device.QMat
	bufs   []device.Buffer
	filler *filler // nil: nothing to write so far
	err    error   // why nothing more is written
}

// OpenMatrices finds the file and brings it into memory of dev, its checksums
// verified in the same pass, or begins a new one. A file that is damaged, stale,
// unfinished or not a cache is named by Notice and built anew. While another
// process builds it OpenMatrices waits and then uses that one's file; so two of
// the same file in one goroutine would wait for each other. ctx is for all of the
// load that follows. Close ends it, with or without Seal.
func OpenMatrices(ctx context.Context, dev device.Device, o MatrixOptions) (*Matrices, error) {
	m := &Matrices{ctx: ctx, dev: dev, o: o, given: map[key]device.QMat{}}
	dirs, err := o.folders()
	if err != nil {
		m.fail(err)
		return m, nil
	}
	for _, dir := range dirs {
		if err := m.find(filepath.Join(dir, o.fileName()), true); err != nil {
			return nil, err
		}
		if m.Found {
			return m, nil
		}
	}
	dir, err := writable(dirs)
	if err != nil {
		m.fail(err)
		return m, nil
	}
	m.Path = filepath.Join(dir, o.fileName())
	if err := m.begin(true); err != nil {
		return nil, err
	}
	return m, nil
}

// find takes the file at path if it is there and whole.
func (m *Matrices) find(path string, say bool) error {
	f, err := loadMatrices(m.ctx, m.dev, path, &m.o)
	switch {
	case err == nil:
		m.file, m.Path, m.Found = f, path, true
	case absent(err):
	case !unusable(err):
		return fmt.Errorf("%s: %w", path, err)
	case say:
		m.o.notice("%s: %v; not used", path, err)
	}
	return nil
}

// begin takes the lock and starts a new file with what the old one has. look: check
// first whether another process has built the file meanwhile. begin returns errors of
// waiting and reading; it keeps an error of writing for Seal.
func (m *Matrices) begin(look bool) error {
	unlock, err := lock(m.ctx, m.Path, func() { m.o.notice("%s: another process builds it; waiting", m.Path) })
	if err != nil {
		if m.ctx.Err() != nil {
			return err
		}
		m.fail(err)
		return nil
	}
	if look {
		if err := m.find(m.Path, false); err != nil || m.Found {
			unlock()
			return err
		}
	}
	w, err := newFiller(m.Path, &m.o, unlock)
	if err != nil {
		m.fail(err)
		return nil
	}
	m.filler = w
	if m.file == nil {
		return nil
	}
	for _, k := range m.file.keys() {
		if err := w.add(k, m.file.bytes(k)); err != nil {
			m.fail(err)
			break
		}
	}
	return nil
}

// fail gives up the file that is being written.
func (m *Matrices) fail(err error) {
	if m.filler != nil {
		err = m.filler.failed(err, m.filler.index.end)
		m.filler.drop()
		m.filler = nil
	}
	m.err = fmt.Errorf("%s: %w", m.Path, err)
	if m.Path == "" {
		m.err = err
	}
	m.o.notice("%v; the weights are quantised again at the next start", m.err)
}

// Matrix returns the matrix name as f on the device. make is called if the
// file does not have it. The matrix stays the store's and is valid until Close.
func (m *Matrices) Matrix(name string, f tensor.Layout, make func() (*tensor.Matrix, error)) (device.QMat, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given == nil {
		return device.QMat{}, errClosed
	}
	k := key{name, f}
	if err := checkKey(k); err != nil {
		return device.QMat{}, err
	}
	if q, ok := m.given[k]; ok {
		return q, nil
	}
	if m.file != nil {
		if q, ok := m.file.matrix(k); ok {
			m.Taken++
			m.given[k] = q
			return q, nil
		}
	}
	if m.ctx.Err() != nil {
		return device.QMat{}, context.Cause(m.ctx)
	}
	x, err := make()
	if err != nil {
		return device.QMat{}, err
	}
	if !x.Fits(f) {
		return device.QMat{}, fmt.Errorf("cache: %s came as %s, want %s", name, x, f)
	}
	q, err := m.keep(k, x)
	if err == nil {
		m.Made++
		m.given[k] = q
	}
	return q, err
}

// keep brings a new matrix to the device and into the file.
func (m *Matrices) keep(k key, x *tensor.Matrix) (device.QMat, error) {
	n := sizeOf(k.Layout)
	buf, err := m.dev.Alloc(n)
	if err != nil {
		return device.QMat{}, fmt.Errorf("%s: %w", k.name, err)
	}
	m.bufs = append(m.bufs, buf)
	host := buf.Host()
	if host == nil {
		host = make([]byte, n)
	}
	Pack(Packed{k.Layout, host, host[scaleAt(k.Layout):]}, x, m.o.Threads) // what is between is zero already
	if buf.Host() == nil {
		if err := device.Upload(m.dev, device.NewMat(buf, tensor.U8, 1, n), host); err != nil {
			return device.QMat{}, err
		}
	}
	if m.filler == nil && m.err == nil {
		if err := m.extend(); err != nil {
			return device.QMat{}, err
		}
	}
	if m.filler != nil {
		if err := m.filler.add(k, host[:n]); err != nil {
			m.fail(err)
		}
	}
	return device.QMat{Layout: k.Layout, Values: buf, Scales: buf, ScaleAt: scaleAt(k.Layout)}, nil
}

// extend begins a file that has more than the one found, if it can take its place.
func (m *Matrices) extend() error {
	dirs, err := m.o.folders()
	if err == nil {
		dirs = slices.DeleteFunc(dirs, func(dir string) bool { return dir != filepath.Dir(m.Path) })
		_, err = writable(dirs)
	}
	if err != nil {
		m.fail(err)
		return nil
	}
	m.o.notice("%s: lacks matrices that this load needs; writing it again", m.Path)
	return m.begin(false)
}

// Seal ends the load: a file that was being written is completed and takes its
// place. Its error says that there is no file, or not all of it; the matrices can
// be used nevertheless.
func (m *Matrices) Seal() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.given == nil:
		return errClosed
	case m.filler == nil:
		return m.err
	case len(m.filler.index.records) == 0: // nothing is kept as integers
		m.filler.drop()
		m.filler = nil
		return nil
	}
	if err := m.filler.seal(&m.o); err != nil {
		m.fail(err)
		return m.err
	}
	m.filler.close()
	m.filler = nil
	return nil
}

// Allocated returns the number of bytes allocated on the device: for matrices that were made, and for
// a file that was copied.
func (m *Matrices) Allocated() (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.bufs {
		n += int64(b.Size())
	}
	if m.file != nil && m.file.mapped == nil {
		n += int64(m.file.buf.Size())
	}
	return n
}

// Bytes returns the size of all matrices given.
func (m *Matrices) Bytes() (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.given {
		n += int64(sizeOf(k.Layout))
	}
	return n
}

// Close gives the memory back and, without Seal, drops an unfinished file. Nothing
// may use the matrices any more.
func (m *Matrices) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.filler != nil {
		m.filler.drop()
		m.filler = nil
	}
	for _, b := range m.bufs {
		b.Free()
	}
	var err error
	if m.file != nil {
		err = m.file.close()
	}
	m.bufs, m.file, m.given = nil, nil, nil
	return err
}

// errClosed: used after Close.
var errClosed = errors.New("cache: the matrices are closed")
