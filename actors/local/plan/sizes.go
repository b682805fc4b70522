package plan

import (
	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/scheduler/planner"
	"krater/stages/load"
	"krater/stages/model"
)

// Sizes are the bytes of layers, each measured alone, for a division among devices or machines.
type Sizes struct {
	Layers []LayerSize
	Ends   int64 // embedding and head
	Head   int64
	Fixed  int64 // on each device, whatever layers it has: batches, scratch memory and the like
	// Active is the share of the layers that a generated token reads: of routed experts those that are chosen.
	Active float64
}

// LayerSize is the bytes of a layer.
type LayerSize struct {
	Weights int64
	States  int64 // of sequences
	Cache   int64 // with the KV blocks that it was measured with
	Block   int64 // of one KV block
}

// SizesOf measures layers, n from first on. of says how each is loaded.
func SizesOf(cfg *model.Config, first, n int, use load.Use, of func(load.Cut) (load.Options, error)) (*Sizes, error) {
	s, embedding, all, active := new(Sizes), int64(0), 0.0, 0.0
	for i := range n {
		o, err := of(load.Cut{First: first + i, Groups: []int{1}})
		if err != nil {
			return nil, err
		}
		needs, err := load.Plan(cfg, o, use)
		if err != nil {
			return nil, err
		}
		x, rest, part := LayerSize{Block: config.KVSizeOf(cfg, &o).Block}, int64(0), predict.ByPart(needs)
		for p, bytes := range part {
			switch {
			case p == load.Head:
				s.Head = bytes
			case p == load.Embedding:
				embedding = bytes
			case p.Weight():
				x.Weights = planner.Add(x.Weights, bytes)
			case p == load.KVCache:
				x.Cache = bytes
			case p == load.SequenceStates:
				x.States = bytes
			default:
				rest = planner.Add(rest, bytes)
			}
		}
		s.Layers, s.Fixed = append(s.Layers, x), max(s.Fixed, rest)
		bytes := float64(x.Weights) + float64(x.Cache) + float64(x.States)
		all += bytes
		active += bytes
		if experts := cfg.MoE.Experts; experts > 0 {
			active -= float64(part[load.Experts]) * (1 - float64(cfg.MoE.Router.TopK)/float64(experts))
		}
	}
	s.Ends, s.Active = planner.Add(embedding, s.Head), max(1, active)/max(1, all)
	return s, nil
}
