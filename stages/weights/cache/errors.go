package cache

import "errors"

// What can be wrong with a cache file. None of these ends a start: the file is
// named and built anew.
var (
	// ErrForeign: not a cache file.
	ErrForeign = errors.New("not a weight cache")
	// ErrVersion: another version of the format.
	ErrVersion = errors.New("another version of the weight cache")
	// ErrStale: made from other weights, for another shape or by a lesser method.
	ErrStale = errors.New("weight cache of a different model")
	// ErrTruncated: shorter or longer than its header says.
	ErrTruncated = errors.New("weight cache of the wrong length")
	// ErrUnfinished: a build that did not come to its end.
	ErrUnfinished = errors.New("unfinished weight cache")
	// ErrDamaged: a checksum does not match.
	ErrDamaged = errors.New("damaged weight cache")
)

// What ends a start.
var (
	// ErrShape: the model's experts do not fit the format.
	ErrShape = errors.New("experts of this shape cannot be cached")
	// ErrFull: no room for the cache on its disk.
	ErrFull = errors.New("disk full")
	// ErrNoFolder: there is no folder to write a cache to.
	ErrNoFolder = errors.New("no folder for the weight cache")
)
