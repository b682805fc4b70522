package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	long = flag.Bool("long", false, "run 100,000 random scripts")
	seed = flag.Uint64("seed", 0, "run the random script of this seed alone")
)

// TestRandom drives the core with random arrivals, sizes, cancels, deadlines,
// failures and drains, and holds it against the oracle and against a simulated
// device. A failing script is cut to the shortest prefix that still fails.
func TestRandom(t *testing.T) {
	first, count := uint64(1), scripts()
	if *seed != 0 {
		first, count = *seed, 1
	}
	var sum coverage
	for s := first; s < first+count; s++ {
		err := runRandom(s, 1<<30, nil, &sum)
		if err == nil {
			continue
		}
		for ops := 0; ; ops++ {
			var log strings.Builder
			if short := runRandom(s, ops, &log, &sum); short != nil {
				t.Fatalf("seed %d, cut to %d steps: %v (whole: %v)\n%s", s, ops, short, err, log.String())
			}
		}
	}
	t.Logf("%d scripts: %+v", count, sum)
	if count >= 3000 {
		sum.check(t)
	}
}

// scripts is how many random scripts are run.
func scripts() uint64 {
	switch {
	case *long:
		return 100_000
	case testing.Short():
		return 1000
	}
	return 10_000
}

// coverage counts what the scripts met, so that a generator gone tame is noticed.
type coverage struct {
	batches, mixed, flying, refused, retries, doomed     int
	ahead, prompts, early, stopped, voided, cut, chained int
	moved, left, beside, together, gone, around          int
	ended                                                [reasons]int
}

func (c *coverage) check(t *testing.T) {
	for r := Stop; r < reasons; r++ {
		if c.ended[r] < 100 {
			t.Errorf("only %d requests ended with %v", c.ended[r], r)
		}
	}
	for name, n := range map[string]int{"batches": c.batches, "mixed batches": c.mixed, "batches beside another": c.flying,
		"refusals": c.refused, "retries": c.retries, "ends in flight": c.doomed,
		"batches ahead": c.ahead, "prompts' ends with a batch ahead": c.prompts, "reports before their turn": c.early, "ends with a batch ahead": c.stopped,
		"batches void with the one before": c.voided, "losses of a batch ahead": c.cut, "batches ahead of one that was ahead": c.chained,
		"streams that changed micro-batches": c.moved, "batches ahead in two micro-batches": c.beside, "lost batches that are gone": c.gone, "batches beside a lost one": c.around} {
		if n < 300 {
			t.Errorf("only %d %s", n, name)
		}
	}
	for name, n := range map[string]int{"streams left out by a batch ahead": c.left, "batches without the prompts that wait": c.together} {
		if n < 30 {
			t.Errorf("only %d %s", n, name)
		}
	}
}

// micro-batches counts what happens to micro-batches with a new batch.
func (c *coverage) micros(m *monitor, b Batch) {
	for _, sp := range b.Spans {
		if micro, ok := m.micro[sp.ID]; sp.Decode && ok && micro != b.MicroBatch {
			c.moved++
		}
	}
	ahead := 0
	for _, x := range m.flying {
		if m.before(x) {
			ahead++
		}
		if x.ID == b.After {
			c.left += m.goOn(x) - len(b.Spans)
		}
	}
	if b.After != 0 && ahead > 0 {
		c.beside++
	}
	if b.After == 0 && b.Rows == b.Decode && m.core.filling.len() > 0 {
		c.together++
	}
	if len(m.lost) > 0 {
		c.around++
	}
}

// loss counts the loss of a batch that is ahead of another, or behind one.
func (c *coverage) loss(m *monitor, b Batch) {
	if m.follower(b.ID) != nil {
		c.voided++
	}
	if m.before(b) {
		c.cut++
	}
}

// done counts what a batch brings back while another is ahead of it.
func (c *coverage) done(m *monitor, b Batch, outcomes map[uint64]Outcome) {
	if m.follower(b.ID) == nil {
		return
	}
	for _, sp := range b.Spans {
		if !sp.Decode {
			c.prompts++
		}
		if outcomes[sp.ID].End != None {
			c.stopped++
		}
	}
}

// world is one random script: the core, the oracle, the device and the clients.
type world struct {
	*monitor
	rng    *rand.Rand
	oracle *oracle
	now    int64
	nextID uint64
	log    *strings.Builder
	sum    *coverage
}

func runRandom(seed uint64, steps int, log *strings.Builder, sum *coverage) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	cfg := Config{
		BlockTokens: 1 + rng.IntN(5), MaxSeqs: 1 + rng.IntN(10), PrefillChunk: 1 + rng.IntN(8),
		PrefillShare: 1 + rng.IntN(8), MaxQueue: 1 + rng.IntN(12), MicroBatches: 1 + rng.IntN(4), MaxRetries: rng.IntN(3),
	}
	cfg.MaxBatchTokens = cfg.MaxSeqs + rng.IntN(12)
	if cfg.Ahead = rng.IntN(2) == 0; cfg.Ahead && rng.IntN(3) == 0 {
		cfg.MicroBatches = 1
	}
	cfg.PrefillBatches = 1 + rng.IntN(cfg.MicroBatches)
	cfg.Blocks = 2*(cfg.MaxSeqs+1)*cfg.blocksFor(25+16) + 2*cfg.MaxSeqs // no request has to wait for memory
	cfg.windowed(rng)
	core, err := New(cfg)
	if err != nil {
		return err
	}
	w := &world{monitor: newMonitor(cfg, core), rng: rng, oracle: &oracle{cfg: cfg, microOf: map[uint64]int{}, held: map[uint64]bool{}, lost: map[uint64]bool{}}, log: log, sum: sum}
	w.note("config %+v", cfg)
	drainAt := -1
	if rng.IntN(4) == 0 {
		drainAt = 20 + rng.IntN(40)
	}
	for i := range min(steps, 30+rng.IntN(60)) {
		if i == drainAt {
			w.note("drain")
			core.Drain()
			w.oracle.drain()
		} else if err := w.step(); err != nil {
			return err
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	return w.finish()
}

// windowed gives some models layers with a window, with as few blocks as there may be or some more.
func (c *Config) windowed(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		c.Window = 1 + rng.IntN(12)
		c.WindowBlocks = c.WindowNeed() + rng.IntN(3)*rng.IntN(8)
	}
}

func (w *world) note(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, format+"\n", args...)
	}
}

// step does one random thing.
func (w *world) step() error {
	switch n := w.rng.IntN(100); {
	case n < 28:
		return w.add()
	case n < 62:
		return w.next()
	case n < 85:
		return w.done()
	case n < 90:
		if len(w.flying) == 0 {
			return nil
		}
		return w.lose()
	case n < 96 && w.nextID > 0:
		id, why := w.rng.Uint64N(w.nextID)+1, []Reason{Cancelled, Stop}[w.rng.IntN(2)]
		w.note("cancel %d %v", id, why)
		if got, want := w.core.Cancel(id, why), w.oracle.cancel(id, why); got != want {
			return fmt.Errorf("cancel %d says %v, want %v", id, got, want)
		}
	case n < 97 && len(w.flying) > 0:
		b, held := w.flying[w.rng.IntN(len(w.flying))], w.rng.IntN(3) > 0
		w.note("hold %d %v", b.ID, held)
		w.core.Hold(b.ID, held)
		w.oracle.held[b.ID] = held
	default:
		w.now += int64(w.rng.IntN(30))
		w.note("tick %d", w.now)
		w.core.Tick(w.now)
		w.oracle.tick(w.now)
	}
	return nil
}

// again reports a lost batch once more, which is refused.
func (w *world) again(b Batch) error {
	was := w.core.Stats()
	for _, err := range []error{w.core.Fail(b.ID, errors.New("lost"), true), w.core.Done(b.ID, nil)} {
		if !errors.Is(err, ErrUnknownBatch) || w.core.Stats() != was {
			return fmt.Errorf("lost batch %d: %v, %+v, was %+v", b.ID, err, w.core.Stats(), was)
		}
	}
	return nil
}

// lose fails a random batch in flight.
func (w *world) lose() error {
	b, retry := w.flying[w.rng.IntN(len(w.flying))], w.rng.IntN(4) > 0
	if w.lost[b.ID] {
		return w.again(b)
	}
	w.note("fail %d retry %v", b.ID, retry)
	w.sum.loss(w.monitor, b)
	w.spoil(b)
	w.oracle.fail(b.ID, retry)
	return w.core.Fail(b.ID, errors.New("lost"), retry)
}

func (w *world) add() error {
	w.nextID++
	r := Request{ID: w.nextID, PromptLen: w.rng.IntN(25), MaxNew: w.rng.IntN(16)}
	if w.rng.IntN(4) == 0 {
		r.Priority = w.rng.IntN(3) - 1
	}
	if w.rng.IntN(5) == 0 {
		r.Deadline = max(1, w.now+int64(w.rng.IntN(60))-2)
	}
	if w.rng.IntN(12) == 0 {
		r.ID = w.rng.Uint64N(w.nextID) + 1 // perhaps in use, perhaps free again
	}
	w.note("add %+v at %d", r, w.now)
	got, want := w.core.Add(r, w.now), w.oracle.add(r, w.now)
	if !errors.Is(got, want) {
		return fmt.Errorf("add says %v, want %v", got, want)
	}
	if got != nil {
		w.sum.refused++
		return nil
	}
	w.accept(r)
	return nil
}

func (w *world) next() error {
	b, ok := w.core.Next(w.now)
	want, micro := w.oracle.next(w.now)
	w.note("next: %v %+v", ok, b)
	if err := w.listen(); err != nil {
		return err
	}
	if ok != (want != nil) || len(b.Spans) != len(want) {
		return fmt.Errorf("batch %v %+v, want %+v", ok, b, want)
	}
	for i, sp := range b.Spans {
		sp.Slot, sp.Blocks, sp.Windows = 0, nil, nil
		if fmt.Sprint(sp) != fmt.Sprint(want[i]) {
			return fmt.Errorf("span %d is %+v, want %+v", i, sp, want[i])
		}
	}
	if !ok {
		return nil
	}
	if ahead := want[0].From >= 0; ahead != (b.After != 0) || b.MicroBatch != micro {
		return fmt.Errorf("batch %d of micro-batch %d is ahead of %d, want micro-batch %d, ahead %v", b.ID, b.MicroBatch, b.After, micro, ahead)
	}
	if b.ID != w.oracle.batches {
		return fmt.Errorf("batch %d, want %d", b.ID, w.oracle.batches)
	}
	w.sum.batches++
	if b.Decode > 0 && b.Decode < b.Rows {
		w.sum.mixed++
	}
	if len(w.flying) > 0 {
		w.sum.flying++
	}
	if b.After != 0 {
		w.sum.ahead++
		if slices.ContainsFunc(w.flying, func(x Batch) bool { return x.ID == b.After && x.After != 0 }) {
			w.sum.chained++
		}
	}
	w.sum.micros(w.monitor, b)
	return w.send(b)
}

// done brings a random batch back, sometimes with ends, once in a while after a
// report that must be refused.
func (w *world) done() error {
	if len(w.flying) == 0 {
		return nil
	}
	b := w.flying[w.rng.IntN(len(w.flying))]
	if w.lost[b.ID] {
		w.note("gone %d", b.ID)
		w.sum.gone++
		w.oracle.gone(b.ID)
		return w.gone(b)
	}
	if err := w.core.Gone(b.ID); !errors.Is(err, ErrUnknownBatch) {
		return fmt.Errorf("batch %d, which is not lost, is gone: %v", b.ID, err)
	}
	if w.before(b) && w.rng.IntN(6) == 0 {
		return w.lose()
	}
	var outcomes []Outcome
	byID := map[uint64]Outcome{}
	for _, sp := range b.Spans {
		if sp.Last {
			o := Outcome{ID: sp.ID, NewTokens: 1}
			switch w.rng.IntN(12) {
			case 0:
				o.End = Stop
			case 1:
				o.End, o.NewTokens = Stop, 0
			case 2:
				o.End = []Reason{None, None, Failed}[w.rng.IntN(3)]
			}
			outcomes = append(outcomes, o)
			byID[sp.ID] = o
		}
	}
	w.note("done %d %+v", b.ID, outcomes)
	if w.before(b) {
		return w.early(b, outcomes)
	}
	if w.rng.IntN(8) == 0 {
		if err := w.core.Done(b.ID, append(slices.Clone(outcomes), Outcome{})); !errors.Is(err, ErrOutcome) {
			return fmt.Errorf("an outcome too many: %v", err)
		}
	}
	w.sum.done(w.monitor, b, byID)
	if err := w.land(b, byID); err != nil {
		return err
	}
	w.oracle.done(b.ID, byID)
	return w.core.Done(b.ID, outcomes)
}

// early reports a batch whose predecessor is in flight, which is refused.
func (w *world) early(b Batch, outcomes []Outcome) error {
	w.sum.early++
	was := w.core.Stats()
	if err := w.core.Done(b.ID, outcomes); !errors.Is(err, ErrAhead) || w.core.Stats() != was {
		return fmt.Errorf("done %d after %d: %v, %+v, was %+v", b.ID, b.After, err, w.core.Stats(), was)
	}
	return nil
}

// settle compares effects and books after a step.
func (w *world) settle() error {
	if err := w.listen(); err != nil {
		return err
	}
	got := w.heard
	w.heard = nil
	want := w.oracle.effects
	w.oracle.effects = nil
	if len(got)+len(want) > 0 {
		w.note("  %+v", got)
	}
	for _, e := range got {
		if e.Kind == Ended {
			w.sum.ended[e.Reason]++
			if w.inFlight(e.ID) {
				w.sum.doomed++
			}
		}
	}
	if a, b := effectKeys(got), effectKeys(want); !slices.Equal(a, b) {
		return fmt.Errorf("effects %v, want %v", a, b)
	}
	return w.core.Check()
}

// effectKeys sorts by request: the order among those that end in one event is
// the core's own business, the order within a request is not.
func effectKeys(list []Effect) []string {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Effect) int { return int(a.ID) - int(b.ID) })
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%v %d %v %d", e.Kind, e.ID, e.Reason, e.Batch))
	}
	return out
}

// finish lets everything run out. Progress: with nothing in flight and a live
// request there is always a next batch, and each one carries rows.
func (w *world) finish() error {
	w.note("finish")
	for range 20_000 {
		if w.core.Idle() {
			w.sum.retries += int(w.core.Stats().Retries)
			return w.audit()
		}
		before := len(w.flying)
		if err := w.next(); err != nil {
			return err
		}
		if before == 0 && len(w.flying) == 0 && !w.core.Idle() {
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
