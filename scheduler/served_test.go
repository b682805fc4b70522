package scheduler

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// machine says how long a step takes, in nanoseconds, by its rows. It describes a GPU that has three of
// seven parts of a model's experts (bench/results/hybrid.md: DeepSeek-V2-Lite's shape in INT4, 3 GiB of 6.9 on an
// H200 with 16 processors).
type machine struct {
	threshold int     // rows from which on a step copies the experts that are not there: a pass
	base      float64 // of a step, ms
	experts   float64 // reading all experts that are not there, by what a small step uses for that, ms
	missed    float64 // the probability that a row chooses an expert that is not there
	row       float64 // of a row in a small step, ms
	pass      float64 // copies of a pass, ms
	passRow   float64 // of a row in a pass, ms
	back      float64 // slots that are filled again for the first small step after a pass, ms
	passed    bool
	// Blocks beyond least take memory of experts: each block makes this part more of them be read.
	least    int
	perBlock float64
}

func (m *machine) time(rows, blocks int) int64 {
	var ms float64
	less := 1 + float64(max(0, blocks-m.least))*m.perBlock
	if rows >= m.threshold {
		ms = m.base + max(m.pass*less, float64(rows)*m.passRow)
		m.passed = true
	} else {
		ms = m.base + m.experts*less*(1-math.Pow(1-m.missed, float64(rows))) + float64(rows)*m.row
		if m.passed {
			ms += m.back
		}
		m.passed = false
	}
	return int64(ms * 1e6)
}

// processors reads missing experts by the processors alone, bothWays by the link at the same time.
var (
	processors = machine{threshold: 300, base: 6, experts: 51, missed: 0.0625, row: 0.25, pass: 84, passRow: 1.0 / 80, back: 7}
	bothWays   = machine{threshold: 300, base: 6, experts: 31, missed: 0.0625, row: 0.15, pass: 84, passRow: 1.0 / 80, back: 7}
)

// talkers is a closed loop of clients that continue conversations, with lengths like those of ShareGPT
// (bench/serve/mix.go).
type talkers struct {
	rand  *rand.Rand
	talks []*talk
	begun int32
}

type talk struct {
	tokens      []int32
	turn, turns int
}

func (w *talkers) length(mean, sigma float64) int {
	return max(1, int(math.Exp(math.Log(mean)-sigma*sigma/2+sigma*w.rand.NormFloat64())))
}

func (w *talkers) words(n int) (ids []int32) {
	for range n {
		ids = append(ids, w.rand.Int32N(100000))
	}
	return ids
}

func (w *talkers) begin() *talk {
	t := &talk{turns: 1}
	for w.rand.Float64() > 1/3.5 {
		t.turns++
	}
	if w.rand.Float64() < 0.5 {
		for i := range int32(64) {
			t.tokens = append(t.tokens, i)
		}
	}
	return t
}

func (w *talkers) next() (prompt []int32, answer, leave int) {
	for len(w.talks) < 16 {
		w.talks = append(w.talks, w.begin())
	}
	i := w.rand.IntN(len(w.talks))
	if w.talks[i].turn == w.talks[i].turns {
		w.talks[i] = w.begin()
	}
	t := w.talks[i]
	t.turn++
	t.tokens = append(t.tokens, w.words(w.length(161, 1.3))...)
	prompt, answer = slices.Clone(t.tokens), w.length(338, 0.9)
	t.tokens = append(t.tokens, w.words(answer)...)
	if leave = answer + 1; w.rand.Float64() < 0.3 {
		leave = 1 + w.rand.IntN(answer)
	}
	return prompt, answer, leave
}

// service is clients of a core on a machine, in virtual time.
type service struct {
	testing.TB
	core    *Core
	machine machine
	talkers
	live   map[uint64]*servedClient
	flying []servedBatch
	id     uint64
	now    int64
	busy   int64 // the machine, until then

	tokens             int
	first, gaps, means []float64 // s, ms, ms
	passes, steps      int
	passTime, running  float64
}

type servedBatch struct {
	Batch
	end int64
}

// servedClient is a request of a talker.
type servedClient struct {
	sent, last    int64
	tokens, leave int
}

// serve plays clients for a time.
func serve(t testing.TB, cfg Config, m machine, clients int, seconds float64, seed uint64) *service {
	s := &service{TB: t, core: newCore(t, cfg), machine: m, talkers: talkers{rand: rand.New(rand.NewPCG(seed, 1))}, live: map[uint64]*servedClient{}}
	for range clients {
		s.send()
	}
	for s.now < int64(seconds*1e9) {
		s.make()
		s.finish()
	}
	return s
}

func (s *service) send() {
	s.id++
	prompt, answer, leave := s.talkers.next()
	s.live[s.id] = &servedClient{sent: s.now, leave: leave}
	if err := s.core.Add(Request{ID: s.id, Prompt: prompt, PromptLen: len(prompt), MaxNew: answer}, s.now); err != nil {
		s.Fatal(err)
	}
}

// listen has every client whose request has ended ask again.
func (s *service) listen() {
	for _, e := range s.core.Effects() {
		if e.Kind == Ended {
			delete(s.live, e.ID)
			s.send()
		}
	}
}

// make makes all batches that can be in flight.
func (s *service) make() {
	for {
		if n := s.core.Demand(); n != s.core.Open() && s.machine.perBlock > 0 {
			s.core.Resize(n)
		}
		b, ok := s.core.Next(s.now)
		s.listen()
		if !ok {
			break
		}
		took := s.machine.time(b.Rows, s.core.Open())
		s.busy = max(s.busy, s.now+500_000) + took
		s.steps++
		s.running += float64(b.Decode) * float64(took)
		if b.Rows >= s.machine.threshold {
			s.passes++
			s.passTime += float64(took)
		}
		s.flying = append(s.flying, servedBatch{b, s.busy})
	}
	if len(s.flying) == 0 {
		s.Fatal("nothing to do")
	}
}

// finish brings the oldest batch back.
func (s *service) finish() {
	b := s.flying[0]
	s.flying = s.flying[1:]
	s.now = b.end
	var outcomes []Outcome
	for i := range b.Spans {
		if sp := &b.Spans[i]; sp.Last {
			outcomes = append(outcomes, Outcome{ID: sp.ID, NewTokens: 1, Tokens: s.words(1)})
			s.token(s.live[sp.ID])
		}
	}
	if err := s.core.Done(b.ID, outcomes); err != nil {
		s.Fatal(err)
	}
	s.listen()
	for id := range s.id + 1 {
		if x := s.live[id]; x != nil && x.tokens >= x.leave {
			s.core.Cancel(id, Cancelled)
		}
	}
	s.listen()
}

// token notes a token that a client gets.
func (s *service) token(x *servedClient) {
	if x == nil {
		return
	}
	if x.tokens++; x.tokens == 1 {
		s.first = append(s.first, float64(s.now-x.sent)/1e9)
	} else {
		s.gaps = append(s.gaps, float64(s.now-x.last)/1e6)
	}
	s.tokens++
	x.last = s.now
}

// rate is tokens of answers a second.
func (s *service) rate() float64 { return float64(s.tokens) / float64(s.now) * 1e9 }

// share is the share of the time that passes take.
func (s *service) share() float64 { return s.passTime / float64(s.now) }

func (s *service) String() string {
	return fmt.Sprintf("%.0f tok/s, prompts %.0f, first token p50 %.2f p99 %.2f s, between tokens p50 %.0f p90 %.0f p99 %.0f ms, %d passes of %d steps %.2f of the time, %.1f running, %d preempted, %d requests",
		s.rate(), float64(s.core.Stats().PrefillRows)/float64(s.now)*1e9, percentile(s.first, 0.5), percentile(s.first, 0.99), percentile(s.gaps, 0.5), percentile(s.gaps, 0.9),
		percentile(s.gaps, 0.99), s.passes, s.steps, s.share(), s.running/float64(s.now), s.core.Stats().Preemptions, len(s.first))
}

func percentile(list []float64, p float64) float64 {
	slices.Sort(list)
	return list[min(len(list)-1, int(p*float64(len(list))))]
}

// servedConfig has room for the given number of blocks of KV cache: 600 MiB are 632.
func servedConfig(blocks int) Config {
	return Config{BlockTokens: 32, Blocks: blocks, MaxBatchTokens: 32768 + 48, MaxSeqs: 48, PrefillChunk: 32768, PrefillShare: 32768, MaxQueue: 256,
		MicroBatches: 1, PrefillBatches: 1, MaxRetries: 2, Aging: 1000, Ahead: true}
}

// passing has prompts collect into passes.
func (c Config) passing() Config {
	c.PrefillShare, c.PassRows, c.PassMixed, c.PassShare = 8192, 300, 100, 20
	return c
}

// exchanging begins with 632 blocks, and takes 27 experts for 121 blocks more. 941 are not there at first.
func exchanging(m machine) (Config, machine) {
	cfg := servedConfig(1963).passing()
	cfg.Open, m.least, m.perBlock = 632, 632, 27.0/121/941
	return cfg, m
}

// TestServed plays 40 clients in virtual time: passes take no more than their share, and the bounds of the first token and of the time between
// tokens hold where the KV cache has room for them.
func TestServed(t *testing.T) {
	for _, m := range []machine{processors, bothWays} {
		for _, blocks := range []int{632, 1264} {
			for seed := range uint64(2) {
				if blocks == 632 {
					cfg, m := exchanging(m)
					x := serve(t, cfg, m, 40, 40, seed)
					t.Logf("blocks beside experts, %.0f ms for these: %v, %d blocks", m.experts, x, x.core.Open())
					if first := percentile(x.first, 0.99); first > 4 {
						t.Errorf("the first token within %.2f s", first)
					}
				}
				at, plain := serve(t, servedConfig(blocks).passing(), m, 40, 40, seed), serve(t, servedConfig(blocks), m, 40, 40, seed)
				t.Logf("%d blocks, %.0f ms for experts\npasses %v\nat once %v", blocks, m.experts, at, plain)
				if at.share() > 0.21 {
					t.Errorf("passes take %.2f of the time", at.share())
				}
				if blocks == 632 { // requests wait for memory
					continue
				}
				if first, gap := percentile(at.first, 0.99), percentile(at.gaps, 0.99); first > 4 || gap > 120 || at.rate() < 0.98*plain.rate() {
					t.Errorf("%.0f of %.0f tok/s, the first token within %.2f s, others within %.0f ms", at.rate(), plain.rate(), first, gap)
				}
			}
		}
	}
}

// TestPass: beside streams short prompts join the next batch, and others collect until a pass may begin. Meanwhile steps go
// ahead.
func TestPass(t *testing.T) {
	cfg := servedConfig(1000)
	cfg.PassRows, cfg.PassMixed, cfg.PassShare = 300, 100, 20
	c := newCore(t, cfg)
	now := int64(1)
	step := func(took int64) (b Batch) {
		t.Helper()
		b, ok := c.Next(now)
		if !ok {
			t.Fatal("no batch")
		}
		c.Effects()
		now += took
		if err := (&stepper{core: c}).done(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	mustAdd(t, c, Request{ID: 1, PromptLen: 400, MaxNew: 1000})
	if b := step(100); b.Rows != 400 {
		t.Fatalf("%d rows", b.Rows)
	}
	mustAdd(t, c, Request{ID: 2, PromptLen: 60, MaxNew: 1000})
	if b := step(10); b.Rows != 61 { // joins
		t.Fatalf("%d rows", b.Rows)
	}
	rows := 0
	for id := uint64(3); rows < 800; id++ {
		mustAdd(t, c, Request{ID: id, PromptLen: 200, MaxNew: 1000})
		rows += 200
		if b := step(10); b.Rows != 2 {
			t.Fatalf("%d rows at %d", b.Rows, now)
		}
	}
	b, _ := c.Next(now)
	if ahead, ok := c.Next(now); !ok || ahead.After != b.ID {
		t.Errorf("%+v is not ahead", ahead)
	} else if err := errors.Join((&stepper{core: c}).done(b), (&stepper{core: c}).done(ahead)); err != nil {
		t.Fatal(err)
	}
	for now < 101+400 {
		if b := step(10); b.Rows != 2 {
			t.Fatalf("%d rows at %d", b.Rows, now)
		}
	}
	if b := step(100); b.Rows != 802 || b.Decode != 2 {
		t.Fatalf("%d rows, %d of streams", b.Rows, b.Decode)
	}
}
