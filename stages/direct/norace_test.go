//go:build !race

package direct_test

const raceEnabled = false
