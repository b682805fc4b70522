//go:build !linux

package cpu

import (
	"errors"
	"fmt"
	"runtime"
)

func pinThread([]int) (thread int, err error) {
	return 0, fmt.Errorf("binding a thread to processors: %w", errors.ErrUnsupported)
}

func threadCPUs(int) ([]int, error) { return nil, errors.ErrUnsupported }

func yieldThread() { runtime.Gosched() }
