package folder

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"krater/stages/weights/gguf"
)

// Limits of what a loop or an allocation depends on.
const (
	maxLayers  = 1 << 10
	maxExperts = 1 << 12
	maxSize    = 1 << 24
	maxTensors = 1 << 19 // of the release: one for each expert
)

// reader reads the hyperparameters of an architecture. Faults are kept, and a harmless value is
// returned.
type reader struct {
	*gguf.Metadata
	file *gguf.File
	arch string
	errs []error
}

// key returns the full name of a hyperparameter.
func (r *reader) key(name string) string { return r.arch + "." + name }

// has reports whether a hyperparameter is there.
func (r *reader) has(name string) bool { return r.Has(r.key(name)) }

// int returns a whole number from 0 to limit that must be there.
func (r *reader) int(name string, limit int64) int64 {
	n, err := r.Int(r.key(name))
	if err == nil && (n < 0 || n > limit) {
		err = fmt.Errorf("%s: %w: %d is outside 0 to %d", r.key(name), ErrMetadata, n, limit)
	}
	if err != nil {
		r.errs = append(r.errs, err)
		return 0
	}
	return n
}

// intOr returns a whole number, or def when it is not there.
func (r *reader) intOr(name string, def, limit int64) int64 {
	if !r.has(name) {
		return def
	}
	return r.int(name, limit)
}

// float returns a number that must be there.
func (r *reader) float(name string) float64 {
	x, err := r.Float(r.key(name))
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return short(x)
}

// boolOr is a truth value, or def when it is not there.
func (r *reader) boolOr(name string, def bool) bool {
	b, err := r.Bool(r.key(name))
	switch {
	case errors.Is(err, gguf.ErrKeyMissing):
		return def
	case err != nil:
		r.errs = append(r.errs, err)
	}
	return b
}

// stringOr returns a text, or def when it is not there.
func (r *reader) stringOr(name, def string) string {
	s, err := r.Metadata.String(r.key(name))
	switch {
	case errors.Is(err, gguf.ErrKeyMissing):
		return def
	case err != nil:
		r.errs = append(r.errs, err)
	}
	return s
}

// each returns a whole number for each of n layers: one number for all, or a list.
func (r *reader) each(name string, n int, limit int64) []int64 {
	if v, _ := r.Value(r.key(name)); v.Kind != gguf.Array {
		return slices.Repeat([]int64{r.int(name, limit)}, n)
	}
	list, err := r.Ints(r.key(name))
	if err == nil && len(list) != n {
		err = fmt.Errorf("%s: %w: %d numbers for %d layers", r.key(name), ErrMetadata, len(list), n)
	}
	for _, x := range list {
		if err == nil && (x < 0 || x > limit) {
			err = fmt.Errorf("%s: %w: %d is outside 0 to %d", r.key(name), ErrMetadata, x, limit)
		}
	}
	if err != nil {
		r.errs = append(r.errs, err)
		return make([]int64, n)
	}
	return list
}

// stored reports whether a tensor is in the file.
func (r *reader) stored(name string) bool {
	_, ok := r.file.Tensor(name)
	return ok
}

// short returns the number with the fewest digits that is x as a float32: the file has 1e-06 as a
// float32, and config.json as text.
func short(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64)
	if err != nil {
		return x
	}
	return y
}
