package batchqueue

import "errors"

// At Open.
var (
	// ErrLocked: another process has the store.
	ErrLocked = errors.New("another process uses this batch store")
	// ErrForeign: the database is not a batch store, or one of another version. It is
	// left as it is.
	ErrForeign = errors.New("not a batch store")
	// ErrDamaged: the database cannot be read.
	ErrDamaged = errors.New("the batch store is damaged")
)

// ErrIncomplete, at Open: the database or all the contents are missing.
var ErrIncomplete = errors.New("a part of the batch store is missing")

// Of requests.
var (
	// ErrNotFound: there is no such file or batch, or it is another owner's.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: a file is over Options.MaxFile.
	ErrTooLarge = errors.New("the file is too large")
	// ErrFull: the store holds as much as it may.
	ErrFull = errors.New("the batch store is full")
	// ErrLost: the content of the file is not there any more, or not whole.
	ErrLost = errors.New("the content of the file was lost")
	// ErrInUse: a batch that has not ended needs the file.
	ErrInUse = errors.New("a batch that has not ended needs the file")
	// ErrState: what is asked for does not go with the batch's status.
	ErrState = errors.New("the batch's status does not allow it")
	// ErrPurpose: the file was not uploaded as the input of a batch.
	ErrPurpose = errors.New("the file is no input of a batch")
)
