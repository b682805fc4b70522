package gguf

import "errors"

// The file as a whole.
var (
	// ErrMagic: the file does not start with GGUF.
	ErrMagic = errors.New("not a GGUF file")
	// ErrVersion: a version of the format that this reader does not know.
	ErrVersion = errors.New("unsupported GGUF version")
	// ErrBigEndian: the file is for machines of the other byte order.
	ErrBigEndian = errors.New("big-endian GGUF is not supported")
	// ErrTruncated: the file ends before what its header announces.
	ErrTruncated = errors.New("the file ends too early")
	// ErrLimit: a count or a length is beyond what this reader accepts.
	ErrLimit = errors.New("over the limit")
	// ErrHeader: the header breaks the format.
	ErrHeader = errors.New("bad header")
	// ErrDuplicate: a key or a tensor is there twice.
	ErrDuplicate = errors.New("duplicate name")
)

// One tensor; the message names it.
var (
	// ErrType: a tensor type that this reader does not know.
	ErrType = errors.New("unsupported tensor type")
	// ErrShape: sizes that no tensor of this type can have.
	ErrShape = errors.New("impossible shape")
	// ErrAlign: the tensor does not start at a multiple of the alignment.
	ErrAlign = errors.New("unaligned tensor")
	// ErrOverlap: the tensor starts within the one before it.
	ErrOverlap = errors.New("tensors overlap")
)

// The files of a model.
var (
	// ErrNoFile: a folder without a GGUF file.
	ErrNoFile = errors.New("no GGUF file found")
	// ErrSeveral: a folder with more than one model.
	ErrSeveral = errors.New("several GGUF models")
	// ErrPartMissing: a part of a split model is not there.
	ErrPartMissing = errors.New("part missing")
	// ErrPart: a part does not fit the others.
	ErrPart = errors.New("part of another model")
)

// Metadata.
var (
	// ErrKeyMissing: there is no such key.
	ErrKeyMissing = errors.New("metadata key missing")
	// ErrKeyType: the value has another type than the one asked for.
	ErrKeyType = errors.New("metadata value of another type")
)

// ErrLength: the arguments of a conversion do not fit each other.
var ErrLength = errors.New("lengths do not fit")
