//go:build !race

package actors

import (
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
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

// noteCost returns the cost of noting a message, in nanoseconds: the time to handle and send a noted
// message, less the time for one that is not noted.
func noteCost(t *testing.T) float64 {
	t.Helper()
	p := &Pipeline{trace: trace.NewRegistry(traceEvents), host: &deskHost{}}
	log := zerolog.Nop()
	s := &shell{name: "a", kind: trace.Experts, node: forward{nobody{}}}
	s.turn = turn{routes: &p.routes, log: &log, ring: p.trace.Ring("a"), event: &s.event, now: trace.Now}
	b := msg.NewBatch(1, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
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

// timestampCost is the time that one timestamp costs a GPU: to read its clock, and to return the
// reading. It is the value of kernels/cuda.
const timestampCost = 2700 * time.Nanosecond

// still is a timestamp of a device whose clock stands still.
type still struct{}

func (still) Ago(_ []device.Timestamp, ago []time.Duration) { clear(ago) }
func (still) Release()                                      {}

// looks is a stream of such a device.
type looks struct{ device.Stream }

func (x looks) Clock() device.Clock                              { return x }
func (looks) Timestamp() device.Timestamp                        { return still{} }
func (looks) WaitTimed(device.Event) (from, to device.Timestamp) { return still{}, still{} }
func (looks) Cost() time.Duration                                { return timestampCost }

// spanCost returns the cost of recording a copy, or a wait for one, in nanoseconds: the time to sort
// and note it, and the timestamps at its beginning and end.
func spanCost(t *testing.T) float64 {
	t.Helper()
	n := copyTimes{copies: trace.NewRegistry(traceEvents).Ring("copies")}
	card := trace.NewRegistry(traceEvents).Ring("card")
	b := &msg.Batch{Local: new(msg.Local)}
	const spans, steps = 52, 200
	var took []float64
	for range 200 {
		start := time.Now()
		for range steps {
			for i := range spans {
				b.Timing.Spans = append(b.Timing.Spans, device.TimedSpan{Kind: []device.TimedKind{device.CopyIn, device.CopyWait}[i%2], Layer: i / 2, From: still{}, To: still{}})
			}
			for _, e := range n.note(b, 0, trace.Event{}, still{}, 1) {
				card.Record(&e)
			}
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/steps/spans)
	}
	slices.Sort(took)
	return took[len(took)/10] + 2*float64(timestampCost.Nanoseconds())
}

// TestTraceCost (V1): events a step times what an event costs, for the fastest steps there
// are here, and for those that other shapes are expected to take.
func TestTraceCost(t *testing.T) {
	ns, span := noteCost(t), spanCost(t)
	t.Logf("noting a message costs %.1f ns, a copy or a wait %.1f", ns, span)
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
		spans         int // copies, and waits for them
	}{
		measured(t, "krater-tiny, decode, experts inline", time.Hour),
		measured(t, "krater-tiny, decode, experts in a pool", -1),
		// On the host at 400 GB/s; beside a GPU that makes host calls; and of the largest
		// model, 60 layers of which are split among two memory nodes, 32 sequences beside a GPU.
		// A pool notes two to four phases of a layer beside the message.
		{"DeepSeek-V2-Lite, decode on the host", 8, 26 * (4 + 2), 2700 * time.Microsecond, 0},
		{"DeepSeek-V2-Lite, decode beside a GPU", 8, 26 * (1 + 4), 1270 * time.Microsecond, 0},
		{"Kimi K2, decode of 32 on two nodes", 8, 60 * (6 + 2*4), 8700 * time.Microsecond, 0},
		// A link of 50 GB/s brings half of the experts of every layer.
		{"DeepSeek-V2-Lite, decode with copies", 8, 26 * 2, 7 * time.Millisecond, 26 * 2},
	} {
		step := float64(c.step.Nanoseconds())
		// The first step has all spans, the next as many as those may cost.
		l := device.Timing{Spans: make([]device.TimedSpan, c.spans)}
		l.Next(c.step, timestampCost, timingShare)
		l.Spans = l.Spans[:0]
		for i := range c.spans {
			at := l.Begin(looks{}, i/2)
			l.End(looks{}, at, device.TimedSpan{})
		}
		detail := ns*float64(c.layer) + span*float64(len(l.Spans))
		full := (ns*float64(c.always) + detail) / step
		usual := (ns*float64(c.always) + detail/float64(every)) / step
		t.Logf("%s: %d + %d messages, %d of %d copies and waits in a step of %v: %.3f %% noted in full, %.3f %% of one batch in %d",
			c.name, c.always, c.layer, len(l.Spans), c.spans, c.step, 100*full, 100*usual, every)
		if full > traceShareFull || usual > traceShareDefault {
			t.Errorf("%s: the trace takes %.2f %% in full and %.2f %% as a rule", c.name, 100*full, 100*usual)
		}
	}
}

type tracedStep = struct {
	name          string
	always, layer int
	step          time.Duration
	spans         int
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
