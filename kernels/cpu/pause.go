//go:build !amd64 || purego

package cpu

// pause is one round of a spin loop.
//
//go:noinline
func pause() {}
