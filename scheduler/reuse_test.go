package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestReuse drives the core with requests that share prefixes, siblings, keys, priorities,
// tiny pools, host memory and snapshots, and all that TestRandom does, and holds every row
// against what three devices with times of their own have in their caches.
func TestReuse(t *testing.T) {
	first, count := uint64(1), scripts()
	if *seed != 0 {
		first, count = *seed, 1
	}
	var sum shares
	for s := first; s < first+count; s++ {
		err := runReuse(rand.New(rand.NewPCG(s, 11)), 1<<30, nil, &sum)
		if err == nil {
			continue
		}
		for ops := 0; ; ops++ {
			var log strings.Builder
			if short := runReuse(rand.New(rand.NewPCG(s, 11)), ops, &log, &sum); short != nil {
				t.Fatalf("seed %d, cut to %d steps: %v (whole: %v)\n%s", s, ops, short, err, log.String())
			}
		}
	}
	t.Logf("%d scripts: %+v", count, sum)
	if count >= 3000 {
		sum.check(t)
		if sum.kept < 10 {
			t.Errorf("only %d rows of prompts were computed again in the form of an answer", sum.kept)
		}
	}
}

// FuzzReuse is TestReuse with chance made of the input.
func FuzzReuse(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var log strings.Builder
		if err := runReuse(rand.New(&tape{data: data}), 1<<30, &log, &shares{}); err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
	})
}

// tape is a source of chance: bytes first, then what follows from them.
type tape struct {
	data []byte
	last uint64
}

func (t *tape) Uint64() uint64 {
	v := t.last*6364136223846793005 + 1442695040888963407
	if len(t.data) > 0 {
		v ^= uint64(t.data[0]) << 56
		v ^= uint64(t.data[0])
		t.data = t.data[1:]
	}
	t.last = v
	return v ^ v>>29
}

// shares counts what the scripts met, so that a generator gone tame is noticed.
type shares struct {
	preempted, resumed, hits, parked, cached, background, ended, lost, gone, scored, staged, states, kept, resized int
	moves                                                                                                          [len(moveNames)]int
}

func (c *shares) check(t *testing.T) {
	for name, n := range map[string]int{"preemptions": c.preempted, "preempted requests that went on": c.resumed, "tokens from the cache": c.hits, "requests that waited for another's blocks": c.parked,
		"requests that started with cached tokens": c.cached, "requests in the background": c.background, "requests": c.ended, "lost batches": c.lost, "lost batches that are gone": c.gone, "spans that are scored": c.scored, "sizes of the pool": c.resized} {
		if n < 1000 {
			t.Errorf("only %d %s", n, name)
		}
	}
	for kind, n := range c.moves {
		if n < 500 {
			t.Errorf("only %d moves: %v", n, MoveKind(kind))
		}
	}
}

// crowd is one script of requests that share.
type crowd struct {
	*monitor
	rng    *rand.Rand
	now    int64
	next   uint64 // request id
	group  uint64
	shared int  // tokens of a shared prompt, at least
	bound  int  // blocks that belong to the core after a resize; 0: there was none
	mute   bool // the driver does not tell the ids of all generated tokens
	bases  [][]int32
	old    [][]int32 // prompts with answers
	log    *strings.Builder
	sum    *shares
}

func runReuse(rng *rand.Rand, steps int, log *strings.Builder, sum *shares) error {
	cfg := Config{
		BlockTokens: 1 + rng.IntN(4), Blocks: 1 + rng.IntN(30), MaxSeqs: 1 + rng.IntN(7), PrefillChunk: 1 + rng.IntN(9),
		PrefillShare: 1 + rng.IntN(8), MaxQueue: 1 + rng.IntN(12), MicroBatches: 1 + rng.IntN(3), MaxRetries: rng.IntN(3), Ahead: rng.IntN(2) == 0,
	}
	if rng.IntN(2) == 0 {
		cfg.Blocks = 4 + rng.IntN(8)
	}
	cfg.MaxBatchTokens = cfg.MaxSeqs + rng.IntN(12)
	cfg.PrefillBatches = 1 + rng.IntN(cfg.MicroBatches)
	if rng.IntN(3) > 0 {
		cfg.RAMBlocks = 1 + rng.IntN(20)
		cfg.LoadRate = rng.IntN(4)
	}
	switch rng.IntN(8) {
	case 0, 1:
		cfg.Snapshots = 1 + rng.IntN(6)
	case 2:
		cfg.NoReuse = true
	}
	cfg.Classes = rng.IntN(2) == 0
	cfg.RecomputeSingly = cfg.Classes && rng.IntN(2) == 0
	if cfg.ReuseAnswers = cfg.Classes && rng.IntN(4) > 0; cfg.ReuseAnswers {
		cfg.BlockTokens = 1 + rng.IntN(2)
		if rng.IntN(4) > 0 { // what is preempted is soon evicted
			cfg.Blocks, cfg.RAMBlocks = 4+rng.IntN(8), 0
		}
	}
	if rng.IntN(2) == 0 {
		cfg.LogitRows = cfg.MaxSeqs + rng.IntN(3)
	}
	if rng.IntN(2) == 0 {
		cfg.Aging = 1 + rng.IntN(20)
	}
	cfg.windowed(rng)
	return runCrowd(rng, cfg, 1, steps, log, sum)
}

// runCrowd runs a script in which prompts share at least the given number of tokens.
func runCrowd(rng *rand.Rand, cfg Config, shared, steps int, log *strings.Builder, sum *shares) error {
	core, err := New(cfg)
	if err != nil {
		return err
	}
	w := &crowd{monitor: newMonitor(cfg, core), rng: rng, mute: rng.IntN(10) == 0, log: log, sum: sum}
	w.ample, w.shared = false, shared
	for range 3 {
		w.bases = append(w.bases, w.text(shared+3+rng.IntN(30)))
	}
	w.note("config %+v", cfg)
	n, drainAt := 30+rng.IntN(70), -1
	if cfg.ReuseAnswers {
		n *= 4 // until requests go on from answers
	}
	if rng.IntN(4) == 0 {
		drainAt = 20 + rng.IntN(40)
	}
	for i := range min(steps, n) {
		if i == drainAt {
			w.note("drain")
			core.Drain()
		} else if err := w.step(); err != nil {
			return err
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	return w.finish()
}

func (w *crowd) note(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, format+"\n", args...)
	}
}

// text is tokens of which many are alike.
func (w *crowd) text(n int) (ids []int32) {
	for range n {
		ids = append(ids, int32(w.rng.IntN(2)))
	}
	return ids
}

func (w *crowd) step() error {
	switch n := w.rng.IntN(100); {
	case n < 25:
		return w.arrive()
	case n < 62:
		return w.make()
	case n < 87:
		return w.done()
	case n < 91:
		if len(w.flying) == 0 {
			return nil
		}
		return w.lose(w.flying[w.rng.IntN(len(w.flying))])
	case n < 95 && w.next > 0:
		id, why := w.rng.Uint64N(w.next)+1, []Reason{Cancelled, Stop}[w.rng.IntN(2)]
		w.note("cancel %d %v: %v", id, why, w.core.Cancel(id, why))
	case n < 97 && len(w.flying) > 0:
		b, held := w.flying[w.rng.IntN(len(w.flying))], w.rng.IntN(3) > 0
		w.core.Hold(b.ID, held)
	case n < 98 && w.rng.IntN(2) == 0:
		w.resize(w.rng.IntN(w.cfg.Blocks + 2))
	case n < 98:
		w.core.ClearCache()
		if w.core.Idle() {
			w.note("forget")
			w.wipe()
		}
	default:
		w.now += int64(w.rng.IntN(30))
		w.note("tick %d", w.now)
		w.core.Tick(w.now)
	}
	return nil
}

// arrive adds a request, or siblings.
func (w *crowd) arrive() error {
	r := Request{MaxNew: 1 + w.rng.IntN(22), Key: w.rng.Uint64N(3), Background: w.rng.IntN(7) == 0}
	kind := w.rng.IntN(4)
	if w.cfg.ReuseAnswers && len(w.old) > 0 && w.rng.IntN(2) == 0 {
		kind = 1
	}
	switch kind {
	case 0:
		r.Prompt = w.text(1 + w.rng.IntN(20))
	case 1:
		if len(w.old) > 0 {
			r.Prompt = slices.Concat(w.old[w.rng.IntN(len(w.old))], w.text(w.rng.IntN(5)))
			break
		}
		fallthrough
	default:
		base := w.bases[w.rng.IntN(len(w.bases))]
		r.Prompt = slices.Concat(base[:max(w.shared, 1+w.rng.IntN(len(base)))], w.text(w.rng.IntN(5)))
	}
	r.PromptLen = len(r.Prompt)
	r.Domain[0] = byte(w.rng.IntN(5) / 4)
	if w.rng.IntN(4) == 0 {
		r.Priority = w.rng.IntN(3) - 1
	}
	if w.rng.IntN(8) == 0 {
		r.Deadline = max(1, w.now+int64(w.rng.IntN(60))-2)
	}
	n := 1
	if w.rng.IntN(5) == 0 {
		n = 2 + w.rng.IntN(3)
		w.group++
		r.Group = w.group
	}
	if n == 1 && w.rng.IntN(20) == 0 {
		r.Prompt = nil
	}
	r.Scored = w.rng.IntN(10) == 0
	for at := 1; at <= r.PromptLen && w.rng.IntN(3) > 0; at++ {
		at += w.rng.IntN(8)
		r.Turns = append(r.Turns, at)
	}
	for range n {
		w.next++
		r.ID = w.next
		err := w.core.Add(r, w.now)
		w.note("add %+v at %d: %v", r, w.now, err)
		if err == nil {
			w.accept(r)
			if r.Background {
				w.sum.background++
			}
		}
	}
	return nil
}

// resize has the core use fewer or more blocks.
func (w *crowd) resize(n int) {
	if w.bound = w.core.Resize(n); w.core.Open() < w.cfg.Blocks {
		w.sum.resized++
	}
	w.note("resize %d: %d", n, w.bound)
}

func (w *crowd) make() error {
	was := w.core.parked.len()
	b, ok := w.core.Next(w.now)
	w.note("next: %v %+v", ok, b)
	if err := w.listen(); err != nil {
		return err
	}
	w.sum.parked += max(0, w.core.parked.len()-was)
	if w.cfg.Snapshots > 0 {
		for _, s := range w.core.parked.all()[min(was, w.core.parked.len()):] {
			if s.until != whole {
				w.sum.states++
			}
		}
	}
	if !ok {
		if n := w.core.Demand(); len(w.flying) == 0 && n > w.core.Open() { // nothing goes on without more blocks
			w.resize(n)
			return w.make()
		}
		return nil
	}
	for _, mv := range b.Moves {
		w.sum.moves[mv.Kind]++
	}
	for i := range b.Spans {
		if sp := &b.Spans[i]; w.bound > 0 && int(slices.Max(sp.Blocks)) >= w.bound {
			return fmt.Errorf("batch %d uses blocks %v, %d belong to the core", b.ID, sp.Blocks, w.bound)
		}
		if sp := &b.Spans[i]; sp.Recomputed && sp.Pos < w.client[sp.ID].PromptLen {
			w.sum.kept += sp.Len
		}
	}
	w.sum.staged += len(w.core.flight(b.ID).preloaded)
	if err := w.logits(b); err != nil {
		return err
	}
	if err := w.send(b); err != nil {
		return err
	}
	if slices.ContainsFunc(b.Moves, func(m Move) bool { return m.Kind != Save }) && w.rng.IntN(8) == 0 {
		if err := w.settle(); err != nil {
			return err
		}
		return w.lose(w.flying[len(w.flying)-1])
	}
	return nil
}

// logits holds the rows whose logits are wanted against what there is room for.
func (w *crowd) logits(b Batch) error {
	rows := 0
	for i := range b.Spans {
		sp := &b.Spans[i]
		c := w.client[sp.ID]
		switch {
		case c.Scored && sp.Pos+1 < c.PromptLen:
			rows += sp.Len
			w.sum.scored++
		case sp.Last:
			rows++
		}
	}
	if rows > max(w.cfg.LogitRows, w.cfg.MaxSeqs) {
		return fmt.Errorf("batch %d: %d rows with logits", b.ID, rows)
	}
	return nil
}

// done brings a batch back, sometimes with ends.
func (w *crowd) done() error {
	if len(w.flying) == 0 {
		return nil
	}
	b := w.flying[w.rng.IntN(len(w.flying))]
	if w.lost[b.ID] {
		w.note("gone %d", b.ID)
		w.sum.gone++
		return w.gone(b)
	}
	if w.before(b) {
		return nil
	}
	var outcomes []Outcome
	byID := map[uint64]Outcome{}
	for _, sp := range b.Spans {
		if !sp.Last {
			continue
		}
		o := Outcome{ID: sp.ID, NewTokens: 1}
		ends := 20
		if w.cfg.ReuseAnswers {
			ends = 100
		}
		switch w.rng.IntN(ends) {
		case 0:
			o.End = Stop
		case 1:
			o.End, o.NewTokens = Stop, 0
		case 2:
			o.End = []Reason{None, None, Failed}[w.rng.IntN(3)]
		}
		if !w.mute || w.rng.IntN(3) > 0 {
			o.Tokens = w.generated(w.client[sp.ID], o.NewTokens)
		}
		outcomes = append(outcomes, o)
		byID[sp.ID] = o
	}
	w.note("done %d %+v", b.ID, outcomes)
	if err := w.land(b, byID); err != nil {
		return err
	}
	return w.core.Done(b.ID, outcomes)
}

// lose has a batch in flight be lost.
func (w *crowd) lose(b Batch) error {
	if w.lost[b.ID] {
		return nil
	}
	retry := w.rng.IntN(4) > 0
	w.note("fail %d retry %v", b.ID, retry)
	w.sum.lost++
	w.spoil(b)
	return w.core.Fail(b.ID, errors.New("lost"), retry)
}

// settle carries out effects, lets a device go on and checks the books.
func (w *crowd) settle() error {
	if err := w.listen(); err != nil {
		return err
	}
	got := w.heard
	w.heard = nil
	if len(got) > 0 {
		w.note("  %+v", got)
	}
	for _, e := range got {
		switch e.Kind {
		case Started:
			if e.Cached > 0 {
				w.sum.cached++
			}
			if c := w.client[e.ID]; c.Scored && e.Cached > 0 {
				return fmt.Errorf("request %d is scored and starts with %d tokens", e.ID, e.Cached)
			}
		case Preempted:
			w.sum.preempted++
		case Resumed:
			w.sum.resumed++
		case Ended:
			w.sum.ended++
			if c := w.client[e.ID]; c.Prompt != nil {
				w.old = w.old[max(0, len(w.old)-20):]
				at := c.tokens
				c.tokens = 0
				w.old = append(w.old, slices.Concat(c.Prompt, w.generated(c, at)))
				c.tokens = at
			}
		}
	}
	if err := w.whenever(func(Batch) bool { return w.rng.IntN(3) == 0 }); err != nil {
		return err
	}
	return w.core.Check()
}

// finish lets all requests end: with nothing in flight and a live request there is
// always a next batch, and after a bounded number of steps no request is left.
func (w *crowd) finish() error {
	w.note("finish")
	for range 5000 {
		if w.core.Idle() {
			w.sum.hits += int(w.core.Stats().PrefixHits)
			return w.audit()
		}
		before, made := len(w.flying), w.made
		if err := w.make(); err != nil {
			return err
		}
		if before == 0 && w.made == made && !w.core.Idle() {
			return fmt.Errorf("deadlock: %+v", w.core.Stats())
		}
		if err := w.settle(); err != nil {
			return err
		}
		if w.rng.IntN(2) == 0 {
			if err := w.done(); err != nil {
				return err
			}
			if err := w.settle(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no end: %+v", w.core.Stats())
}
