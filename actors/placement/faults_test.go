package placement_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/stages/compare"
	"krater/stages/load"
)

// failing is a processor whose n-th work of experts from now on panics.
type failing struct {
	*cpu.Device
	left atomic.Int64 // 0: none
}

func (f *failing) Run(s device.Stream, l device.List) {
	if l.Ops[0].Kind == device.OpExperts && f.left.Add(-1) == 0 {
		panic("injected: a pool in the middle of its work")
	}
	f.Device.Run(s, l)
}

// end asks for tokens and gives them, or the error that the request ended with, which
// must be one of the engine's.
func end(t *testing.T, g *actors.Gateway, ids []int32, n int) ([]int32, *engine.Error) {
	t.Helper()
	s, err := g.Submit(context.Background(), &engine.Request{
		ID: "test", Prompt: engine.Prompt{IDs: ids}, MaxTokens: n, IgnoreEOS: true,
		Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out []int32
	for {
		e, err := s.Next(context.Background())
		if err != nil {
			t.Fatalf("after %v: %v", out, err)
		}
		for _, tok := range e.Tokens {
			out = append(out, tok.ID)
		}
		switch e.Kind {
		case engine.Done:
			if _, err := s.Next(context.Background()); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
			return out, nil
		case engine.Failed:
			return out, e.Err
		}
	}
}

// placedBoth has pairs of strategies that together have every kind of copy and of work on
// either side, with the number of experts that fit.
var placedBoth = []struct {
	prefill, decode string
	slots           int64
}{
	{"cpu_only", "cpu_only", 1}, {"hot_cached_static", "hot_cached_static", 9}, {"layer_grouped:2:1", "hot_cached_static", 24},
	{"active_only", "lru", 12}, {"chunked", "static_pin", 9}, {"layer_grouped", "layer_grouped", 32},
}

// TestRefusedCalls: whatever call of a device is refused, the requests concerned end with a
// typed error, and the next one is answered right.
func TestRefusedCalls(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	q := g.Prompts[0]
	expert := s.slotBytes(t, host, pipelined)
	stride := int64(7)
	if testing.Short() {
		stride = 41
	}
	for _, x := range placedBoth {
		t.Run(fmt.Sprintf("%s, %s", x.prefill, x.decode), func(t *testing.T) {
			var p *actors.Pipeline
			var gw *actors.Gateway
			var d *hostsim.Device
			failed := 0
			const each = 5 // faults of a pipeline: ten in as many seconds are too many
			for i, nth := 0, int64(1); ; i, nth = i+1, nth+stride {
				if i%each == 0 {
					d = simulated(t, hostsim.Options{CPU: host, Async: i/each%2 == 1})
					p = s.shared(t, d, host, placement.Options{
						Prefill: strategy(t, x.prefill), Decode: strategy(t, x.decode), Threshold: 5, Budget: x.slots * expert, PrefillBudget: x.slots * expert * 2 / 3,
					}, false, 6*(i/each%2))
					gw = s.gateway(t, p)
				}
				d.Fail(hostsim.Refusal, nth)
				out, fault := end(t, gw, q.IDs, 5)
				d.Fail(hostsim.Refusal, 0)
				switch {
				case fault == nil && !slices.Equal(out, q.Greedy[:5]):
					t.Fatalf("call %d: %v, want %v", nth, out, q.Greedy[:5])
				case fault == nil: // an answer has fewer calls
					if failed < 3 {
						t.Errorf("%d faults were noticed", failed)
					}
					return
				case fault.Kind != engine.Internal || !slices.Equal(out, q.Greedy[:len(out)]):
					t.Errorf("call %d: %v after %v", nth, fault, out)
				}
				failed++
				if again, fault := end(t, gw, q.IDs, 5); fault != nil || !slices.Equal(again, q.Greedy[:5]) {
					t.Fatalf("after call %d: %v, %v; the pipeline: %v", nth, again, fault, p.Err())
				}
			}
		})
	}
}

// refusing is a simulated device. Its second stream, on which the placement copies experts (the
// first loads the table of rotations), fails as a GPU's stream does: it refuses the n-th copy from
// now on and does nothing more, and its next event says so.
type refusing struct {
	*hostsim.Device
	left    atomic.Int64 // 0: none
	streams atomic.Int64
}

type refusingStream struct {
	device.Stream
	dev *refusing
	err error
}

// failedEvent is an event of a stream that had failed.
type failedEvent struct {
	device.Event
	err error
}

func (e failedEvent) Err() error { return e.err }

func (d *refusing) NewStream() (device.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil || d.streams.Add(1) != 2 {
		return s, err
	}
	return &refusingStream{Stream: s, dev: d}, nil
}

func (s *refusingStream) CopyIn(dst device.Mat, src []byte) {
	if s.err == nil && s.dev.left.Add(-1) == 0 {
		s.err = errors.New("injected: a copy is refused")
	}
	if s.err == nil {
		s.Stream.CopyIn(dst, src)
	}
}

func (s *refusingStream) Wait(e device.Event) {
	if s.err == nil {
		s.Stream.Wait(e)
	}
}

func (s *refusingStream) Record() device.Event {
	if s.err != nil {
		return failedEvent{s.Stream.Record(), s.err}
	}
	return s.Stream.Record()
}

func (s *refusingStream) Synchronize() error { return errors.Join(s.err, s.Stream.Synchronize()) }

func (s *refusingStream) Recover() error {
	s.err = nil
	return s.Stream.Synchronize()
}

// TestRefusedCopies: a copy of experts whose refusal only its event tells, as on a GPU, leaves no
// slot that is taken for what it is not: the request concerned ends with a typed error, and the
// next one is answered right.
func TestRefusedCopies(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	expert := s.slotBytes(t, host, pipelined)
	stride, after := int64(1), len(g.Prompts)
	if testing.Short() {
		stride, after = 11, 1
	}
	want := func(i int) ([]int32, []int32) { p := g.Prompts[i%len(g.Prompts)]; return p.IDs, p.Greedy[:5] }
	for _, x := range []struct {
		prefill, decode string
		slots           int64
	}{{"lru", "lru", 6}, {"active_only", "lru", 12}, {"layer_grouped", "layer_grouped", 16}, {"chunked", "chunked", 9}} {
		t.Run(fmt.Sprintf("%s, %s", x.prefill, x.decode), func(t *testing.T) {
			var p *actors.Pipeline
			var gw *actors.Gateway
			var d *refusing
			failed := 0
			const each = 5 // faults of a pipeline: ten in as many seconds are too many
			for i, nth := 0, int64(1); ; i, nth = i+1, nth+stride {
				if i%each == 0 {
					d = &refusing{Device: simulated(t, hostsim.Options{CPU: host})}
					p = s.shared(t, d, host, placement.Options{
						Prefill: strategy(t, x.prefill), Decode: strategy(t, x.decode), Threshold: 5, Budget: x.slots * expert, PrefillBudget: x.slots * expert * 2 / 3,
					}, false, 0)
					gw = s.gateway(t, p)
				}
				ids, right := want(i)
				d.left.Store(nth)
				out, fault := end(t, gw, ids, 5)
				fired := d.left.Load() <= 0
				d.left.Store(0)
				if fault == nil && !slices.Equal(out, right) || fault != nil && (fault.Kind != engine.Internal || !slices.Equal(out, right[:len(out)])) {
					t.Errorf("copy %d: %v after %v, want %v", nth, fault, out, right)
				}
				if (fault != nil) != fired {
					t.Errorf("copy %d: refused: %v, the request: %v", nth, fired, fault)
				}
				for j := range after { // with what is there by now
					ids, right := want(i + j)
					if again, fault := end(t, gw, ids, 5); fault != nil || !slices.Equal(again, right) {
						t.Fatalf("after copy %d: %v, %v, want %v; the pipeline: %v", nth, again, fault, right, p.Err())
					}
				}
				if !fired { // an answer has fewer copies
					break
				}
				failed++
			}
			if failed < 3 {
				t.Errorf("%d faults were noticed", failed)
			}
		})
	}
}

// TestPoolPanics: a pool that panics in the middle of a step, on the host beside a device,
// ends the requests of that step alone, and the next one is answered right.
func TestPoolPanics(t *testing.T) {
	inner := processor(t)
	s := open(t, golden)
	g, err := compare.ReadGolden(golden)
	if err != nil {
		t.Fatal(err)
	}
	q := g.Prompts[0]
	expert := s.slotBytes(t, inner, pipelined)
	for _, x := range placedBoth[:3] {
		for _, inline := range []bool{false, true} {
			host := &failing{Device: inner}
			d := simulated(t, hostsim.Options{CPU: inner})
			p := s.shared(t, d, host, placement.Options{
				Prefill: strategy(t, x.prefill), Decode: strategy(t, x.decode), Threshold: 5, Budget: x.slots * expert, PrefillBudget: x.slots * expert * 2 / 3,
			}, inline, 0)
			gw := s.gateway(t, p)
			for _, nth := range []int64{1, 2, 5, 8} {
				host.left.Store(nth)
				out, fault := end(t, gw, q.IDs, 12)
				if fault == nil || fault.Kind != engine.Internal || !slices.Equal(out, q.Greedy[:len(out)]) {
					t.Errorf("%s, %s, work %d: %v after %v", x.prefill, x.decode, nth, fault, out)
				}
				host.left.Store(0)
				if again, fault := end(t, gw, q.IDs, 12); fault != nil || !slices.Equal(again, q.Greedy[:12]) {
					t.Fatalf("%s, %s, after work %d: %v, %v; the pipeline: %v", x.prefill, x.decode, nth, again, fault, p.Err())
				}
			}
		}
	}
}

// TestAllocationsFail: whichever allocation of a start fails, it says that there is no
// memory and leaves nothing behind, or a smaller strategy answers with the same bits.
func TestAllocationsFail(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	lo := load.Options{Limits: limits}
	want := ask(t, plain(t, host, s.on(t, host, lo)), s.cfg.Vocab, 20, 3)
	for _, name := range []string{"persistent", "static_pin", "hot_cached_static"} {
		fell, refused := 0, 0
		for nth := int64(1); ; nth++ {
			d := simulated(t, hostsim.Options{CPU: host})
			d.Fail(hostsim.Allocation, nth)
			po := placement.Options{Prefill: strategy(t, name), Decode: strategy(t, name), Threshold: 9}
			parts, p, err := placement.Load(d, host, s.cfg, s.set, lo, po)
			var m *placement.Model
			if err == nil {
				if m, err = placement.NewModel(d, host, parts, p); err != nil {
					p.Close()
					parts.Close()
				}
			}
			if err != nil {
				if !errors.Is(err, device.ErrOutOfMemory) || d.Memory().Used != 0 {
					t.Fatalf("%s, allocation %d: %v, %d bytes are left", name, nth, err, d.Memory().Used)
				}
				refused++
				continue
			}
			falls := p.Falls()
			if len(falls) > 0 {
				fell++
				if !errors.Is(falls[0].Why, device.ErrOutOfMemory) || !strings.Contains(falls[0].String(), "out of memory") {
					t.Errorf("%s, allocation %d: %v", name, nth, falls)
				}
				equal(t, want, ask(t, m, s.cfg.Vocab, 20, 3))
			}
			m.Close()
			p.Close()
			parts.Close()
			if d.Fail(hostsim.Allocation, 0); len(falls) == 0 {
				break // no allocation failed
			}
		}
		if fell != 1 || refused < 20 {
			t.Errorf("%s: %d falls and %d refusals, want that of its slots and all else", name, fell, refused)
		}
	}
}
