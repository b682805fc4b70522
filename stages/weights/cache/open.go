//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/files"
)

// Options of Open and Build.
type Options struct {
	Plan Plan
	// Also are plans of further files of the same experts, in another format or for another
	// kind of device, made in the same pass over the source. Another format needs a Source
	// that is a Respec.
	Also   []Plan
	Source Source // asked only for what has to be built
	Model  string // the model's folder, "" for an embedded model
	Dir    string // --cache-dir, "": see folders
	// Copy brings the file into memory of the device instead of mapping it.
	Copy bool
	// Threads verify (and copy) layers; 0: all cores.
	Threads int
	// Progress is called after every expert converted and every layer read, not by
	// two goroutines at once.
	Progress Progress
	// Notice gets lines for people: a file that is not used and why, a wait.
	Notice func(line string)

	hooks
}

func (o *Options) notice(format string, args ...any) {
	if o.Notice != nil {
		o.Notice(fmt.Sprintf(format, args...))
	}
}

// Cache is the experts of a model on a device, from a file, and those of the files
// of Options.Also.
type Cache struct {
	Path   string
	Plan   Plan // of the file: its Method may be better than asked for
	Bytes  int64
	Report *Report // of the build, nil when the file was used as it was

	layers map[int][]device.QExpert
	bufs   []device.Buffer
	mapped []byte
	also   []*Cache
}

// Experts are the experts of a layer for a kind of device, nil for a dense layer and where no
// file of the kind was asked for. They lie in host memory: a GPU's are copied, values and
// scales, to multiples of 64 bytes. Not to be changed; valid until Close.
func (c *Cache) Experts(k tensor.Kind, layer int) []device.QExpert {
	for _, x := range c.files() {
		if x.Plan.For == k {
			return x.layers[layer]
		}
	}
	return nil
}

// Also are the caches of the files of Options.Also, in their order.
func (c *Cache) Also() []*Cache { return c.also }

func (c *Cache) files() []*Cache { return append([]*Cache{c}, c.also...) }

// Close gives the memory back. Nothing may run on the experts any more.
func (c *Cache) Close() error {
	for _, b := range c.bufs {
		b.Free()
	}
	var errs []error
	errs = append(errs, files.Unmap(c.mapped))
	for _, x := range c.also {
		errs = append(errs, x.Close())
	}
	c.bufs, c.layers, c.mapped = nil, nil, nil
	return errors.Join(errs...)
}

// Open finds the files of a model's experts, or builds them, and puts them on dev.
// A file that is damaged, stale, unfinished or not a cache is named by Notice and
// built anew. A mapped file must not be shortened while it is open.
func Open(ctx context.Context, dev device.Device, o Options) (*Cache, error) {
	plans, err := o.plans()
	if err != nil {
		return nil, err
	}
	list := make([]*Cache, len(plans))
	err = o.load(ctx, dev, plans, list)
	var missing []Plan
	for i, c := range list {
		if c == nil {
			missing = append(missing, plans[i])
		}
	}
	if err == nil && len(missing) > 0 {
		b := o
		b.Plan, b.Also = missing[0], missing[1:]
		var r *Report
		if r, err = Build(ctx, b); err == nil {
			err = o.loadBuilt(ctx, dev, plans, list, append([]*Report{r}, r.Also...))
		}
	}
	if err != nil {
		for _, c := range list {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, err
	}
	list[0].also = list[1:]
	return list[0], nil
}

// plans of all files: of the same experts, each of its own name.
func (o *Options) plans() ([]Plan, error) {
	list := append([]Plan{o.Plan}, o.Also...)
	for i := range list {
		if why := shape(&list[0], &list[i]); why != "" {
			return nil, fmt.Errorf("%w: two files of one model: %s", ErrShape, why)
		}
		for j := range i {
			if name := list[i].FileName(); name == list[j].FileName() {
				return nil, fmt.Errorf("%w: %s is requested twice", ErrShape, name)
			}
		}
	}
	return list, nil
}

// load loads those of the plans' files that are there and whole.
func (o *Options) load(ctx context.Context, dev device.Device, plans []Plan, list []*Cache) error {
	dirs, err := o.folders()
	if err != nil {
		return err
	}
	for i := range plans {
		for _, path := range plans[i].paths(dirs) {
			c, err := load(ctx, dev, path, &plans[i], o)
			if err == nil {
				list[i] = c
				break
			}
			if absent(err) {
				continue
			}
			if !unusable(err) {
				return fmt.Errorf("%s: %w", path, err)
			}
			o.notice("%s: %v; not used", path, err)
		}
	}
	return nil
}

// paths are all places of the plan's file, the preferred first.
func (p *Plan) paths(dirs []string) (list []string) {
	for _, dir := range dirs {
		for _, name := range p.fileNames() {
			list = append(list, filepath.Join(dir, name))
		}
	}
	return list
}

// loadBuilt loads the files that were just built.
func (o *Options) loadBuilt(ctx context.Context, dev device.Device, plans []Plan, list []*Cache, reports []*Report) error {
	for i := range plans {
		if list[i] != nil {
			continue
		}
		r := reports[0]
		reports = reports[1:]
		c, err := load(ctx, dev, r.Path, &plans[i], o)
		if err != nil {
			return fmt.Errorf("%s, just built: %w", r.Path, err)
		}
		list[i], c.Report = c, r
	}
	return nil
}

// Kept are the plans of those files of the model's experts that are there, in any format and
// for any kind of device, by their headers: the one wanted, if it is among them, and others.
func (o *Options) Kept() (list []Plan, err error) {
	dirs, err := o.folders()
	if err != nil {
		return nil, err
	}
	for _, kind := range []tensor.Kind{tensor.CPU, tensor.GPU} {
		for _, name := range tensor.Encodings() {
			e := tensor.EncodingOf(name)
			for _, group := range slices.Sorted(slices.Values(e.GroupSizes())) {
				p := o.Plan
				if p.For, p.Format = kind, e.By(group); p.there(dirs) {
					list = append(list, p)
				}
			}
		}
	}
	return list, nil
}

// there reports whether one of the folders has a plan's file.
func (p *Plan) there(dirs []string) bool {
	for _, path := range p.paths(dirs) {
		if x, err := openFile(path, p); err == nil {
			x.file.Close()
			return true
		}
	}
	return false
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
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, files.ErrDangling) || errors.Is(err, unix.ENOTDIR)
}

// Build makes sure that the files exist and are whole, without a device. Of two at
// once, in one process or several, the second waits and uses the first's files.
func Build(ctx context.Context, o Options) (*Report, error) {
	plans, err := o.plans()
	if err != nil {
		return nil, err
	}
	list, err := o.folders()
	if err != nil {
		return nil, err
	}
	dir, err := writable(list)
	if err != nil {
		return nil, err
	}
	unlock, err := o.lockAll(ctx, dir, plans)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var reports []*Report
	var outs []*output
	for i := range plans {
		path := filepath.Join(dir, plans[i].FileName())
		r := &Report{Path: path}
		reports = append(reports, r)
		if r.Bytes, err = plans[i].Bytes(); err == nil {
			if r.Path, err = plans[i].verify(ctx, dir, &o); err == nil {
				r.Found = true
				continue
			}
			r.Path = path
		}
		if unusable(err) || absent(err) {
			var x *output
			if x, err = newOutput(path, &plans[i], &o.hooks, r); err == nil {
				outs = append(outs, x)
				continue
			}
		}
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), closeAll(outs))
	}
	if len(outs) > 0 {
		err = build(ctx, &o, outs)
		if err = errors.Join(err, closeAll(outs)); err != nil {
			return nil, err
		}
	}
	reports[0].Also = reports[1:]
	return reports[0], nil
}

// lockAll takes the locks of all files, by rising name: everybody's order, so that
// no two starts wait for each other.
func (o *Options) lockAll(ctx context.Context, dir string, plans []Plan) (unlock func(), err error) {
	var names []string
	for i := range plans {
		names = append(names, plans[i].FileName())
	}
	slices.Sort(names)
	var all []func()
	unlock = func() {
		for _, f := range all {
			f()
		}
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		f, err := lock(ctx, path, func() { o.notice("%s: another process builds it; waiting", path) })
		if err != nil {
			unlock()
			return nil, err
		}
		all = append(all, f)
	}
	return unlock, nil
}
