package actors

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler"
	"krater/stages"
	"krater/stages/model"
	"krater/stages/sample"
)

// chooserDevice is memory of a device that chooses tokens. Nothing computes there: the test does
// what the kernels would.
type chooserDevice struct{}

type chooserMemory []byte

func (m chooserMemory) Size() int    { return len(m) }
func (m chooserMemory) Host() []byte { return m }
func (m chooserMemory) Free()        {}

func (chooserDevice) Name() string                         { return "chooser" }
func (chooserDevice) Alloc(n int) (device.Buffer, error)   { return chooserMemory(make([]byte, n)), nil }
func (chooserDevice) Wrap(b []byte) (device.Buffer, error) { return chooserMemory(b), nil }
func (chooserDevice) NewStream() (device.Stream, error)    { return chooserStream{}, nil }
func (chooserDevice) Memory() device.Memory                { return device.Memory{} }
func (chooserDevice) Close() error                         { return nil }
func (chooserDevice) Accelerator() device.Accelerator      { return chooserLayout{} }

// chooserLayout has nothing but the layout of an accelerator.
type chooserLayout struct{ device.Accelerator }

func (chooserLayout) RowType() tensor.DType              { return tensor.F32 }
func (chooserLayout) StepKey([]device.Span) uint64       { return 1 }
func (chooserLayout) DrawWords() int                     { return 2 }
func (chooserLayout) PutDraw([]int32, device.Draw)       {}
func (chooserLayout) ScratchBytes(*device.StepSizes) int { return 0 }
func (chooserLayout) AllocShared(n int) (device.Buffer, []byte, error) {
	b := make([]byte, n)
	return chooserMemory(b), b, nil
}
func (chooserLayout) SpanWords(int, int) int                             { return 1 }
func (chooserLayout) PutSpans([]int32, []device.Span, []device.Span) int { return 1 }

// GatherRows takes the tokens of the step before, which the test knows.
func (chooserDevice) Run(device.Stream, device.List) {}
func (chooserDevice) Fused(device.List) int          { return 1 }

type chooserStream struct{ device.Immediate }

func (chooserStream) Device() device.Device { return chooserDevice{} }
func (chooserStream) CopyIn(dst device.Mat, src []byte) {
	copy(dst.Buf.Host()[dst.Off:dst.Off+dst.Bytes()], src)
}
func (chooserStream) CopyOut(dst []byte, src device.Mat) {}
func (chooserStream) Reserve(int) error                  { return nil }
func (chooserStream) Time(bool)                          {}
func (chooserStream) Mark() bool                         { return false }
func (chooserStream) Flush()                             {}
func (chooserStream) Took() []time.Duration              { return nil }
func (chooserStream) End() device.Timestamp              { return nil }

const chooserVocab, chooserSeqs = 50, 4

// chooserSim is a schedule node with such a device, and the rest of the pipeline as the test has
// it: batches come back in the order in which they left.
type chooserSim struct {
	deskHost
	t       *testing.T
	rng     *rand.Rand
	node    *scheduleNode
	turn    *turn
	flying  []*msg.Batch
	forget  []*msg.Batch
	live    []uint64
	last    uint64
	prompt  int // of the last
	params  func(*rand.Rand) sample.Params
	checked int // rows whose history was looked at
	later   int // steps whose masks came after the rest was sent
}

func newChooserSim(t *testing.T, seed uint64, blocks int, params func(*rand.Rand) sample.Params) *chooserSim {
	t.Helper()
	core, err := scheduler.New(scheduler.Config{BlockTokens: 4, Blocks: blocks, MaxBatchTokens: 16, MaxSeqs: chooserSeqs,
		PrefillChunk: 8, PrefillShare: 4, MaxQueue: 100, MicroBatches: 1, PrefillBatches: 1, Ahead: true})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &model.Config{Hidden: 2, Vocab: chooserVocab, MaxContext: 64}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return nil, model.Dense{} })
	lim, err := stages.Limits{Tokens: 16, Seqs: chooserSeqs, Blocks: blocks, BlockTokens: 4}.For(cfg)
	if err != nil {
		t.Fatal(err)
	}
	histories, err := stages.NewHistories(chooserDevice{}, lim)
	if err != nil {
		t.Fatal(err)
	}
	s := &chooserSim{t: t, rng: rand.New(rand.NewPCG(seed, 1)), params: params}
	var batches []*msg.Batch
	for range 2 {
		st, err := stages.NewState(chooserDevice{}, cfg, lim)
		if err != nil {
			t.Fatal(err)
		}
		st.Histories = histories
		b := msg.NewBatch(1, st)
		b.Stream = chooserStream{}
		batches = append(batches, b)
	}
	s.turn = solo(&post{on: s.got}, 1, 1)
	s.node = newScheduleNode(core, chooserStream{}, newMeters(blocks), s, batches, chooserSeqs)
	s.node.ahead = true
	return s
}

// got takes what the node sends.
func (s *chooserSim) got(_ string, m any) {
	switch m := m.(type) {
	case *msg.Batch:
		s.flying = append(s.flying, m)
	case *msg.Forget:
		s.forget = append(s.forget, m.Batch)
	case *msg.Deliver:
		for _, it := range m.Items {
			if it.Kind == msg.DeliverEnded {
				s.live = slices.DeleteFunc(s.live, func(id uint64) bool { return id == it.ID })
			}
		}
	}
}

func (s *chooserSim) tell(m any) { s.node.receive(s.turn, m) }

// token returns the token at a position of a sequence, chosen by the host or the GPU.
func token(seq uint64, at int) int32 {
	return int32((7*seq + 13*uint64(at) + uint64(at*at)) % chooserVocab)
}

func (s *chooserSim) submit(prompt, fresh int) {
	s.last++
	s.prompt = prompt
	m := &msg.Submit{Request: scheduler.Request{ID: s.last, PromptLen: prompt, MaxNew: fresh}, Reply: make(chan error, 1)}
	for at := range prompt {
		m.Prompt = append(m.Prompt, token(s.last, at))
	}
	var err error
	if m.Sampler, err = sample.New(s.params(s.rng), m.Prompt, chooserVocab); err != nil {
		s.t.Fatal(err)
	}
	s.live = append(s.live, s.last)
	s.tell(m)
	if err := <-m.Reply; err != nil {
		s.t.Fatal(err)
	}
}

// compute does a batch's step: the change of logits finds whole histories and goes on with them.
func (s *chooserSim) compute(b *msg.Batch) {
	s.t.Helper()
	c, changed := b.State.LogitChanges()
	for i := range b.Rows {
		r, sp := &b.Rows[i], &b.State.Spans[b.State.Owner[i]]
		at := sp.Pos + sp.Len - 1
		r.Result, r.Err = sample.Result{ID: token(sp.Seq, at+1)}, nil
		if !changed || c.Table.I32s()[2*i] < 0 {
			continue
		}
		slot := int(c.Table.I32s()[2*i])
		row := c.Store.RowRange(slot, slot+1).I32s()
		prompt := device.Encoded(row).Prompt()
		if d, ok := r.Sampler.DrawAt(at + 1 - prompt); !ok || !slices.Equal(row[:len(d.Change)], d.Change) {
			s.t.Fatalf("sequence %d at %d: the change %v is another's", sp.Seq, at, row[:8])
		}
		if !device.Encoded(row).Penalises() {
			continue // no penalties
		}
		tokens := row[device.ChangeWords:]
		for p := range at {
			if tokens[p] != token(sp.Seq, p) {
				s.t.Fatalf("sequence %d at %d: token %d of its history is %d, want %d", sp.Seq, at, p, tokens[p], token(sp.Seq, p))
			}
		}
		tokens[at] = token(sp.Seq, at)
		s.checked++
	}
}

// comeBack has the oldest batch come back, or fail, computed or not.
func (s *chooserSim) comeBack(fails bool) {
	s.t.Helper()
	b := s.flying[0]
	s.flying = s.flying[1:]
	if !b.Abandoned.Load() && (!fails || s.rng.IntN(2) == 0) {
		s.compute(b)
	}
	if fails {
		s.tell(&msg.Failed{Batch: b, Epoch: b.Epoch, Cause: errors.New("injected")})
		return
	}
	if b.State.Later() {
		s.later++
	}
	s.tell(msg.NewReply(b))
}

// byText is a mask that depends on the text: it is known once the tokens before it are.
func (s *chooserSim) byText(prompt int) func(n int, wait bool) []uint32 {
	seq := s.last
	return func(n int, _ bool) []uint32 {
		if r := s.node.live[seq]; r != nil && n > len(r.tokens)-prompt {
			return nil
		}
		return chooserAll
	}
}

// chooserAll is a mask of all tokens.
var chooserAll = []uint32{1<<32 - 1, 1<<(chooserVocab-32) - 1}

// TestHistoriesAreWhole: whatever happens to a sequence, when a device changes its logits it has
// all tokens that the sequence has had: after a preemption, beside lost and void batches, and
// after steps whose tokens the host has chosen.
func TestHistoriesAreWhole(t *testing.T) {
	checked := 0
	var all scheduler.Stats
	later := 0
	for seed := range uint64(40) {
		var s *chooserSim
		s = newChooserSim(t, seed, 9+int(seed%3)*4, func(r *rand.Rand) sample.Params {
			p := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
			if r.IntN(8) == 0 {
				p.Logprobs = 0 // the host chooses, for all that are beside it
			}
			if r.IntN(4) == 0 {
				p.Allow = s.byText(s.prompt)
			}
			switch r.IntN(4) {
			case 0:
				p.LogitBias = map[int32]float32{1: 2}
			case 1, 2:
				p.FrequencyPenalty = 1
			}
			return p
		})
		left := 25
		for steps := 0; left > 0 || len(s.live) > 0 || len(s.flying) > 0 || len(s.forget) > 0; steps++ {
			if steps > 5000 {
				t.Fatalf("seed %d: %v live, %d in flight", seed, s.live, len(s.flying))
			}
			switch k := s.rng.IntN(30); {
			case k < 4 && left > 0 && len(s.live) < 8:
				left--
				s.submit(1+s.rng.IntN(14), 1+s.rng.IntN(16))
			case k == 4 && len(s.live) > 0:
				s.tell(&msg.Cancel{ID: s.live[s.rng.IntN(len(s.live))], Why: scheduler.Cancelled})
			case k < 10 && len(s.forget) > 0:
				b := s.forget[0]
				s.forget = s.forget[1:]
				s.tell(&msg.Forgotten{Batch: b})
			case len(s.flying) > 0:
				s.comeBack(k == 10 && s.rng.IntN(4) == 0)
			}
			if err := s.node.core.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		checked, later = checked+s.checked, later+s.later
		n := s.node.core.Stats()
		all.Ahead, all.Preemptions, all.FailedBatches = all.Ahead+n.Ahead, all.Preemptions+n.Preemptions, all.FailedBatches+n.FailedBatches
	}
	if checked < 1500 || later < 200 || all.Ahead < 500 || all.Preemptions < 20 || all.FailedBatches < 40 {
		t.Errorf("%d histories looked at, %d steps with later masks, %d ahead, %d preemptions, %d batches lost", checked, later, all.Ahead, all.Preemptions, all.FailedBatches)
	}
}

// TestAheadWithChanges: a request with penalties, biases, tokens that may not come yet or a mask
// keeps running a step ahead, also where the mask depends on the text. One with log-probabilities waits for
// each of its tokens.
func TestAheadWithChanges(t *testing.T) {
	for _, x := range []struct {
		name         string
		set          func(p *sample.Params)
		ahead, later bool
	}{
		{"nothing", func(p *sample.Params) {}, true, false},
		{"penalties", func(p *sample.Params) { p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 1.1, 0.5, 0.5 }, true, false},
		{"bias", func(p *sample.Params) { p.LogitBias = map[int32]float32{3: -100} }, true, false},
		{"min_tokens", func(p *sample.Params) { p.StopIDs, p.MinTokens = []int32{49}, 5 }, true, false},
		{"a mask", func(p *sample.Params) { p.Allow = func(int, bool) []uint32 { return chooserAll } }, true, false},
		{"a mask by the text", nil, true, true},
		{"log-probabilities", func(p *sample.Params) { p.Logprobs = 0 }, false, false},
	} {
		var s *chooserSim
		s = newChooserSim(t, 1, 40, func(*rand.Rand) sample.Params {
			p := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
			if x.set != nil {
				x.set(&p)
				return p
			}
			p.Allow = s.byText(3)
			return p
		})
		const streams, fresh = 3, 12
		for range streams {
			s.submit(3, fresh)
		}
		for len(s.flying) > 0 {
			s.comeBack(false)
		}
		n := s.node.core.Stats()
		if n.Ended[scheduler.Length] != streams || n.NewTokens != streams*fresh {
			t.Errorf("%s: %d of %d answers, %d tokens", x.name, n.Ended[scheduler.Length], streams, n.NewTokens)
		}
		if x.ahead && n.Ahead < fresh-3 || !x.ahead && n.Ahead > 0 || (s.later >= fresh-3) != x.later {
			t.Errorf("%s: %d of %d steps were made ahead, %d in two parts", x.name, n.Ahead, n.Batches, s.later)
		}
	}
}
