//go:build !race

// It computes much on one goroutine at a time; other tests drive the same code under the race detector.

package placement_test

import (
	"fmt"
	"testing"
	"time"

	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/synth"
)

// An expert here has a 44th of the bytes of DeepSeek-V2-Lite's in INT4. With the rates of an H100 and 16 cores divided by that
// it takes as long.
const smaller = 44

var (
	cardRates = hostsim.Rates{
		Up: hostsim.Link{BytesPerSecond: 53_000_000_000 / smaller, Latency: 3 * time.Microsecond}, Down: hostsim.Link{BytesPerSecond: 53_000_000_000 / smaller, Latency: 3 * time.Microsecond},
		Memory: 2_460_000_000_000 / smaller, Flops: 468_000_000_000_000 / smaller, Launch: time.Microsecond,
	}
	coreRates = hostsim.Rates{Memory: 83_000_000_000 / smaller, Flops: 4_000_000_000_000 / smaller}
)

// decoding is streams of a text that are served by one strategy, in virtual time.
type decoding struct {
	drift           int // tokens
	slots           int64
	streams, tokens int // tokens of each stream
	seed            int
}

// text is a prompt and its continuation.
func (d *decoding) text(s *source, seed int) (prompt, rest []int32) {
	ids := make([]int32, 8+d.tokens+1)
	for i := range ids {
		ids[i] = int32((i*i*31 + i*7919 + 13 + seed*1009) % s.cfg.Vocab)
	}
	synth.Text(ids, 0, d.drift, s.cfg.Vocab)
	return ids[:8], ids[8:]
}

// run decodes by a strategy, and gives the time of a step and what was on the device.
func (d *decoding) run(t *testing.T, s *source, host *cpu.Device, name string, heat [][]uint32, seen func(int, []dispatch.Rows)) (step time.Duration, x placement.Stats) {
	t.Helper()
	dev := simulated(t, hostsim.Options{CPU: host, Rates: cardRates})
	cores := hostsim.NewProcessor(host, dev.Clock(), coreRates)
	blocks := d.streams * (d.tokens + 48) / 16
	parts, free := s.beside(t, dev, cores, load.Options{Limits: stages.Limits{Tokens: 8 * d.streams, Seqs: d.streams, Blocks: blocks, BlockTokens: 16}})
	defer free()
	expert := 3 * int64(s.cfg.MoE.FF*s.cfg.Hidden*s.cfg.DType.Size())
	p, err := placement.New(dev, cores, parts, placement.Options{
		Prefill: strategy(t, "cpu_only"), Decode: strategy(t, name), Budget: max(1, d.slots*expert), Heat: heat, Seen: seen, Now: dev.Clock().Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m, err := placement.NewModel(dev, cores, parts, p)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var begun time.Duration
	var before placement.Stats
	var seqs []*drive.Sequence
	for i := range d.streams {
		q := &drive.Sequence{New: d.tokens + 1}
		q.Prompt, q.Given = d.text(s, 20+d.seed+i)
		seqs = append(seqs, q)
	}
	seqs[0].See = func(pos int, _ []float32) {
		if pos == len(seqs[0].Prompt)-1 {
			begun, before = dev.Clock().Now(), p.Stats(dispatch.Decode)
		}
	}
	if err := drive.Run(m, seqs, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	return (dev.Clock().Now() - begun) / time.Duration(d.tokens), p.Stats(dispatch.Decode).Since(before)
}

// TestLearnedNeverLoses: whatever the room, the skew and the number of streams, a step with learned takes at most 2 % longer
// than with the best of the others, which begin with the experts that other texts of the same kind chose most.
func TestLearnedNeverLoses(t *testing.T) {
	host := processor(t)
	others := []string{"hot_cached_static", "lru", "cpu_only"}
	budgets, streams := []int64{0, 25, 50, 75, 100}, []int{1, 4, 16}
	tokens, drift := 1024, 256
	if testing.Short() {
		budgets, streams, others, tokens, drift = []int64{25}, []int{1}, others[:1], 192, 64
	}
	for _, c := range []struct {
		name  string
		skew  synth.Skew
		drift int
	}{{"uniform", synth.Uniform, 0}, {"zipf", synth.Zipf, 0}, {fmt.Sprintf("zipf, other experts every %d tokens", drift), synth.Zipf, drift}} {
		s := deepBy(t, 9, synth.Options{Seed: 3, Skew: c.skew, Drift: c.drift})
		for _, n := range streams {
			d := decoding{drift: c.drift / n, streams: n, tokens: tokens / n}
			t.Run(fmt.Sprintf("%s, %d streams", c.name, n), func(t *testing.T) { d.compare(t, s, host, c.name, budgets, others) })
		}
	}
}

// compare runs all strategies with each budget, in percent of all experts.
func (d *decoding) compare(t *testing.T, s *source, host *cpu.Device, routing string, budgets []int64, others []string) {
	heat := s.heat(0)
	for i := range heat {
		clear(heat[i])
	}
	all := int64(len(heat) * s.cfg.MoE.Experts)
	warm := *d
	warm.seed = 50
	warm.run(t, s, host, "cpu_only", nil, func(index int, work []dispatch.Rows) {
		for _, w := range work {
			heat[index][w.Expert] += uint32(w.Rows)
		}
	})
	for _, budget := range budgets {
		d.slots = all * budget / 100
		took, x := d.run(t, s, host, "learned", heat, nil)
		line := fmt.Sprintf("| %s | %d | %d %% | %d | %.3f | %.2f |", routing, d.streams, budget, took.Microseconds(), x.HitRate(), float64(x.Copies)/float64(d.tokens))
		best := time.Duration(0)
		for _, name := range others {
			other, y := d.run(t, s, host, name, heat, nil)
			line += fmt.Sprintf(" %d, %.3f |", other.Microseconds(), y.HitRate())
			if best == 0 || other < best {
				best = other
			}
		}
		t.Logf("%s %.3f |", line, float64(best)/float64(took))
		if float64(took) > 1.02*float64(best) {
			t.Errorf("%d %%: a step takes %v, the best of the others %v", budget, took, best)
		}
	}
}
