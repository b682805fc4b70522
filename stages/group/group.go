// Package group runs a range of layers: the unit that a pipeline places on a device. Between its
// methods an actor may send work to other actors. Called one after another they are the plain
// forward pass:
//
//	g.Move(s, st)
//	for w, ok := g.Walk(st, nil), true; ok; ok = g.Next(s, st, &w) {
//		layer := w.Layer
//		g.Attend(s, st, layer, probe)
//		if !g.MoE(layer) {
//			continue
//		}
//		if g.Resident(layer) {
//			g.Mix(s, st, layer, probe)
//			continue
//		}
//		g.Ask(s, st, layer)
//		// s synchronised
//		work := g.Work(st, layer)
//		g.Experts(s, st, layer, work) // or in parts, on several streams
//		g.Shared(s, st, layer, probe)
//		g.Combine(s, st, layer, probe)
//	}
//
// Layers are counted over the whole model. When the last layer of a group is
// done st.Hidden holds everything, so that alone travels to the next group.
package group

import (
	"fmt"
	"slices"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/arena"
	"krater/stages/attention"
	"krater/stages/expert"
	"krater/stages/model"
	"krater/stages/route"
	"krater/stages/streams"
)

// Layer is the weights of a layer. Dense layers have Dense, the others Router and Bank.
type Layer struct {
	Mixer     streams.Block  // around the attention: input_layernorm
	Network   streams.Block  // around the network: post_attention_layernorm
	Table     *streams.Table // of n-grams; nil: none
	MixerNorm device.Mat     // [1, H] of what attention gives, absent in most families
	FFNNorm   device.Mat     // [1, H] of what the network gives, absent in most families
	OwnNorms  *OwnNorms      // nil in most families
	PerLayer  PerLayer       // absent in most families
	Scalar    float32        // what the residual stream is multiplied with at the end; 0: nothing is done
	Attention attention.Block
	Dense     device.FFN
	Router    route.Stage
	Bank      expert.Bank
}

// OwnNorms are the norms of a layer with experts that has one for each of its parts, each [1, H]:
// model.MoE.OwnNorms.
type OwnNorms struct {
	Router  device.Mat // before the router
	Expert  device.Mat // before the routed experts
	Experts device.Mat // of the sum of the routed experts
	Shared  device.Mat // of what the shared ones give
}

// PerLayer adds to the residual stream what follows from a token's row for this layer:
// model.LayerSpec.PerLayer.
type PerLayer struct {
	Gate device.Weight // [Width, H]
	Proj device.Weight // [H, Width]
	Norm device.Mat    // [1, H]
}

// MoE reports whether the layer has experts.
func (l *Layer) MoE() bool { return l.Bank.Len() > 0 }

// Group is the layers [First, Last) with their KV cache.
//
// Attend, Shared and Combine of one group belong to one goroutine at a time. They may serve another
// batch between Attend and Combine of a batch. Experts may run on several streams at once.
type Group struct {
	First, Last int

	dev     device.Device
	cfg     *model.Config
	layers  []Layer // [Last-First]
	lim     stages.Limits
	kept    [][]device.KV       // [Last-First] what the layers' mixers keep
	caches  []device.KV         // those of kept in blocks: [slots, width]
	windows []device.KV         // caches of the layers with a window, if there are window blocks
	states  []state             // the others
	inArena bool                // the memory of caches is not the group's
	hosted  []hostBlocks        // of caches: blocks of them in host memory
	mixers  [][]attention.Stage // by queue, [Last-First]: layers with equal mixers share one
	ngrams  [][]*streams.NGrams // by queue, [Last-First]; nil: the layer has no table
	accel   device.Accelerator  // the device as one; nil: it is none
	blocks  device.BlockMoves   // reused
	program device.List         // copies of blocks, reused
}

// KVTypes are the types of a KV cache.
var KVTypes = map[tensor.DType]bool{tensor.BF16: true, tensor.F32: true, tensor.F8E4M3: true, tensor.I8: true}

// New makes a group of the layers from first on. It allocates the KV cache of kvType and scratch
// memory on dev for lim (checked by Limits.For). tables are on the device.
//
// KV blocks lie in shared, which stays the caller's; nil: in memory of their own.
//
// A layer may use the cache of a layer before it (model.LayerSpec.KV), in this group or in one of
// before, which lie on the same device. Such a group must not be closed before this one.
func New(dev device.Device, cfg *model.Config, lim stages.Limits, kvType tensor.DType, first int,
	layers []Layer, tables attention.Tables, shared *arena.Arena, before ...*Group) (*Group, error) {
	if len(layers) == 0 || first < 0 || first+len(layers) > len(cfg.Layers) {
		return nil, fmt.Errorf("group: layers %d to %d of %d", first, first+len(layers)-1, len(cfg.Layers))
	}
	if !KVTypes[kvType] {
		return nil, fmt.Errorf("group: no KV cache of %s", kvType)
	}
	g := &Group{First: first, Last: first + len(layers), dev: dev, accel: dev.Accelerator(), cfg: cfg, lim: lim, layers: layers, inArena: shared != nil}
	for range max(1, lim.Queues) {
		if err := g.addQueue(dev, tables); err != nil {
			g.Close()
			return nil, fmt.Errorf("group: scratch memory: %w", err)
		}
	}
	for i := range layers {
		var err error
		if from := cfg.Layers[first+i].KV; from != first+i {
			err = g.borrow(from, before)
		} else {
			err = g.alloc(cfg.Layers[first+i].State(cfg.Hidden), kvType, shared)
		}
		if err != nil {
			g.Close()
			return nil, fmt.Errorf("group: KV cache of layer %d: %w", first+i, err)
		}
	}
	return g, nil
}

// addQueue makes the stages of a queue.
func (g *Group) addQueue(dev device.Device, tables attention.Tables) error {
	list, made := make([]attention.Stage, len(g.layers)), map[model.Mixer]attention.Stage{}
	ngrams := make([]*streams.NGrams, len(g.layers))
	g.mixers, g.ngrams = append(g.mixers, list), append(g.ngrams, ngrams)
	for i := range list {
		if t := g.layers[i].Table; t != nil {
			var err error
			if ngrams[i], err = t.New(dev, g.lim, g.cfg.Hidden); err != nil {
				return err
			}
		}
		m := g.cfg.Layers[g.First+i].Mixer
		if made[m] == nil {
			x, err := g.layers[i].Attention.New(dev, g.lim, tables)
			if err != nil {
				return err
			}
			made[m] = x
		}
		list[i] = made[m]
	}
	return nil
}

// Close frees cache and scratch memory, but not the weights.
func (g *Group) Close() {
	for _, list := range g.mixers {
		for _, m := range list {
			if m != nil {
				m.Close() // layers may share m; a second Close does nothing
			}
		}
	}
	for _, list := range g.ngrams {
		for _, x := range list {
			if x != nil {
				x.Close()
			}
		}
	}
	g.mixers, g.ngrams = nil, nil
	for i := range g.hosted {
		g.hosted[i].close()
	}
	g.hosted = nil
	for i := range g.caches {
		if !g.inArena {
			g.caches[i].Free()
		}
	}
	for i := range g.windows {
		g.windows[i].Free()
	}
	for i := range g.states {
		g.states[i].free()
	}
	g.kept, g.caches, g.windows, g.states = nil, nil, nil, nil
}

// MoE reports whether a layer has experts.
func (g *Group) MoE(layer int) bool { return g.layers[layer-g.First].MoE() }

// Bank returns the experts of a layer.
func (g *Group) Bank(layer int) *expert.Bank { return &g.layers[layer-g.First].Bank }

// Again returns the same group with banks of its own, whose experts may be taken away apart from those of g. It
// uses g's memory, and is not closed.
func (g *Group) Again() *Group {
	c := *g
	c.layers = slices.Clone(g.layers)
	return &c
}

// KVBytes returns the size of the KV cache.
func (g *Group) KVBytes() int64 {
	var n int64
	for at, layer := range g.kept {
		if g.cfg.Layers[g.First+at].KV != g.First+at {
			continue
		}
		for i := range layer {
			n += int64(layer[i].Bytes())
		}
	}
	return n
}
