//go:build soak

package main

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	soakSeconds = flag.Int("soak.seconds", 60, "length of the soak")
	soakClients = flag.Int("soak.clients", 200, "clients at the same time")
	soakSeed    = flag.Uint64("soak.seed", rand.Uint64(), "seed of everything the clients do")
)

// TestSoak is the long form of TestCrowd.
func TestSoak(t *testing.T) {
	soak(t, *soakClients, time.Duration(*soakSeconds)*time.Second, 60, *soakSeed)
}
