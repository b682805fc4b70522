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
	flying := map[uint64]bool{}
	for _, d := range o.all {
		if d.batch != 0 {
			flying[d.batch] = true
		}
	}
	if len(flying) >= o.cfg.Depth {
		return nil
	}
	streams := o.pick(func(d *dumb) bool { return d.decoding && !d.ended })
	idle := o.pick(func(d *dumb) bool { return d.decoding && d.batch == 0 })
	slices.SortFunc(idle, func(a, b *dumb) int { return a.idleTick - b.idleTick })
	var spans []Span
	room := o.cfg.MaxBatchTokens
	take := func(d *dumb, n int) {
		sp := Span{ID: d.ID, Row: o.cfg.MaxBatchTokens - room, Len: n, Pos: d.have, Decode: d.decoding, Last: d.have+n == d.PromptLen+d.made}
		d.batch, d.span = o.batches+1, sp
		spans = append(spans, sp)
		room -= n
	}
	for i, d := range idle {
		if float64(i) < math.Ceil(float64(len(streams))/float64(o.cfg.Depth)) || o.batches+1 >= d.idleAt+uint64(o.cfg.Depth) {
			take(d, 1)
		}
	}
	o.prefill(room, len(streams) > 0, take)
	if len(spans) > 0 {
		o.batches++
	}
	return spans
}

func (o *oracle) prefill(room int, streams bool, take func(*dumb, int)) {
	holders := o.pick(func(d *dumb) bool { return d.started })
	free := o.cfg.Blocks
	for _, d := range holders {
		free -= o.blocks(d)
	}
	slots := o.cfg.MaxSeqs - len(holders)
	waits := len(o.pick(func(d *dumb) bool { return !d.started }))
	prompts := len(o.pick(func(d *dumb) bool { return d.started && !d.decoding && !d.ended }))
	quota := int(math.Ceil(float64(prompts+min(waits, slots)) / float64(o.cfg.Depth)))
	if streams {
		room = min(room, o.cfg.PrefillShare)
	}
	line := o.pick(func(d *dumb) bool { return !d.decoding && d.batch == 0 })
	slices.SortFunc(line, func(a, b *dumb) int {
		return cmp.Or(b.Priority-a.Priority, a.arrival-b.arrival)
	})
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
		d.batch = 0
		switch out := outcomes[d.ID]; {
		case d.ended:
			o.drop(d)
		case !d.span.Last:
			d.have += d.span.Len
		default:
			d.made += out.NewTokens
			d.have = d.PromptLen + d.made - 1
			d.decoding = true
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
	o.lose(o.pick(func(d *dumb) bool { return d.batch == batch }), retry)
}

func (o *oracle) restart(retry bool) {
	o.epoch++
	o.lose(o.pick(func(d *dumb) bool { return d.started }), retry)
}

func (o *oracle) lose(who []*dumb, retry bool) {
	for _, d := range who {
		d.batch = 0
		switch {
		case d.ended:
			o.drop(d)
		case !retry || d.retries == o.cfg.MaxRetries:
			o.end(d, Failed)
		default:
			d.retries++
			d.have, d.decoding = 0, false
		}
	}
}
