package template

import (
	"errors"
	"fmt"
)

// ErrLimit is wrapped by the error of a render that was stopped because it did more work or made
// more text than it may.
var ErrLimit = errors.New("the chat template was stopped")

func limit(what string) error { return fmt.Errorf("%w: %s", ErrLimit, what) }

// errPanic is wrapped by the error of a render that panicked.
var errPanic = errors.New("the template could not be evaluated")

// Raised is the error of a template that called raise_exception: its words are meant for the
// client.
type Raised struct{ Message string }

func (e *Raised) Error() string { return e.Message }

// A Fault is an error that Python would raise while rendering: use of an undefined value, an
// operation on values of the wrong type.
type Fault struct{ Message string }

func (e *Fault) Error() string { return e.Message }

func faultf(format string, args ...any) error {
	return &Fault{Message: fmt.Sprintf(format, args...)}
}

// A SyntaxError is a template that does not compile.
type SyntaxError struct {
	Line    int // from 1
	Message string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("chat template, line %d: %s", e.Line, e.Message)
}
