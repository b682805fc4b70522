//go:build !race

package actors

import (
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/stages"
	"krater/stages/drive"
)

// What the trace may take of a step: with every message noted, and as it is while nobody
// watches.
const (
	traceShareFull    = 0.02
	traceShareDefault = 0.003
)

// nobody is an address that drops what it gets.
type nobody struct{}

func (nobody) name() string      { return "nobody" }
func (nobody) post(any, *worker) {}

// forward is a node that sends its message on, as most do.
type forward struct{ to address }

func (n forward) receive(c *turn, m any) { c.send(n.to, m) }

// noteCost is what noting a message costs, in nanoseconds: the time to handle and send one
// that is noted, less that of one that is not.
func noteCost(t *testing.T) float64 {
	t.Helper()
	p := &Pipeline{trace: trace.NewRegistry(traceEvents), host: &deskHost{}}
	log := zerolog.Nop()
	s := &shell{name: "a", kind: trace.Experts, node: forward{nobody{}}}
	s.turn = turn{routes: &p.routes, log: &log, ring: p.trace.Ring("a"), event: &s.event, now: trace.Now}
	b := msg.NewBatch(&stages.State{}, 1)
	took := map[bool][]float64{}
	const messages = 2000
	for i := range 400 {
		b.Quiet = i%2 == 0
		start := time.Now()
		for range messages {
			s.handle(&b.Work.Parts[0])
		}
		took[b.Quiet] = append(took[b.Quiet], float64(time.Since(start).Nanoseconds())/messages)
	}
	for _, all := range took {
		slices.Sort(all)
	}
	return took[false][len(took[false])/10] - took[true][len(took[true])/10] // the others were interrupted
}

// TestTraceCost (V1): events a step times what an event costs, for the fastest steps there
// are here, and for those that other shapes are expected to take.
func TestTraceCost(t *testing.T) {
	ns := noteCost(t)
	t.Logf("noting a message costs %.1f ns", ns)
	every := 0
	for g := trace.NewRegistry(1); ; every++ {
		if noted, others := g.Detail(uint64(every)); noted {
			every = 1 + int(others)
			break
		}
	}
	for _, c := range []struct {
		name          string
		always, layer int // messages a step: with the batch, and about its layers
		step          time.Duration
	}{
		measured(t, "krater-tiny, decode, experts inline", time.Hour),
		measured(t, "krater-tiny, decode, experts in a pool", -1),
		// On the host at 400 GB/s; beside a card that asks by letters; and of the largest
		// model, 60 layers of which are split among two memory nodes, 32 sequences beside a card.
		{"DeepSeek-V2-Lite, decode on the host", 8, 26 * 4, 2700 * time.Microsecond},
		{"DeepSeek-V2-Lite, decode beside a card", 8, 26, 1270 * time.Microsecond},
		{"Kimi K2, decode of 32 on two nodes", 8, 60 * 6, 8700 * time.Microsecond},
	} {
		step := float64(c.step.Nanoseconds())
		full := ns * float64(c.always+c.layer) / step
		usual := ns * (float64(c.always) + float64(c.layer)/float64(every)) / step
		t.Logf("%s: %d + %d messages in a step of %v: %.3f %% noted in full, %.3f %% of one batch in %d", c.name, c.always, c.layer, c.step, 100*full, 100*usual, every)
		if full > traceShareFull || usual > traceShareDefault {
			t.Errorf("%s: the trace takes %.2f %% in full and %.2f %% as a rule", c.name, 100*full, 100*usual)
		}
	}
}

type tracedStep = struct {
	name          string
	always, layer int
	step          time.Duration
}

// measured counts the messages of a decode step of krater-tiny and takes its least time.
func measured(t *testing.T, name string, inline time.Duration) tracedStep {
	t.Helper()
	r := newRig(t, setup{inline: inline, limits: stages.Limits{Tokens: 64, Seqs: 1, Blocks: 64, BlockTokens: 16}})
	c := tracedStep{name: name, step: time.Hour}
	last := time.Now()
	q := drive.Sequence{Prompt: []int32{70, 71, 72}, New: 200, See: func(int, []float32) {
		c.step, last = min(c.step, time.Since(last)), time.Now()
	}}
	if err := drive.Run(r, []*drive.Sequence{&q}, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	batches := map[uint64]bool{}
	for _, events := range tracks(t, r) {
		for _, e := range events {
			if e.Batch == 0 {
				continue
			}
			batches[e.Batch] = true
			if e.Layer < 0 {
				c.always++
			} else {
				c.layer++
			}
		}
	}
	c.always, c.layer = (c.always+len(batches)-1)/len(batches), (c.layer+len(batches)-1)/len(batches)
	c.always++ // the text of a step goes to the stream actor, which raw steps have none of
	return c
}
