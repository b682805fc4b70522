package forecast

import (
	"math"
	"testing"

	"krater/scheduler/planner/rates"
)

// published is a model by the numbers that the rooflines were computed from by hand
// (docs/planner.md): a is the number of weights that a row is multiplied with, without embedding and head.
type published struct {
	name              string
	active            float64 // weights
	layers, moe       int
	experts, topK     int
	hidden, inner     int
	heads, pair, attn int // d_qk + d_v; layers with attention over all keys
	kv                int64
}

var (
	v2Lite = published{"deepseek-v2-lite", 2.24e9, 27, 26, 64, 6, 2048, 1408, 16, 320, 27, 27 * 576}
	qwen   = published{"qwen3-235b-a22b", 20.95e9, 94, 94, 128, 8, 4096, 1536, 64, 256, 94, 94 * 1024}
	coder  = published{"qwen3-coder-next", 3.25e9, 48, 48, 512, 10, 2048, 512, 16, 512, 12, 12 * 1024}
	kimi   = published{"kimi-k2", 30.5e9, 61, 60, 384, 8, 7168, 2048, 64, 320, 61, 61 * 576}
)

// shape is INT4 in groups of 128 throughout: 0.515625 bytes a weight.
func (p published) shape() Shape {
	expert := 3 * float64(p.hidden*p.inner)
	routed := float64(p.moe*p.topK) * expert
	return Shape{
		Layers: p.layers, MoE: p.moe, Experts: p.experts, TopK: p.topK,
		ExpertCard: int64(0.515625 * expert), ExpertHost: int64(0.515625 * expert), ExpertFLOP: 2 * expert,
		FixedFLOP: 2 * (p.active - routed), KVToken: p.kv,
		PairFLOP: 2 * float64(p.attn*p.heads*p.pair),
	}
}

// flat are the rates of the rooflines: 60 % of 780 TFLOP/s for everything, 53.2 GB/s
// of copies, nothing else.
func flat() rates.Rates {
	c := rates.Curve{Peak: 0.6 * 780}
	return rates.Rates{
		Card: rates.Card{Name: "flat", MemoryGiB: 80, ReadGBps: 3083, WeightShare: 1, KVShare: 1, TFLOPS: 780, Dense: c, Experts: c, Attention: c, Launches: 1e-9, LaunchUS: 1e-9, NodeUS: 1e-9,
			CopyGBps: 53.2, BusyGBps: 53.2, CopyUS: 1e-9, FlagUS: 1e-9, FlagGBps: 1e6, SyncUS: 1e-9},
		CPU: rates.CPU{Name: "flat", ReadGBps: 98, DecodeShare: 0.85, Experts: rates.Curve{Peak: 1e3}, LayerUS: 3},
	}
}

func (p published) with(r rates.Rates) Case {
	return Case{Shape: p.shape(), Rates: r, Skew: Uniform(p.experts), Work: Usual()}
}

// sideOf predicts one layout without a budget.
func (c Case) sideOf(t testing.TB, name string, l layout, decode bool) Side {
	t.Helper()
	card, err := c.Rates.Card.Complete()
	if err != nil {
		t.Fatal(err)
	}
	cpu, err := c.Rates.CPU.Complete()
	if err != nil {
		t.Fatal(err)
	}
	c.Budget.VRAM, c.Budget.KV = 1<<45, 1<<44
	x := &chooser{calc: calc{s: &c.Shape, card: &card, cpu: &cpu, w: &c.Work, picks: c.Skew.picks(c.Shape.TopK)}, b: &c.Budget}
	for i := range strategies {
		if strategies[i].name == name {
			return x.side(&strategies[i], l, 0, decode)
		}
	}
	t.Fatalf("no strategy %s", name)
	return Side{}
}

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if !(math.Abs(got-want) <= share*math.Abs(want)) {
		t.Errorf("%s: %.4g, want %.4g within %.1f %%", what, got, want, 100*share)
	}
}

// TestPrefillRooflines: a prompt streamed through groups takes the longer of copying
// and computing with two buffers, and both with one. The numbers were computed
// independently, without the first group's copy, which nothing hides.
func TestPrefillRooflines(t *testing.T) {
	for _, m := range []struct {
		published
		tokens             []int
		overlapped, serial []float64 // tokens a second
	}{
		{v2Lite, []int{2048, 8192, 32768}, []float64{14_700, 58_700, 51_900}, []float64{12_800, 34_400, 42_500}},
		{qwen, []int{2048, 8192, 32768}, []float64{930, 3_720, 5_070}, []float64{854, 2_600, 3_780}},
		{coder, []int{2048, 8192, 32768}, []float64{2_730, 10_900, 43_700}, []float64{2_630, 9_300, 22_700}},
		{kimi, []int{2048, 8192, 32768}, []float64{208, 833, 3_330}, []float64{203, 739, 1_930}},
		{v2Lite, []int{512}, []float64{3_670}, []float64{3_540}},
		{qwen, []int{512}, []float64{233}, nil},
		{coder, []int{512}, []float64{683}, nil},
		{kimi, []int{512}, []float64{52}, nil},
	} {
		c := m.with(flat())
		c.Work.Lengths = m.tokens
		one := c.sideOf(t, "layer_grouped", layout{groups: m.moe, buffers: 1}, false)
		two := c.sideOf(t, "layer_grouped", layout{groups: m.moe, buffers: 2}, false)
		for i, p := range two.Points {
			// A group's copy before the first and its computing after the last one.
			near(t, m.name+", overlapped", p.PerSecond, m.overlapped[i], 0.02+1/float64(m.moe))
			if p.PerSecond > 1.005*m.overlapped[i] {
				t.Errorf("%s, %d: %.0f tokens a second, the bound is %.0f", m.name, p.N, p.PerSecond, m.overlapped[i])
			}
			if m.serial != nil {
				near(t, m.name+", serial", one.Points[i].PerSecond, m.serial[i], 0.02)
			}
		}
	}
}

// TestCrossover: from the predicted number of tokens on, computing takes longer than copying.
func TestCrossover(t *testing.T) {
	for _, m := range []struct {
		published
		tokens float64
	}{{v2Lite, 14_600}, {qwen, 24_600}, {coder, 53_900}, {kimi, 75_000}} {
		s := m.shape()
		c := m.with(flat())
		c.Shape.PairFLOP = 0 // as in the rule
		c.Work.Lengths, c.Work.Chunk = []int{int(m.tokens)}, 1<<20
		p := c.sideOf(t, "layer_grouped", layout{groups: m.moe, buffers: 2}, false).Points[0]
		near(t, m.name+", copies", p.Time.Copies, float64(s.expertBytes(s.all()))/53.2e9, 1e-3)
		near(t, m.name+", computing", p.Time.Card, p.Time.Copies, 0.03)
	}
}

// TestResidentShare: what stays on the GPU divides the copies.
func TestResidentShare(t *testing.T) {
	c := qwen.with(flat())
	all := c.sideOf(t, "layer_grouped", layout{groups: 94, buffers: 2}, false).Decides
	half := c.sideOf(t, "layer_grouped", layout{groups: 94, buffers: 2, layers: 47}, false).Decides
	near(t, "half of the bytes", half.Copied, all.Copied/2, 1e-9)
	near(t, "half of the time", half.Seconds, all.Seconds/2, 0.01)
	if all.HitRate != 0 || half.HitRate != 0.5 {
		t.Errorf("hit rates %g and %g", all.HitRate, half.HitRate)
	}
}

// TestHybridDecode: t = fixed + layers * max(h p / 0.7 BW, (1-h) p / 0.85 B + 3 us),
// one stream.
func TestHybridDecode(t *testing.T) {
	hot := []float64{0, 0.5, 0.75, 0.9}
	for _, m := range []struct {
		published
		fixed float64            // ms on the GPU
		host  map[int][4]float64 // GB/s of the host to tokens a second by h
		all   float64            // everything on the GPU
	}{
		{v2Lite, 0.57, map[int][4]float64{98: {111, 207, 366, 675}, 200: {211, 371, 599, 948}, 400: {371, 599, 864, 1166}, 800: {599, 864, 1110, 1166}}, 1124},
		{qwen, 4.1, map[int][4]float64{98: {11, 21, 38, 76}, 200: {21, 39, 66, 115}, 400: {39, 66, 103, 140}, 800: {66, 103, 142, 140}}, 134},
		{coder, 1.3, map[int][4]float64{98: {93, 163, 264, 420}, 200: {166, 268, 386, 526}, 400: {268, 386, 496, 598}, 800: {386, 496, 578, 615}}, 602},
		{kimi, 4.7, map[int][4]float64{98: {7, 14, 27, 56}, 200: {14, 27, 48, 89}, 400: {27, 48, 78, 109}, 800: {48, 78, 113, 109}}, 103},
	} {
		r := flat()
		r.Card.ReadGBps, r.Card.WeightShare, r.Card.Experts.Peak = 0.7*3083, 1, 1e6
		c := m.with(r)
		c.Shape.FixedFLOP, c.Shape.FixedBytes = 0, int64(m.fixed*1e-3*0.7*3083e9)
		c.Work.Batches, c.Work.Context = []int{1}, 0
		for gbps, want := range m.host {
			c.Rates.CPU.ReadGBps = float64(gbps)
			for i, h := range hot {
				// An expert that has the share h, and the others alike.
				kept := int(math.Round(h * float64(m.experts)))
				got := c.sideOf(t, "hot_cached_static", layout{kept: kept}, true).Points[0]
				// The published table rounds to whole tokens, and shares are not of whole experts.
				near(t, m.name, got.PerSecond, want[i], max(0.05, 0.5/want[i]))
			}
		}
		near(t, m.name+", all on the GPU", c.sideOf(t, "persistent", layout{kept: m.experts}, true).Points[0].PerSecond, m.all, 0.03)
	}
}

// TestDecodeRooflines: bytes / 0.8 BW + layers * 10 kernels * 0.58 us, experts that b
// rows take at random, an fp8 cache.
func TestDecodeRooflines(t *testing.T) {
	for _, m := range []struct {
		published
		batch     int
		fixed     float64 // GB
		kv        float64 // GB
		distinct  float64 // a layer
		low, high float64 // tokens a second, planned
	}{
		{v2Lite, 1, 0.85, 0.03, 6, 1000, 1300},
		{v2Lite, 32, 0.85, 1.02, 61.3, 8000, 8900},
		{qwen, 1, 7.42, 0.20, 8, 137, 160},
		{qwen, 32, 7.42, 6.3, 112, 660, 710},
		{coder, 1, 2.03, 0.18, 10, 540, 700},
		{coder, 32, 2.03, 5.6, 240, 2800, 3100},
		{kimi, 1, 9.24, 0.07, 8, 111, 124},
		{kimi, 32, 9.24, 2.3, 188, 292, 312},
	} {
		r := flat()
		r.Card.WeightShare, r.Card.KVShare = 0.8, 0.8
		r.Card.Launches, r.Card.NodeUS, r.Card.Dense.Peak, r.Card.Experts.Peak = 10, 0.58, 1e5, 1e5
		c := m.with(r)
		c.Shape.FixedBytes, c.Shape.KVToken = int64(m.fixed*1e9), int64(m.kv*1e9/float64(m.batch)/2048)
		c.Work.Batches, c.Work.Context = []int{m.batch}, 2048
		p := c.sideOf(t, "persistent", layout{kept: m.experts}, true).Points[0]
		near(t, m.name+", distinct experts", p.Time.Wanted/float64(m.moe), m.distinct, 0.005)
		if p.PerSecond < 0.96*m.low || p.PerSecond > 1.04*m.high {
			t.Errorf("%s, %d streams: %.0f tokens a second, planned %.0f to %.0f", m.name, m.batch, p.PerSecond, m.low, m.high)
		}
	}
}
