package heat

import "errors"

var (
	// ErrShape: no model has such numbers of layers and experts or such a top_k.
	ErrShape = errors.New("heat: impossible shape")
	// ErrOther: the map is of another model.
	ErrOther = errors.New("heat: the map is of another model")
	// ErrCounts: an expert was chosen more often than there were tokens, or a number is
	// too large to be counted.
	ErrCounts = errors.New("heat: impossible counts")
	// ErrFormat: the bytes are not a heat map of this version.
	ErrFormat = errors.New("heat: not a heat map")
	// ErrDamaged: the bytes are a heat map that was cut or changed.
	ErrDamaged = errors.New("heat: damaged heat map")
)
