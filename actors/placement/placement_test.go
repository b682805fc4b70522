package placement_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/offload"
)

// TestWholeModelOnDevice: loaded as on any device, without a placement.
func TestWholeModelOnDevice(t *testing.T) {
	host := processor(t)
	s := open(t, "")
	o := load.Options{Limits: limits}
	want := ask(t, plain(t, host, s.on(t, host, o)), s.cfg.Vocab, 5, 12)
	d := simulated(t, hostsim.Options{CPU: host})
	parts := s.on(t, d, o)
	equal(t, want, ask(t, plain(t, d, parts), s.cfg.Vocab, 5, 12))
	if c := d.Counters(); c.BytesUp < parts.WeightBytes || c.HighWater < parts.WeightBytes {
		t.Errorf("%d bytes up, %d at most in use; the weights have %d", c.BytesUp, c.HighWater, parts.WeightBytes)
	}
}

// TestGoldenBesideDevice holds operators, router choices, logits and tokens to the goldens, of
// a model without experts too.
func TestGoldenBesideDevice(t *testing.T) {
	host := processor(t)
	for _, dir := range []string{golden, golden + "/../deepseek_v2", golden + "/../qwen2"} {
		s := open(t, dir)
		g, err := compare.ReadGolden(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"cpu_only", "persistent"} {
			for _, threshold := range []int{1, 8} {
				d := simulated(t, hostsim.Options{CPU: host})
				o := pipelined
				m := s.placed(t, d, host, o, placement.Options{Prefill: strategy(t, name), Decode: strategy(t, name), Threshold: threshold})
				r, err := compare.Run(m, s.cfg, g, compare.Weights(s.set), compare.Options{Chunk: 7, Batch: 3})
				if err != nil {
					t.Fatal(err)
				}
				if !r.OK() {
					var text strings.Builder
					_ = r.Text(&text)
					t.Errorf("%s, %s: %s", dir, name, text.String())
				}
			}
		}
	}
}

// step is one batch with a row of each of n sequences, from position pos on.
func step(t *testing.T, r drive.Runner, n, pos int) {
	t.Helper()
	b := &stages.Step{}
	for i := range n {
		b.Tokens = append(b.Tokens, int32(5+i))
		b.Spans = append(b.Spans, stages.Span{Seq: uint64(i), Decode: pos > 0, Want: true, Span: device.Span{Row: i, Len: 1, Pos: pos, Blocks: []int32{int32(i)}}})
	}
	if err := r.Step(b, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// TestSteadyState counts every byte of a decode step.
func TestSteadyState(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	h, k, moe := int64(s.cfg.Hidden), int64(s.cfg.MoE.Router.TopK), int64(0)
	for layer := range s.cfg.Layers {
		if s.cfg.MoELayer(layer) {
			moe++
		}
	}
	all := moe * int64(s.cfg.MoE.Experts)
	expert := 3 * int64(s.cfg.MoE.FF) * h * int64(s.cfg.DType.Size())
	const n = 3 // sequences
	for _, x := range []struct {
		name     string
		up, down int64 // bytes a step beyond what every step has
		experts  int64 // launches on the device
		resident int64
	}{
		{"cpu_only", n * k * h * 4 * moe, n * h * 4 * moe, 0, 0},
		{"persistent", 0, 0, moe, all},
	} {
		d := simulated(t, hostsim.Options{CPU: host})
		o := load.Options{Limits: limits, Routed: host}
		parts := s.on(t, d, o)
		before := d.Counters()
		p, err := placement.New(d, host, parts, placement.Options{Prefill: strategy(t, x.name), Decode: strategy(t, x.name)})
		if err != nil {
			t.Fatal(err)
		}
		if c := d.Counters().Since(before); c.BytesUp != x.resident*expert || c.Allocations != min(1, x.resident) || c.BytesDown != 0 {
			t.Errorf("%s: the start copied %d bytes in %d allocations, want %d in one", x.name, c.BytesUp, c.Allocations, x.resident*expert)
		}
		m, err := placement.NewModel(d, host, parts, p)
		if err != nil {
			t.Fatal(err)
		}
		step(t, m, n, 0)
		for pos := 1; pos < 4; pos++ {
			before, used := d.Counters(), d.Memory().Used
			step(t, m, n, pos)
			c := d.Counters().Since(before)
			// Token ids, positions, slots, marks, wanted rows; router choices, marks and logits.
			up, down := 5*4*n+x.up, n*k*4*moe+4*n+n*int64(s.cfg.Vocab)*4+x.down
			if c.BytesUp != up || c.BytesDown != down {
				t.Errorf("%s, position %d: %d bytes up and %d down, want %d and %d", x.name, pos, c.BytesUp, c.BytesDown, up, down)
			}
			if c.Launches["Experts"] != x.experts || c.Launches["RouteTopK"] != moe || c.Allocations != 0 || d.Memory().Used != used {
				t.Errorf("%s, position %d: %+v", x.name, pos, c)
			}
		}
		m.Close()
		p.Close()
	}
}

// TestFirstSlots: what the device itself has no memory for makes a strategy fall, with
// its words, and what fails otherwise is told and leaves the model whole.
func TestFirstSlots(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	o := load.Options{Limits: limits, Routed: host}
	d := simulated(t, hostsim.Options{CPU: host, Name: "hostsim:0", Budget: 64 << 20})
	parts := s.on(t, d, o)
	before := d.Memory().Used
	whole := parts.Groups[0].Bank(1).Routed[0]
	po := placement.Options{Prefill: strategy(t, "persistent"), Decode: strategy(t, "persistent")}
	d.Fail(hostsim.Allocation, 1)
	p, err := placement.New(d, host, parts, po)
	if err != nil {
		t.Fatal(err)
	}
	falls := p.Falls()
	if n, bytes := p.Slots(); n != 16 || bytes != d.Memory().Used-before || p.Strategy(dispatch.Prefill).Name() != "layer_grouped:2:1" {
		t.Errorf("%s with %d slots of %d bytes", p.Strategy(dispatch.Prefill).Name(), n, bytes)
	}
	if len(falls) != 1 || !errors.Is(falls[0].Why, device.ErrOutOfMemory) ||
		!strings.HasPrefix(falls[0].String(), "prefill: from persistent to layer_grouped:2:1: offload: 32 slots for experts of ") {
		t.Errorf("%v", falls)
	}
	p.Close()
	d.Fail(hostsim.Refusal, 20)
	if _, err := placement.New(d, host, parts, po); !errors.Is(err, hostsim.ErrRefused) || d.Memory().Used != before {
		t.Errorf("got %v, %d bytes are left", err, d.Memory().Used-before)
	}
	d.Fail(hostsim.Copy, 5)
	if _, err := placement.New(d, host, parts, po); !errors.Is(err, hostsim.ErrInjected) {
		t.Errorf("got %v", err)
	}
	if got := parts.Groups[0].Bank(1).Routed[0]; got != whole || got.Gate.Zero() {
		t.Errorf("the expert was %v, is %v", whole, got)
	}
	if used := d.Memory().Used; used != before {
		t.Errorf("%d bytes are left", used-before)
	}
	small := simulated(t, hostsim.Options{CPU: host, Name: "hostsim:1", Budget: 10_000})
	if _, err := load.Model(small, s.cfg, s.set, o); !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "of 10000 in use") {
		t.Errorf("a model on too small a device: %v", err)
	}
}

// TestExactBudget: what a model needs is enough, with a byte less a strategy falls, and
// nothing is ever above.
func TestExactBudget(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	for _, name := range []string{"cpu_only", "persistent"} {
		o := load.Options{Limits: limits}
		po := placement.Options{Prefill: strategy(t, name), Decode: strategy(t, name)}
		measure := simulated(t, hostsim.Options{CPU: host})
		s.placed(t, measure, host, o, po)
		need := measure.Memory().Used
		lim, err := limits.For(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		po.Reserve = stages.StateBytes(s.cfg, lim, nil) + offload.StageBytes(s.cfg, lim, nil)
		d := simulated(t, hostsim.Options{CPU: host, Budget: need})
		want := ask(t, s.placed(t, d, host, o, po), s.cfg.Vocab, 5, 4)
		if c := d.Counters(); c.HighWater != need {
			t.Errorf("%s: %d bytes at most in use, want %d", name, c.HighWater, need)
		}
		less := simulated(t, hostsim.Options{CPU: host, Name: "hostsim:7", Budget: need - 1})
		if name == "persistent" {
			equal(t, want, ask(t, s.placed(t, less, host, o, po), s.cfg.Vocab, 5, 4))
			if c := less.Counters(); c.HighWater >= need || c.HighWater < need/2 {
				t.Errorf("%d bytes at most in use, of %d", c.HighWater, need-1)
			}
			continue
		}
		parts, p, err := placement.Load(less, host, s.cfg, s.set, o, po)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := placement.NewModel(less, host, parts, p); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("%s: got %v", name, err)
		}
		p.Close()
		parts.Close()
	}
}

// TestExpertsElsewhere: what lies on a device already cannot be placed.
func TestExpertsElsewhere(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	d := simulated(t, hostsim.Options{CPU: host})
	parts := s.on(t, d, load.Options{Limits: limits})
	_, err := placement.New(d, host, parts, placement.Options{Prefill: strategy(t, "1"), Decode: strategy(t, "1")})
	if err == nil || !strings.Contains(err.Error(), "not in host memory") {
		t.Errorf("got %v", err)
	}
	parts = s.on(t, d, load.Options{Limits: limits, Routed: host})
	if _, err := placement.New(d, host, parts, placement.Options{Prefill: strategy(t, "1")}); err == nil || err.Error() != "no strategy for decode" {
		t.Errorf("got %v", err)
	}
}

// TestDeviceFault: whichever operator or copy of a step fails, the step says so.
func TestDeviceFault(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	for _, name := range []string{"cpu_only", "persistent"} {
		for kind, text := range map[hostsim.Kind]string{hostsim.Operator: "operator", hostsim.Copy: "copy"} {
			for nth := int64(1); ; nth += 3 {
				d := simulated(t, hostsim.Options{CPU: host})
				m := s.placed(t, d, host, load.Options{Limits: limits}, placement.Options{Prefill: strategy(t, name), Decode: strategy(t, name)})
				step(t, m, 1, 0)
				d.Fail(kind, nth)
				b := &stages.Step{Tokens: []int32{7}, Spans: []stages.Span{{Decode: true, Want: true, Span: device.Span{Len: 1, Pos: 1, Blocks: []int32{0}}}}}
				read := false
				err := m.Step(b, nil, func(*stages.State) error { read = true; return nil })
				if err == nil {
					if nth == 1 {
						t.Errorf("%s: %s 1 failed, and nobody noticed", name, text)
					}
					break // a step has fewer
				}
				if !errors.Is(err, hostsim.ErrInjected) || read {
					t.Errorf("%s, %s %d: %v, read %v", name, text, nth, err, read)
				}
				if err := m.Step(b, nil, nil); !errors.Is(err, hostsim.ErrInjected) {
					t.Errorf("%s, %s %d: the next step: %v", name, text, nth, err)
				}
			}
		}
	}
}

// TestTimes: the virtual time of a decode step is the same in every run, and what
// a strategy copies shows in it.
func TestTimes(t *testing.T) {
	host := processor(t)
	s := open(t, golden)
	rates := hostsim.Rates{
		Up: hostsim.Link{BytesPerSecond: 1e9, Latency: 10 * time.Microsecond}, Down: hostsim.Link{BytesPerSecond: 1e9, Latency: 10 * time.Microsecond},
		Memory: 100e9, Flops: 1e12, Launch: 5 * time.Microsecond,
	}
	times := map[string]time.Duration{}
	for run := range 2 {
		for _, name := range []string{"cpu_only", "persistent"} {
			d := simulated(t, hostsim.Options{CPU: host, Rates: rates})
			m := s.placed(t, d, host, load.Options{Limits: limits}, placement.Options{Prefill: strategy(t, name), Decode: strategy(t, name)})
			step(t, m, 2, 0)
			start, before := d.Clock().Now(), d.Counters()
			step(t, m, 2, 1)
			took, c := d.Clock().Now()-start, d.Counters().Since(before)
			if took < max(c.Compute, c.Up, c.Down) || c.Compute < time.Duration(c.Operators())*rates.Launch {
				t.Errorf("%s: a step of %v with engines busy for %v, %v and %v", name, took, c.Compute, c.Up, c.Down)
			}
			if run > 0 && times[name] != took {
				t.Errorf("%s: %v in one run, %v in another", name, times[name], took)
			}
			times[name] = took
		}
	}
	// cpu_only copies rows down and up in each of the two layers with experts, and
	// saves the device their work; nothing overlaps in a batch alone.
	if times["cpu_only"] <= times["persistent"] {
		t.Errorf("%v", maps.Collect(maps.All(times)))
	}
	t.Logf("%v", times)
}
