package scheduler

import (
	"cmp"
	"math"
	"slices"
)

// oracle is the scheduler once more, deliberately dumb: one slice of all
// sequences, everything counted and sorted anew at every step, no block ids.
type oracle struct {
	cfg      Config
	all      []*dumb // live or in flight, by arrival
	arrivals int
	batches  uint64
	epoch    uint32
	ticks    int
	draining bool
	effects  []Effect // kind, id and reason only
}

// dumb is a sequence of the oracle.
type dumb struct {
	Request
	arrival  int
	started  bool
	ended    bool
	decoding bool
	batch    uint64 // 0: idle
	span     Span   // its part of the batch
	ahead    uint64 // the batch ahead of it that it is in, too; or 0
	rowAhead int    // there
	anew     bool   // that one was lost
	made     int    // tokens generated
	have     int    // positions in the cache
	idleTick int    // order of going idle in decode
	idleAt   uint64 // batches made then
	retries  int
}

func (o *oracle) find(id uint64) *dumb {
	for _, d := range o.all {
		if d.ID == id {
			return d
		}
	}
	return nil
}

func (o *oracle) pick(keep func(*dumb) bool) []*dumb {
	var out []*dumb
	for _, d := range o.all {
		if keep(d) {
			out = append(out, d)
		}
	}
	return out
}

func (o *oracle) blocks(d *dumb) int {
	return int(math.Ceil(float64(d.PromptLen+d.MaxNew-1) / float64(o.cfg.BlockTokens)))
}

func (o *oracle) emit(k EffectKind, d *dumb, why Reason) {
	o.effects = append(o.effects, Effect{Kind: k, ID: d.ID, Reason: why})
}

func (o *oracle) add(r Request, now int64) error {
	waits := o.pick(func(d *dumb) bool { return !d.started })
	switch {
	case o.draining:
		return ErrDraining
	case r.PromptLen < 1 || r.MaxNew < 1:
		return ErrEmpty
	case o.blocks(&dumb{Request: r}) > o.cfg.Blocks:
		return ErrTooLong
	case o.find(r.ID) != nil:
		return ErrDuplicate
	case r.Deadline != 0 && now >= r.Deadline:
		return ErrExpired
	case len(waits) >= o.cfg.MaxQueue:
		return ErrQueueFull
	}
	o.all = append(o.all, &dumb{Request: r, arrival: o.arrivals})
	o.arrivals++
	return nil
}

// end finishes a sequence; an idle one goes at once.
func (o *oracle) end(d *dumb, why Reason) {
	d.ended = true
	o.emit(Ended, d, why)
	if d.batch == 0 {
		o.drop(d)
	}
}

func (o *oracle) drop(d *dumb) {
	if d.started {
		o.emit(Released, d, None)
	}
	o.all = slices.DeleteFunc(o.all, func(x *dumb) bool { return x == d })
}

func (o *oracle) cancel(id uint64, why Reason) bool {
	d := o.find(id)
	if d == nil || d.ended {
		return false
	}
	o.end(d, why)
	return true
}

func (o *oracle) drain() {
	o.draining = true
	for _, d := range o.pick(func(d *dumb) bool { return !d.started }) {
		o.end(d, Drained)
	}
}

func (o *oracle) tick(now int64) {
	for _, d := range o.pick(func(d *dumb) bool { return !d.ended && d.Deadline != 0 && d.Deadline <= now }) {
		o.end(d, Expired)
	}
}

// next returns the spans of the next batch, nil if there is none.
func (o *oracle) next(now int64) []Span {
	o.tick(now)
	flying, ahead := map[uint64]bool{}, 0
	for _, d := range o.all {
		if d.batch != 0 {
			flying[d.batch] = true
		}
		if d.ahead != 0 {
			ahead = 1
		}
	}
	places := o.cfg.Depth
	if o.cfg.Ahead {
		places--
	}
	if len(flying)+ahead >= o.cfg.Depth {
		return nil
	}
	var spans []Span
	if len(flying) < places {
		spans = o.ordinary(places)
	}
	if o.cfg.Ahead && len(spans) == 0 && len(flying) == 1 && ahead == 0 {
		spans = o.further()
	}
	if len(spans) > 0 {
		o.batches++
	}
	return spans
}

// further are the spans ahead of the only batch in flight.
func (o *oracle) further() []Span {
	free, slots := o.free()
	for _, d := range o.all {
		switch {
		case d.ended || !d.started:
		case d.batch == 0 || d.anew || !d.span.Last:
			return nil
		}
	}
	waits := o.pick(func(d *dumb) bool { return !d.started })
	slices.SortFunc(waits, inTurn)
	if len(waits) > 0 && slots > 0 && o.blocks(waits[0]) <= free {
		return nil
	}
	members := o.pick(func(d *dumb) bool { return d.batch != 0 && d.span.Last })
	slices.SortFunc(members, func(a, b *dumb) int { return a.span.Row - b.span.Row })
	var spans []Span
	for i, d := range members {
		if !d.ended && d.made+2 <= d.MaxNew {
			d.ahead, d.rowAhead = o.batches+1, len(spans)
			spans = append(spans, Span{ID: d.ID, Row: len(spans), Len: 1, Pos: d.PromptLen + d.made, Decode: true, Last: true, From: i})
		}
	}
	return spans
}

// ordinary are the spans of a batch beside at most places-1 others.
func (o *oracle) ordinary(places int) []Span {
	streams := o.pick(func(d *dumb) bool { return d.decoding && !d.ended })
	idle := o.pick(func(d *dumb) bool { return d.decoding && d.batch == 0 })
	slices.SortFunc(idle, func(a, b *dumb) int { return a.idleTick - b.idleTick })
	var spans []Span
	room := o.cfg.MaxBatchTokens
	take := func(d *dumb, n int) {
		sp := Span{ID: d.ID, Row: o.cfg.MaxBatchTokens - room, Len: n, Pos: d.have, Decode: d.decoding, Last: d.have+n == d.PromptLen+d.made, From: -1}
		d.batch, d.span = o.batches+1, sp
		spans = append(spans, sp)
		room -= n
	}
	for i, d := range idle {
		if float64(i) < math.Ceil(float64(len(streams))/float64(places)) || o.batches+1 >= d.idleAt+uint64(places) {
			take(d, 1)
		}
	}
	o.prefill(room, places, len(streams) > 0, take)
	return spans
}

// free counts blocks and slots that nobody holds.
func (o *oracle) free() (blocks, slots int) {
	holders := o.pick(func(d *dumb) bool { return d.started })
	blocks = o.cfg.Blocks
	for _, d := range holders {
		blocks -= o.blocks(d)
	}
	return blocks, o.cfg.MaxSeqs - len(holders)
}

// inTurn is the order of queue and prefill.
func inTurn(a, b *dumb) int { return cmp.Or(b.Priority-a.Priority, a.arrival-b.arrival) }

func (o *oracle) prefill(room, places int, streams bool, take func(*dumb, int)) {
	free, slots := o.free()
	waits := len(o.pick(func(d *dumb) bool { return !d.started }))
	prompts := len(o.pick(func(d *dumb) bool { return d.started && !d.decoding && !d.ended }))
	quota := int(math.Ceil(float64(prompts+min(waits, slots)) / float64(places)))
	if streams {
		room = min(room, o.cfg.PrefillShare)
	}
	line := o.pick(func(d *dumb) bool { return !d.decoding && d.batch == 0 })
	slices.SortFunc(line, inTurn)
	stuck := false
	for _, d := range line {
		if room == 0 || quota == 0 {
			return
		}
		if !d.started {
			if stuck || slots == 0 || o.blocks(d) > free {
				stuck = true
				continue
			}
			d.started = true
			slots--
			free -= o.blocks(d)
			o.emit(Started, d, None)
		}
		n := min(d.PromptLen+d.made-d.have, o.cfg.PrefillChunk, room)
		take(d, n)
		room -= n
		quota--
	}
}

// done takes the outcomes by id.
func (o *oracle) done(batch uint64, outcomes map[uint64]Outcome) {
	members := o.pick(func(d *dumb) bool { return d.batch == batch })
	slices.SortFunc(members, func(a, b *dumb) int { return a.span.Row - b.span.Row })
	for _, d := range members {
		d.batch, d.ahead = d.ahead, 0
		out, sp := outcomes[d.ID], d.span
		if d.batch != 0 {
			d.span = Span{Row: d.rowAhead, Len: 1, Last: true}
		}
		switch {
		case d.ended && d.batch == 0:
			o.drop(d)
		case d.ended:
		case !sp.Last:
			d.have += sp.Len
		default:
			d.made += out.NewTokens
			d.have = d.PromptLen + d.made - 1
			d.decoding = true
			if d.anew {
				d.have, d.decoding, d.anew = 0, false, false
			}
			d.idleTick, d.idleAt = o.ticks, o.batches
			o.ticks++
			if out.End != None {
				o.end(d, out.End)
			} else if d.made == d.MaxNew {
				o.end(d, Length)
			}
		}
	}
}

func (o *oracle) fail(batch uint64, retry bool) {
	for _, d := range o.all {
		if d.batch == batch && d.ahead != 0 {
			o.effects = append(o.effects, Effect{Kind: Voided, Batch: d.ahead})
			break
		}
	}
	for _, d := range o.pick(func(d *dumb) bool { return d.ahead == batch }) {
		d.ahead = 0
		if !d.ended && retry && d.retries < o.cfg.MaxRetries {
			d.retries++
			d.anew = true
		} else if !d.ended {
			o.end(d, Failed)
		}
	}
	o.lose(o.pick(func(d *dumb) bool { return d.batch == batch }), retry)
}

func (o *oracle) restart(retry bool) {
	o.epoch++
	o.lose(o.pick(func(d *dumb) bool { return d.started }), retry)
}

func (o *oracle) lose(who []*dumb, retry bool) {
	for _, d := range who {
		d.batch, d.ahead = 0, 0
		switch {
		case d.ended:
			o.drop(d)
		case !retry || !d.anew && d.retries == o.cfg.MaxRetries:
			o.end(d, Failed)
		default:
			if !d.anew {
				d.retries++
			}
			d.have, d.decoding, d.anew = 0, false, false
		}
	}
}
