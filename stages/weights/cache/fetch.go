//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"krater/kernels/device"
	"krater/scheduler/files"
)

// matrixFile is a finished file of matrices in memory of a device, all of it
// verified.
type matrixFile struct {
	matrixIndex
	buf    device.Buffer
	host   []byte // the whole file
	mapped []byte // the same, nil: copied
}

// loadMatrices brings a file into memory of dev.
func loadMatrices(ctx context.Context, dev device.Device, path string, o *MatrixOptions) (*matrixFile, error) {
	f, size, err := openSized(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, min(size, page))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	p, err := parsePreamble(head, size, o.Source, o.digest())
	if err != nil {
		return nil, err
	}
	index := make([]byte, p.length)
	if _, err := f.ReadAt(index, p.index); errors.Is(err, io.EOF) {
		return nil, ErrTruncated
	} else if err != nil {
		return nil, err
	}
	x := &matrixFile{}
	if x.matrixIndex, err = p.parseIndex(index); err != nil {
		return nil, err
	}
	if o.Copy {
		err = x.copyIn(ctx, dev, f, o)
	} else if x.mapped, err = files.Map(f); err == nil {
		if err = ErrTruncated; int64(len(x.mapped)) == size { // else it was cut since its header was read
			err = x.mapIn(ctx, dev, o)
		}
	}
	if err != nil {
		return nil, errors.Join(err, x.close())
	}
	return x, nil
}

// each calls work for every matrix, the largest first, so that no thread begins
// with a large one when the others are done.
func (x *matrixFile) each(ctx context.Context, o *MatrixOptions, work func(k key) (sum uint32, err error)) error {
	list := x.keys()
	slices.SortStableFunc(list, func(a, b key) int { return sizeOf(b.Layout) - sizeOf(a.Layout) })
	return inParallel(ctx, len(list), o.Threads, func(i int) error {
		sum, err := work(list[i])
		if err == nil && sum != x.records[list[i]].sum {
			err = fmt.Errorf("%w: %s", ErrDamaged, list[i].name)
		}
		return err
	}, func(done int) {
		o.Progress.tell("load matrices", x.end*int64(done)/int64(len(list)), x.end)
	})
}

func (x *matrixFile) mapIn(ctx context.Context, dev device.Device, o *MatrixOptions) (err error) {
	x.host = x.mapped
	if err := x.each(ctx, o, func(k key) (uint32, error) {
		at := x.records[k].at
		return touch(x.mapped, int(at), int(at)+sizeOf(k.Layout))
	}); err != nil {
		return err
	}
	x.buf, err = dev.Wrap(x.mapped)
	return err
}

func (x *matrixFile) copyIn(ctx context.Context, dev device.Device, f io.ReaderAt, o *MatrixOptions) (err error) {
	if x.buf, err = dev.Alloc(int(x.end)); err != nil {
		return fmt.Errorf("matrices as integers: %w", err)
	}
	if x.host = x.buf.Host(); x.host == nil {
		return fmt.Errorf("cache: memory of %s cannot be read into", dev.Name())
	}
	return x.each(ctx, o, func(k key) (uint32, error) {
		at, n := x.records[k].at, sizeOf(k.Layout)
		return readSum(f, at, int64(n), x.host[at:][:n], nil)
	})
}

// bytes of a matrix.
func (x *matrixFile) bytes(k key) []byte { return x.host[x.records[k].at:][:sizeOf(k.Layout)] }

// matrix returns a view of a matrix in the buffer.
func (x *matrixFile) matrix(k key) (device.QMat, bool) {
	r, ok := x.records[k]
	at := int(r.at)
	return device.QMat{Layout: k.Layout, Values: x.buf, ValueAt: at, Scales: x.buf, ScaleAt: at + scaleAt(k.Layout)}, ok
}

func (x *matrixFile) close() error {
	if x.buf != nil {
		x.buf.Free()
	}
	return files.Unmap(x.mapped)
}
