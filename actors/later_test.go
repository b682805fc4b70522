package actors

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/stages/load"
	"krater/stages/sample"
)

const simVocab = 512 // of the golden's model

// textMask is a mask that follows from the token before it: two thirds of the tokens.
func textMask(seed uint64, n int, before int32) []uint32 {
	mask := make([]uint32, simVocab/32)
	for id := range simVocab {
		if (uint64(id)+seed+uint64(n)*5+uint64(before)*3)%3 != 0 {
			mask[id/32] |= 1 << (id % 32)
		}
	}
	return mask
}

// masking is a request whose masks depend on the text, and are found beside the step that follows a
// token: in virtual time they are known some time later.
type masking struct {
	seed  uint64
	takes func(seed uint64, n int) time.Duration
	clock *ticking // nil: no time is counted

	mu     sync.Mutex
	n      int
	before int32
	known  time.Duration
}

func (m *masking) allow(n int, wait bool) []uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n != m.n {
		return nil
	}
	if m.clock != nil {
		if !wait && m.clock.at < m.known {
			return nil
		}
		m.clock.at = max(m.clock.at, m.known)
	} else if !wait && hash(m.seed+uint64(n))%2 == 0 {
		return nil
	}
	return textMask(m.seed, n, m.before)
}

func (m *masking) took(id int32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n, m.before = m.n+1, id
	if m.clock != nil {
		m.known = m.clock.at + m.takes(m.seed, m.n)
	}
	return nil
}

// maskedRun is a pipeline over a simCard, whose requests have a number of tokens; the first of them have masks.
type maskedRun struct {
	card   *simCard
	masked int
	fresh  int
	host   time.Duration // of an actor for a message
	takes  func(seed uint64, n int) time.Duration
	stop   map[uint64]int // by request: its last token is an end token

	mu   sync.Mutex
	open int
	got  map[uint64][]int32
}

// setup has requests choose tokens in this way, and notes what they get.
func (r *maskedRun) setup(virtual bool) setup {
	r.got = map[uint64][]int32{}
	o := setup{dir: golden("deepseek_v2_lite"), depth: 1, chunk: 64, share: 64, retries: 1000}
	o.wrap = func(actor string, n node) node {
		return hook{n, func(_ *turn, m any) {
			if virtual {
				r.card.clock.at += r.host
			}
			switch m := m.(type) {
			case *msg.Submit:
				m.Sampler = r.sampler(m, nil, virtual)
				m.Again = func(answer []int32) (*sample.Sequence, error) { return r.sampler(m, answer, virtual), nil }
			case *msg.Deliver:
				r.mu.Lock()
				for _, item := range m.Items {
					if item.Kind == msg.DeliverToken {
						r.got[item.ID] = append(r.got[item.ID], item.Result.ID)
					}
				}
				r.mu.Unlock()
			}
		}}
	}
	return o
}

// load puts the model on the simulated GPU.
func (r *maskedRun) load(t *testing.T, o setup) *loaded {
	t.Helper()
	o.ops = func(load.Device) load.Device { return r.card }
	l := loadModel(t, o)
	l.dev = r.card
	return l
}

func (r *maskedRun) sampler(m *msg.Submit, answer []int32, virtual bool) *sample.Sequence {
	p := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1, Seed: m.Request.ID}
	if int(m.Request.ID) <= r.masked {
		x := &masking{seed: p.Seed, takes: r.takes, before: m.Prompt[len(m.Prompt)-1]}
		if virtual {
			x.clock = r.card.clock
		}
		for _, id := range answer {
			_ = x.took(id)
		}
		p.Allow, p.Took = x.allow, x.took
	}
	if n := r.stop[p.Seed]; n > 0 {
		want := r.want(p.Seed, m.Prompt, n)
		p.StopIDs = want[n-1:]
	}
	q, err := sample.New(p, m.Prompt, simVocab)
	if err != nil {
		panic(err)
	}
	q.After(answer)
	return q
}

// want is the answer of a request alone.
func (r *maskedRun) want(id uint64, prompt []int32, n int) (ids []int32) {
	before := prompt[len(prompt)-1]
	for i := range n {
		var mask []uint32
		if int(id) <= r.masked {
			mask = textMask(id, i, before)
		}
		before = simToken(int32(id), int32(i), before, simVocab, mask)
		ids = append(ids, before)
	}
	return ids
}

func simPrompt(id uint64) []int32 { return []int32{3, 4, 5, int32(6 + id)} }

// submit hands in requests, which are numbered from 1.
func (r *maskedRun) submit(t *testing.T, gw *Gateway, n int) (open []engine.Stream) {
	t.Helper()
	for i := range n {
		req := greedy(simPrompt(uint64(i+1)), r.fresh)
		req.Logprobs = -1
		st, err := gw.Submit(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	return open
}

// check holds the tokens that came against those of requests alone. Of some only the first came.
func (r *maskedRun) check(t *testing.T, n int, part func(id uint64) bool) {
	t.Helper()
	for i := range n {
		id := uint64(i + 1)
		all := r.fresh
		if stop := r.stop[id]; stop > 0 {
			all = stop
		}
		want := r.want(id, simPrompt(id), all)
		if all < r.fresh { // the end token may come before
			want = want[:1+slices.Index(want, want[all-1])]
		}
		got := r.got[id]
		if part(id) && len(got) <= len(want) {
			want = want[:len(got)]
		}
		if !slices.Equal(got, want) {
			t.Errorf("request %d: %v, want %v", id, got, want)
		}
	}
}

func inFull(uint64) bool { return false }

// usualMask is how long a mask takes: the shares of bench/results/doors.md.
func usualMask(seed uint64, n int) time.Duration {
	switch x := hash(seed<<32+uint64(n)) % 1000; {
	case x < 500:
		return 1500 * time.Nanosecond
	case x < 900:
		return 50 * time.Microsecond
	case x < 990:
		return 180 * time.Microsecond
	case x < 999:
		return 1300 * time.Microsecond
	}
	return 2500 * time.Microsecond
}

// TestMasksBesideSteps: in virtual time, a step of eight streams takes at most 3 % more where one or all of them
// have masks that take as long as usual. With masks that take longer than a step, the step takes as long as its mask and not
// as long as both.
func TestMasksBesideSteps(t *testing.T) {
	const streams, fresh = 8, 400
	run := func(masked int, takes func(uint64, int) time.Duration) (step, busy time.Duration) {
		clock := &ticking{}
		r := &maskedRun{card: &simCard{clock: clock, op: 42 * time.Microsecond}, masked: masked, fresh: fresh, host: 10 * time.Microsecond, takes: takes}
		o := r.setup(true).defaults()
		l := r.load(t, o)
		v, err := StartVirtual(l.placed(), l.options(t, o), clock)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		open := r.submit(t, l.open(t, v.Pipeline), streams)
		if err := v.Run(); err != nil {
			t.Fatal(err)
		}
		for _, st := range open {
			if _, last := ending(t, drainEvents(t, st)); last.Finish != engine.FinishLength {
				t.Errorf("ended with %+v", last)
			}
		}
		r.check(t, streams, inFull)
		return clock.at / fresh, r.card.busy / fresh
	}
	free, busy := run(0, nil)
	if busy < free*99/100 {
		t.Errorf("without masks the device works for %v of a step of %v", busy, free)
	}
	for _, masked := range []int{1, streams} {
		step, busy := run(masked, usualMask)
		t.Logf("%d of %d streams have masks: a step takes %v, of which the device works %v; %v without", masked, streams, step, busy, free)
		if float64(step) > 1.03*float64(free) {
			t.Error("more than 3 % slower")
		}
	}
	slow := 3 * free / 2
	step, _ := run(1, func(uint64, int) time.Duration { return slow })
	t.Logf("masks that take %v make it %v", slow, step)
	if step > slow+free/5 {
		t.Errorf("masks take %v and a step without %v: one with them takes %v", slow, free, step)
	}
}

// TestMasksInAnyOrder: whichever actor is next, with masks that come late, requests that are cancelled or end, steps
// that the device loses, masks that do not come in time and a KV cache that is too small for all, each request has the tokens that it has alone.
func TestMasksInAnyOrder(t *testing.T) {
	const streams = 9
	ahead, preempted, failed := uint64(0), uint64(0), 0
	for seed := range uint64(24) {
		r, o := newDisorder(seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		s := newSim(t, r.load(t, o), seed, o)
		gw := NewGateway(s.p, GatewayOptions{ID: "test", Vocab: simVocab, Tokenizer: tinyTokenizer(t)})
		open, cancelled := r.submit(t, gw, streams), rng.IntN(streams)
		for range rng.IntN(2000) {
			s.step()
		}
		open[cancelled].Close()
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		r.check(t, streams, func(id uint64) bool { return id == uint64(cancelled+1) })
		st := gw.Stats()
		ahead, preempted, failed = ahead+st.StepsAhead, preempted+st.Preemptions, failed+r.card.failed
	}
	if ahead < 800 || preempted < 10 || failed < 50 {
		t.Errorf("%d steps were made ahead, %d requests lost their blocks, %d steps failed", ahead, preempted, failed)
	}
}

// newDisorder is a run of requests of which some have masks and some end early, over a GPU that loses steps and has
// room for less than all of them.
func newDisorder(seed uint64) (*maskedRun, setup) {
	r := &maskedRun{card: &simCard{clock: &ticking{}, fails: map[int]error{}, late: map[int]bool{}}, masked: int(seed % 4 * 3), fresh: 24, stop: map[uint64]int{}}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 6 {
		r.card.fails[4+rng.IntN(60)] = errSimCard
		r.card.late[4+rng.IntN(60)] = true
	}
	for id := range uint64(9) {
		if rng.IntN(3) == 0 {
			r.stop[id+1] = 1 + rng.IntN(r.fresh)
		}
	}
	o := r.setup(false)
	o.limits.Tokens, o.limits.Seqs, o.limits.Blocks, o.limits.BlockTokens = 40, 6, 24, 4
	return r, o.defaults()
}

// TestMasksAtOnce is TestMasksInAnyOrder with actors that run at the same time, and pipelines that are closed in the
// middle.
func TestMasksAtOnce(t *testing.T) {
	const streams = 9
	for seed := range uint64(4) {
		r, o := newDisorder(seed)
		l := r.load(t, o)
		p := l.over(t, o, l.placed(), nil)
		open := r.submit(t, l.open(t, p), streams)
		var wg sync.WaitGroup
		for _, st := range open {
			wg.Go(func() { _, _ = everything(st) })
		}
		closes := seed == 3
		if closes {
			_, _ = open[streams-1].Next(context.Background())
		} else {
			wg.Wait()
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		r.check(t, streams, func(uint64) bool { return closes })
	}
}
