//go:build !race

package actors

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/drive"
)

// heatShare is the most that counting may take of a step.
const heatShare = 0.005

// evicted is how much memory is written between two measured steps, so that counts
// have to be fetched again, as behind the weights that a step reads.
const evicted = 32 << 20

// stepCost returns the average time that counting adds to the groups of a step, in nanoseconds.
// Counted steps, uncounted steps and steps without a meter take turns.
func stepCost(layers, rows, experts, topK, every int, others []byte) float64 {
	const steps = 24
	cfg := routerOf(layers, 0, experts, topK)
	h := newHeatMeter(cfg, every, nil)
	meters := []*heatMeter{h, h, newHeatMeter(cfg, -1, nil)}
	var ids [3]uint64
	for !h.counts(ids[0]) {
		ids[0]++
	}
	for h.counts(ids[1]) && every != 1 {
		ids[1]++
	}
	r := rand.New(rand.NewPCG(5, 6))
	work := make([][]device.ExpertRows, layers)
	var took [3][]float64
	for i := range 3 * steps {
		for l := range work {
			work[l] = routed(r, rows, experts, topK)
		}
		for i := 0; i < len(others); i += 64 {
			others[i]++
		}
		touched := 0 // the split has just made it
		for l := range work {
			for _, x := range work[l] {
				touched += int(x.Expert) + len(x.Assign)
			}
		}
		m, id := meters[i%3], ids[i%3]
		start := time.Now()
		for l := range work {
			m.observe(routedStep{id: id}, l, rows, work[l])
		}
		took[i%3] = append(took[i%3], float64(time.Since(start).Nanoseconds()))
		others[0] += byte(touched)
	}
	mean := func(all []float64) (sum float64) {
		slices.Sort(all)
		for _, ns := range all[:steps*3/4] { // the rest was interrupted
			sum += ns / (steps * 3 / 4)
		}
		return sum
	}
	counted, passed := mean(took[0])-mean(took[2]), max(0, mean(took[1])-mean(took[2]))
	return (counted + passed*float64(h.every-1)) / float64(h.every)
}

// TestHeatCost: events a step times what an event costs stays within heatShare of a
// step, for the fastest step there is here, and for those that other shapes and a fast
// GPU are expected to take.
func TestHeatCost(t *testing.T) {
	r := newRig(t, setup{inline: time.Hour, limits: stages.Limits{Tokens: 256, Seqs: 1, Blocks: 64, BlockTokens: 16}})
	prompt := make([]int32, 256)
	for i := range prompt {
		prompt[i] = int32(70 + i)
	}
	// quickest is the least time of a step of such a sequence.
	quickest := func(q drive.Sequence) time.Duration {
		least := time.Hour
		last := time.Now()
		q.See = func(int, []float32) {
			least, last = min(least, time.Since(last)), time.Now()
		}
		for range 3 {
			last = time.Now()
			if err := drive.Run(r, []*drive.Sequence{&q}, drive.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		return least
	}
	moe := r.cfg.MoE
	layers := 0
	for l := range r.cfg.Layers {
		if r.cfg.MoELayer(l) {
			layers++
		}
	}
	others := make([]byte, evicted)
	for _, c := range []struct {
		name                        string
		layers, rows, experts, topK int
		every                       []int
		step                        time.Duration
	}{
		{"krater-tiny, decode", layers, 1, moe.Experts, moe.Router.TopK, []int{0}, quickest(drive.Sequence{Prompt: prompt[:8], New: 200})},
		{"krater-tiny, a prompt of 256", layers, 256, moe.Experts, moe.Router.TopK, []int{1, 0}, quickest(drive.Sequence{Prompt: prompt, New: 1})},
		// A step beside a GPU as short as it could get, without any work of experts on
		// the host; and on the host alone at 400 GB/s.
		{"DeepSeek-V2-Lite, decode beside a GPU", 26, 1, 64, 6, []int{0}, 570 * time.Microsecond},
		{"Qwen3-30B-A3B, decode beside a GPU", 48, 1, 128, 8, []int{0}, 1000 * time.Microsecond},
		{"Kimi K2, decode of 32 beside a GPU", 60, 32, 384, 8, []int{0}, 8700 * time.Microsecond},
		{"DeepSeek-V2-Lite, decode on the host", 26, 1, 64, 6, []int{1, 0}, 2700 * time.Microsecond},
	} {
		events := c.layers * min(c.rows*c.topK, c.experts)
		for _, every := range c.every {
			ns := stepCost(c.layers, c.rows, c.experts, c.topK, every, others)
			share := ns / float64(c.step.Nanoseconds())
			t.Logf("%s, sample %d: %d events of %.1f ns in a step of %v: %.3f %%", c.name, every, events, ns/float64(events), c.step, 100*share)
			if share > heatShare {
				t.Errorf("%s, sample %d: counting takes %.2f %% of a step", c.name, every, 100*share)
			}
		}
	}
}

// TestHeatAllocatesNothing where it is counted.
func TestHeatAllocatesNothing(t *testing.T) {
	h := newHeatMeter(routerOf(2, 1, 8, 2), 1, nil)
	work := routed(rand.New(rand.NewPCG(1, 1)), 4, 8, 2)
	if n := testing.AllocsPerRun(100, func() { h.observe(routedStep{id: 1}, 1, 4, work) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHeatKeptCost: counting a step that a GPU kept to itself, its experts in the caches' last
// levels or beyond, stays with the sample within heatShare of the step, as a GPU of 3 TB/s
// takes for it.
func TestHeatKeptCost(t *testing.T) {
	others := make([]byte, evicted)
	const layers, experts, topK = 26, 64, 6
	for rows, step := range map[int]time.Duration{1: 1270 * time.Microsecond, 2048: 31 * time.Millisecond} {
		h := newHeatMeter(routerOf(layers, 0, experts, topK), 0, nil)
		r := rand.New(rand.NewPCG(7, 8))
		ids := make([][]int32, layers)
		for l := range ids {
			for range rows {
				for _, e := range r.Perm(experts)[:topK] {
					ids[l] = append(ids[l], int32(e))
				}
			}
		}
		sampled := uint64(0)
		for !h.counts(sampled) {
			sampled++
		}
		var took []float64
		for range 24 {
			for i := 0; i < len(others); i += 64 {
				others[i]++
			}
			start := time.Now()
			h.observeRoutes(routedStep{id: sampled, rows: rows}, func(layer int) []int32 { return ids[layer] })
			took = append(took, float64(time.Since(start).Nanoseconds()))
		}
		slices.Sort(took)
		each := took[len(took)/2] / float64(h.every)
		share := each / float64(step.Nanoseconds())
		t.Logf("%d rows: %.0f ns a step on average of %v: %.3f %%", rows, each, step, 100*share)
		if share > heatShare {
			t.Errorf("%d rows: counting takes %.2f %% of a step", rows, 100*share)
		}
	}
}
