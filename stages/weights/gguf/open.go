//go:build unix

package gguf

import (
	"errors"
	"fmt"

	"krater/scheduler/files"
)

// Open maps a model: a .gguf file, any part of a split one, or the folder of one model, in which
// files with mmproj or imatrix in their names are ignored. Errors name the file.
func Open(path string) (*File, error) {
	paths, err := partsOf(path)
	if err != nil {
		return nil, err
	}
	f := &File{tensors: map[string]Tensor{}, paths: paths, release: files.Release}
	err = files.Guard(func() error {
		for i, p := range paths {
			if err := f.addPart(i, p); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		return nil
	})
	if err == nil {
		err = f.checkTotal()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// addPart maps the i-th part.
func (f *File) addPart(i int, path string) error {
	file, err := files.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // a mapping outlives its descriptor
	data, err := files.Map(file)
	if err != nil {
		return err
	}
	f.unmap = append(f.unmap, func() error { return files.Unmap(data) })
	if err := files.CheckPointer(path, data); err != nil {
		return err
	}
	p, err := parse(data)
	if errors.Is(err, ErrTruncated) {
		err = fmt.Errorf("%w; its download may not have ended", err)
	}
	if err == nil {
		err = p.meta.checkPart(i, len(f.paths))
	}
	if err != nil {
		return err
	}
	if i == 0 {
		f.Metadata = p.meta
	}
	return f.add(p.tensors)
}
