//go:build !cuda

package driver

// Available says whether a card can be used: here never.
func Available() error { return ErrNoDriver }
