package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the scripts' output into testdata; read the diff before committing it")

// TestScripts runs testdata/*.txt: lines with "> " are commands, the lines after
// them what the core answers, "#" and blank lines tell the story.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d scripts, want 12 or more: %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(string(want))
			if *rewrite {
				if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got == string(want) {
				return
			}
			g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
			for i := range max(len(g), len(w)) {
				if i >= len(g) || i >= len(w) || g[i] != w[i] {
					t.Fatalf("line %d differs\ngot:\n%s\nwant:\n%s", i+1, strings.Join(g[min(i, len(g)):], "\n"), strings.Join(w[min(i, len(w)):], "\n"))
				}
			}
		})
	}
}

func runScript(text string) string {
	var out strings.Builder
	s := &script{out: &out, batches: map[uint64]Batch{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if cmd, ok := strings.CutPrefix(line, "> "); ok {
			out.WriteString(line + "\n")
			s.run(strings.Fields(cmd))
		} else if line == "" || line[0] == '#' {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// script is the driver of one transcript.
type script struct {
	out     *strings.Builder
	core    *Core
	now     int64
	batches map[uint64]Batch
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

func (s *script) run(words []string) {
	cmd, args := words[0], words[1:]
	if cmd == "config" {
		s.config(args)
		return
	}
	if s.core == nil {
		s.printf("no core\n")
		return
	}
	var id uint64
	opts := map[string]string{}
	for _, w := range args {
		if n, err := strconv.ParseUint(w, 10, 64); err == nil {
			id = n
		} else {
			k, v, _ := strings.Cut(w, "=")
			opts[k] = v
		}
	}
	switch cmd {
	case "add":
		s.add(id, opts)
	case "next":
		b, ok := s.core.Next(s.now)
		s.effects()
		s.batch(b, ok)
	case "done":
		s.report(s.core.Done(id, s.outcomes(s.batches[id], opts)))
	case "fail":
		_, retry := opts["retry"]
		s.report(s.core.Fail(id, errors.New("worker lost"), retry))
	case "gone":
		s.report(s.core.Gone(id))
	case "cancel":
		why := Cancelled
		if _, stop := opts["stop"]; stop {
			why = Stop
		}
		s.printf("live %v\n", s.core.Cancel(id, why))
	case "tick":
		s.now = int64(id)
		s.core.Tick(s.now)
		if at, ok := s.core.NextDeadline(); ok {
			s.printf("next deadline %d\n", at)
		}
	case "drain":
		s.core.Drain()
	case "position":
		if n, ok := s.core.Position(id); ok {
			s.printf("%d before it\n", n)
		} else {
			s.printf("does not wait\n")
		}
	case "cache":
		st := s.core.Stats()
		s.printf("blocks: %d held, %d cached, %d in host memory; %d of %d tokens found; %d snapshots; %d preemptions\n",
			st.BlocksUsed, st.BlocksCached, st.RAMUsed, st.PrefixHits, st.PrefixQueries, st.SnapshotsUsed, st.Preemptions)
	case "loop":
		s.loop(int(id))
	case "stats":
		s.stats()
	default:
		s.printf("unknown command %s\n", cmd)
	}
	s.effects()
	if err := s.core.Check(); err != nil {
		s.printf("CHECK: %v\n", err)
	}
}

func (s *script) config(args []string) {
	var c Config
	fields := map[string]*int{
		"block-tokens": &c.BlockTokens, "blocks": &c.Blocks, "batch": &c.MaxBatchTokens, "seqs": &c.MaxSeqs,
		"chunk": &c.PrefillChunk, "share": &c.PrefillShare, "queue": &c.MaxQueue, "micro-batches": &c.MicroBatches,
		"prefill-batches": &c.PrefillBatches, "retries": &c.MaxRetries, "aging": &c.Aging, "ram": &c.RAMBlocks, "load-rate": &c.LoadRate, "snapshots": &c.Snapshots,
		"window": &c.Window, "window-blocks": &c.WindowBlocks,
	}
	for _, w := range args {
		k, v, _ := strings.Cut(w, "=")
		if k == "ahead" {
			c.Ahead = true
			continue
		}
		if fields[k] == nil {
			s.printf("unknown field %s\n", k)
			return
		}
		*fields[k], _ = strconv.Atoi(v)
	}
	if c.PrefillBatches == 0 {
		c.PrefillBatches = c.MicroBatches
	}
	core, err := New(c)
	s.core = core
	s.report(err)
}

func (s *script) add(id uint64, opts map[string]string) {
	num := func(k string) int { n, _ := strconv.Atoi(opts[k]); return n }
	r := Request{
		ID: id, PromptLen: num("prompt"), MaxNew: num("new"), Priority: num("priority"), Deadline: int64(num("deadline")),
		Group: uint64(num("group")), Key: uint64(num("key")),
	}
	if text, ok := opts["text"]; ok { // a letter is a token
		r.PromptLen = len(text)
		for _, letter := range text {
			r.Prompt = append(r.Prompt, letter)
		}
	}
	copy(r.Domain[:], opts["domain"])
	_, r.Background = opts["background"]
	s.report(s.core.Add(r, s.now))
}

func (s *script) report(err error) {
	if err != nil {
		s.printf("%v\n", err)
	}
}

// outcomes gives a token to every wanted span, unless an option stop=1,2 or
// failed=1 names it or short drops the last one.
func (s *script) outcomes(b Batch, opts map[string]string) []Outcome {
	var out []Outcome
	for _, sp := range b.Spans {
		if !sp.Last {
			continue
		}
		o := Outcome{ID: sp.ID, NewTokens: 1, Tokens: []int32{int32('A' + (sp.Pos+sp.Len)%26)}}
		for name, why := range map[string]Reason{"stop": Stop, "failed": Failed} {
			for id := range strings.SplitSeq(opts[name], ",") {
				if id == strconv.FormatUint(sp.ID, 10) {
					o.End = why
				}
			}
		}
		out = append(out, o)
	}
	if _, short := opts["short"]; short {
		out = out[:len(out)-1]
	}
	return out
}

func (s *script) batch(b Batch, ok bool) {
	if !ok {
		s.printf("nothing\n")
		return
	}
	s.batches[b.ID] = b
	after := ""
	if b.After != 0 {
		after = fmt.Sprintf(" ahead of %d", b.After)
	}
	if s.core.cfg.MicroBatches > 1 {
		after = fmt.Sprintf(" of micro-batch %d%s", b.MicroBatch, after)
	}
	s.printf("batch %d%s: %d rows, %d decode, %d wanted\n", b.ID, after, b.Rows, b.Decode, b.Wanted)
	for _, m := range b.Moves {
		s.printf("  %v %d to %d\n", m.Kind, m.From, m.To)
	}
	for _, sp := range b.Spans {
		kind, last := "prefill", ""
		if sp.Decode {
			kind = "decode"
		}
		if sp.Last {
			last = ", sample"
		}
		if sp.From >= 0 {
			last = fmt.Sprintf(", token of row %d%s", sp.From, last)
		}
		if from := s.core.cfg.windowStart(sp.Pos); s.core.cfg.Window > 0 {
			last = fmt.Sprintf(", window blocks from %d on %v%s", from, sp.Windows[from:], last)
		}
		s.printf("  row %d: %s %d, tokens %d to %d, slot %d, blocks %v%s\n", sp.Row, kind, sp.ID, sp.Pos, sp.Pos+sp.Len-1, sp.Slot, sp.Blocks, last)
	}
}

func (s *script) effects() {
	for _, e := range s.core.Effects() {
		switch {
		case e.Kind == Voided:
			s.printf("voided batch %d\n", e.Batch)
		case e.Cached > 0:
			s.printf("%v %d, %d tokens cached\n", e.Kind, e.ID, e.Cached)
		case e.Kind != Ended:
			s.printf("%v %d\n", e.Kind, e.ID)
		case e.Cause != nil:
			s.printf("ended %d: %v (%v)\n", e.ID, e.Reason, e.Cause)
		default:
			s.printf("ended %d: %v\n", e.ID, e.Reason)
		}
	}
}

// loop runs n whole steps, one line each.
func (s *script) loop(n int) {
	for range n {
		b, ok := s.core.Next(s.now)
		s.effects()
		if !ok {
			s.printf("nothing\n")
			return
		}
		s.printf("batch %d:", b.ID)
		for _, sp := range b.Spans {
			kind := "prefill"
			if sp.Decode {
				kind = "decode"
			}
			s.printf(" %s %d[%d:%d]", kind, sp.ID, sp.Pos, sp.Pos+sp.Len)
		}
		for _, m := range b.Moves {
			s.printf(" (%v %d to %d)", m.Kind, m.From, m.To)
		}
		s.printf("\n")
		s.report(s.core.Done(b.ID, s.outcomes(b, nil)))
		s.effects()
	}
}

func (s *script) stats() {
	st := s.core.Stats()
	s.printf("waiting %d, prefilling %d, decoding %d, ending %d, in flight %d, blocks %d of %d\n",
		st.Waiting, st.Prefilling, st.Decoding, st.Ending, st.InFlight, st.BlocksUsed, st.BlocksTotal)
	s.printf("accepted %d, batches %d (%d failed), retries %d, rows %d prefill %d decode, new tokens %d, ended",
		st.Accepted, st.Batches, st.FailedBatches, st.Retries, st.PrefillRows, st.DecodeRows, st.NewTokens)
	total := uint64(0)
	for r := Stop; r < reasons; r++ {
		if total += st.Ended[r]; st.Ended[r] > 0 {
			s.printf(" %v %d", r, st.Ended[r])
		}
	}
	s.printf(" (%d), idle %v\n", total, s.core.Idle())
}
