//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"os"

	"krater/kernels/tensor"
)

// Progress is called during a phase of a build or a load: "convert experts", "check experts", "load
// experts", "load matrices". done and all are bytes of the files.
type Progress func(phase string, done, all int64)

func (p Progress) tell(phase string, done, all int64) {
	if p != nil {
		p(phase, done, all)
	}
}

// Report of a build.
type Report struct {
	Path    string
	Bytes   int64
	Found   bool // the file was there and whole
	Resumed int  // layers kept from an interrupted build
	Built   int  // layers converted
	// Also are the reports of the files of Options.Also.
	Also []*Report
}

// builder writes one file, or several in one pass over the source.
type builder struct {
	o    *Options
	outs []*output
	// formats are those wanted, each with the files that hold it.
	formats []inFormat
}

// inFormat gives experts in a format.
type inFormat struct {
	source Source
	outs   []*output
}

// build makes the files: first beside their places under other names, a layer at
// a time, each made durable before it is entered in the header; a file that has
// all is sealed, synced and renamed. Memory: one expert as float32, as integers
// and packed, the latter two once for every file.
//
// Interrupted, it leaves a "path.part" for each, and the next build goes on after
// the layers entered there whose checksums match.
func build(ctx context.Context, o *Options, outs []*output) error {
	b := &builder{o: o, outs: outs}
	err := b.begin()
	for i := 0; err == nil && i < len(outs[0].plan.Layers); i++ {
		err = b.layer(ctx, i)
	}
	for _, x := range outs {
		if err == nil {
			err = x.named(x.seal())
		}
	}
	if isFull(err) {
		for _, x := range outs {
			if x.done == 0 { // nothing in it is worth its place on a full disk
				os.Remove(x.name)
			}
		}
	}
	return err
}

func (b *builder) begin() error {
	for _, x := range b.outs {
		b.join(x)
		if err := x.resume(b.o); err != nil {
			return x.named(err)
		}
	}
	return nil
}

// join finds the source of a file's format.
func (b *builder) join(x *output) {
	for i := range b.formats {
		if b.formats[i].outs[0].plan.Format == x.plan.Format {
			b.formats[i].outs = append(b.formats[i].outs, x)
			return
		}
	}
	source := b.o.Source
	if w, ok := source.(Respec); ok {
		source = w.As(x.plan.Format)
	}
	b.formats = append(b.formats, inFormat{source, []*output{x}})
}

// layer converts layer i for the files that do not have it.
func (b *builder) layer(ctx context.Context, i int) error {
	wanted := 0
	for e := range b.outs[0].plan.Experts {
		for _, s := range b.formats {
			n, err := b.expert(ctx, s, i, e)
			if err != nil {
				return err
			}
			wanted += n
		}
		if wanted > 0 {
			b.progress(i, e+1)
		}
	}
	for _, x := range b.outs {
		if x.done > i {
			continue
		}
		if err := x.enter(i); err != nil {
			return x.named(err)
		}
	}
	b.progress(i+1, 0)
	return nil
}

// expert quantises expert e of layer i once and writes it to all files of a format
// that want it; it tells how many do.
func (b *builder) expert(ctx context.Context, s inFormat, i, e int) (n int, err error) {
	var w13, w2 *tensor.Matrix
	for _, x := range s.outs {
		if x.done > i {
			continue
		}
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		n++
		layer := x.plan.Layers[i]
		p, packs := s.source.(Packer)
		if packs = packs && x.plan.For == tensor.CPU; !packs && w13 == nil {
			if w13, w2, err = s.source.Expert(layer, e); err != nil {
				return n, err
			}
			if !w13.Fits(x.layout.w13) || !w2.Fits(x.layout.w2) {
				return n, fmt.Errorf("cache: layer %d, expert %d came as %s and %s, want %s and %s", layer, e, w13, w2, x.layout.w13, x.layout.w2)
			}
		}
		if packs {
			err = x.layout.expert.packBy(x.buf, p, layer, e)
		} else {
			x.layout.expert.pack(x.buf, w13, w2, b.o.Threads)
		}
		if err != nil {
			return n, err
		}
		if err := x.write(i, e); err != nil {
			return n, x.named(err)
		}
	}
	return n, nil
}

// progress of all files together: layers are whole, experts of the next are done.
func (b *builder) progress(layers, experts int) {
	var done, all int64
	for _, x := range b.outs {
		done += max(x.layout.at(x.done), x.layout.at(layers)+int64(experts)*int64(x.layout.size))
		all += x.layout.file
	}
	b.o.Progress.tell("convert experts", done, all)
}

// closeAll gives the files of a build back, finished or not.
func closeAll(outs []*output) error {
	var errs []error
	for _, x := range outs {
		errs = append(errs, x.file.Close())
	}
	return errors.Join(errs...)
}
