package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/sample"
)

// post notes what a node sends.
type post struct {
	to   []string
	msgs []any
	on   func(to string, m any) // at the moment of sending; may be nil
}

// slot is an address of a post.
type slot struct {
	actor string
	p     *post
}

func (s slot) name() string { return s.actor }

// post implements address.
func (s slot) post(m any, _ *worker) {
	s.p.to, s.p.msgs = append(s.p.to, s.actor), append(s.p.msgs, m)
	if s.p.on != nil {
		s.p.on(s.actor, m)
	}
}

// solo makes a turn of a pipeline with the given numbers of groups and pools. Its messages go
// to p.
func solo(p *post, groups, pools int) *turn {
	pid := func(name string) address { return slot{name, p} }
	r := &routes{schedule: pid("schedule"), embed: pid("embed"), head: pid("head"), sample: pid("sample"), stream: pid("stream")}
	for i := range groups {
		r.groups = append(r.groups, pid(fmt.Sprint("group", i)))
		r.splits = append(r.splits, pid(fmt.Sprint("split", i)))
		r.merges = append(r.merges, pid(fmt.Sprint("merge", i)))
		r.keep = append(r.keep, r.groups[i], r.merges[i])
		r.links = append(r.links, pid(fmt.Sprint("link", i)))
	}
	for i := range pools {
		r.pools = append(r.pools, pid(fmt.Sprint("pool", i)))
	}
	return &turn{routes: r, ring: trace.NewRegistry(16).Ring("solo"), event: &trace.Event{}, now: trace.Now, log: new(zerolog.Logger)}
}

// TestSplitLetsGo: with its last part the work has a new owner, which may fill it
// again; the split must not read it any more.
func TestSplitLetsGo(t *testing.T) {
	b := msg.NewBatch(3, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
	w := &b.Work
	w.Layer, w.Rows = 4, []device.ExpertRows{{Expert: 0, Assign: []int32{1}}, {Expert: 4, Assign: []int32{0, 2}}}
	p := &post{}
	p.on = func(string, any) {
		if len(p.msgs) == w.Expect {
			for i := range w.Parts { // as another layer's split would
				w.Parts[i].Rows = []device.ExpertRows{{Expert: 1}}
			}
			w.Expect = 3
		}
	}
	c := solo(p, 1, 3)
	newSplitNode(expert.Even(6, 3), 10).receive(c, w)
	if !slices.Equal(p.to, []string{"pool0", "pool1"}) || c.event.Parts != 2 {
		t.Errorf("sent to %v, %d parts in the trace", p.to, c.event.Parts)
	}
	if !b.Held() {
		t.Error("parts are in flight and do not hold the batch")
	}
	for _, m := range p.msgs {
		m.(msg.Holding).Release()
	}
	if b.Held() {
		t.Error("all parts are handled and the batch is held")
	}
}

// TestMergeCountsParts in any order, of several batches, with and without causes.
func TestMergeCountsParts(t *testing.T) {
	p := &post{}
	c := solo(p, 2, 3)
	n := newMergeNode()
	var batches []*msg.Batch
	for i := range 2 {
		b := msg.NewBatch(3, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
		b.Work.Layer, b.Work.Group, b.Work.Expect = 7+i, i, 2
		batches = append(batches, b)
	}
	broken := errors.New("broken")
	batches[1].Work.Parts[2].Cause = broken
	for _, part := range []*msg.Part{&batches[1].Work.Parts[2], &batches[0].Work.Parts[1], &batches[0].Work.Parts[0], &batches[1].Work.Parts[0]} {
		n.receive(c, part)
	}
	if !slices.Equal(p.to, []string{"group0", "group1"}) || len(n.held()) != 0 {
		t.Fatalf("sent to %v, holds %d", p.to, len(n.held()))
	}
	for i, cause := range []error{nil, broken} {
		if m := p.msgs[i].(*msg.Merged); m.Batch != batches[i] || m.Layer != 7+i || !errors.Is(m.Cause, cause) {
			t.Errorf("merged %+v", m)
		}
	}
	// A batch that failed elsewhere is forgotten with the parts that came.
	n.receive(c, &batches[0].Work.Parts[0])
	if len(n.held()) != 1 {
		t.Errorf("holds %d", len(n.held()))
	}
	n.receive(c, &msg.Forget{Batch: batches[0]})
	if len(n.held()) != 0 || p.to[2] != "schedule" || p.msgs[2].(*msg.Forgotten).Batch != batches[0] {
		t.Errorf("holds %d, sent %v", len(n.held()), p.to)
	}
}

// counted is a stream that counts how often it is recovered.
type counted struct {
	device.Stream
	recovered int
}

func (c *counted) Recover() error {
	c.recovered++
	return nil
}

// TestGroupDropsWhatItForgot: the merge's answer for a batch that failed
// meanwhile changes nothing, nor does what was enqueued for it.
func TestGroupDropsWhatItForgot(t *testing.T) {
	p := &post{}
	c := solo(p, 1, 1)
	b := msg.NewBatch(1, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
	s := &counted{}
	n := &groupNode{open: []*msg.Batch{b}, stream: s}
	n.receive(c, &msg.Forget{Batch: b})
	if s.recovered != 1 {
		t.Errorf("the stream is recovered %d times from what is enqueued", s.recovered)
	}
	n.receive(c, &b.Merged)
	if !slices.Equal(p.to, []string{"schedule"}) || len(n.held()) != 0 {
		t.Errorf("sent to %v, holds %d", p.to, len(n.held()))
	}
	// A part's cause is told, with the batch struck off.
	n.open = append(n.open, b)
	b.Merged.Cause = errors.New("broken")
	n.receive(c, &b.Merged)
	if f, ok := p.msgs[1].(*msg.Failed); !ok || f.Batch != b || f.Cause != b.Merged.Cause || len(n.held()) != 0 {
		t.Errorf("sent %+v, holds %d", p.msgs[1], len(n.held()))
	}
}

// brokenOutput panics where it is told to.
type brokenOutput struct {
	at      string
	calls   []string
	aborted error
}

func (o *brokenOutput) call(name string) {
	o.calls = append(o.calls, name)
	if o.at == name {
		panic("injected")
	}
}

func (o *brokenOutput) Queued(int)           { o.call("queued") }
func (o *brokenOutput) Started(int64, int)   { o.call("started") }
func (o *brokenOutput) Prefilled(int)        { o.call("prefilled") }
func (o *brokenOutput) Scored(sample.Result) { o.call("scored") }
func (o *brokenOutput) Token(sample.Result, int64) bool {
	o.call("token")
	return false
}

func (o *brokenOutput) Ended(scheduler.Reason, error, int64) trace.Event {
	o.call("ended")
	return trace.Event{}
}

func (o *brokenOutput) Abort(cause error) { o.aborted = cause }

// TestStreamKeepsRequestsApart: text that breaks the detokeniser ends its own
// request; the others in the message get theirs, ends included.
func TestStreamKeepsRequestsApart(t *testing.T) {
	for _, at := range []string{"queued", "started", "token", "ended"} {
		p := &post{}
		c := solo(p, 1, 1)
		c.log = &zerolog.Logger{}
		bad, good := &brokenOutput{at: at}, &brokenOutput{}
		d := &msg.Deliver{Drained: []chan struct{}{make(chan struct{})}}
		done := d.Drained[0]
		for _, k := range []msg.DeliveryKind{msg.DeliverQueued, msg.DeliverStarted, msg.DeliverToken, msg.DeliverEnded} {
			d.Items = append(d.Items, msg.Delivery{Kind: k, ID: 1, Output: bad}, msg.Delivery{Kind: k, ID: 2, Output: good})
		}
		streamNode{}.receive(c, d)
		if want := []string{"queued", "started", "token", "ended"}; !slices.Equal(good.calls, want) || good.aborted != nil {
			t.Errorf("%s: the other request got %v, aborted %v", at, good.calls, good.aborted)
		}
		if bad.aborted == nil || len(p.msgs) != 1 || *p.msgs[0].(*msg.Cancel) != (msg.Cancel{ID: 1, Why: scheduler.Failed}) {
			t.Errorf("%s: aborted %v, sent %v", at, bad.aborted, p.msgs)
		}
		select {
		case <-done:
		default:
			t.Errorf("%s: drained is not told", at)
		}
	}
}

// TestDrainedIsTheLast: a drain is over when the reader can see the last event,
// not when the scheduler knows of it.
func TestDrainedIsTheLast(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), limits: small(2)}.defaults()
	l := loadModel(t, o)
	for seed := range uint64(20) {
		s := newSim(t, l, seed, o)
		gw := l.open(t, s.p)
		st, err := gw.Submit(context.Background(), greedy([]int32{5}, 2))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		s.p.host.send(s.p.routes.schedule, &msg.Drain{Done: done})
		for over := false; !over; {
			if !s.step() {
				t.Fatal("it was not drained")
			}
			select {
			case <-done:
				over = true
			default:
			}
		}
		if _, last := ending(t, drainEvents(t, st)); last.Finish != engine.FinishLength {
			t.Errorf("seed %d: ended with %+v", seed, last)
		}
		if err := s.run(); err != nil {
			t.Error(err)
		}
		s.p.halt()
	}
}

// TestServeKeepsItsStep: a pool that reads of a step when the batch is in the next one learns of
// the step that it was sent for, so that it never serves one twice.
func TestServeKeepsItsStep(t *testing.T) {
	b := msg.NewBatch(2, &stages.State{Step: new(stages.Step), Rows: new(stages.Rows)})
	b.ID = 7
	first := msg.NewServe(b, 0, 1)
	b.ID = 8
	second := msg.NewServe(b, 0, 2)
	var e, f trace.Event
	first.Describe(&e)
	second.Describe(&f)
	if first.Step != 1 || second.Step != 2 || e.Batch != 7 || f.Batch != 8 || e.Layer != -1 {
		t.Errorf("steps %d, %d of batches %d, %d", first.Step, second.Step, e.Batch, f.Batch)
	}
}
