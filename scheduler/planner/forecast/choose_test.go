package forecast

import (
	"errors"
	"math"
	"strings"
	"testing"

	"krater/scheduler/planner/rates"
)

// toy is a model of round numbers: 10 layers of 8 experts of 1 MB, of which a row takes
// 2; a token has 1 KB of KV cache. The GPU reads 100 GB/s, copies 10 and multiplies
// without an end; the processors read 20 GB/s. Only reading and copying take time.
func toy() Case {
	c := Case{
		Shape: Shape{Layers: 10, MoE: 10, Experts: 8, TopK: 2, ExpertCard: 1e6, ExpertHost: 1e6, FixedBytes: 20e6, KVToken: 1000},
		Skew:  Uniform(8),
		Work:  Work{Lengths: []int{1000}, Batches: []int{1}, Streams: 1, Chunk: 1000},
		Rates: rates.Rates{
			Card: rates.Card{Name: "toy", MemoryGiB: 1, ReadGBps: 100, WeightShare: 1, KVShare: 1, TFLOPS: 1e6, CopyGBps: 10, BusyGBps: 10, CopyUS: 1e-9,
				LaunchUS: 1e-9, NodeUS: 1e-9, FlagUS: 1e-9, FlagGBps: 1e6, SyncUS: 1e-9},
			CPU: rates.CPU{Name: "toy", ReadGBps: 20, DecodeShare: 1, Experts: rates.Curve{Peak: 1e5}, LayerUS: 1e-9},
		},
		Budget: Budget{VRAM: 200e6, Fixed: 20e6, KV: 20e6},
	}
	return c
}

func (f *Forecast) find(t *testing.T, name string) *Candidate {
	t.Helper()
	for i := range f.Candidates {
		if f.Candidates[i].Name() == name {
			return &f.Candidates[i]
		}
	}
	t.Fatalf("no candidate %s", name)
	return nil
}

// TestByHand: every time of the toy model, counted by hand.
func TestByHand(t *testing.T) {
	c := toy()
	c.Budget.VRAM, c.Budget.Experts = 400e6, 40e6 // half of the experts
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	// The GPU reads 20 MB of fixed weights in 0.2 ms and all experts in 0.8 ms.
	const fixed, all = 0.2e-3, 0.8e-3
	for _, x := range []struct {
		name            string
		prefill, decode float64 // s; 0: does not fit
		copied          float64 // MB a prompt
	}{
		// 80 MB at 20 GB/s; a token takes 20.
		{"cpu_only", fixed + 4e-3, fixed + 1e-3, 0},
		// 80 MB at 10 GB/s, then they are computed.
		{"chunked", fixed + 8e-3 + all, 0, 80},
		// Four of eight are found where the last prompt left them, and computed before others
		// come there. The last two of each layer are computed after their copies.
		{"active_only", fixed + all/2 + 4e-3 + all/4, 0, 40},
		// 10 places beside 30 pins: three of each layer, and one that is found; they come one
		// by one.
		{"static_pin", fixed + all/2 + 4e-3 + all/8, 0, 40},
		{"weighted_pin", fixed + all/2 + 4e-3 + all/8, 0, 40},
		// There are places for all of a layer at once.
		{"lru", fixed + 8e-3 + all, 0, 80},
		{"persistent", 0, 0, 0},
		// Room for five layers: not for two buffers of five or three.
		{"layer_grouped:2", 0, 0, 0},
		{"layer_grouped:4", 0, 0, 0},
		// Three layers stay, two buffers of one: after the seventh copy a layer is computed.
		{"layer_grouped:8", 5.6e-3 + 0.1e-3, 0, 56},
		{"layer_grouped:10", 5.6e-3 + 0.1e-3, 0, 56},
		// Four of eight stay: half of the work of the processors, beside the GPU's.
		{"hot_cached_static", fixed + 2e-3, fixed + 0.5e-3, 0},
		{"learned", fixed + 2e-3, fixed + 0.5e-3, 0}, // the same, as copies come between steps
	} {
		a := f.find(t, x.name)
		if a.Prefill.Fits != (x.prefill > 0) {
			t.Errorf("%s: fits is %t: %s", x.name, a.Prefill.Fits, a.Prefill.Reason)
			continue
		}
		if !a.Prefill.Fits {
			continue
		}
		near(t, x.name+", prefill", a.Prefill.Points[0].Seconds, x.prefill, 0.01)
		near(t, x.name+", copied", a.Prefill.Points[0].Copied, 1e6*x.copied, 1e-6)
		if x.decode > 0 {
			near(t, x.name+", decode", a.Decode.Points[0].Seconds, x.decode, 0.01)
		}
	}
	if f.Prefill.Name() != "learned" || f.Decode.Name() != "learned" {
		t.Errorf("%s and %s", f.Prefill.Name(), f.Decode.Name())
	}
}

// TestChoices: what is chosen for a machine, and in which words others lost.
func TestChoices(t *testing.T) {
	for name, x := range map[string]struct {
		change          func(*Case)
		prefill, decode string
		reasons         map[string][2]string // of a candidate's prefill and decode, parts of them
	}{
		"room for all": {func(c *Case) { c.Rates.CPU.ReadGBps = 1 }, "persistent", "persistent", map[string][2]string{
			"persistent":        {"the GPU's own work takes 1 ms of 1 ms", "the GPU's own work takes 400 us of 400 us"},
			"hot_cached_static": {"the same as persistent here", "the same as persistent here"},
			"cpu_only":          {"0.012 of persistent: experts on the processors take 80 ms of 80.2 ms", "0.02 of persistent: experts on the processors take 20 ms of 20.2 ms"},
			"chunked":           {"0.11 of persistent: copying 76.3 MiB takes 8 ms of 9 ms", "no room for a buffer: an expert, 976.6 KiB; 0 fit beside prefill's"},
			"layer_grouped:10":  {"the same as persistent here", "no room for a buffer of a layer"},
		}},
		"slow processors": {func(c *Case) { c.Rates.CPU.ReadGBps, c.Budget.Experts = 1, 40e6 }, "weighted_pin", "weighted_pin", map[string][2]string{
			"persistent":        {"no room for all: 80 experts, 76.3 MiB; 40 fit", "no room for all: 50 experts, 47.7 MiB; 0 fit beside prefill's"},
			"static_pin":        {"the same as weighted_pin here", "no room for pins and a cache"},
			"layer_grouped:2":   {"no room for two buffers for all layers: 80 experts, 76.3 MiB; 40 fit", "no room"},
			"layer_grouped:10":  {"0.82 of weighted_pin: copying 53.4 MiB takes 5.6 ms of 5.7 ms", "no room"},
			"hot_cached_static": {"of weighted_pin: experts on the processors take 40 ms of 40.2 ms", "of weighted_pin: experts on the processors take"},
		}},
		"long prompts": {func(c *Case) {
			c.Rates.CPU.ReadGBps, c.Budget.Experts, c.Budget.KV, c.Work.Lengths = 1, 40e6, 100e6, []int{10_000}
			c.Budget.VRAM = 400e6
		}, "layer_grouped:8", "layer_grouped:8", map[string][2]string{
			"weighted_pin": {"of layer_grouped:8: copying 381.5 MiB takes 40 ms of 47 ms", "no room for pins and a cache: an expert, 976.6 KiB; 0 fit beside prefill's"},
		}},
		"memory for one form": {func(c *Case) { c.Rates.CPU.ReadGBps, c.Budget.RAM, c.Budget.Experts = 1, 100e6, 40e6 }, "weighted_pin", "weighted_pin", map[string][2]string{
			"hot_cached_static": {"of weighted_pin: experts", "experts take 152.6 MiB of the host's memory, which has 95.4 MiB"},
		}},
		"no memory": {func(c *Case) { c.Budget.RAM, c.Budget.Experts = 50e6, 40e6 }, "", "", map[string][2]string{
			"cpu_only":   {"experts take 76.3 MiB of the host's memory, which has 47.7 MiB", "experts take 76.3 MiB"},
			"persistent": {"no room for all", "no room for all"},
		}},
		"a KV cache for nobody": {func(c *Case) {
			c.Budget.KV, c.Work.Lengths = 999e3, []int{1000, 500_000}
		}, "", "", map[string][2]string{
			"cpu_only": {"the KV cache has room for 999 tokens for sure, not for a prompt of 1000", "no prefill fits"},
		}},
		"too small": {func(c *Case) { c.Budget.VRAM = 41e6 }, "", "", map[string][2]string{
			"persistent": {"weights and workspace (19.1 MiB) and the KV cache (19.1 MiB) exceed 95 % of the GPU's 39.1 MiB", "exceed 95 %"},
		}},
		"decode does not fit": {func(c *Case) { c.Work.Streams, c.Work.Context = 100, 10_000 }, "", "", map[string][2]string{
			"cpu_only": {"no strategy decodes beside it: the KV cache has room for", "the KV cache has room for 170000 tokens, not for 100 streams of 10000"},
		}},
	} {
		c := toy()
		x.change(&c)
		f, err := New(c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := [2]string{}
		if f.Prefill != nil {
			got = [2]string{f.Prefill.Name(), f.Decode.Name()}
		}
		if got != [2]string{x.prefill, x.decode} {
			t.Errorf("%s: %q, want %s and %s", name, got, x.prefill, x.decode)
		}
		for candidate, want := range x.reasons {
			a := f.find(t, candidate)
			if !strings.Contains(a.Prefill.Reason, want[0]) || !strings.Contains(a.Decode.Reason, want[1]) {
				t.Errorf("%s: %s: %q and %q, want %q", name, candidate, a.Prefill.Reason, a.Decode.Reason, want)
			}
		}
	}
}

// TestWanted: what is asked for is taken, the other phase is chosen beside it.
func TestWanted(t *testing.T) {
	for _, x := range []struct{ prefill, decode, wantPrefill, wantDecode string }{
		{"chunked", "", "chunked", "learned"},
		{"layer_grouped:5", "", "layer_grouped:5", "learned"},
		{"layer_grouped", "cpu_only", "layer_grouped:10", "cpu_only"},
		{"", "lru", "weighted_pin", "lru"},
		{"layer_grouped:99", "", "layer_grouped:10", "learned"},
		{"persistent", "", "", ""},
	} {
		c := toy()
		c.Rates.CPU.ReadGBps, c.Budget.Experts, c.Budget.VRAM = 8, 42e6, 400e6
		c.Prefill, c.Decode = x.prefill, x.decode
		f, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		got := [2]string{}
		if f.Prefill != nil {
			got = [2]string{f.Prefill.Name(), f.Decode.Name()}
		}
		if got != [2]string{x.wantPrefill, x.wantDecode} {
			t.Errorf("%+v: %q", x, got)
		}
	}
	c := toy()
	c.Rates.CPU.ReadGBps, c.Prefill = 1, "cpu_only"
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if r := f.find(t, "persistent").Prefill.Reason; r != "80.2 times cpu_only, which is wanted: the GPU's own work takes 1 ms of 1 ms" {
		t.Error(r)
	}
	for _, bad := range []string{"best", "layer_grouped:", "layer_grouped:0", "layer_grouped:x", "lru:2"} {
		c.Prefill = bad
		if _, err := New(c); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestPrefillShare: prefill has no more than it is given, decode the rest.
func TestPrefillShare(t *testing.T) {
	c := toy()
	c.Rates.CPU.ReadGBps, c.Budget.Experts, c.Budget.Prefill = 4, 60e6, 21e6
	c.Prefill, c.Decode = "static_pin", "hot_cached_static"
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	// 5 places and one pin a layer; the other 45 have the next hottest of all layers.
	if p, d := &f.Prefill.Prefill, &f.Decode.Decode; p.VRAM != 15e6 || p.Kept != 10 || d.Kept != 10+45 {
		t.Errorf("prefill has %d bytes and keeps %d, decode keeps %d", p.VRAM, p.Kept, d.Kept)
	}
}

// TestBorrowedSlots: prompts in groups of a layer borrow slots of 40 hot experts. Two buffers hold what two layers lack, so 30
// experts stay, three of each layer, and ten slots hold five others twice.
func TestBorrowedSlots(t *testing.T) {
	c := toy()
	c.Rates.CPU.ReadGBps, c.Budget.Experts = 4, 40e6
	c.Prefill, c.Decode = "layer_grouped:10", "hot_cached_static"
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p, d := &f.Prefill.Prefill, &f.Decode.Decode
	if d.Kept != 40 || p.Kept != 30 || p.VRAM != 40e6 || math.Abs(p.Decides.Copied-50e6) > 1 || math.Abs(p.Decides.HitRate-3./8) > 1e-3 {
		t.Errorf("decode keeps %d, prefill %d in %d bytes, copies %g bytes and finds %g", d.Kept, p.Kept, p.VRAM, p.Decides.Copied, p.Decides.HitRate)
	}
}

// TestPrefillBorrows: prompts that stream layers through slots of the hot set leave decode as many
// of the hottest experts as it has by itself.
func TestPrefillBorrows(t *testing.T) {
	c := toy()
	c.Skew = Zipf(8)
	c.Rates.CPU.ReadGBps, c.Budget.Experts = 4, 40e6
	c.Work.Chunk, c.Work.Lengths, c.Budget.KV = 200, []int{1000}, 20e6
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if f.Prefill.Name() != "layer_grouped:8" {
		t.Fatalf("%s: %s", f.Prefill.Name(), f.Prefill.Prefill.Reason)
	}
	beside := f.find(t, "hot_cached_static").Decode.Score
	alone := c.sideOf(t, "hot_cached_static", layout{kept: 4}, true).Score
	if beside != alone || f.Decode.Decode.VRAM > c.Budget.Experts {
		t.Errorf("decode beside prefill %g, with all of the budget %g", beside, alone)
	}
}

func TestRefusals(t *testing.T) {
	for name, change := range map[string]func(*Case){
		"no layers":       func(c *Case) { c.Shape.Layers = 0 },
		"more MoE layers": func(c *Case) { c.Shape.MoE = 11 },
		"more chosen":     func(c *Case) { c.Shape.TopK = 9 },
		"no bytes":        func(c *Case) { c.Shape.ExpertCard = 0 },
		"bytes below 0":   func(c *Case) { c.Shape.HandIn = -1 },
		"no number":       func(c *Case) { c.Shape.PairFLOP = math.NaN() },
		"too many":        func(c *Case) { c.Shape.Experts, c.Shape.MoE, c.Shape.Layers = 1<<20, 100, 100 },
		"another skew":    func(c *Case) { c.Skew = Uniform(7) },
		"budget":          func(c *Case) { c.Budget.KV = -1 },
		"no lengths":      func(c *Case) { c.Work.Lengths = nil },
		"length 0":        func(c *Case) { c.Work.Lengths = []int{0} },
		"batch 0":         func(c *Case) { c.Work.Batches = []int{0} },
		"context":         func(c *Case) { c.Work.Context = -1 },
		"many passes":     func(c *Case) { c.Work.Lengths, c.Work.Chunk = []int{1 << 24}, 1 },
		"many lengths":    func(c *Case) { c.Work.Lengths = make([]int, 100) },
	} {
		c := toy()
		change(&c)
		if _, err := New(c); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Case){
		"card": func(c *Case) { c.Rates.Card.CopyGBps = 0; c.Rates.Card.BusyGBps = 0 },
		"cpu":  func(c *Case) { c.Rates.CPU.ReadGBps = 0 },
	} {
		c := toy()
		change(&c)
		if _, err := New(c); !errors.Is(err, rates.ErrIncomplete) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := toy()
	c.Rates.Card.ReadGBps = -1
	if _, err := New(c); err == nil {
		t.Error("a negative rate is accepted")
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0.01234: "0.0123", 7: "7", 45.678: "45.7", 123.4: "123", 9994: "9994", 9996: "10K", 12345: "12.3K", 999_400: "999K", 1_234_567: "1.23M"} {
		if got := Number(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0 us", 1.5e-6: "1.5 us", 999.4e-6: "999 us", 1e-3: "1 ms", 0.1234: "123 ms", 1.2345: "1.23 s", 4000: "4000 s"} {
		if got := Duration(s); got != want {
			t.Errorf("%g: %s, want %s", s, got, want)
		}
	}
}
