package device

import (
	"errors"
	"fmt"
)

// ErrOutOfMemory: an allocation would exceed the device's budget.
var ErrOutOfMemory = errors.New("device: out of memory")

// ErrLate: the host did not answer a host call in time.
var ErrLate = errors.New("device: no answer from the host in time")

// ShapeError is the value with which an operator panics if its arguments do not fit. That is always
// a programming error. The operator panics before it writes anything.
type ShapeError struct {
	Op  string
	Why string
}

func (e *ShapeError) Error() string { return fmt.Sprintf("%s: %s", e.Op, e.Why) }
