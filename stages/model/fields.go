package model

import (
	"encoding/json/jsontext"
	json "encoding/json/v2"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxConfigBytes bounds a config file; real ones take a few kilobytes.
const maxConfigBytes = 1 << 20

// fields reads one JSON object by name. The first fault of a field is kept in
// errs, which nested objects share; reading goes on with a harmless value, so
// that one pass finds every fault.
type fields struct {
	path string // of the object itself: "" or "rope_scaling."
	raw  map[string]jsontext.Value
	errs *[]error
}

// readFields decodes an object; names given twice are an error at any depth.
func readFields(data []byte) (fields, error) {
	if len(data) > maxConfigBytes {
		return fields{}, ErrTooLarge
	}
	var raw map[string]jsontext.Value
	if err := json.Unmarshal(data, &raw); err != nil {
		return fields{}, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	if raw == nil {
		return fields{}, fmt.Errorf("%w: null", ErrSyntax)
	}
	return fields{raw: raw, errs: new([]error)}, nil
}

// fail notes a fault of the named field.
func (f fields) fail(name, format string, args ...any) {
	*f.errs = append(*f.errs, &FieldError{Field: f.path + name, Why: fmt.Sprintf(format, args...)})
}

// bad reports whether a fault of one of the fields was noted.
func (f fields) bad(names ...string) bool {
	for _, err := range *f.errs {
		if e, ok := err.(*FieldError); ok && strings.HasPrefix(e.Field, f.path) && slices.Contains(names, e.Field[len(f.path):]) {
			return true
		}
	}
	return false
}

// clash notes a contradiction between name and the other fields, unless one of
// them is bad already: its stand-in value would make a false report.
func (f fields) clash(name string, others []string, format string, args ...any) {
	if !f.bad(name) && !f.bad(others...) {
		f.fail(name, format, args...)
	}
}

// failed reports whether any fault was noted.
func (f fields) failed() bool { return len(*f.errs) > 0 }

// has reports whether the field is present and not null.
func (f fields) has(name string) bool {
	v, ok := f.raw[name]
	return ok && v.Kind() != 'n'
}

// null reports whether the field is present and null.
func (f fields) null(name string) bool {
	v, ok := f.raw[name]
	return ok && v.Kind() == 'n'
}

// require notes a missing or null field.
func (f fields) require(name string) bool {
	if f.has(name) {
		return true
	}
	if f.null(name) {
		f.fail(name, "is null")
	} else {
		f.fail(name, "is missing")
	}
	return false
}

// int returns a whole number in [lo, hi] that must be there; lo after a fault.
func (f fields) int(name string, lo, hi int) int {
	if !f.require(name) {
		return lo
	}
	return f.intOr(name, lo, lo, hi)
}

// intOr returns a whole number in [lo, hi], or def when absent or null.
func (f fields) intOr(name string, def, lo, hi int) int {
	if !f.has(name) {
		return def
	}
	v := f.raw[name]
	n, err := strconv.ParseInt(string(v), 10, 64)
	if v.Kind() != '0' || err != nil {
		f.fail(name, "want a whole number from %d to %d, got %s", lo, hi, clip(string(v)))
		return lo
	}
	if n < int64(lo) || n > int64(hi) {
		f.fail(name, "%d is outside %d to %d", n, lo, hi)
		return lo
	}
	return int(n)
}

// float returns a finite number in [lo, hi] that must be there; lo after a fault.
func (f fields) float(name string, lo, hi float64) float64 {
	if !f.require(name) {
		return lo
	}
	return f.floatOr(name, lo, lo, hi)
}

// floatOr returns a finite number in [lo, hi], or def when absent or null.
func (f fields) floatOr(name string, def, lo, hi float64) float64 {
	if !f.has(name) {
		return def
	}
	v := f.raw[name]
	x, err := strconv.ParseFloat(string(v), 64)
	if v.Kind() != '0' || err != nil || math.IsNaN(x) {
		f.fail(name, "want a number from %g to %g, got %s", lo, hi, clip(string(v)))
		return lo
	}
	if x < lo || x > hi {
		f.fail(name, "%g is outside %g to %g", x, lo, hi)
		return lo
	}
	return x
}

// boolOr is true or false, or def when absent or null.
func (f fields) boolOr(name string, def bool) bool {
	if !f.has(name) {
		return def
	}
	switch f.raw[name].Kind() {
	case 't':
		return true
	case 'f':
		return false
	}
	f.fail(name, "want true or false, got %s", clip(string(f.raw[name])))
	return def
}

// stringOr returns a string, or def when absent or null.
func (f fields) stringOr(name, def string) string {
	if !f.has(name) {
		return def
	}
	var s string
	if f.raw[name].Kind() != '"' || json.Unmarshal(f.raw[name], &s) != nil {
		f.fail(name, "want a string, got %s", clip(string(f.raw[name])))
		return def
	}
	return s
}

// oneOf returns a string of the list, or def when absent or null.
func (f fields) oneOf(name, def string, known ...string) string {
	s := f.stringOr(name, def)
	if !slices.Contains(known, s) {
		f.fail(name, "%q is not supported (known: %s)", clip(s), strings.Join(known, ", "))
		return def
	}
	return s
}

// strings returns a list of at most limit strings; nil when absent or null.
func (f fields) strings(name string, limit int) []string {
	if !f.has(name) {
		return nil
	}
	var list []string
	if f.raw[name].Kind() != '[' || json.Unmarshal(f.raw[name], &list) != nil || len(list) > limit {
		f.fail(name, "want a list of at most %d strings, got %s", limit, clip(string(f.raw[name])))
		return nil
	}
	return list
}

// object returns a nested object; ok is false when it is absent, null or no object.
func (f fields) object(name string) (fields, bool) {
	if !f.has(name) {
		return fields{}, false
	}
	var raw map[string]jsontext.Value
	if f.raw[name].Kind() != '{' || json.Unmarshal(f.raw[name], &raw) != nil {
		f.fail(name, "want an object, got %s", clip(string(f.raw[name])))
		return fields{}, false
	}
	return fields{path: f.path + name + ".", raw: raw, errs: f.errs}, true
}

// objects are the objects that an object has, sorted by name.
func (f fields) objects(name string, limit int) (list []fields) {
	all, ok := f.object(name)
	if ok && len(all.raw) > limit {
		f.fail(name, "want at most %d, got %d", limit, len(all.raw))
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all.raw)) {
		if x, ok := all.object(name); ok {
			list = append(list, x)
		}
	}
	return list
}

// maxIDs bounds a list of token ids.
const maxIDs = 1024

// ids returns a token id or a list of them; nil when absent or null.
func (f fields) ids(name string) []int32 { return f.numbers(name, "token id", maxIDs) }

// numbers returns a number or a list of at most limit, each in [0, maxVocab) and none twice; nil
// when absent or null. noun says what they are.
func (f fields) numbers(name, noun string, limit int) []int32 {
	if !f.has(name) {
		return nil
	}
	var list []int64
	v := f.raw[name]
	if v.Kind() == '0' {
		v = slices.Concat(jsontext.Value("["), v, jsontext.Value("]"))
	}
	if v.Kind() != '[' || json.Unmarshal(v, &list) != nil || len(list) > limit {
		f.fail(name, "want a %s or a list of at most %d, got %s", noun, limit, clip(string(f.raw[name])))
		return nil
	}
	out := make([]int32, 0, len(list))
	for _, id := range list {
		if id < 0 || id >= maxVocab {
			f.fail(name, "%s %d is outside 0 to %d", noun, id, maxVocab-1)
			return nil
		}
		if !slices.Contains(out, int32(id)) {
			out = append(out, int32(id))
		}
	}
	return out
}

// flags returns a list of at most limit values, each 0 or 1; nil when absent or null.
func (f fields) flags(name string, limit int) []bool {
	if !f.has(name) {
		return nil
	}
	var list []int64
	if f.raw[name].Kind() != '[' || json.Unmarshal(f.raw[name], &list) != nil || len(list) > limit ||
		slices.ContainsFunc(list, func(n int64) bool { return n != 0 && n != 1 }) {
		f.fail(name, "want a list of at most %d values 0 or 1, got %s", limit, clip(string(f.raw[name])))
		return nil
	}
	out := make([]bool, len(list))
	for i, n := range list {
		out[i] = n == 1
	}
	return out
}

// id is one token id, -1 when absent, null or (as some configs write it) -1.
func (f fields) id(name string) int32 {
	return int32(f.intOr(name, -1, -1, maxVocab-1))
}
