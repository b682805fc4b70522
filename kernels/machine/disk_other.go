//go:build !unix

package machine

import "errors"

// FreeDisk returns the space a user without privileges has in the file system of a folder.
func FreeDisk(string) (int64, error) { return 0, errors.ErrUnsupported }
