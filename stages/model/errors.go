package model

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of Parse and ParseGeneration.
var (
	// ErrTooLarge: the file is longer than any real config.
	ErrTooLarge = errors.New("larger than 1 MiB")
	// ErrSyntax: not one JSON object, a name given twice, or invalid UTF-8.
	ErrSyntax = errors.New("not a valid JSON object")
	// ErrFamily: this program cannot run models of this model_type.
	ErrFamily = errors.New("unknown model_type")
)

// Errors of Config.CheckTensors.
var (
	// ErrTensorMissing: the model needs a tensor that the files do not have.
	ErrTensorMissing = errors.New("tensor missing")
	// ErrTensorShape: a tensor has another shape than the config implies.
	ErrTensorShape = errors.New("tensor has the wrong shape")
	// ErrTensorStray: the files have a tensor that the model does not use.
	ErrTensorStray = errors.New("tensor not part of the model")
)

// FieldError names the field of a config file that cannot be used. Several are
// joined, so that one start shows all of them.
type FieldError struct {
	Field string // with its path, for example "rope_scaling.factor"
	Why   string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Why }

// maxErrors bounds how many faults one joined error lists.
const maxErrors = 8

// joinErrors joins errs, of which it lists maxErrors; more counts those that
// the caller did not keep.
func joinErrors(errs []error, more int) error {
	if len(errs) > maxErrors {
		more += len(errs) - maxErrors
		errs = errs[:maxErrors:maxErrors]
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// clip shortens foreign text for an error message.
func clip(s string) string {
	const limit = 80
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
