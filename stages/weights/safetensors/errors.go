package safetensors

import "errors"

// The file as a whole.
var (
	// ErrTooShort: fewer bytes than the 8 of the header's length.
	ErrTooShort = errors.New("file too short for a safetensors header")
	// ErrHeaderSize: the header's length exceeds the file or MaxHeader.
	ErrHeaderSize = errors.New("impossible header size")
	// ErrHeader: the header is not the JSON that the format prescribes.
	ErrHeader = errors.New("bad header")
	// ErrTrailing: bytes after the last tensor.
	ErrTrailing = errors.New("bytes after the last tensor")
)

// One tensor; the message names it.
var (
	// ErrDuplicate: two tensors of one name.
	ErrDuplicate = errors.New("duplicate tensor name")
	// ErrDType: an element type this reader does not know.
	ErrDType = errors.New("unknown dtype")
	// ErrShape: too many dimensions, or a size beyond the address space.
	ErrShape = errors.New("impossible shape")
	// ErrSize: the bytes given are not what shape and dtype need.
	ErrSize = errors.New("byte range does not fit shape and dtype")
	// ErrTruncated: the byte range ends after the end of the file.
	ErrTruncated = errors.New("file ends before the tensor does")
	// ErrOverlap: the byte range starts within the tensor before it.
	ErrOverlap = errors.New("byte ranges overlap")
	// ErrHole: bytes before the tensor belong to none.
	ErrHole = errors.New("hole before the tensor")
)
