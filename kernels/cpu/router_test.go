package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// route runs RouteTopK on rows of logits; bias may be nil.
func route(d *cpu.Device, s device.Stream, logits, bias []float32, p device.Router) (ids []int32, weights []float32) {
	var b device.Mat
	if bias != nil {
		b = f32s(d, bias, 1, p.Experts)
	}
	return routeBy(d, s, logits, b, device.Mat{}, p)
}

// routeBy is route with bias and factors.
func routeBy(d *cpu.Device, s device.Stream, logits []float32, b, factors device.Mat, p device.Router) (ids []int32, weights []float32) {
	rows := len(logits) / p.Experts
	ids, weights = make([]int32, rows*p.TopK), make([]float32, rows*p.TopK)
	d.RouteTopK(s, wrap(d, tensor.I32, ids, rows, p.TopK), f32s(d, weights, rows, p.TopK), f32s(d, logits, rows, p.Experts), b, factors, p)
	return ids, weights
}

// logit returns the inverse of the sigmoid.
func logit(p float64) float32 { return float32(math.Log(p / (1 - p))) }

// 8 experts in 4 groups, all biased scores negative. Masked groups must be minus infinity
// (a mask of zero would win against every score here); the group score is the sum of the two best
// biased scores (V3) or the best score (V2), and the two rules disagree on these numbers.
func TestRouterGroupsWithNegativeScores(t *testing.T) {
	scores := []float64{0.90, 0.10, 0.60, 0.55, 0.30, 0.20, 0.58, 0.52}
	var logits []float32
	for _, p := range scores {
		logits = append(logits, logit(p))
	}
	bias := make([]float32, 8)
	for i := range bias {
		bias[i] = -2
	}
	for _, c := range []struct {
		rule device.GroupScore
		ids  []int32
	}{
		// Biased groups: {-1.1, -1.9} {-1.4, -1.45} {-1.7, -1.8} {-1.42, -1.48}.
		{device.GroupMax, []int32{0, 2, 3}},     // groups 0 and 1
		{device.GroupTop2Sum, []int32{2, 6, 3}}, // sums -3.0 -2.85 -3.5 -2.9: groups 1 and 3
	} {
		p := device.Router{Experts: 8, TopK: 3, Scoring: device.ScoreSigmoid, Groups: 4, TopGroups: 2, GroupScore: c.rule, Scale: 1}
		forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
			ids, weights := route(d, s, logits, bias, p)
			if !slices.Equal(ids, c.ids) {
				t.Errorf("group score %d: experts %v, want %v", c.rule, ids, c.ids)
			}
			for k, id := range c.ids {
				if math.Abs(float64(weights[k])-scores[id]) > 1e-6 {
					t.Errorf("weight %d is %g, want the raw score %g", k, weights[k], scores[id])
				}
			}
		})
	}
}

// A bias flips the selection; the weights are the raw scores of the selected, normalised,
// then scaled.
func TestRouterBiasSelectsButDoesNotWeigh(t *testing.T) {
	scores := []float64{0.8, 0.7, 0.4, 0.2}
	var logits []float32
	for _, p := range scores {
		logits = append(logits, logit(p))
	}
	p := device.Router{Experts: 4, TopK: 2, Scoring: device.ScoreSigmoid, Normalize: true, Scale: 2.5}
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		if ids, _ := route(d, s, logits, nil, p); !slices.Equal(ids, []int32{0, 1}) {
			t.Fatalf("without a bias: %v", ids)
		}
		ids, weights := route(d, s, logits, []float32{0, -0.5, 0, 0.9}, p)
		if !slices.Equal(ids, []int32{0, 3}) { // falling raw weight, though 3 has the best biased score
			t.Fatalf("with a bias: %v", ids)
		}
		for k, want := range []float64{0.8 / 1.0 * 2.5, 0.2 / 1.0 * 2.5} {
			if math.Abs(float64(weights[k])-want) > 1e-6 {
				t.Errorf("weight %d is %g, want %g", k, weights[k], want)
			}
		}
	})
}

func TestRouterTiesGoToLowerIds(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		logits := make([]float32, 64)
		ids, _ := route(d, s, logits, nil, device.Router{Experts: 64, TopK: 5, Scale: 1})
		if !slices.Equal(ids, []int32{0, 1, 2, 3, 4}) {
			t.Errorf("%v", ids)
		}
		ids, _ = route(d, s, logits, nil, device.Router{Experts: 64, TopK: 3, Groups: 8, TopGroups: 1, GroupScore: device.GroupTop2Sum, Scale: 1})
		if !slices.Equal(ids, []int32{0, 1, 2}) {
			t.Errorf("groups: %v", ids)
		}
	})
}

// Logits that are not numbers must still give different, valid experts: their ids are used as
// indices.
func TestRouterSurvivesNaN(t *testing.T) {
	nan := float32(math.NaN())
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range []device.Router{
			{Experts: 8, TopK: 4, Scale: 1},
			{Experts: 8, TopK: 4, Scoring: device.ScoreSigmoid, Groups: 4, TopGroups: 2, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 1},
		} {
			for _, logits := range [][]float32{{nan, nan, nan, nan, nan, nan, nan, nan}, {1, nan, 2, nan, 3, nan, nan, nan}} {
				ids, _ := route(d, s, logits, nil, p)
				seen := map[int32]bool{}
				for _, id := range ids {
					if id < 0 || id >= 8 || seen[id] {
						t.Fatalf("%+v: experts %v", p, ids)
					}
					seen[id] = true
				}
			}
		}
	})
}

func TestRouterAgainstReference(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, p := range []device.Router{
			{Experts: 32, TopK: 4, Scale: 1},
			{Experts: 64, TopK: 6, Scale: 1, Normalize: true},
			{Experts: 160, TopK: 6, Groups: 8, TopGroups: 3, Scale: 16},
			{Experts: 12, TopK: 4, Groups: 4, TopGroups: 2, Scale: 16},
			{Experts: 256, TopK: 8, Scoring: device.ScoreSigmoid, Groups: 8, TopGroups: 4, GroupScore: device.GroupTop2Sum, Normalize: true, Scale: 2.5},
			{Experts: 5, TopK: 5, Scoring: device.ScoreSigmoid, Scale: 1},
			{Experts: 6, TopK: 2, Groups: 6, TopGroups: 3, GroupScore: device.GroupTop2Sum, Scale: 1},
		} {
			const rows = 40
			r := kerneltest.Rand(uint64(i))
			logits := kerneltest.Normal(r, rows*p.Experts, 2)
			var bias []float32
			if p.Scoring == device.ScoreSigmoid {
				bias = kerneltest.Normal(r, p.Experts, 0.2)
			}
			var b, f device.Mat
			var factors []float32
			if bias != nil {
				b = f32s(d, bias, 1, p.Experts)
			}
			if i%2 == 1 {
				factors = kerneltest.Normal(r, p.Experts, 1)
				for e := range factors {
					factors[e] = 1 + factors[e]*factors[e]
				}
				f = f32s(d, factors, 1, p.Experts)
			}
			ids, weights := routeBy(d, s, logits, b, f, p)
			wantIDs, want := make([]int32, rows*p.TopK), make([]float32, rows*p.TopK)
			ref.RouteTopK(wantIDs, want, logits, bias, factors, p)
			// Random scores of these seeds are further apart than an error of exp.
			if !slices.Equal(ids, wantIDs) {
				t.Errorf("%+v: experts differ", p)
				continue
			}
			if err := kerneltest.Compare(weights, want, p.TopK, kerneltest.Relative(want, 12, 0)); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}

func TestRouterRefusesWrongParameters(t *testing.T) {
	d, s := open(t, cpu.Options{})
	for _, p := range []device.Router{
		{Experts: 8, TopK: 9}, {Experts: 8, TopK: 0}, {Experts: 8, TopK: 2, Groups: 3, TopGroups: 1},
		{Experts: 8, TopK: 2, Groups: 4, TopGroups: 5}, {Experts: 8, TopK: 2, Groups: 4, TopGroups: 0},
		{Experts: 8, TopK: 4, Groups: 4, TopGroups: 1}, {Experts: 8, TopK: 2, Scoring: 7}, {Experts: 8, TopK: 2, GroupScore: 7},
	} {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			panicsWith(t, "RouteTopK", func() { route(d, s, make([]float32, 8), nil, p) })
		})
	}
}
