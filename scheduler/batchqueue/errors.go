package batchqueue

import "errors"

// Errors of Open.
var (
	// ErrLocked: another process has the store.
	ErrLocked = errors.New("another process uses this batch store")
	// ErrForeign: the database is not a batch store, or has another version. Open does
	// not change it.
	ErrForeign = errors.New("not a batch store")
	// ErrDamaged: the database cannot be read.
	ErrDamaged = errors.New("the batch store is damaged")
)

// ErrIncomplete is an error of Open: the database or all contents are missing.
var ErrIncomplete = errors.New("a part of the batch store is missing")

// Errors of requests.
var (
	// ErrNotFound: there is no such file or batch, or it is another owner's.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: a file is over Options.MaxFile.
	ErrTooLarge = errors.New("the file is too large")
	// ErrFull: the store has reached its limit.
	ErrFull = errors.New("the batch store is full")
	// ErrLost: the content of the file is missing or incomplete.
	ErrLost = errors.New("the content of the file was lost")
	// ErrInUse: a batch that has not ended needs the file.
	ErrInUse = errors.New("a batch that has not ended needs the file")
	// ErrState: the batch's status does not allow the request.
	ErrState = errors.New("the batch's status does not allow it")
	// ErrPurpose: the file was not uploaded as the input of a batch.
	ErrPurpose = errors.New("the file is no input of a batch")
)
