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
	ticks    int
	draining bool
	effects  []Effect       // kind, id and reason only
	microOf  map[uint64]int // of a batch
	held     map[uint64]bool
	lost     map[uint64]bool // batches that a device may still work on
}

// dumb is a sequence of the oracle.
type dumb struct {
	Request
	arrival  int
	started  bool
	ended    bool
	decoding bool
	micro    int    // of a stream
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

// streams returns the streams of a micro-batch, or of all micro-batches if micro is -1.
func (o *oracle) streams(micro int) []*dumb {
	return o.pick(func(d *dumb) bool {
		stream := !d.ended && (d.batch == 0 && d.decoding || d.batch != 0 && d.span.Last)
		return stream && (micro < 0 || d.micro == micro)
	})
}

// in are the sequences of a micro-batch that are in flight.
func (o *oracle) in(micro int) []*dumb {
	return o.pick(func(d *dumb) bool { return d.batch != 0 && o.microOf[d.batch] == micro })
}

// even returns the size of one part if n is divided evenly, rounded up.
func even(n, parts int) int { return int(math.Ceil(float64(n) / float64(parts))) }

// idle are the streams that wait, the one that waits longest first.
func (o *oracle) idle() []*dumb {
	idle := o.pick(func(d *dumb) bool { return d.decoding && d.batch == 0 })
	slices.SortFunc(idle, func(a, b *dumb) int { return a.idleTick - b.idleTick })
	return idle
}

// overdue reports whether too many batches went by without an idle stream.
func (o *oracle) overdue(d *dumb) bool {
	most := o.cfg.MicroBatches - 1
	if o.cfg.Ahead {
		most *= 2
	}
	return o.batches >= d.idleAt+uint64(most)
}

// next returns the spans of the next batch and its micro-batch, nil if there is none.
func (o *oracle) next(now int64) ([]Span, int) {
	o.tick(now)
	o.level()
	var order []int
	for _, d := range o.idle() {
		order = append(order, d.micro)
	}
	for micro := range o.cfg.MicroBatches {
		order = append(order, micro)
	}
	for _, micro := range order {
		if len(o.in(micro)) > 0 {
			continue
		}
		if spans := o.ordinary(micro); len(spans) > 0 {
			return o.made(spans, micro)
		}
	}
	for micro := 0; o.cfg.Ahead && micro < o.cfg.MicroBatches; micro++ {
		if spans := o.further(micro); len(spans) > 0 {
			return o.made(spans, micro)
		}
	}
	return nil, 0
}

func (o *oracle) made(spans []Span, micro int) ([]Span, int) {
	o.batches++
	o.microOf[o.batches] = micro
	return spans, micro
}

// level gives idle streams of micro-batches that have too many to those that have the fewest.
func (o *oracle) level() {
	for micro := range o.cfg.MicroBatches {
		most := o.most(micro, len(o.streams(-1)))
		idle := o.idle()
		slices.Reverse(idle)
		for _, d := range idle {
			if d.micro == micro && len(o.streams(micro)) > most {
				d.micro = o.smallest()
			}
		}
	}
}

// most returns a micro-batch's part of the given number of streams. They are dealt out one by one;
// micro-batches before this one that already have more than an even part keep it.
func (o *oracle) most(micro, streams int) int {
	extra := streams - streams/o.cfg.MicroBatches*o.cfg.MicroBatches
	for before := range micro {
		if len(o.streams(before)) > streams/o.cfg.MicroBatches {
			extra--
		}
	}
	if extra > 0 {
		return streams/o.cfg.MicroBatches + 1
	}
	return streams / o.cfg.MicroBatches
}

// smallest is the micro-batch with the fewest streams.
func (o *oracle) smallest() (small int) {
	for micro := range o.cfg.MicroBatches {
		if len(o.streams(micro)) < len(o.streams(small)) {
			small = micro
		}
	}
	return small
}

// further are the spans ahead of a micro-batch's only batch in flight.
func (o *oracle) further(micro int) []Span {
	flying := o.in(micro)
	if len(flying) == 0 {
		return nil
	}
	free, slots := o.free()
	waits := o.pick(func(d *dumb) bool { return !d.started })
	slices.SortFunc(waits, inTurn)
	prompt := len(waits) > 0 && slots > 0 && o.blocks(waits[0]) <= free
	for _, d := range o.all {
		switch {
		case !d.started || d.ended:
		case d.batch == 0 && d.decoding:
			if d.micro == micro || o.overdue(d) {
				return nil
			}
		case d.batch == 0:
			prompt = true
		}
	}
	if prompt && o.promptsBeside(micro) < o.cfg.PrefillBatches && !o.sooner(micro) {
		return nil
	}
	for _, d := range flying {
		if d.ahead != 0 || o.held[d.batch] || o.lost[d.batch] || !d.ended && (d.anew || !d.span.Last) {
			return nil
		}
	}
	members := slices.DeleteFunc(flying, func(d *dumb) bool { return !d.span.Last })
	slices.SortFunc(members, func(a, b *dumb) int { return a.span.Row - b.span.Row })
	on := func(d *dumb) bool { return !d.ended && d.made+2 <= d.MaxNew }
	rows := len(slices.DeleteFunc(slices.Clone(members), func(d *dumb) bool { return !on(d) }))
	rows = o.most(micro, rows+len(o.streams(-1))-len(o.streams(micro)))
	var spans []Span
	for i, d := range members {
		if on(d) && len(spans) < rows {
			d.ahead, d.rowAhead = o.batches+1, len(spans)
			spans = append(spans, Span{ID: d.ID, Row: len(spans), Len: 1, Pos: d.PromptLen + d.made, Decode: true, Last: true, From: i})
		}
	}
	return spans
}

// sooner reports whether another micro-batch that may take prompts gets all its batches back
// before this one, if they come in order.
func (o *oracle) sooner(micro int) bool {
	last := map[int]uint64{}
	for _, d := range o.all {
		for _, id := range []uint64{d.batch, d.ahead} {
			if id != 0 {
				last[o.microOf[id]] = max(last[o.microOf[id]], id)
			}
		}
	}
	for other, id := range last {
		if id < last[micro] && o.promptsBeside(other) < o.cfg.PrefillBatches {
			return true
		}
	}
	return false
}

// promptsBeside is the number of batches of other micro-batches that have rows of prompts.
func (o *oracle) promptsBeside(micro int) int {
	batches := map[uint64]bool{}
	for _, d := range o.all {
		if d.batch != 0 && !d.span.Decode && o.microOf[d.batch] != micro {
			batches[d.batch] = true
		}
	}
	return len(batches)
}

// ordinary are the spans of a batch of a micro-batch that has none in flight.
func (o *oracle) ordinary(micro int) []Span {
	streams := o.pick(func(d *dumb) bool { return d.decoding && !d.ended })
	var spans []Span
	room := o.cfg.MaxBatchTokens
	take := func(d *dumb, n int) {
		sp := Span{ID: d.ID, Row: o.cfg.MaxBatchTokens - room, Len: n, Pos: d.have, Decode: d.decoding, Last: d.have+n == d.PromptLen+d.made, From: -1}
		d.batch, d.span, d.micro = o.batches+1, sp, micro
		spans = append(spans, sp)
		room -= n
	}
	for _, d := range o.idle() {
		if d.micro == micro || o.overdue(d) {
			take(d, 1)
		}
	}
	if o.promptsBeside(micro) < o.cfg.PrefillBatches {
		o.prefill(room, len(streams) > 0, take)
	}
	return spans
}

// free counts blocks and slots that no sequence holds.
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

func (o *oracle) prefill(room int, streams bool, take func(*dumb, int)) {
	free, slots := o.free()
	waits := len(o.pick(func(d *dumb) bool { return !d.started }))
	prompts := len(o.pick(func(d *dumb) bool { return d.started && !d.decoding && !d.ended }))
	quota := even(prompts+min(waits, slots), o.cfg.PrefillBatches)
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
			d.span = Span{Row: d.rowAhead, Len: 1, Decode: true, Last: true}
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
			d.decoding = d.decoding || !d.anew
			if d.anew && d.batch == 0 {
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
	o.lost[batch] = true
	members := o.pick(func(d *dumb) bool { return d.batch == batch || d.ahead == batch })
	for _, d := range members {
		if d.batch == batch && d.ahead != 0 && !o.lost[d.ahead] {
			o.lost[d.ahead] = true
			o.effects = append(o.effects, Effect{Kind: Voided, Batch: d.ahead})
		}
	}
	for _, d := range members {
		switch {
		case d.ended || retry && d.anew:
		case retry && d.retries < o.cfg.MaxRetries:
			d.retries++
			d.anew = true
		default:
			o.end(d, Failed)
		}
	}
}

// gone ends all work on a lost batch.
func (o *oracle) gone(batch uint64) {
	delete(o.lost, batch)
	for _, d := range o.pick(func(d *dumb) bool { return d.batch == batch || d.ahead == batch }) {
		if d.ahead == batch {
			d.ahead = 0
			continue
		}
		d.batch, d.ahead = d.ahead, 0
		switch {
		case d.batch != 0:
			d.span = Span{Row: d.rowAhead, Len: 1, Decode: true, Last: true}
		case d.ended:
			o.drop(d)
		default:
			d.have, d.decoding, d.anew = 0, false, false
		}
	}
}
