//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/device"
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

// openFile checks everything but the layers' checksums.
func openFile(path string, plan *Plan) (*opened, error) {
	f, size, err := openRegular(path)
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

// verify reads a whole file.
func verify(ctx context.Context, path string, o *Options) error {
	x, err := openFile(path, &o.Plan)
	if err != nil {
		return err
	}
	defer x.file.Close()
	return x.each(ctx, o, "verify", func(i int) error {
		return x.into(i, nil, make([]byte, chunk))
	})
}

// chunk is how much is read before its checksum is taken: little enough to be in
// the cache of a core still.
const chunk = 256 << 10

// into reads layer i to dst, or where dst is nil over and over into scratch, and
// compares its checksum.
func (x *opened) into(i int, dst, scratch []byte) error {
	var sum uint32
	for at := int64(0); at < x.layout.layer; {
		n := min(chunk, x.layout.layer-at)
		b := scratch[:min(n, int64(len(scratch)))]
		if dst != nil {
			b = dst[at : at+n]
		}
		if _, err := x.file.ReadAt(b, x.layout.at(i)+at); err != nil {
			if errors.Is(err, io.EOF) {
				return ErrTruncated // it was shortened since it was opened
			}
			return err
		}
		sum = crc32.Update(sum, castagnoli, b)
		at += int64(len(b))
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
	threads := o.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var (
		next  atomic.Int64
		wait  sync.WaitGroup
		mu    sync.Mutex
		done  int
		first error
	)
	for range min(threads, len(x.entries)) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(x.entries) {
					return
				}
				err := context.Cause(ctx)
				if err == nil {
					err = work(i)
				}
				mu.Lock()
				if done++; err != nil && first == nil {
					first = err
				}
				if o.Progress != nil && first == nil {
					o.Progress(Progress{Phase: phase, Layers: done, Of: len(x.entries), Bytes: int64(done) * x.layout.layer, Total: x.layout.file})
				}
				stop := first != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wait.Wait()
	return first
}

// load brings a file into memory of dev, checksums verified in the same pass.
func load(ctx context.Context, dev device.Device, path string, o *Options) (*Cache, error) {
	x, err := openFile(path, &o.Plan)
	if err != nil {
		return nil, err
	}
	defer x.file.Close()
	c := &Cache{Path: path, Plan: x.plan, Bytes: x.layout.file, layers: make(map[int][]device.QExpert, len(x.entries))}
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
	if c.mapped, err = mapFile(x.file, x.layout.file); err != nil {
		return fmt.Errorf("mmap of %d bytes: %w", x.layout.file, err)
	}
	layer := func(i int) []byte { return c.mapped[x.layout.at(i):][:x.layout.layer:x.layout.layer] }
	if err := x.each(ctx, o, "load", func(i int) error {
		sum, err := touch(layer(i))
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

// mapChunk is how much of a mapping is made present with one call before its
// checksum is taken. 600 MB in the page cache, 2 busy cores: 2.1 GB/s by page
// faults, with chunks of 1 MiB 3.8, of 4 MiB 6.1, of 16 MiB 5.4, of a layer 4.5.
const mapChunk = 4 << 20

// touch makes mapped bytes present and gives their checksum.
func touch(b []byte) (sum uint32, err error) {
	for len(b) > 0 {
		n := min(len(b), mapChunk)
		if err := populate(b[:n]); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, b[:n])
		b = b[n:]
	}
	return sum, nil
}

func (c *Cache) copy(ctx context.Context, dev device.Device, x *opened, o *Options) error {
	for range x.entries {
		b, err := dev.Alloc(int(x.layout.layer))
		if err != nil {
			return err
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
			W13: device.QMat{FormatB: x.w13, Values: buf, ValueAt: at + x.w13Values, Scales: buf, ScaleAt: at + x.w13Scales},
			W2:  device.QMat{FormatB: x.w2, Values: buf, ValueAt: at + x.w2Values, Scales: buf, ScaleAt: at + x.w2Scales},
		}
	}
	return out
}
