package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/scheduler/dispatch"
	"krater/stages/drive"
	"krater/stages/source"
	"krater/stages/text/tokenizer"
)

// heldOut writes a stretch of krater-tiny's text, long enough for a prompt's strategy, and returns
// the file's name. The text has the given number of tokens, including the one at its beginning.
func heldOut(t testing.TB, tokens int) string {
	t.Helper()
	data, err := os.ReadFile("../../models/krater-tiny/heldout.txt")
	if err != nil {
		t.Fatal(err)
	}
	src, err := source.Open("")
	if err != nil {
		t.Skip(err) // built without it
	}
	tok, _, err := src.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for end := range text {
		if text[end] != ' ' {
			continue
		}
		ids, _, _ := tok.Wrap(tok.Encode(text[:end], tokenizer.EncodeOptions{ParseSpecial: true}))
		if n := len(ids); n == tokens {
			file := filepath.Join(t.TempDir(), "prompt.txt")
			if err := os.WriteFile(file, []byte(text[:end]), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		} else if n > tokens {
			break
		}
	}
	t.Fatalf("no stretch of %d tokens", tokens)
	return ""
}

// expertTiny is the size of a routed expert of krater-tiny, of which it has 192.
const expertTiny = 3 * 64 * 256 * 2

// TestEveryStrategyAnswersAlike: a prompt over the threshold and what follows it have
// the same tokens under every strategy and budget, for prompts and for generated tokens.
func TestEveryStrategyAnswersAlike(t *testing.T) {
	file, tokens := heldOut(t, 321), 32
	if testing.Short() {
		tokens = 12
	}
	ask := func(args ...string) outcome {
		t.Helper()
		o := krater(t, "", append([]string{"run", "--raw", "--ids", "--ignore-eos", "--temperature", "0", "--max-tokens", fmt.Sprint(tokens), "--file", file}, args...)...)
		if o.status != 0 || !strings.Contains(o.err, fmt.Sprintf("321 prompt tokens, %d answer tokens", tokens)) {
			t.Fatalf("%v: status %d: %s", args, o.status, o.err)
		}
		return o
	}
	want := ask()
	same := func(args ...string) outcome {
		t.Helper()
		o := ask(append([]string{"--device", "hostsim"}, args...)...)
		if o.out != want.out {
			t.Errorf("%v: %s, want %s", args, o.out, want.out)
		}
		return o
	}
	names := []string{"layer_grouped:2", "layer_grouped:3", "layer_grouped:6:1"}
	for _, s := range dispatch.All() {
		names = append(names, s.Name())
	}
	budgets := []int{0, 1, 7, 31, 32, 64, 100, 160, 191, 192}
	for i, name := range names {
		if testing.Short() {
			budgets = [][]int{{0}, {100}, {7}, {192}}[i/2%4]
		}
		for j, slots := range budgets {
			flags := []string{"--expert-vram", fmt.Sprint(config.Size(slots*expertTiny + 1)), "--prefill-strategy", name, "--decode-strategy", name}
			if (i+j)%2 == 0 { // in pieces, and with another strategy for generated tokens
				flags[len(flags)-1] = names[(i+j)%len(names)]
				flags = append(flags, "--prefill-chunk", "100", "--prefill-pass", "400", "--prefill-expert-vram", fmt.Sprint(config.Size(slots/2*expertTiny)))
			}
			o := same(flags...)
			if slots == 0 && name != "cpu_only" && !strings.Contains(o.err, " instead of "+name) {
				t.Errorf("%v: nothing is said of the fall: %s", flags, o.err)
			}
			if slots == 192 && (i+j)%2 == 1 && strings.Contains(o.err, " instead of ") {
				t.Errorf("%v: falls with room for everything: %s", flags, o.err)
			}
		}
	}
}

// TestChainIsAnnounced: all steps down are one line.
func TestChainIsAnnounced(t *testing.T) {
	o := krater(t, "", "run", "--device", "hostsim", "--expert-divisor", "1", "--expert-vram", fmt.Sprint(expertTiny-1), "--max-tokens", "3", "Hello")
	if o.status != 0 {
		t.Fatal(o.err)
	}
	want := "krater: prefill: cpu_only instead of persistent, layer_grouped:2 to :6, layer_grouped:6:1, chunked: "
	if !strings.Contains(o.err, want) || strings.Count(o.err, " instead of ") != 1 {
		t.Errorf("it does not say %q once: %s", want, o.err)
	}
}

// TestPass: where a prompt goes through groups of layers a step takes several chunks, and the
// memory is as planned, to the byte.
func TestPass(t *testing.T) {
	for _, x := range []struct {
		flags          []string
		tokens, window int
		strategy       string
	}{
		{[]string{"--prefill-strategy", "layer_grouped", "--expert-vram", "8MiB", "--prefill-chunk", "64"}, 4*64 + 32, 64 + 32, "layer_grouped"},
		{[]string{"--expert-divisor", "1", "--expert-vram", "8MiB", "--prefill-chunk", "64", "--prefill-pass", "100"}, 100 + 32, 64 + 32, "layer_grouped:6"},
		{[]string{"--prefill-strategy", "layer_grouped", "--vram", "32MiB", "--kv-cache", "4MiB", "--prefill-chunk", "64"}, 4*64 + 32, 64 + 32, "layer_grouped"},
		{[]string{"--prefill-strategy", "layer_grouped", "--prefill-chunk", "64"}, 64 + 32, 64 + 32, "layer_grouped"}, // everything stays
		{[]string{"--prefill-strategy", "lru", "--expert-vram", "8MiB", "--prefill-chunk", "64"}, 64 + 32, 64 + 32, "lru"},
	} {
		s, p := started(t, append([]string{"--device", "hostsim"}, x.flags...)...)
		if lim := s.Parts.Limits; lim.Tokens != x.tokens || lim.LayerRows() != x.window || s.Placement().Strategy(dispatch.Prefill).Name() != x.strategy {
			t.Errorf("%v: %+v, %s", x.flags, lim, s.Ranks[0].WhereExperts())
		}
		q := &drive.Sequence{Prompt: make([]int32, 500), New: 3}
		for i := range q.Prompt {
			q.Prompt[i] = int32(7 + i*13)
		}
		if err := drive.Run(p, []*drive.Sequence{q}, drive.Options{}); err != nil {
			t.Fatal(err)
		}
		if u := s.MemoryUse(); u.Allocated != u.Promised || u.Allocated == 0 {
			t.Errorf("%v: %d bytes promised, %d allocated", x.flags, u.Promised, u.Allocated)
		}
	}
}
