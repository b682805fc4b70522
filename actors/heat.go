package actors

import (
	"sync"

	"krater/kernels/device"
	"krater/scheduler/heat"
	"krater/scheduler/routing"
	"krater/stages/model"
)

// heatMeter counts what routers choose. A layer has one writer at a time, its group, and any number
// of readers that take copies. Each layer has a lock, so that the tokens and counts of a copy
// always belong together.
//
// Counting is expensive inside a step, because the weights that the step reads push the counts out
// of the caches: a layer takes 200 ns where it takes 20 in a loop. So the meter samples: it counts
// one of every N batches, in all layers.
type heatMeter struct {
	shape  heat.Shape
	every  uint64
	index  []int32 // [layers of the model] place among those with experts, -1
	layers []heatLayer
	record *recorder // records every choice; nil: none
}

// heatLayer is one layer's share, on cache lines of its own, because other groups may write its
// neighbours.
type heatLayer struct {
	mu     sync.Mutex
	tokens uint64
	counts []uint64 // [experts]
	_      [64]byte
}

// heatSample is the default of Options.HeatSample.
const heatSample = 8

// newHeatMeter counts one of every N batches (0: heatSample, 1: all of them, negative: none). With write,
// which one goroutine calls at a time, it hands on the choices of every batch. It is nil for a model without experts, and
// where it has nothing to do.
func newHeatMeter(cfg *model.Config, every int, write func(*routing.Batch)) *heatMeter {
	if every == 0 {
		every = heatSample
	}
	h := &heatMeter{every: uint64(max(0, every)), index: make([]int32, len(cfg.Layers))}
	for l := range cfg.Layers {
		h.index[l] = -1
		if cfg.MoELayer(l) {
			h.index[l] = int32(len(h.shape.Layers))
			h.shape.Layers = append(h.shape.Layers, int32(l))
		}
	}
	if every < 0 && write == nil || len(h.shape.Layers) == 0 {
		return nil
	}
	h.shape.Experts, h.shape.TopK = cfg.MoE.Experts, cfg.MoE.Router.TopK
	if write != nil {
		h.record = newRecorder(h.shape, write)
	}
	h.layers = make([]heatLayer, len(h.shape.Layers))
	for i := range h.layers {
		// Whole lines, so that no two layers share one.
		h.layers[i].counts = make([]uint64, h.shape.Experts, (h.shape.Experts+7)/8*8)
	}
	return h
}

// counts reports whether the batch with an id is in the sample. The choice has no rhythm that
// batches could follow.
func (h *heatMeter) counts(id uint64) bool {
	return h != nil && h.every > 0 && (h.every == 1 || mix(id)%h.every == 0)
}

// wants reports whether anything is noted of the batch with an id.
func (h *heatMeter) wants(id uint64) bool { return h != nil && h.record != nil || h.counts(id) }

// mix applies the finaliser of SplitMix64 to x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// observe counts the routed work of the next rows of a layer of a batch, if the batch is in the sample.
func (h *heatMeter) observe(s routedStep, layer, rows int, work []device.ExpertRows) {
	if h != nil && h.record != nil {
		h.record.work(s, int(h.index[layer]), rows, work)
	}
	if !h.counts(s.id) {
		return
	}
	l := &h.layers[h.index[layer]]
	l.mu.Lock()
	l.tokens += uint64(rows)
	for i := range work {
		l.counts[work[i].Expert] += uint64(len(work[i].Assign))
	}
	l.mu.Unlock()
}

// observeRoutes counts a step whose routing stayed on the device. routes returns the experts chosen
// in a layer of the model [rows, K], nil for a layer that is elsewhere.
func (h *heatMeter) observeRoutes(s routedStep, routes func(layer int) []int32) {
	for i, layer := range h.shape.Layers {
		l, ids := &h.layers[i], routes(int(layer))
		if ids == nil {
			continue
		}
		if h.record != nil {
			h.record.chosen(s, i, ids)
		}
		if !h.counts(s.id) {
			continue
		}
		l.mu.Lock()
		l.tokens += uint64(s.rows)
		for _, e := range ids {
			l.counts[e]++
		}
		l.mu.Unlock()
	}
}

// snapshot copies the counts, layer by layer.
func (h *heatMeter) snapshot(id heat.Identity) *heat.Map {
	if h == nil {
		return nil
	}
	m, err := heat.New(id, h.shape)
	counts := make([]uint64, h.shape.Experts)
	for i := 0; i < len(h.layers) && err == nil; i++ {
		l := &h.layers[i]
		l.mu.Lock()
		tokens := l.tokens
		copy(counts, l.counts)
		l.mu.Unlock()
		err = m.Add(h.shape.Layers[i], tokens, counts)
	}
	if err != nil {
		panic(err) // a model that was loaded has a shape, and a router chooses an expert once
	}
	return m
}

// Heat returns how often each router chose each expert since the start, as a map for the model id.
// It returns nil if the model has no experts or if choices are not counted. It is safe for concurrent use.
func (p *Pipeline) Heat(id heat.Identity) *heat.Map { return p.heat.snapshot(id) }
