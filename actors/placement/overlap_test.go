package placement_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/placement"
	"krater/actors/trace"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/models"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/offload"
	"krater/stages/synth"
)

// served holds the answers of some streams and the virtual time that a pipeline spent on them.
type served struct {
	tokens       [][]int32
	took         time.Duration
	device, host time.Duration // busy
	tracks       map[string][]trace.Event
	stats        [dispatch.Phases]placement.Stats
}

// since returns how much longer a run took than a shorter one.
func (r *served) since(shorter served) (took, device, host time.Duration) {
	return r.took - shorter.took, r.device - shorter.device, r.host - shorter.host
}

// workload describes the streams of a run and the simulated machine that serves them.
type workload struct {
	placement.Options
	lanes, streams, prompt, tokens int
	chunk                          int // rows of prompts in a batch
	device, host                   hostsim.Rates
	precision                      load.Precision
}

// beside loads the model with its experts on the host.
func (s *source) beside(t testing.TB, d *hostsim.Device, host offload.Host, o load.Options) (parts *load.Parts, free func()) {
	t.Helper()
	if s.made != nil {
		on, err := s.made.LoadBeside(d, host, o, 2)
		if err != nil {
			t.Fatal(err)
		}
		return on.Parts, on.Close
	}
	o.Routed = host
	parts, err := load.Model(d, s.cfg, s.set, o)
	if err != nil {
		t.Fatal(err)
	}
	return parts, parts.Close
}

// deep is krater-tiny with more layers and a small vocabulary, as real models are: their
// head is a small part of a step.
func deep(t testing.TB) *source { return deepBy(t, 27, synth.Options{Seed: 3}) }

// deepBy is deep with that many layers, made by o.
func deepBy(t testing.TB, layers int, o synth.Options) *source {
	t.Helper()
	files, err := models.Default()
	if err != nil {
		t.Skip(err)
	}
	data, err := fs.ReadFile(files, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	config["num_hidden_layers"], config["vocab_size"] = layers, 512
	if data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	m, err := synth.FromConfig("deep", data, o)
	if err != nil {
		t.Fatal(err)
	}
	return &source{cfg: m.Config, made: m}
}

// serve runs a workload through a pipeline in virtual time.
func (s *source) serve(t testing.TB, processor *cpu.Device, w workload) (r served) {
	t.Helper()
	d, err := hostsim.New(hostsim.Options{CPU: processor, Rates: w.device})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	host := hostsim.NewProcessor(processor, d.Clock(), w.host)
	blocks := w.streams * (w.prompt + w.tokens + 15) / 16
	parts, free := s.beside(t, d, host, load.Options{
		Limits: stages.Limits{Tokens: w.chunk + w.streams, Seqs: w.streams, Blocks: blocks + w.streams, BlockTokens: 16}, KVType: tensor.F32, Precision: w.precision,
	})
	defer free()
	w.Now = d.Clock().Now
	place, err := placement.New(d, host, parts, w.Options)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	p, err := actors.StartVirtual([]load.Rank{{Device: d, Parts: parts}}, actors.Options{
		Blueprint: actors.Blueprint{Groups: []actors.GroupSpec{{Last: len(s.cfg.Layers)}}, Pools: 1, MicroBatches: w.lanes},
		Policy:    actors.Policy{PrefillChunk: w.chunk, PrefillShare: w.chunk, MaxQueue: 100},
		Log:       zerolog.Nop(), InlineBelow: -1, Placements: []*placement.Placement{place},
	}, d.Clock())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	gw := s.gateway(t, p.Pipeline)
	defer p.Trace().Watch()()
	began := d.Clock().Now()
	var open []engine.Stream
	for i := range w.streams {
		ids := make([]int32, w.prompt-i%3)
		for j := range ids {
			ids[j] = int32((7 + 31*i + 17*j + i*j) % s.cfg.Vocab)
		}
		a, err := gw.Submit(context.Background(), &engine.Request{
			Prompt: engine.Prompt{IDs: ids}, MaxTokens: w.tokens, IgnoreEOS: true, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
		})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, a)
	}
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	r.took, r.device, r.host = d.Clock().Now()-began, d.Counters().Compute, host.Busy()
	for _, a := range open {
		r.tokens = append(r.tokens, answered(t, a))
	}
	for phase := range dispatch.Phases {
		r.stats[phase] = place.Stats(phase)
	}
	r.tracks = map[string][]trace.Event{}
	for _, x := range p.Trace().Snapshot(0) {
		r.tracks[x.Name] = x.Events
	}
	return r
}

// answered reads an answer that is complete.
func answered(t testing.TB, a engine.Stream) (ids []int32) {
	t.Helper()
	defer a.Close()
	var last engine.Event
	for {
		e, err := a.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
		last = e
	}
	if last.Kind != engine.Done {
		t.Fatalf("ended with %+v", last)
	}
	return ids
}
