package cpu

// pause is one round of a spin loop.
//
//go:noinline
func pause() {}
