// Package gguf reads the GGUF format of ggml and llama.cpp: typed metadata, then a list of
// tensors, then their bytes, plain numbers or quantised blocks. A model is one file or several
// parts. Tensors are views of the mapped files; none is copied. Type.Decode widens blocks of
// every stored type to float32.
//
// Everything that a header claims is checked against the file, and against limits, before
// anything is allocated by it.
//
// The package knows nothing about models: its subpackage folder presents a file as the folder of a
// released model.
package gguf

import (
	"errors"
	"fmt"
)

// File is an open model: one file or all its parts. It is safe for concurrent use until Close.
// If a file is cut while it is open, reads of what is gone fault: files.Caught.
type File struct {
	Metadata // of the first part

	paths   []string
	names   []string
	tensors map[string]Tensor
	bytes   int64
	unmap   []func() error
	release func(b []byte) // nil: not mapped
}

// Paths lists the files of the model in the order of the parts. Not to be changed.
func (f *File) Paths() []string { return f.paths }

// Names lists the tensors in the order of their bytes. Not to be changed.
func (f *File) Names() []string { return f.names }

// Bytes returns the size of all tensors together.
func (f *File) Bytes() int64 { return f.bytes }

// Tensor returns a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.tensors[name]
	return t, ok
}

// Release tells that data, which lies within a tensor's Data, is not needed for now: where it is
// mapped, its pages no longer count as the process's memory and are read again when used.
func (f *File) Release(data []byte) {
	if f.release != nil {
		f.release(data)
	}
}

// Close unmaps the files. No Data may be used afterwards; metadata stay valid. Calling it twice
// is allowed.
func (f *File) Close() error {
	var errs []error
	for _, unmap := range f.unmap {
		errs = append(errs, unmap())
	}
	f.unmap, f.tensors, f.names = nil, nil, nil
	return errors.Join(errs...)
}

// Parse reads a model of one file that is in memory. Its tensors use the bytes in place, so
// they must stay unchanged.
func Parse(data []byte) (*File, error) {
	f := &File{tensors: map[string]Tensor{}}
	p, err := parse(data)
	if err != nil {
		return nil, err
	}
	if n, err := p.meta.split(splitCount); err != nil {
		return nil, err
	} else if n > 1 {
		return nil, fmt.Errorf("%w: it is one of %d parts", ErrPart, n)
	}
	f.Metadata = p.meta
	return f, f.add(p.tensors)
}

// add takes the tensors of a part.
func (f *File) add(list []Tensor) error {
	for _, t := range list {
		if _, dup := f.tensors[t.Name]; dup {
			return fmt.Errorf("tensor %q: %w: an earlier part has it too", clip(t.Name), ErrDuplicate)
		}
		f.tensors[t.Name] = t
		f.bytes += int64(len(t.Data))
		f.names = append(f.names, t.Name)
	}
	return nil
}
