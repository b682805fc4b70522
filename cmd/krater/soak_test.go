//go:build soak

package main

import (
	"flag"
	"math/rand/v2"
	"strconv"
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

// TestSoakServe is the soak of krater bench serve on a server in a process of its
// own, over all doors, for less than half a minute. Its KV cache is small, so that all pages of it
// have been used when the soak begins to watch the memory.
func TestSoakServe(t *testing.T) {
	p := launch(t, "serve", "--listen", "127.0.0.1:0", "--kv-cache", "8MiB")
	url := p.address()
	o := krater(t, "", "bench", "serve", "--url", url, "--door", "completions,chat,websocket", "--soak", "20s", "--sample", "250ms",
		"--concurrency", "8", "--mix", "sharegpt", "--prefix", "64", "--prefix-share", "0.5", "--pid", strconv.Itoa(p.cmd.Process.Pid))
	t.Log(o.out)
	if o.status != 0 {
		t.Errorf("status %d: %s", o.status, o.err)
	}
}
