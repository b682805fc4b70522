package tokenizer

import (
	"errors"
	"fmt"
)

// At load time.
var (
	// ErrMalformed: the file is not a tokenizer.json, or contradicts itself.
	ErrMalformed = errors.New("malformed")
	// ErrUnsupported: the file asks for something this package does not do.
	ErrUnsupported = errors.New("not supported")
)

// At encode time.
var (
	// ErrTextTooLong: the text has more bytes than MaxText.
	ErrTextTooLong = errors.New("tokenizer: text is too long")
	// ErrSplitTime: a split pattern that this package has no hand-written splitter for went on for
	// longer than its time limit.
	ErrSplitTime = errors.New("tokenizer: splitting the text took too long")
)

// malformed reports that the named part of a file is wrong.
func malformed(part, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", part, ErrMalformed, fmt.Sprintf(format, args...))
}

// unsupported reports that the named part of a file asks for what.
func unsupported(part, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", part, ErrUnsupported, fmt.Sprintf(format, args...))
}

// LimitError: the text has more tokens than EncodeOptions.Limit.
type LimitError struct {
	Limit int
	// AtLeast is a number of tokens that the text has at least; it is more than Limit. The text was
	// not encoded to its end.
	AtLeast int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("tokenizer: the text has at least %d tokens, the limit is %d", e.AtLeast, e.Limit)
}
