package source

import (
	"bytes"
	"io/fs"
	"time"
)

// MemoryFiles is a folder of small files in memory, by name.
type MemoryFiles map[string][]byte

// Open implements fs.FS.
func (m MemoryFiles) Open(name string) (fs.File, error) {
	data, ok := m[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return memoryFile{bytes.NewReader(data), name}, nil
}

// memoryFile is an open file and what is known about it.
type memoryFile struct {
	*bytes.Reader
	name string
}

func (f memoryFile) Stat() (fs.FileInfo, error) { return f, nil }
func (f memoryFile) Close() error               { return nil }
func (f memoryFile) Name() string               { return f.name }
func (f memoryFile) Size() int64                { return f.Reader.Size() }
func (f memoryFile) Mode() fs.FileMode          { return 0o444 }
func (f memoryFile) ModTime() time.Time         { return time.Time{} }
func (f memoryFile) IsDir() bool                { return false }
func (f memoryFile) Sys() any                   { return nil }
