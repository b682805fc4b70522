//go:build !cuda

package driver

import (
	"errors"
	"testing"
)

func TestWithoutTagThereIsNoDriver(t *testing.T) {
	if err := Available(); !errors.Is(err, ErrNoDriver) {
		t.Fatal(err)
	}
}
