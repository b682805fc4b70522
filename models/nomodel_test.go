//go:build nomodel

package models

import (
	"errors"
	"testing"
)

func TestAbsent(t *testing.T) {
	files, err := Default()
	if !errors.Is(err, ErrNoModel) || files.Weights() != nil || Notice() != "" {
		t.Errorf("%v, %v, %q", files, err, Notice())
	}
}
