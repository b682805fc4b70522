//go:build !linux || !amd64 || purego

package amx

import "errors"

var errBuild = errors.New("this build has no AMX")

// Int8 says that the unit cannot be used.
func Int8() error { return errBuild }

// BF16 says that the unit cannot be used.
func BF16() error { return errBuild }
