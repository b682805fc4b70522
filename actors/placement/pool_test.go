package placement_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/load"
)

// watched is a simulated device that checks, on its time line, that no expert is copied into a slot that
// work enqueued before still reads. Its second stream copies experts.
type watched struct {
	*hostsim.Device
	slot    int // bytes
	streams int
	copied  int64 // bytes
	reads   map[int]device.Timestamp
	early   []string
}

type watchedCopies struct {
	device.Stream
	dev *watched
}

func (d *watched) NewStream() (device.Stream, error) {
	s, err := d.Device.NewStream()
	if d.streams++; err != nil || d.streams != 2 {
		return s, err
	}
	return &watchedCopies{s, d}, nil
}

// Run notes when the work of experts will have read their slots.
func (d *watched) Run(s device.Stream, l device.List) {
	d.Device.Run(s, l)
	for i := range l.Ops {
		if l.Ops[i].Kind != device.OpExperts {
			continue
		}
		for _, w := range l.Ops[i].Experts.Work {
			d.reads[l.Ops[i].Experts.F[w.Expert].Gate.Off/d.slot] = s.Clock().Timestamp()
		}
	}
}

func (s *watchedCopies) CopyIn(dst device.Mat, src []byte) {
	d := s.dev
	d.copied += int64(len(src))
	if read := d.reads[dst.Off/d.slot]; read != nil {
		var ago [1]time.Duration
		s.Clock().Timestamp().Ago([]device.Timestamp{read}, ago[:])
		if ago[0] < 0 {
			d.early = append(d.early, fmt.Sprintf("slot %d is written %v before it was read", dst.Off/d.slot, -ago[0]))
		}
	}
	s.Stream.CopyIn(dst, src)
}

// beside are rates at which experts that the processor computes bound a step.
var besideRates = hostsim.Rates{Memory: 2e9, Flops: 1e12}

// TestLearned: in virtual time, from a set that the routers do not choose, decode finds more experts on the
// device than with the set that stays, in the same bits; every run moves the same experts. What is copied is counted,
// and no slot is written while a step reads it.
func TestLearned(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	lo := load.Options{Limits: limits}
	tokens := 100
	if testing.Short() {
		tokens = 40
	}
	want := ask(t, plain(t, host, s.on(t, host, lo)), s.cfg.Vocab, 20, tokens)
	expert := s.slotBytes(t, host, lo)
	run := func(prefill, decode string, slots, own int64) (placement.Stats, time.Duration) {
		t.Helper()
		d := &watched{Device: simulated(t, hostsim.Options{CPU: host, Rates: slow}), slot: int(expert), reads: map[int]device.Timestamp{}}
		parts, p, err := placement.Load(d, hostsim.NewProcessor(host, d.Clock(), besideRates), s.cfg, s.set, lo, placement.Options{
			Prefill: strategy(t, prefill), Decode: strategy(t, decode), Threshold: 9, Budget: slots * expert, PrefillBudget: own * expert, Now: d.Clock().Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer parts.Close()
		defer p.Close()
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		loaded := d.copied
		began := d.Clock().Now()
		equal(t, want, ask(t, m, s.cfg.Vocab, 20, tokens))
		x := p.Stats(dispatch.Decode)
		if all := x.CopiedBytes + p.Stats(dispatch.Prefill).CopiedBytes; d.copied-loaded != all {
			t.Errorf("%s, %s: %d bytes were copied, the account has %d", prefill, decode, d.copied-loaded, all)
		}
		if len(d.early) > 0 {
			t.Errorf("%s, %s: %d slots are written too early: %s", prefill, decode, len(d.early), d.early[0])
		}
		return x, d.Clock().Now() - began
	}
	for _, c := range []struct {
		prefill    string
		slots, own int64 // own: of prefill
	}{{"cpu_only", 48, 0}, {"layer_grouped", 80, 0}, {"hot_cached_static", 60, 12}, {"lru", 60, 12}} {
		fixed, slow := run(c.prefill, "hot_cached_static", c.slots, c.own)
		got, took := run(c.prefill, "learned", c.slots, c.own)
		again, same := run(c.prefill, "learned", c.slots, c.own)
		t.Logf("%s, %d slots: %.3f hits in %v, with a set that stays %.3f in %v; %d moves", c.prefill, c.slots, got.HitRate(), took, fixed.HitRate(), slow, got.Copies)
		if got != again || took != same {
			t.Errorf("%s: %+v in %v, again %+v in %v", c.prefill, got, took, again, same)
		}
		if got.HitRate() < 1.1*fixed.HitRate() || took >= slow || got.Copies <= got.Misses || got.Misses == 0 {
			t.Errorf("%s: %+v in %v, with a set that stays %+v in %v", c.prefill, got, took, fixed, slow)
		}
	}
}

// refusedOnce is a device whose second stream, which copies experts, refuses one copy: in its next event as a
// GPU does, or at once.
type refusedOnce struct {
	refusing
	panics bool
}

type panicking struct{ *refusingStream }

func (d *refusedOnce) NewStream() (device.Stream, error) {
	s, err := d.refusing.NewStream()
	if x, ok := s.(*refusingStream); ok && d.panics {
		return panicking{x}, err
	}
	return s, err
}

func (s panicking) CopyIn(dst device.Mat, src []byte) {
	if s.dev.left.Add(-1) == 0 {
		panic(errors.New("injected: a copy is refused at once"))
	}
	s.Stream.CopyIn(dst, src)
}

// TestLearnedRefused: a refused copy between steps costs that move alone: all steps answer right, and
// moves go on.
func TestLearnedRefused(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	lo := load.Options{Limits: limits}
	const tokens = 30
	want := ask(t, plain(t, host, s.on(t, host, lo)), s.cfg.Vocab, 20, tokens)
	expert := s.slotBytes(t, host, lo)
	for i, nth := range []int64{1, 2, 3, 10, 31} {
		if testing.Short() && nth > 3 {
			break
		}
		d := &refusedOnce{refusing{Device: simulated(t, hostsim.Options{CPU: host, Rates: slow})}, i%2 == 0}
		parts, p, err := placement.Load(d, host, s.cfg, s.set, lo, placement.Options{
			Prefill: strategy(t, "cpu_only"), Decode: strategy(t, "learned"), Threshold: 9, Budget: 48 * expert, Now: d.Clock().Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		d.left.Store(nth)
		equal(t, want, ask(t, m, s.cfg.Vocab, 20, tokens))
		fired, before := d.left.Load() <= 0, p.Stats(dispatch.Decode).Copies
		d.left.Store(0)
		equal(t, want, ask(t, m, s.cfg.Vocab, 20, tokens))
		if !fired || p.Stats(dispatch.Decode).Copies == before {
			t.Errorf("copy %d: refused: %v; %d copies before, %d after", nth, fired, before, p.Stats(dispatch.Decode).Copies)
		}
		m.Close()
		p.Close()
		parts.Close()
	}
}

// TestLearnedTogether: streams that come and go through a pipeline, in one or two micro-batches, get the
// tokens that they get with all experts on the processor.
func TestLearnedTogether(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	expert := s.slotBytes(t, host, load.Options{Limits: limits})
	w := workload{streams: 5, prompt: 20, tokens: 24, chunk: 16, lanes: 1, device: slow, host: besideRates}
	w.Options = placement.Options{Prefill: strategy(t, "cpu_only"), Decode: strategy(t, "cpu_only"), Threshold: 14, Budget: 80 * expert}
	want := s.serve(t, host, w)
	prefills, lanes := []string{"layer_grouped", "cpu_only", "learned"}, 1
	if testing.Short() {
		prefills, lanes = prefills[:1], 2
	}
	for ; lanes <= 2; lanes++ {
		for _, prefill := range prefills {
			w.lanes, w.Prefill, w.Decode = lanes, strategy(t, prefill), strategy(t, "learned")
			got := s.serve(t, host, w)
			if x := got.stats[dispatch.Decode]; x.Copies == 0 {
				t.Errorf("%s, %d micro-batches: %+v", prefill, lanes, x)
			}
			for i := range want.tokens {
				if !slices.Equal(got.tokens[i], want.tokens[i]) {
					t.Errorf("%s, %d micro-batches: stream %d: %v, want %v", prefill, lanes, i, got.tokens[i], want.tokens[i])
				}
			}
			if again := s.serve(t, host, w); again.took != got.took || again.stats != got.stats {
				t.Errorf("%s, %d micro-batches: %v and %+v, again %v and %+v", prefill, lanes, got.took, got.stats, again.took, again.stats)
			}
		}
	}
}
