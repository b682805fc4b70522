package actors

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"krater/actors/msg"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler"
	"krater/stages"
)

// scheduleNode drives the scheduler's core: it owns every request from Submit
// to Released and every batch that is not on its way. After each message it
// sends what the core decides, as far as credits (free batches) reach.
type scheduleNode struct {
	core   *scheduler.Core
	stream device.Stream
	meters *meters
	now    func() int64           // the trace's clock
	alarm  func(in time.Duration) // sends a Tick, instead of the one set before
	flight map[*msg.Batch]*flight // of every batch

	free   []*flight // the credits
	flying int       // batches on their way
	lost   []*flight // failed batches that somebody may still touch

	live  map[uint64]*record // accepted and not released
	slots []*record          // by the core's slot

	raws    []*msg.Raw // raw steps that wait for an idle pipeline
	raw     bool       // one is on its way
	rawLast uint64

	experts  *placement.Placement // nil: routed experts are where the rest is
	ahead    bool                 // the core makes batches whose tokens are still being chosen
	trace    *trace.Registry      // nil, in tests: nothing is noted of who is in a batch
	riders   []trace.Rider        // reused
	plan     stages.Batch
	outcomes []scheduler.Outcome
	filled   []*msg.Batch // to be sent at the end of this message
	deliver  *msg.Deliver
	drained  []chan struct{}
	wake     int64 // when the alarm rings; 0: not set
}

// record is what the driver keeps of a request.
type record struct {
	submit *msg.Submit
	tokens []int32 // prompt, then what was generated
	flight *flight // the batch it is in, or nil
	ahead  *flight // the batch it is in besides, which takes the token that flight chooses
	ended  bool
	told   int   // the last position of the prompt whose score was passed on
	cause  error // of its own failure
}

// flight is what the driver keeps of a batch.
type flight struct {
	batch *msg.Batch
	core  scheduler.Batch // the decision it carries; zero for a raw step
	live  int             // spans whose request has not ended
	drawn bool            // the device chooses all its tokens
	where whereabouts
	// forgets is how many actors have not yet answered that they forgot the batch.
	forgets int
}

// whereabouts of a batch.
type whereabouts uint8

const (
	here       whereabouts = iota // free
	away                          // on its way
	void                          // on its way, and off the books
	missing                       // failed; messages about it may be left
	forgetting                    // failed; those that may keep it were asked to forget it
)

func (f *flight) missing() bool { return f.where == missing }

// rawIDs is the first id of raw steps, out of the core's way.
const rawIDs = 1 << 63

func newScheduleNode(core *scheduler.Core, stream device.Stream, m *meters, h host, batches []*msg.Batch, slots int) *scheduleNode {
	n := &scheduleNode{
		core: core, stream: stream, meters: m, now: h.now, alarm: h.alarm,
		flight: map[*msg.Batch]*flight{}, live: map[uint64]*record{}, slots: make([]*record, slots),
	}
	for _, b := range batches {
		f := &flight{batch: b}
		n.flight[b] = f
		n.free = append(n.free, f)
	}
	return n
}

func (n *scheduleNode) receive(c *turn, m any) {
	now := n.now()
	switch m := m.(type) {
	case *msg.Batch:
		n.returned(m)
	case *msg.Submit:
		n.submit(m, now)
	case *msg.Cancel:
		n.core.Cancel(m.ID, m.Why)
	case *msg.Raw:
		n.raws = append(n.raws, m)
	case *msg.Failed:
		n.failed(m)
	case *msg.Forgotten:
		n.forgotten(m.Batch)
	case *msg.Tick:
		n.wake = 0
		n.core.Tick(now)
	case *msg.Drain:
		n.drain(m)
	}
	n.pump(now)
	n.retire(c)
	n.flush(c, now)
	n.arm(now)
}

// submit hands a request to the core and answers its door.
func (n *scheduleNode) submit(m *msg.Submit, now int64) {
	r := m.Request
	r.Prompt = m.Prompt
	err := n.core.Add(r, now)
	if err == nil {
		n.live[m.Request.ID] = &record{submit: m, tokens: m.Prompt}
		before, _ := n.core.Position(m.Request.ID)
		n.item(msg.Delivery{Kind: msg.DeliverQueued, ID: m.Request.ID, Output: m.Output, Count: before})
	}
	m.Reply <- err
}

// pump fills batches while the core has work and a credit is free. A raw step
// goes first, once all credits are here: it uses the same KV blocks.
func (n *scheduleNode) pump(now int64) {
	for len(n.free) > 0 {
		if n.raw || len(n.raws) > 0 && len(n.free) < len(n.flight) {
			break
		}
		if len(n.raws) > 0 {
			n.effects()
			n.fillRaw()
			continue
		}
		n.hold()
		d, ok := n.core.Next(now)
		n.effects()
		if !ok {
			return
		}
		n.fill(d)
	}
	n.effects()
}

// effects carries out what the core decided.
func (n *scheduleNode) effects() {
	for _, e := range n.core.Effects() {
		r := n.live[e.ID]
		switch e.Kind {
		case scheduler.Voided:
			n.void(e.Batch)
		case scheduler.Started:
			n.slots[e.Slot] = r
			n.item(msg.Delivery{Kind: msg.DeliverStarted, ID: e.ID, Output: r.submit.Output, Count: e.Cached})
		case scheduler.Preempted:
			n.slots[e.Slot] = nil
		case scheduler.Resumed:
			n.slots[e.Slot] = r
		case scheduler.Ended:
			r.ended = true
			for _, f := range []*flight{r.flight, r.ahead} {
				if f == nil {
					continue
				}
				if f.live--; f.live == 0 {
					f.batch.Abandoned.Store(true)
				}
			}
			cause := e.Cause
			if cause == nil {
				cause = r.cause
			}
			n.item(msg.Delivery{Kind: msg.DeliverEnded, ID: e.ID, Output: r.submit.Output, Why: e.Reason, Cause: cause})
			if e.Slot < 0 {
				delete(n.live, e.ID)
			}
		case scheduler.Released:
			delete(n.live, e.ID)
			n.slots[e.Slot] = nil
		}
	}
}

// fill takes a free state for the core's decision.
func (n *scheduleNode) fill(d scheduler.Batch) {
	f := n.take(d.Lane)
	b := f.batch
	b.ID, b.Lane, b.Epoch, b.Rows = d.ID, d.Lane, d.Epoch, b.Rows[:0]
	f.core, f.live = d, len(d.Spans)
	n.plan.Tokens, n.plan.Spans, n.plan.Take, n.plan.From = n.plan.Tokens[:0], n.plan.Spans[:0], n.plan.Take[:0], nil
	n.plan.Moves = moves(n.plan.Moves[:0], d.Moves)
	if d.After != 0 {
		n.plan.From = n.carrying(d.After).batch.State
	}
	for i := range d.Spans {
		sp := &d.Spans[i]
		r := n.slots[sp.Slot]
		if d.After != 0 {
			r.ahead = f
			n.plan.Tokens, n.plan.Take = append(n.plan.Tokens, 0), append(n.plan.Take, int32(sp.From))
		} else {
			r.flight = f
			n.plan.Tokens = append(n.plan.Tokens, r.tokens[sp.Pos:sp.Pos+sp.Len]...)
		}
		n.plan.Spans = append(n.plan.Spans, stages.Span{
			Span: device.Span{Row: sp.Row, Len: sp.Len, Pos: sp.Pos, Blocks: sp.Blocks},
			Seq:  sp.ID, Decode: sp.Decode || sp.Again, Want: sp.Last, Every: r.scores(sp),
		})
		if r.scores(sp) {
			b.Rows = r.scored(b.Rows, sp)
		}
		if sp.Last {
			b.Rows = append(b.Rows, msg.Row{Seq: sp.ID, Sampler: r.submit.Sampler})
		}
	}
	n.draws(f)
	n.note(b, d.Spans)
	if err := n.place(b, &n.plan); err != nil {
		n.refused(f, fmt.Errorf("batch %d: %w", d.ID, err))
		return
	}
	n.meters.step(d.Rows, d.Rows-d.Decode)
	n.filled = append(n.filled, b)
}

// note tells the trace who is in a batch, and settles whether it is part of the sample.
func (n *scheduleNode) note(b *msg.Batch, spans []scheduler.Span) {
	if n.trace == nil {
		return
	}
	noted, others := n.trace.Detail(b.ID)
	b.Quiet, b.Others = !noted, others
	clocked(b, noted)
	n.riders = n.riders[:0]
	for i := range spans {
		sp := &spans[i]
		n.riders = append(n.riders, trace.Rider{Request: sp.ID, Rows: uint32(sp.Len), Decode: sp.Decode})
	}
	n.trace.Roster().Note(b.ID, n.riders)
}

// scores reports whether a span has rows before tokens of the prompt that are to be scored.
func (r *record) scores(sp *scheduler.Span) bool {
	return r.submit.Request.Scored && sp.Pos+1 < r.submit.Request.PromptLen
}

// scored are the rows of a span that is scored, but for the one that a token is chosen after.
func (r *record) scored(rows []msg.Row, sp *scheduler.Span) []msg.Row {
	for at := sp.Pos + 1; at <= sp.Pos+sp.Len && at < len(r.tokens); at++ {
		rows = append(rows, msg.Row{Seq: sp.ID, Sampler: r.submit.Sampler, Scored: true, Given: r.tokens[at], At: at, Alternatives: r.submit.Scores})
	}
	return rows
}

// moves are the core's as the groups take them. It makes none of a kind that it was not given
// room for, and all state of the models served is in blocks.
func moves(dst []stages.Move, list []scheduler.Move) []stages.Move {
	kinds := [...]stages.MoveKind{scheduler.Copy: stages.Copy, scheduler.Save: stages.Save, scheduler.Load: stages.Load}
	for _, m := range list {
		dst = append(dst, stages.Move{Kind: kinds[m.Kind], From: m.From, To: m.To})
	}
	return dst
}

// carrying is the flight of a batch of the core's that is on its way, nil for none.
func (n *scheduleNode) carrying(id uint64) *flight {
	for _, f := range n.flight {
		if f.where == away && f.core.ID == id {
			return f
		}
	}
	return nil
}

// draws has the device choose the batch's tokens, if it can choose all of them.
func (n *scheduleNode) draws(f *flight) {
	n.plan.Draws = n.plan.Draws[:0]
	f.drawn = f.batch.State.Choose()
	ahead := 0
	if f.core.After != 0 {
		ahead = 1
	}
	for i := 0; f.drawn && i < len(f.batch.Rows); i++ {
		var d device.Draw
		if d, f.drawn = n.draw(&f.batch.Rows[i], ahead); f.drawn {
			n.plan.Draws = append(n.plan.Draws, d)
		}
	}
	if !f.drawn {
		n.plan.Draws = n.plan.Draws[:0]
	}
}

// draw is how a row's token is chosen after those that are known and so many more.
func (n *scheduleNode) draw(row *msg.Row, ahead int) (device.Draw, bool) {
	if row.Scored {
		return device.Draw{}, false
	}
	r := n.live[row.Seq]
	return row.Sampler.DrawAt(len(r.tokens) - r.submit.Request.PromptLen + ahead)
}

// hold tells the core which batches in flight none may be ahead of: that would take
// tokens that the device has to choose, there and here.
func (n *scheduleNode) hold() {
	if !n.ahead {
		return
	}
	for _, f := range n.flight {
		if f.where == away && f.core.ID != 0 {
			n.core.Hold(f.core.ID, !n.chains(f) || !n.spare(f.batch.Home))
		}
	}
}

// spare reports whether a credit of a lane is left: the device orders steps of one lane only.
func (n *scheduleNode) spare(home int) bool {
	return slices.ContainsFunc(n.free, func(f *flight) bool { return f.batch.Home == home })
}

// chains reports whether the device chooses all tokens of a batch, and can choose those
// after them.
func (n *scheduleNode) chains(f *flight) bool {
	if !f.drawn {
		return false
	}
	for i := range f.batch.Rows {
		row := &f.batch.Rows[i]
		if r := n.live[row.Seq]; r == nil || r.ended {
			continue
		}
		if _, ok := n.draw(row, 1); !ok {
			return false
		}
	}
	return true
}

// void takes a batch off the books whose tokens depend on one that is lost. The core knows.
// The actors still have it, and one of them brings it back or tells that it failed, too.
func (n *scheduleNode) void(id uint64) {
	f := n.carrying(id)
	if f == nil {
		return
	}
	n.land(f)
	f.batch.Abandoned.Store(true)
	f.where = void
}

// place makes a batch hold a plan. Without a stream of its own it waits for the copies:
// whoever gets the batch works on another stream. With one it must not: what a device has
// in order it has behind the batch before this one, which a wait would wait for.
func (n *scheduleNode) place(b *msg.Batch, plan *stages.Batch) error {
	plan.Lane = b.Home
	plan.Halts, b.Asks, b.Asked = halts(n.experts, plan), asks(n.experts, plan), false
	err := fill(b.State, b.On(n.stream), plan)
	if b.Stream != nil {
		return err
	}
	if err := n.stream.Synchronize(); err != nil { // after a fault too: the next batch overwrites what is copied
		panic(err)
	}
	return err
}

// fill makes an error of a copy that the device refuses: only this batch is lost.
func fill(st *stages.State, s device.Stream, plan *stages.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("inputs: %v", r)
		}
	}()
	return st.Fill(s, plan)
}

// take uses a credit: of the lane, where the device has several and one is left.
func (n *scheduleNode) take(lane int) *flight {
	i := len(n.free) - 1
	for i > 0 && n.free[i].batch.Home != lane {
		i--
	}
	f := n.free[i]
	n.free = slices.Delete(n.free, i, i+1)
	f.where = away
	n.flying++
	f.batch.Abandoned.Store(false)
	return f
}

// give returns a credit. Nobody else knows the batch any more.
func (n *scheduleNode) give(f *flight) {
	f.where, f.core, f.batch.Raw = here, scheduler.Batch{}, nil
	n.free = append(n.free, f)
}

// land takes a batch off its way.
func (n *scheduleNode) land(f *flight) {
	n.flying--
	n.raw = n.raw && f.batch.Raw == nil
	for i := range f.core.Spans {
		switch r := n.slots[f.core.Spans[i].Slot]; f {
		case r.flight:
			r.flight, r.ahead = r.ahead, nil
		case r.ahead:
			r.ahead = nil
		}
	}
}

// fillRaw takes the oldest raw step.
func (n *scheduleNode) fillRaw() {
	raw := n.raws[0]
	n.raws = slices.Delete(n.raws, 0, 1)
	if !n.core.Idle() {
		raw.Reply <- errors.New("a raw step needs a pipeline without requests")
		return
	}
	f := n.take(0)
	n.rawLast++
	n.raw = true
	n.core.Forget()
	b := f.batch
	b.ID, b.Lane, b.Raw, b.Rows, b.Quiet, b.Others = rawIDs+n.rawLast, 0, raw, b.Rows[:0], false, 0
	clocked(b, false) // who measures does so from outside
	if err := n.place(b, raw.Batch); err != nil {
		n.refused(f, err)
		return
	}
	n.filled = append(n.filled, b)
}

// returned takes back a batch that went through the whole pipeline.
func (n *scheduleNode) returned(b *msg.Batch) {
	f := n.flight[b]
	if f.where == void {
		n.gone(f)
	}
	if f.where != away {
		return // reported lost meanwhile
	}
	n.outcomes = n.outcomes[:0]
	for i := range b.Rows {
		if row := &b.Rows[i]; row.Scored {
			n.score(row)
		} else {
			n.outcomes = append(n.outcomes, n.outcome(row))
		}
	}
	n.land(f)
	if b.Raw == nil { // else the sample actor has answered
		if err := n.core.Done(b.ID, n.outcomes); err != nil {
			panic(err) // the books are wrong; nothing can be trusted
		}
		if n.deliver != nil {
			n.deliver.Batch, n.deliver.Epoch = b.ID, b.Epoch
		}
	}
	n.give(f)
}

// score passes on how likely a token of the prompt was, once: a prompt may be computed again.
func (n *scheduleNode) score(row *msg.Row) {
	r := n.live[row.Seq]
	if r.ended || row.At <= r.told || row.At >= r.submit.Request.PromptLen {
		return
	}
	if row.Err != nil {
		r.cause = row.Err
		n.core.Cancel(row.Seq, scheduler.Failed)
		return
	}
	r.told = row.At
	n.item(msg.Delivery{Kind: msg.DeliverScored, ID: row.Seq, Output: r.submit.Output, Result: row.Result})
}

// outcome notes a new token and tells what it means for its sequence.
func (n *scheduleNode) outcome(row *msg.Row) scheduler.Outcome {
	o := scheduler.Outcome{ID: row.Seq, NewTokens: 1}
	r := n.live[row.Seq]
	if r.ended {
		return o
	}
	if row.Err != nil {
		r.cause = row.Err
		o.NewTokens, o.End = 0, scheduler.Failed
		return o
	}
	r.tokens = append(r.tokens, row.Result.ID)
	o.Tokens = r.tokens[len(r.tokens)-1:]
	if row.Result.Stop {
		o.End = scheduler.Stop
	}
	n.item(msg.Delivery{Kind: msg.DeliverToken, ID: row.Seq, Output: r.submit.Output, Result: row.Result})
	return o
}

// item adds to what the stream actor gets after this message.
func (n *scheduleNode) item(d msg.Delivery) {
	n.delivery().Items = append(n.deliver.Items, d)
}

func (n *scheduleNode) delivery() *msg.Deliver {
	if n.deliver == nil {
		n.deliver = deliveries.Get().(*msg.Deliver)
	}
	return n.deliver
}

// flush sends everything that this message brought.
func (n *scheduleNode) flush(c *turn, now int64) {
	for _, b := range n.filled {
		c.send(c.routes.embed, b)
	}
	n.filled = n.filled[:0]
	if len(n.drained) > 0 && n.core.Idle() && n.flying == 0 {
		n.delivery().Drained = n.drained
		n.drained = nil
	}
	if d := n.deliver; d != nil {
		n.deliver = nil
		d.At = now
		c.send(c.routes.stream, d)
	}
	n.meters.gauges(n.core.Stats())
}

// arm sets the alarm for the next deadline or missing batch.
func (n *scheduleNode) arm(now int64) {
	at, ok := n.core.NextDeadline()
	if slices.ContainsFunc(n.lost, (*flight).missing) {
		if retry := now + int64(retireEvery); !ok || retry < at {
			at, ok = retry, true
		}
	}
	if !ok || n.wake != 0 && n.wake <= at {
		return
	}
	n.wake = at
	n.alarm(max(0, time.Duration(at-now)))
}

// drain ends admission, and with Cancel the running requests.
func (n *scheduleNode) drain(m *msg.Drain) {
	n.core.Drain()
	if m.Cancel {
		for _, id := range slices.Sorted(maps.Keys(n.live)) {
			n.core.Cancel(id, scheduler.Cancelled)
		}
	}
	if m.Done != nil {
		n.drained = append(n.drained, m.Done)
	}
}
