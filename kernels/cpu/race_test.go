//go:build race

package cpu_test

// raceEnabled: the race detector watches, which makes the portable kernels and the
// reference thirty times slower. Values are then compared at fewer sizes; at all of them
// without it.
const raceEnabled = true
