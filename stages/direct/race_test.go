//go:build race

package direct_test

// raceEnabled: the race detector watches, which makes the oracle and the reference
// operators, plain Go on one goroutine, thirty times slower. What they are asked for is
// then less; all of it without it.
const raceEnabled = true
