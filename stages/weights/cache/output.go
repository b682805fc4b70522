//go:build unix

package cache

import (
	"fmt"
	"hash/crc32"
	"slices"
)

// output is one file of experts being built.
type output struct {
	*part
	plan   *Plan
	layout layout
	header []byte
	buf    []byte // one expert
	sum    uint32 // of the layer at hand
	done   int    // layers
	report *Report
}

func newOutput(path string, plan *Plan, h *hooks, r *Report) (*output, error) {
	l, err := plan.layout()
	if err != nil {
		return nil, err
	}
	p, err := newPart(path, h)
	if err != nil {
		return nil, err
	}
	return &output{part: p, plan: plan, layout: l, header: plan.encode(&l), buf: make([]byte, l.size), report: r}, nil
}

// named words an error of writing the file.
func (x *output) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", x.path, x.failed(err, x.layout.file))
}

// resume finds out how many layers of an interrupted build can be kept, and
// begins a new file where none can.
func (x *output) resume(o *Options) error {
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		var why error
		if x.done, why = x.kept(info.Size()); why != nil {
			o.notice("%s: %v; not used", x.name, why)
		}
	}
	if x.report.Resumed = x.done; x.done > 0 {
		return nil
	}
	x.hook.step("reserve")
	if err := x.file.Truncate(0); err != nil {
		return err
	}
	if err := reserve(x.file, x.layout.file); err != nil {
		return err
	}
	x.hook.step("header")
	return x.put(x.header, 0)
}

// kept reads an unfinished file: the header, then the layers it lists. The first
// layer that is not there or not whole ends it.
func (x *output) kept(size int64) (int, error) {
	head := make([]byte, min(size, x.layout.header))
	if _, err := x.ReadAt(head, 0); err != nil {
		return 0, err
	}
	got, entries, _, err := parse(head)
	if err != nil {
		return 0, err
	}
	if got.first {
		return 0, fmt.Errorf("%w: %d, want %d", ErrVersion, 1, version)
	}
	if why := x.plan.differs(&got); why != "" || got.Method != x.plan.Method {
		return 0, fmt.Errorf("%w: %s %s", ErrStale, got.Method, why)
	}
	if size != x.layout.file {
		return 0, ErrTruncated
	}
	for i, e := range entries {
		if !e.done {
			return i, nil
		}
		sum, err := x.readBack(i)
		if err != nil {
			return i, err
		}
		if sum != e.sum {
			return i, fmt.Errorf("%w: layer %d", ErrDamaged, e.layer)
		}
		putEntry(x.header, i, e)
	}
	return len(entries), nil
}

// readBack returns the checksum of a layer in the file.
func (x *output) readBack(i int) (sum uint32, err error) {
	for e := range x.plan.Experts {
		if _, err := x.ReadAt(x.buf, x.layout.at(i)+int64(e)*int64(x.layout.size)); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, x.buf)
	}
	return sum, nil
}

// write puts expert e of layer i, packed in buf, in its place.
func (x *output) write(i, e int) error {
	if e == 0 {
		x.sum = 0
	}
	x.hook.step("write expert")
	if err := x.put(x.buf, x.layout.at(i)+int64(e)*int64(x.layout.size)); err != nil {
		return err
	}
	x.sum = crc32.Update(x.sum, castagnoli, x.buf)
	return nil
}

// enter makes layer i durable, then enters it in the header.
func (x *output) enter(i int) error {
	x.hook.step("sync layer")
	if err := x.Sync(); err != nil {
		return err
	}
	x.hook.step("enter layer")
	putEntry(x.header, i, entry{layer: x.plan.Layers[i], sum: x.sum, done: true})
	at := headerFixed + i*headerLayer
	if err := x.put(x.header[at:at+headerLayer], int64(at)); err != nil {
		return err
	}
	x.report.Built++
	x.done = i + 1
	return nil
}

// seal writes the finished header and puts the file in its place.
func (x *output) seal() error {
	head := slices.Clone(x.header)
	putSeal(head, sealAt)
	x.hook.step("seal")
	if err := x.put(head, 0); err != nil {
		return err
	}
	return x.finish()
}
