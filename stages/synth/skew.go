package synth

import (
	"math"
	"slices"

	"krater/kernels/tensor"
)

// How a skewed router is made. Every common-th value of the hidden states is the
// same for all tokens: the embedding holds a constant there, and what the blocks
// add is small beside it. A router reads these columns with a weight that depends
// on the expert alone, and all others at random. So an expert's logit is a constant
// and a part that the token decides about. The constants fall with the logarithm of
// the expert's rank, as those of a Zipf distribution do; their size is found by
// trying. Which expert has which rank differs from layer to layer.
//
// Where the skew drifts, a token is about one of some topics (Topic). The embedding holds the constant in the
// columns of its topic alone, and in each topic other experts have the first ranks. What a text is about follows
// from its tokens: who makes one changes the topic every Options.Drift tokens (Text).
//
// The head does not read these columns: they would make the same tokens likely
// always, and a model that repeats itself reaches few experts.
const (
	common = 16
	// commonStd is how much a constant column is, in spreads of the embedding: as
	// much energy as all other columns together.
	commonStd = 4
	// tokenStd is the spread of the part of the hidden states that the token decides
	// about, in spreads of the embedding: that and what the blocks add.
	tokenStd = 1.02
)

// Shares of a skewed layer's work.
const (
	hotShare   = 0.25 // of the experts
	hotWork    = 0.50 // of the work, wanted
	trialSteps = 16   // halvings
	trials     = 1024 // tokens
)

// embedCommon gives what the ith constant column of a token holds.
func (m *Model) embedCommon() func(token, i int) uint16 {
	if m.skew != Zipf {
		return nil
	}
	v := tensor.F32ToBF16(float32(commonStd * m.embedStd()))
	if m.drift == 0 {
		return func(int, int) uint16 { return v }
	}
	v = tensor.F32ToBF16(float32(commonStd * m.embedStd() * math.Sqrt(topics))) // as much energy in fewer columns
	return func(token, i int) uint16 {
		if Topic(token) == i%topics {
			return v
		}
		return 0
	}
}

func (m *Model) headCommon() func(row, i int) uint16 {
	if m.skew != Zipf {
		return nil
	}
	return func(int, int) uint16 { return 0 }
}

// routerCommon returns the weight of each expert for the constant columns. The sum
// over them, Hidden/common, times the constant is a logit of rank[i] in spreads of
// the random part.
func (m *Model) routerCommon(key uint64, experts int) func(expert, i int) uint16 {
	if m.rank == nil {
		return nil
	}
	order, n := [][]int{shuffled(key, experts)}, 1
	for n < topics && m.drift > 0 {
		order = append(order, shuffled(key^uint64(n)*topicKey, experts))
		n++
	}
	unit := tokenStd * common / (commonStd * float64(m.Config.Hidden)) * math.Sqrt(float64(n))
	return func(row, i int) uint16 { return tensor.F32ToBF16(float32(unit * m.rank[order[i%n][row]])) }
}

const (
	// topics is how many topics a model has whose skew drifts.
	topics = 4
	// topicKey makes the orders of experts in different topics different.
	topicKey = 0x9e3779b97f4a7c15
)

// Topic returns the topic of a token, in a model whose skew drifts.
func Topic(token int) int { return token % topics }

// Text changes ids so that the token at a position, the first of which is at from, is about the topic that a text has
// there: another one every Drift tokens. A model whose skew does not drift leaves ids as they are.
func Text(ids []int32, from, drift, vocab int) {
	if drift == 0 {
		return
	}
	for i, id := range ids {
		t := int(id)/topics*topics + (from+i)/drift%topics
		if t >= vocab {
			t -= topics
		}
		ids[i] = int32(t)
	}
}

// shuffled returns a random order of 0..n-1 (Fisher and Yates).
func shuffled(key uint64, n int) []int {
	order := make([]int, n)
	for i := range order {
		j := int(random(^key, uint64(i)) % uint64(i+1))
		order[i] = order[j]
		order[j] = i
	}
	return order
}

// ranks finds what the logits of experts gain, by rank, so that the hottest quarter
// does hotWork of the work where topK are taken by logit and the rest of a logit is
// normal with spread 1.
func ranks(experts, topK int) []float64 {
	shape := make([]float64, experts)
	mean := 0.0
	for i := range shape {
		shape[i] = -math.Log(float64(i + 1))
		mean += shape[i] / float64(experts)
	}
	noise := make([]float64, trials*experts)
	for i := range noise {
		noise[i] = quantiles()[random(0, uint64(i))&4095]
	}
	at := func(size float64) []float64 {
		r := make([]float64, experts)
		for i := range r {
			r[i] = size * (shape[i] - mean)
		}
		return r
	}
	low, high := 0.0, 8.0
	for range trialSteps {
		if mid := (low + high) / 2; hottest(at(mid), noise, topK) < hotWork {
			low = mid
		} else {
			high = mid
		}
	}
	return at(low)
}

// hottest returns the share of the work of the hottest quarter, by trying.
func hottest(gain, noise []float64, topK int) float64 {
	experts := len(gain)
	count := make([]int, experts)
	logit := make([]float64, experts)
	order := make([]float64, experts)
	for ; len(noise) > 0; noise = noise[experts:] {
		for i := range logit {
			logit[i] = gain[i] + noise[i]
		}
		copy(order, logit)
		slices.Sort(order)
		least := order[max(0, experts-topK)]
		for i, x := range logit {
			if x >= least {
				count[i]++
			}
		}
	}
	return Hottest(count)
}

// Hottest returns the share of all work that the hottest quarter of a layer's experts
// did, given how often each was chosen.
func Hottest(count []int) float64 {
	sorted := slices.Sorted(slices.Values(count))
	slices.Reverse(sorted)
	hot, all := 0, 0
	for i, n := range sorted {
		all += n
		if float64(i) < hotShare*float64(len(sorted)) {
			hot += n
		}
	}
	return float64(hot) / float64(max(1, all))
}
