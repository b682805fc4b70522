package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/trace"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
)

// served is the model of a folder behind a gateway, for flags of krater run.
func served(t testing.TB, dir string, args ...string) *actors.Gateway {
	t.Helper()
	var c cli
	ctx, file, err := cmdline.Parse(&c, append([]string{"run"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	s, err := openedFor(&console.Env{Out: io.Discard, Err: io.Discard, Ctx: ctx, File: file}, dir, c.Run.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := s.Pipeline(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	g, err := s.Gateway(p, "")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// greedyIDs are n tokens after a prompt, and how many of that came from the cache.
func greedyIDs(t testing.TB, g *actors.Gateway, prompt []int32, n int) (ids []int32, cached int) {
	t.Helper()
	st, err := g.Submit(context.Background(), &engine.Request{
		Prompt: engine.Prompt{IDs: prompt}, MaxTokens: n, IgnoreEOS: true, Logprobs: 0, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for {
		e, err := st.Next(context.Background())
		switch {
		case errors.Is(err, io.EOF):
			return ids, cached
		case err != nil || e.Kind == engine.Failed:
			t.Fatal(err, e.Err)
		}
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
		cached = e.Usage.Cached
	}
}

// evicted asks for two long prompts in turns on a device whose KV cache has room for little
// more than one, and gives the answers, what was cached of each, and the trace of all of it.
func evicted(t testing.TB, dir string, args ...string) (answers [][]int32, cached []int, stats engine.Stats, tracks []trace.Track) {
	t.Helper()
	g := served(t, dir, append([]string{"--kv-cache", "256KiB", "--block-tokens", "8", "--max-seqs", "2", "--prefill-chunk", "64"}, args...)...)
	defer g.Trace().Watch()()
	s := g.Stats()
	long := s.KVBlocksTotal * 8 * 3 / 5
	for i := range 4 {
		prompt := make([]int32, long)
		for j := range prompt {
			prompt[j] = int32(300 + i%2*50 + j*7%400)
		}
		ids, n := greedyIDs(t, g, prompt, 6)
		answers, cached = append(answers, ids), append(cached, n)
	}
	for range 1000 {
		if stats = g.Stats(); stats.KVBlocksUsed == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return answers, cached, stats, g.Trace().Snapshot(0)
}

// evictedAreKept holds what --kv-ram does against a device without it: prompts whose blocks had
// to go are found again, and change no token.
func evictedAreKept(t *testing.T, dir string, args ...string) {
	t.Helper()
	want, none, _, _ := evicted(t, dir, args...)
	got, cached, stats, tracks := evicted(t, dir, append([]string{"--kv-ram", "4MiB"}, args...)...)
	if !slices.EqualFunc(got, want, slices.Equal) || !slices.Equal(want[0], want[2]) || !slices.Equal(want[1], want[3]) {
		t.Errorf("answers %v, want %v", got, want)
	}
	if stats.KVHostUsed == 0 || stats.KVHostTotal < stats.KVBlocksTotal {
		t.Errorf("%d of %d blocks in host memory", stats.KVHostUsed, stats.KVHostTotal)
	}
	all := stats.KVBlocksTotal * 8 * 3 / 5 / 8 * 8 // whole blocks of a prompt
	for i := 2; i < 4; i++ {
		if none[i] >= all-8 || cached[i] < all-8 {
			t.Errorf("cached %v without --kv-ram, %v with it, of prompts of %d", none, cached, all)
		}
	}
	if slices.Contains(args, "--device") {
		blocksAreTraced(t, tracks)
	}
}

// blocksAreTraced holds the lane of a device's copies to have blocks both ways, and the
// device's own lane to say that it waited for them.
func blocksAreTraced(t *testing.T, tracks []trace.Track) {
	t.Helper()
	bytes, waits := map[trace.Kind]uint64{}, 0
	for _, x := range tracks {
		for _, e := range x.Events {
			switch e.Kind {
			case trace.CopyKV, trace.SaveKV:
				bytes[e.Kind] += e.Bytes
				if e.Layer != -1 || e.Batch == 0 || e.Bytes == 0 || e.Ended < e.Started {
					t.Errorf("%s: %+v", x.Name, e)
				}
			case trace.CopyWait:
				waits++
			}
		}
	}
	if bytes[trace.CopyKV] == 0 || bytes[trace.SaveKV] == 0 || waits == 0 {
		t.Errorf("%v bytes of blocks are on the lane, %d waits for them", bytes, waits)
	}
}

// TestEvictedBlocksAreKept: on a simulated rank.
func TestEvictedBlocksAreKept(t *testing.T) {
	evictedAreKept(t, modelDir, "--device", "hostsim")
	evictedAreKept(t, modelDir, "--device", "hostsim", "--layer-groups", "2", "--kv-dtype", "int8")
	refuses(t, 1, []string{"run", "--kv-ram", "1GiB", "hello"}, "--kv-ram", "make it larger with --kv-cache")
	refuses(t, 1, []string{"run", "--sparse-kv", "host", "--kv-ram", "1GiB", "hello"}, "--sparse-kv host", "--device cuda")
	refuses(t, 1, []string{"run", "--device", "hostsim", "--kv-ram", "1KiB", "hello"}, "--kv-ram 1KiB", "one block")
}
