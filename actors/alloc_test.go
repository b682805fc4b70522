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
	o := setup{inline: 50 * time.Microsecond, limits: stages.Limits{Tokens: 64, Seqs: 1, Blocks: 64, BlockTokens: 16}}
	r := newRig(t, o)
	t.Run("alone", func(t *testing.T) { decodeAllocates(t, r.gateway(t), 3, 512) })
	o.remote, o.groups, o.depth = true, 2, 1
	o = o.defaults()
	l := loadModel(t, o)
	p := l.team(t, o, l.spread(t, o, []int{1, len(l.cfg.Layers) - 1}, false), nil, nil)
	// Both members. A worker makes lists of a step that it decodes.
	t.Run("with a worker", func(t *testing.T) { decodeAllocates(t, l.open(t, p.Pipeline), 6, 512) })
}

func decodeAllocates(t *testing.T, gw *Gateway, most, bytesMost float64) {
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
	if perToken > most || bytes > bytesMost {
		t.Errorf("%.2f allocations, %.0f bytes a token, want at most %.0f and %.0f", perToken, bytes, most, bytesMost)
	}
}
