//go:build !linux || !amd64 || purego

package qtile

import "errors"

// Available says that the unit cannot be used.
func Available() error { return errors.New("this build has no AMX") }

func int4Blocks(*Tile) { panic("qtile: not available") }
