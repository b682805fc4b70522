package actors

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"krater/actors/msg"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/sample"
)

var rewrite = flag.Bool("rewrite", false, "write the stories' output into testdata; read the diff before committing it")

// TestScheduleStories runs testdata/*.txt through a schedule node without other
// actors: lines with "> " are messages to it, the lines after them what it
// sends, "#" and blank lines tell the story.
func TestScheduleStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d stories, want 6 or more: %v", len(files), err)
	}
	l := loadModel(t, setup{dir: golden("deepseek_v2_lite"), limits: small(2)}.defaults())
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := runStory(t, l, string(want))
			if *rewrite {
				if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
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

// director is the rest of the world for one schedule node.
type director struct {
	deskHost
	t       testing.TB
	l       *loaded
	out     strings.Builder
	node    *scheduleNode
	turn    *turn
	batches map[uint64]*msg.Batch
	raws    []*msg.Raw
	ahead   bool // the core makes batches ahead, with as many credits more
}

func runStory(t testing.TB, l *loaded, text string) string {
	t.Helper()
	d := &director{t: t, l: l, batches: map[uint64]*msg.Batch{}}
	defer d.close()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if cmd, ok := strings.CutPrefix(line, "> "); ok {
			d.out.WriteString(line + "\n")
			d.run(strings.Fields(cmd))
		} else if line == "" || line[0] == '#' {
			d.out.WriteString(line + "\n")
		}
	}
	return d.out.String()
}

func (d *director) printf(format string, args ...any) { fmt.Fprintf(&d.out, format, args...) }

func (d *director) close() {
	if d.node != nil {
		for _, b := range d.node.batches {
			b.State.Close()
		}
	}
}

// run carries out a command. Words with "=" are options, the first other one is
// an id.
func (d *director) run(words []string) {
	opts := map[string]string{}
	var id uint64
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		opts[k] = v
		if n, err := strconv.ParseUint(w, 10, 64); err == nil {
			id = n
		}
	}
	number := func(key string) int {
		n, _ := strconv.Atoi(opts[key])
		return n
	}
	_, cancel := opts["cancel"]
	switch words[0] {
	case "config":
		d.config(number("groups"), number("depth"), number("seqs"))
	case "wait":
		d.clock += int64(number("ms")) * int64(time.Millisecond)
		return
	case "submit":
		d.submit(id, number("prompt"), number("new"), number("ms"))
	case "return":
		d.comeBack(id, opts)
	case "fail":
		d.tell(&msg.Failed{Batch: d.batches[id], Epoch: d.batches[id].Epoch, Cause: errors.New("pool0 failed")})
	case "forgotten":
		d.tell(&msg.Forgotten{Batch: d.batches[id]})
	case "hold":
		d.batches[id].Work.Hold()
		return
	case "release":
		d.batches[id].Work.Release()
		return
	case "cancel":
		d.tell(&msg.Cancel{ID: id, Why: scheduler.Cancelled})
	case "stop":
		d.tell(&msg.Cancel{ID: id, Why: scheduler.Stop})
	case "tick":
		d.tell(&msg.Tick{})
	case "drain":
		d.tell(&msg.Drain{Cancel: cancel, Done: make(chan struct{})})
	case "raw":
		d.raw(number("token"))
	default:
		d.t.Fatalf("what is %q?", words[0])
	}
	d.credits()
}

// config makes the node: prompts in chunks of 4 rows, 2 beside other answers.
func (d *director) config(groups, depth, seqs int) {
	core, err := scheduler.New(scheduler.Config{BlockTokens: 8, Blocks: 8 * seqs, MaxBatchTokens: 16, MaxSeqs: seqs,
		PrefillChunk: 4, PrefillShare: 2, MaxQueue: 2, MicroBatches: depth, PrefillBatches: depth, Ahead: d.ahead})
	if err != nil {
		d.t.Fatal(err)
	}
	if d.ahead {
		depth *= 2
	}
	var batches []*msg.Batch
	for range depth {
		st, err := stages.NewState(d.l.dev, d.l.cfg, small(seqs))
		if err != nil {
			d.t.Fatal(err)
		}
		batches = append(batches, msg.NewBatch(1, st))
	}
	stream, err := d.l.dev.NewStream()
	if err != nil {
		d.t.Fatal(err)
	}
	d.turn = solo(&post{on: d.sent}, groups, 1)
	d.node = newScheduleNode(core, stream, newMeters(8*seqs), d, batches, seqs)
}

func (d *director) tell(m any) { d.node.receive(d.turn, m) }

// alarm implements host.
func (d *director) alarm(in time.Duration) { d.printf("alarm in %v\n", in) }

func (d *director) submit(id uint64, prompt, fresh, ms int) {
	sub := &msg.Submit{Request: scheduler.Request{ID: id, PromptLen: prompt, MaxNew: fresh}, Output: nil, Reply: make(chan error, 1)}
	if ms > 0 {
		sub.Request.Deadline = d.clock + int64(ms)*int64(time.Millisecond)
	}
	for i := range prompt {
		sub.Prompt = append(sub.Prompt, int32(100*id)+int32(i))
	}
	d.tell(sub)
	if err := <-sub.Reply; err != nil {
		d.printf("refused: %v\n", err)
	}
}

// comeBack returns a batch: every sampled row gets the token of "token" or NaN.
func (d *director) comeBack(id uint64, opts map[string]string) {
	b := d.batches[id]
	_, stop := opts["stop"]
	_, nan := opts["nan"]
	for i := range b.Rows {
		r := &b.Rows[i]
		n, _ := strconv.Atoi(opts["token"])
		r.Result, r.Err = sample.Result{ID: int32(n), Stop: stop}, nil
		if nan && i == 0 {
			r.Err = sample.ErrLogits
		}
	}
	if b.Raw != nil {
		b.Raw.Reply <- nil
	}
	d.tell(msg.NewReply(b))
}

func (d *director) raw(token int) {
	b := &stages.Step{Tokens: []int32{int32(token)}, Spans: []stages.Span{{Want: true}}}
	b.Spans[0].Len, b.Spans[0].Blocks = 1, []int32{0}
	r := &msg.Raw{Step: b, Reply: make(chan error, 1)}
	d.raws = append(d.raws, r)
	d.tell(r)
}

// sent tells what the node sends.
func (d *director) sent(to string, m any) {
	switch m := m.(type) {
	case *msg.Batch:
		id := m.ID % rawIDs
		d.batches[id] = m
		d.printf("%s: batch %d\n", to, id)
		for _, sp := range m.State.Spans {
			tokens := m.State.IDs.I32s()[sp.Row : sp.Row+sp.Len]
			d.printf("  request %d: tokens %v at %d, sampled %v\n", sp.Seq, tokens, sp.Pos, sp.Want)
		}
	case *msg.Deliver:
		for _, it := range m.Items {
			switch it.Kind {
			case msg.DeliverQueued:
				d.printf("%s: %d queued\n", to, it.ID)
			case msg.DeliverStarted:
				d.printf("%s: %d started\n", to, it.ID)
			case msg.DeliverToken:
				d.printf("%s: %d token %d\n", to, it.ID, it.Result.ID)
			case msg.DeliverEnded:
				d.printf("%s: %d ended: %v, cause %v\n", to, it.ID, it.Why, it.Cause)
			}
		}
		if len(m.Drained) > 0 {
			d.printf("%s: drained\n", to)
		}
	case *msg.Forget:
		d.printf("%s: forget batch %d\n", to, m.Batch.ID)
	default:
		d.t.Fatalf("%T to %s", m, to)
	}
}

// credits tells which raw steps were answered and where the batches are.
func (d *director) credits() {
	for i, r := range d.raws {
		select {
		case err := <-r.Reply:
			d.printf("raw step %d is answered: %v\n", i+1, err)
		default:
		}
	}
	n := d.node
	abandoned := 0
	for _, b := range n.batches {
		if b.Status != msg.Free && b.Abandoned.Load() {
			abandoned++
		}
	}
	d.printf("-- %d free, %d away, %d lost (%d abandoned); %d KV blocks\n", len(n.credits), n.flying, len(n.lost), abandoned, n.core.Stats().BlocksUsed)
	if err := n.core.Check(); err != nil {
		d.t.Error(err)
	}
}

// further puts a batch for a request behind one in flight, as for a device that chooses
// tokens itself, which this one does not.
func (d *director) further(after uint64) *msg.Batch {
	n := d.node
	n.core.Hold(after, false)
	b, ok := n.core.Next(0)
	if !ok || b.After != after {
		d.t.Fatalf("%+v is not ahead of %d", b, after)
	}
	f := n.takeCredit(b.MicroBatch)
	f.Batch, f.Live = b, len(b.Spans)

	return f
}

// TestVoidBatch: a batch that is void with the one before it stays in flight. It and its blocks
// are free when it has come back, or after an actor has reported that it failed and all have
// forgotten it, and not before.
func TestVoidBatch(t *testing.T) {
	l := loadModel(t, setup{dir: golden("deepseek_v2_lite"), limits: small(2)}.defaults())
	for _, fails := range []bool{false, true} {
		d := &director{t: t, l: l, batches: map[uint64]*msg.Batch{}, ahead: true}
		d.config(1, 1, 2)
		defer d.close()
		n := d.node
		n.ahead = true
		d.submit(1, 2, 8, 0)
		first, second := d.batches[1], d.further(1)
		forgets := func(b *msg.Batch) {
			t.Helper()
			if b.Forgets != 2 {
				t.Errorf("%d actors were asked to forget batch %d", b.Forgets, b.ID)
			}
			for range b.Forgets {
				d.tell(&msg.Forgotten{Batch: b})
			}
		}
		is := func(free, flying, lost, blocks int) {
			t.Helper()
			if used := n.core.Stats().BlocksUsed; len(n.credits) != free || n.flying != flying || len(n.lost) != lost || used != blocks {
				t.Errorf("fails %v: %d batches free, %d away, %d lost, %d blocks used; want %d, %d, %d, %d", fails, len(n.credits), n.flying, len(n.lost), used, free, flying, lost, blocks)
			}
		}
		is(0, 2, 0, 1)
		d.tell(&msg.Failed{Batch: first, Epoch: first.Epoch, Cause: errors.New("injected")})
		if !second.Abandoned.Load() {
			t.Error("the void batch would be computed")
		}
		is(0, 0, 1, 1)
		forgets(first)
		is(1, 0, 0, 1)
		d.submit(2, 2, 8, 0)
		d.tell(&msg.Tick{})
		is(1, 0, 0, 1) // nothing overtakes a batch in flight
		if fails {
			d.tell(&msg.Failed{Batch: second, Epoch: second.Epoch, Cause: errors.New("injected")})
			is(1, 0, 1, 1)
			forgets(second)
		} else {
			d.tell(msg.NewReply(second))
		}
		is(1, 1, 0, 1)
		if err := n.core.Check(); err != nil {
			t.Error(err)
		}
	}
}
