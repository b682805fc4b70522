//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"krater/kernels/device"
	"krater/scheduler/files"
)

// opened is a cache file whose header is right.
type opened struct {
	file    *os.File
	plan    Plan
	layout  layout
	entries []entry
}

// headerMost is the largest header there can be.
const headerMost = (headerFixed + maxLayers*headerLayer + page - 1) / page * page

// openSized opens a file and returns its size. Only a regular file can be a cache.
func openSized(path string) (*os.File, int64, error) {
	f, err := files.Open(path)
	if errors.Is(err, files.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// openFile checks everything but the layers' checksums.
func openFile(path string, plan *Plan) (*opened, error) {
	f, size, err := openSized(path)
	if err != nil {
		return nil, err
	}
	x := &opened{file: f}
	head := make([]byte, min(size, headerMost))
	if _, err = io.ReadFull(io.NewSectionReader(f, 0, size), head); err == nil {
		if x.entries, err = plan.check(head, size); err == nil {
			x.plan, _, _, err = parse(head)
		}
	}
	if err == nil {
		x.layout, err = x.plan.layout()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return x, nil
}

// verify looks for the plan's file in a folder and reads all of it.
func (p *Plan) verify(ctx context.Context, dir string, o *Options) (path string, err error) {
	for i, path := range p.paths([]string{dir}) {
		e := verify(ctx, path, p, o)
		if e == nil {
			return path, nil
		}
		if i == 0 {
			err = e
		}
	}
	return "", err
}

// verify reads a whole file.
func verify(ctx context.Context, path string, plan *Plan, o *Options) error {
	x, err := openFile(path, plan)
	if err != nil {
		return err
	}
	defer x.file.Close()
	return x.each(ctx, o, "check", func(i int) error {
		return x.into(i, nil, make([]byte, chunk))
	})
}

// into reads layer i to dst, or where dst is nil over and over into scratch, and
// compares its checksum.
func (x *opened) into(i int, dst, scratch []byte) error {
	sum, err := readSum(x.file, x.layout.at(i), x.layout.layer, dst, scratch)
	if err != nil {
		return err
	}
	return x.compare(i, sum)
}

func (x *opened) compare(i int, sum uint32) error {
	if sum != x.entries[i].sum {
		return fmt.Errorf("%w: layer %d", ErrDamaged, x.entries[i].layer)
	}
	return nil
}

// each calls work for every layer, several at once. The first error ends it, as
// does the end of ctx.
func (x *opened) each(ctx context.Context, o *Options, phase string, work func(i int) error) error {
	return inParallel(ctx, len(x.entries), o.Threads, work, func(done int) {
		o.Progress.tell(phase+" experts", min(x.layout.file, x.layout.at(0)+int64(done)*x.layout.layer), x.layout.file)
	})
}

// load brings a file into memory of dev, checksums verified in the same pass.
func load(ctx context.Context, dev device.Device, path string, plan *Plan, o *Options) (*Cache, error) {
	x, err := openFile(path, plan)
	if err != nil {
		return nil, err
	}
	defer x.file.Close()
	c := &Cache{Path: path, Plan: x.plan, Bytes: x.layout.file, layers: map[int][]device.QExpert{}}
	if o.Copy {
		err = c.copy(ctx, dev, x, o)
	} else {
		err = c.mapIn(ctx, dev, x, o)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for i, e := range x.entries {
		c.layers[e.layer] = x.layout.experts(c.bufs[i], x.plan.Experts)
	}
	return c, nil
}

func (c *Cache) mapIn(ctx context.Context, dev device.Device, x *opened, o *Options) error {
	var err error
	if c.mapped, err = files.Map(x.file); err != nil {
		return err
	}
	if int64(len(c.mapped)) != x.layout.file { // it was cut since its header was read
		return ErrTruncated
	}
	layer := func(i int) []byte { return c.mapped[x.layout.at(i):][:x.layout.layer:x.layout.layer] }
	if err := x.each(ctx, o, "load", func(i int) error {
		sum, err := touch(c.mapped, int(x.layout.at(i)), int(x.layout.at(i)+x.layout.layer))
		if err != nil {
			return err
		}
		return x.compare(i, sum)
	}); err != nil {
		return err
	}
	for i := range x.entries {
		b, err := dev.Wrap(layer(i))
		if err != nil {
			return err
		}
		c.bufs = append(c.bufs, b)
	}
	return nil
}

func (c *Cache) copy(ctx context.Context, dev device.Device, x *opened, o *Options) error {
	for i := range x.entries {
		b, err := dev.Alloc(int(x.layout.layer))
		if err != nil {
			return fmt.Errorf("experts of layer %d: %w", x.entries[i].layer, err)
		}
		c.bufs = append(c.bufs, b)
		if b.Host() == nil {
			return fmt.Errorf("cache: memory of %s cannot be read into", dev.Name())
		}
	}
	return x.each(ctx, o, "load", func(i int) error { return x.into(i, c.bufs[i].Host(), nil) })
}

// experts are the views of the experts of one layer in its buffer.
func (x *expert) experts(buf device.Buffer, n int) []device.QExpert {
	out := make([]device.QExpert, n)
	for e := range out {
		at := e * x.size
		out[e] = device.QExpert{
			W13: device.QMat{Layout: x.w13, Values: buf, ValueAt: at + x.w13Values, Scales: buf, ScaleAt: at + x.w13Scales},
			W2:  device.QMat{Layout: x.w2, Values: buf, ValueAt: at + x.w2Values, Scales: buf, ScaleAt: at + x.w2Scales},
		}
	}
	return out
}
