package placement

import (
	"errors"
	"slices"
	"time"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/scheduler/learn"
)

// pool is the slots of a strategy that learns (dispatch.Start.Learns). Between two steps it has experts
// that routers chose recently copied into the slots of others. A step finds experts by tables that change
// between steps only: an expert leaves its table before a copy into its slot begins, and one that comes
// enters it when its copy has ended. So no step waits for a copy, and none reads a slot that is written.
type pool struct {
	learner *learn.Learner
	served  served
	first   int32         // its first slot
	last    int32         // the slot after its last one
	tables  device.Stream // of an accelerator: of its tables, in one order with steps; nil on other devices
	there   [][]int32     // [layers][experts] the slots that a step finds; below 0: none
	reads   [dispatch.Phases]bool
	coming  []coming
	budget  budget
	timing  device.Timing
	link    link

	moves   []learn.Move    // reused
	changed []bool          // reused: [layers] whose tables differ from the device's
	row     []int32         // reused
	all     []dispatch.Load // to be copied
}

// coming lists experts of one layer whose copies are in flight.
type coming struct {
	loads []dispatch.Load
	at    device.Event
	span  device.TimedSpan // of their copies; without timestamps: the device has no clock
}

// promptWorth is the largest number of tokens of a prompt that count. Choices for a prompt matter only until
// there are choices for its answer.
const promptWorth = 64

// newPool makes the pool of a side whose experts lie where they begin.
func (p *Placement) newPool(side *side, now func() time.Duration) (err error) {
	n := len(p.setup.Layers)
	q := &pool{first: side.first, last: side.first + int32(side.settled.Start.Slots), changed: make([]bool, n), budget: budget{now: now}}
	if q.learner, err = learn.New(n*p.setup.Experts, side.settled.Start.Slots, learn.Options{}); err != nil {
		return err
	}
	q.learner.Expect(p.expected())
	if p.accel {
		if q.tables, err = p.dev.NewStream(); err != nil {
			return err
		}
	}
	p.pool = q
	for _, layer := range p.setup.Layers {
		row := make([]int32, p.setup.Experts)
		for e := range row {
			slot, ok := p.residency.Slot(dispatch.Key{Layer: layer, Expert: int32(e)})
			if row[e] = -1; ok {
				row[e] = slot
			}
		}
		q.there = append(q.there, row)
		for phase := range dispatch.Phases {
			q.reads[phase] = q.reads[phase] || p.sides[phase] == side || p.accel && slices.ContainsFunc(p.views[phase].Slots(int(layer)), q.owns)
		}
	}
	if side.settled.Start.Lends() && p.loan.lends {
		q.reads[dispatch.Prefill] = false // its tables are made anew when it borrows
	}
	return p.newLink(q)
}

// expected is how often a token is expected to choose each expert, by heat; nil where that is not known.
func (p *Placement) expected() (list []float64) {
	for _, counts := range p.setup.Heat {
		sum := 0.0
		for _, n := range counts {
			sum += float64(n)
		}
		for _, n := range counts {
			list = append(list, float64(p.topK)*float64(n)/max(1, sum))
		}
	}
	return list
}

// owns reports whether a slot is one of the pool's.
func (q *pool) owns(slot int32) bool { return slot >= q.first && slot < q.last }

// slots is how many it has.
func (q *pool) slots() int { return int(q.last - q.first) }

// close ends the pool's stream.
func (q *pool) close() {
	if q == nil || q.tables == nil {
		return
	}
	defer q.link.on.Close()
	_ = q.tables.Synchronize() // other calls report what fails
	q.tables.Close()
}

// Learns reports whether experts move between steps. Then the caller must pass the choices of every step
// to Note or Run, and must call Learn before each step.
func (p *Placement) Learns() bool { return p.pool != nil }

// Note counts the choices of a step that has ended, if Run has not seen them: routes returns the experts
// that the router of a layer of the model chose [rows, K].
func (p *Placement) Note(rows int, routes func(layer int) []int32) {
	if p.pool == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	worth := p.worth(rows)
	for i, layer := range p.setup.Layers {
		from, chosen := int32(i*p.setup.Experts), routes(int(layer))
		for _, e := range chosen {
			p.pool.learner.Count(from+e, worth)
		}
		if p.Phase(rows) == dispatch.Decode {
			p.noteLink(i, chosen)
		}
	}
}

// count is Note for the work of a layer in a step of that many rows.
func (p *Placement) count(index, rows int, work []device.ExpertRows) {
	if p.pool == nil {
		return
	}
	from, worth := int32(index*p.setup.Experts), p.worth(rows)
	for i := range work {
		p.pool.learner.Count(from+work[i].Expert, worth*float64(len(work[i].Assign)))
	}
}

// worth returns the weight of a row of a step.
func (p *Placement) worth(rows int) float64 {
	if p.Phase(rows) == dispatch.Decode {
		return 1
	}
	return min(1, promptWorth/float64(rows))
}

// Learn moves experts before a batch with the given number of rows. It must be called after Enter and
// before the batch is enqueued. quiet says that no other batch is partly enqueued; otherwise Learn moves
// no experts. The batch can use experts whose copies have ended, and further copies begin. A slot whose
// copy the device refuses is free afterwards. After an error the device's tables may be wrong, and the
// batch must not run.
func (p *Placement) Learn(rows int, quiet bool) (err error) {
	if p.pool == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer recovered(&err)
	p.pool.learner.Pass(float64(rows) * p.worth(rows))
	if p.Phase(rows) == dispatch.Prefill || p.loan.out {
		p.pool.budget.pause()
		p.pool.served.pause()
		return nil
	}
	took := p.pool.budget.step()
	p.serve(rows)
	if !quiet {
		return nil
	}
	p.arrive()
	p.divide(rows, took)
	if len(p.pool.coming)+len(p.pool.all) == 0 {
		p.choose()
	}
	leaving, err := p.publish()
	if err != nil || p.pool.tables == nil {
		return err
	}
	if leaving != nil {
		p.line.copies.Wait(leaving)
	}
	p.fetch(len(p.pool.all))
	return nil
}

// arrive enters experts whose copies have ended into the tables.
func (p *Placement) arrive() {
	q := p.pool
	left := q.coming[:0]
	for i := range q.coming {
		c := q.coming[i]
		if !p.ended(&c) {
			left = append(left, c)
			continue
		}
		q.budget.copied(&c.span)
		p.enter(&c)
	}
	clear(q.coming[len(left):])
	q.coming = left
}

// enter puts experts that have come into the tables.
func (p *Placement) enter(c *coming) {
	for _, l := range c.loads {
		i := p.index[int(l.Layer)]
		p.pool.there[i][l.Expert] = l.Slot
		p.pool.changed[i] = true
	}
	if c.span.From != nil {
		c.span.Release()
	}
}

// pollMost bounds how often a copy is asked for, on devices that make a step of progress each time.
const pollMost = 64

// ended reports whether copies have ended. On a device with a time line of its own the host must not
// wait for that, nor move the time on by asking.
func (p *Placement) ended(c *coming) bool {
	if p.accel {
		return c.at.Done()
	}
	if c.span.To != nil {
		now := p.line.work.Clock().Timestamp()
		var ago [1]time.Duration
		now.Ago([]device.Timestamp{c.span.To}, ago[:])
		now.Release()
		if ago[0] != device.NotPassed && ago[0] != device.Never {
			return ago[0] >= 0
		}
	}
	for range pollMost {
		if c.at.Done() {
			return true
		}
	}
	return false
}

// choose decides what moves, and takes what leaves out of the tables. The copies are in q.all.
func (p *Placement) choose() {
	q := p.pool
	free := p.vacant()
	resident := func(e int32) bool {
		_, k := p.expert(e)
		slot, ok := p.residency.Slot(k)
		return ok && !slices.Contains(q.link.spare, slot)
	}
	most := q.budget.experts(p.setup.Bytes, int(q.last-q.first))
	q.moves = q.learner.Moves(q.moves[:0], most, len(free), resident, p.movable)
	q.all = q.all[:0]
	for _, v := range q.moves {
		_, k := p.expert(v.Load)
		l := dispatch.Load{Key: k}
		if v.Evict < 0 {
			l.Slot, free = free[0], free[1:]
		} else {
			i, old := p.expert(v.Evict)
			l.Slot = q.there[i][old.Expert]
			q.there[i][old.Expert] = -1
			q.changed[i] = true
		}
		if !p.adopt(k, l.Slot) {
			q.all = append(q.all, l)
		}
	}
	slices.SortFunc(q.all, func(a, b dispatch.Load) int { return int(a.Layer - b.Layer) })
}

// expert returns the expert with a number of the learner, and the index of its layer.
func (p *Placement) expert(e int32) (index int, k dispatch.Key) {
	index = int(e) / p.setup.Experts
	return index, dispatch.Key{Layer: p.setup.Layers[index], Expert: e % int32(p.setup.Experts)}
}

// movable reports whether an expert is in a slot of the pool, from which it can be moved.
func (p *Placement) movable(e int32) bool {
	i, k := p.expert(e)
	return p.pool.owns(p.pool.there[i][k.Expert])
}

// vacant lists the slots in which no expert is, nor will be, and which are neither spare nor KV blocks'.
func (p *Placement) vacant() (free []int32) {
	q := p.pool
	for slot := q.first; slot < q.last; slot++ {
		taken := p.exchange.has(slot) || slices.ContainsFunc(q.all, func(l dispatch.Load) bool { return l.Slot == slot }) || slices.Contains(q.link.spare, slot)
		if _, ok := p.residency.At(slot); !ok && !taken {
			free = append(free, slot)
		}
	}
	return free
}

// publish gives an accelerator the tables that have changed, and returns the point from which on no step
// reads what has left them; nil if nothing has changed. On other devices copies wait for the work that has used their
// slots, and trickle has them enqueued.
func (p *Placement) publish() (device.Event, error) {
	q := p.pool
	if q.tables == nil {
		clear(q.changed)
		return nil, nil
	}
	if !slices.Contains(q.changed, true) && q.link.sent {
		return nil, nil
	}
	p.sendLink(q.tables)
	for i, layer := range p.setup.Layers {
		for phase := range dispatch.Phases {
			if !q.changed[i] || !q.reads[phase] {
				continue
			}
			q.row = append(q.row[:0], p.views[phase].Slots(int(layer))...)
			for e, slot := range q.there[i] {
				if q.owns(q.row[e]) || q.owns(slot) {
					q.row[e] = slot
				}
			}
			p.views[phase].Set(q.tables, int(layer), q.row)
		}
	}
	e := q.tables.Record()
	if err := e.Err(); err != nil {
		for i, layer := range p.setup.Layers {
			for phase := range dispatch.Phases {
				if q.changed[i] {
					p.doubt(int(layer), phase)
				}
			}
		}
		if q.link.on != nil {
			q.link.on.Doubt()
			q.link.sent = false
		}
		for _, l := range q.all { // its expert has left the tables, and nothing comes
			p.vacateSlot(l.Slot)
		}
		q.all = q.all[:0]
		return nil, errors.Join(err, q.tables.Recover())
	}
	clear(q.changed)
	return e, nil
}

// trickle enqueues one copy while the host computes experts of a layer, so that the rows which it returns then do
// not wait for the link. An accelerator's host returns rows otherwise.
func (p *Placement) trickle() {
	if q := p.pool; q != nil && q.tables == nil && len(q.all) > 0 && !p.loan.out && len(p.decision.Host) > 1 {
		p.fetch(1)
	}
}

// fetch enqueues the first n copies of q.all.
func (p *Placement) fetch(n int) {
	q := p.pool
	rest := q.all[n:]
	list := slices.DeleteFunc(q.all[:n:n], func(l dispatch.Load) bool { return p.adopt(l.Key, l.Slot) }) // a step has copied it since
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Layer == list[0].Layer {
			n++
		}
		c := coming{loads: slices.Clone(list[:n])}
		done, err := p.bring(c.loads, &q.timing)
		p.stats[dispatch.Decode].Copies += int64(done)
		p.stats[dispatch.Decode].CopiedBytes += int64(done) * p.setup.Bytes
		for _, l := range c.loads[done:] { // what was there before is in no table any more
			p.vacateSlot(l.Slot)
		}
		if c.loads = c.loads[:done]; done > 0 {
			c.at = p.line.slots[c.loads[0].Slot].loaded
			if len(q.timing.Spans) > 0 {
				c.span, q.timing.Spans = q.timing.Spans[0], q.timing.Spans[:0]
			}
			q.coming = append(q.coming, c)
		}
		q.timing.Drop()
		if err != nil {
			q.budget.refused++
		}
		list = list[n:]
	}
	q.all = q.all[:copy(q.all, rest)]
}

// bring enqueues copies and returns how many. A device's panic is an error.
func (p *Placement) bring(loads []dispatch.Load, timing *device.Timing) (done int, err error) {
	defer func() {
		if err == nil {
			return
		}
		done = 0
		for done < len(loads) {
			if slot, ok := p.residency.Slot(loads[done].Key); !ok || slot != loads[done].Slot {
				break
			}
			done++
		}
	}()
	defer recovered(&err)
	return p.line.load(p.residency, loads, timing)
}

// settlePool has all that comes be there for s, before its slots are lent.
func (p *Placement) settlePool(s device.Stream) {
	q := p.pool
	for i := range q.coming {
		if c := &q.coming[i]; p.accel {
			s.Wait(c.at)
		}
		p.enter(&q.coming[i])
	}
	clear(q.coming)
	q.coming = q.coming[:0]
	for _, l := range q.all { // its copy has not begun
		p.vacateSlot(l.Slot)
	}
	for _, slot := range q.link.spare {
		p.vacateSlot(slot)
	}
	q.all = q.all[:0]
}
