//go:build !race

package actors

import (
	"context"
	"runtime"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/stages"
)

// TestDecodeAllocates little: a step of one stream makes the token's text, a
// string, and nothing else that lasts.
func TestDecodeAllocates(t *testing.T) {
	r := newRig(t, setup{inline: 50 * time.Microsecond, limits: stages.Limits{Tokens: 64, Seqs: 1, Blocks: 64, BlockTokens: 16}})
	gw := r.gateway(t)
	req := greedy([]int32{70, 71}, 300)
	req.Logprobs = -1
	st, err := gw.Submit(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	var from, to runtime.MemStats
	first := 0
	for to.Mallocs == 0 {
		e, err := st.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		switch n := e.Usage.Completion; {
		case e.Kind == engine.Done:
			runtime.ReadMemStats(&to)
		case first == 0 && n >= 50: // buffers have their size by now
			first = n
			runtime.ReadMemStats(&from)
		}
	}
	perToken := float64(to.Mallocs-from.Mallocs) / float64(300-first)
	bytes := float64(to.TotalAlloc-from.TotalAlloc) / float64(300-first)
	t.Logf("%.2f allocations, %.0f bytes a token", perToken, bytes)
	if perToken > 3 || bytes > 512 {
		t.Errorf("%.2f allocations, %.0f bytes a token, want at most 3 and 512", perToken, bytes)
	}
}
