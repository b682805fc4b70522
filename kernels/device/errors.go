package device

import (
	"errors"
	"fmt"
)

// ErrOutOfMemory: an allocation would exceed the device's budget.
var ErrOutOfMemory = errors.New("device: out of memory")

// ErrLate: the host did not answer a host call in time.
var ErrLate = errors.New("device: no answer from the host in time")

// ShapeError is what an operator panics with when its arguments do not fit:
// always a programmer error, raised before anything is written.
type ShapeError struct {
	Op  string
	Why string
}

func (e *ShapeError) Error() string { return fmt.Sprintf("%s: %s", e.Op, e.Why) }
