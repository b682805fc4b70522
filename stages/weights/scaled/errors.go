package scaled

import "errors"

// Errors of View; the message names the tensor.
var (
	// ErrMissing: codes without their scales, or without another tensor that they need.
	ErrMissing = errors.New("a tensor is missing that belongs to it")
	// ErrStray: scales without codes.
	ErrStray = errors.New("it belongs to no quantised matrix")
	// ErrScheme: quantization_config has no scheme that the tensor has.
	ErrScheme = errors.New("quantization_config does not have its format")
	// ErrShape: shapes of codes and scales do not fit each other.
	ErrShape = errors.New("the shapes do not fit")
	// ErrType: a tensor has a type that its role cannot have.
	ErrType = errors.New("wrong type")
	// ErrScale: the scale of a tensor is not a positive number.
	ErrScale = errors.New("impossible scale")
	// ErrZeroPoint: integers with a zero point.
	ErrZeroPoint = errors.New("zero points are not supported")
	// ErrOrder: columns in another order (weight_g_idx).
	ErrOrder = errors.New("columns in another order are not supported")
)
