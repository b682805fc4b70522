package heat

import "errors"

var (
	// ErrShape: layers, experts or top_k that no model has.
	ErrShape = errors.New("heat: impossible shape")
	// ErrOther: a map of another model.
	ErrOther = errors.New("heat: the map is of another model")
	// ErrCounts: numbers that no router gives: an expert chosen more often than there
	// were tokens, or more than can be counted.
	ErrCounts = errors.New("heat: impossible counts")
	// ErrFormat: the bytes are not a heat map of this version.
	ErrFormat = errors.New("heat: not a heat map")
	// ErrDamaged: they once were one.
	ErrDamaged = errors.New("heat: damaged heat map")
)
