//go:build !linux

package cpu

import (
	"errors"
	"fmt"
	"unsafe"
)

func bindMemory([]byte, int, bool) error {
	return fmt.Errorf("mbind: %w", errors.ErrUnsupported)
}

func pageNodes([]unsafe.Pointer) ([]int32, error) {
	return nil, fmt.Errorf("move_pages: %w", errors.ErrUnsupported)
}
