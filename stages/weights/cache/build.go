//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/weights/quant"
)

// Progress of a build or a load.
type Progress struct {
	Phase  string // "convert", "verify" or "load"
	Layers int    // done
	Of     int
	Bytes  int64 // of the cache, done
	Total  int64
}

// Report of a build.
type Report struct {
	Path    string
	Bytes   int64
	Found   bool // the file was there and whole
	Resumed int  // layers kept from an interrupted build
	Built   int  // layers converted
}

// storage is the file a build writes to.
type storage interface {
	ReadAt(b []byte, off int64) (int, error)
	WriteAt(b []byte, off int64) (int, error)
	Sync() error
}

// builder writes one file. The lock of its path is held.
type builder struct {
	o      *Options
	plan   *Plan
	layout layout
	file   storage
	header []byte
	buf    []byte // one expert
	report *Report
}

// step tells the tests where a build is.
func (o *Options) step(name string) {
	if o.onStep != nil {
		o.onStep(name)
	}
}

// build makes the file at path: first beside it under another name, a layer at a
// time, each made durable before it is entered in the header; when all are there
// it is sealed, synced and renamed. Memory: one expert as float32, as integers
// and packed.
//
// Interrupted, it leaves "path.part", and the next build goes on after the layers
// entered there whose checksums match.
func build(ctx context.Context, path string, o *Options, r *Report) error {
	l, err := o.Plan.layout()
	if err != nil {
		return err
	}
	part := path + ".part"
	f, err := openPart(part)
	if errors.Is(err, ErrForeign) {
		return fmt.Errorf("%s: not a regular file; remove it", part)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b := &builder{o: o, plan: &o.Plan, layout: l, file: f, header: o.Plan.encode(&l), buf: make([]byte, l.size), report: r}
	if o.wrap != nil {
		b.file = o.wrap(f)
	}
	done, err := b.resume(f, part)
	if err == nil {
		r.Resumed = done
		err = b.layers(ctx, done)
	}
	if err == nil {
		err = b.seal()
	}
	if err != nil {
		return b.failed(err, part)
	}
	o.step("rename")
	if err := os.Rename(part, path); err != nil {
		return err
	}
	o.step("sync folder")
	return syncDir(filepath.Dir(path))
}

// failed words an error. A part that filled the disk is taken away: nobody could
// go on with it where it is.
func (b *builder) failed(err error, part string) error {
	if !isFull(err) {
		return err
	}
	dir := filepath.Dir(part)
	os.Remove(part)
	return fmt.Errorf("%w: the weight cache takes %d bytes in %s, %d are free now; make room or choose another folder with --cache-dir (%w)",
		ErrFull, b.layout.file, dir, freeBytes(dir), err)
}

// resume finds out how many layers of an interrupted build can be kept, and
// begins a new file where none can.
func (b *builder) resume(f *os.File, part string) (int, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	done, why := 0, error(nil)
	if info.Size() > 0 {
		if done, why = b.kept(info.Size()); why != nil {
			b.o.notice("%s: %v; not used", part, why)
		}
	}
	if done > 0 {
		return done, nil
	}
	b.o.step("reserve")
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	if err := reserve(f, b.layout.file); err != nil {
		return 0, err
	}
	b.o.step("header")
	_, err = b.file.WriteAt(b.header, 0)
	return 0, err
}

// kept reads an unfinished file: the header, then the layers it lists. The first
// layer that is not there or not whole ends it.
func (b *builder) kept(size int64) (int, error) {
	head := make([]byte, min(size, b.layout.header))
	if _, err := b.file.ReadAt(head, 0); err != nil {
		return 0, err
	}
	got, entries, _, err := parse(head)
	if err != nil {
		return 0, err
	}
	if why := b.plan.differs(&got); why != "" || got.Method != b.plan.Method {
		return 0, fmt.Errorf("%w: %s %s", ErrStale, got.Method, why)
	}
	if size != b.layout.file {
		return 0, ErrTruncated
	}
	for i, e := range entries {
		if !e.done {
			return i, nil
		}
		sum, err := b.sum(i)
		if err != nil {
			return i, err
		}
		if sum != e.sum {
			return i, fmt.Errorf("%w: layer %d", ErrDamaged, e.layer)
		}
		putEntry(b.header, i, e)
		b.progress("verify", i+1, 0)
	}
	return len(entries), nil
}

// sum reads a layer back.
func (b *builder) sum(i int) (sum uint32, err error) {
	for e := range b.plan.Experts {
		if _, err := b.file.ReadAt(b.buf, b.layout.at(i)+int64(e)*int64(b.layout.size)); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, b.buf)
	}
	return sum, nil
}

func (b *builder) progress(phase string, layers, experts int) {
	if b.o.Progress != nil {
		bytes := b.layout.at(layers) + int64(experts)*int64(b.layout.size)
		b.o.Progress(Progress{Phase: phase, Layers: layers, Of: len(b.plan.Layers), Bytes: bytes, Total: b.layout.file})
	}
}

// layers converts the layers from on.
func (b *builder) layers(ctx context.Context, from int) error {
	for i := from; i < len(b.plan.Layers); i++ {
		sum, err := b.convert(ctx, i)
		if err != nil {
			return err
		}
		b.o.step("sync layer")
		if err := b.file.Sync(); err != nil {
			return err
		}
		b.o.step("enter layer")
		putEntry(b.header, i, entry{layer: b.plan.Layers[i], sum: sum, done: true})
		at := headerFixed + i*headerLayer
		if _, err := b.file.WriteAt(b.header[at:at+headerLayer], int64(at)); err != nil {
			return err
		}
		b.report.Built++
		b.progress("convert", i+1, 0)
	}
	return nil
}

// convert writes layer i and returns its checksum.
func (b *builder) convert(ctx context.Context, i int) (sum uint32, err error) {
	layer := b.plan.Layers[i]
	for e := range b.plan.Experts {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		w13, w2, err := b.o.Source.Expert(layer, e)
		if err != nil {
			return 0, err
		}
		if w13.FormatB != b.layout.w13 || w2.FormatB != b.layout.w2 {
			return 0, fmt.Errorf("cache: layer %d, expert %d came as %v and %v, want %v and %v", layer, e, w13.FormatB, w2.FormatB, b.layout.w13, b.layout.w2)
		}
		b.layout.expert.pack(b.buf, w13, w2)
		b.o.step("write expert")
		if _, err := b.file.WriteAt(b.buf, b.layout.at(i)+int64(e)*int64(b.layout.size)); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, b.buf)
		b.progress("convert", i, e+1)
	}
	return sum, nil
}

// pack lays out one expert in dst, size bytes.
func (x *expert) pack(dst []byte, w13, w2 *quant.Matrix) {
	clear(dst)
	put := func(f tensor.FormatB, m *quant.Matrix, values, scales int) {
		f.Pack(dst[values:], m.Values)
		f.PackScales(dst[scales:], m.Scales)
	}
	put(x.w13, w13, x.w13Values, x.w13Scales)
	put(x.w2, w2, x.w2Values, x.w2Scales)
}

// seal writes the finished header and makes the file durable.
func (b *builder) seal() error {
	head := slices.Clone(b.header)
	sum := seal(head)
	head[sealAt], head[sealAt+1], head[sealAt+2], head[sealAt+3] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	b.o.step("seal")
	if _, err := b.file.WriteAt(head, 0); err != nil {
		return err
	}
	b.o.step("sync file")
	return b.file.Sync()
}
