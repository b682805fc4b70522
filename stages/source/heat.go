package source

import (
	"errors"
	"fmt"

	"krater/scheduler/heat"
	"krater/stages/model"
	"krater/stages/weights"
)

// errNoExperts is the error for a dense model.
var errNoExperts = errors.New("the model has no routed experts")

// HeatIdentity returns a hash of what decides a model's routing: config.json, and the routers as digest has them. Another
// checkpoint of the same shape is therefore another model, and the same weights in another precision are the same model.
func (s *Source) HeatIdentity(cfg *model.Config) (heat.Identity, error) {
	config, err := s.Read("config.json", false)
	if err != nil {
		return heat.Identity{}, err
	}
	sum, err := s.digest(func(*weights.Set) (routers []string) {
		for layer := range cfg.Layers {
			if cfg.MoELayer(layer) {
				routers = append(routers, cfg.Layers[layer].Name("router"))
			}
		}
		return routers
	}, []byte("krater heat"), config)
	if err != nil {
		return heat.Identity{}, err
	}
	return heat.Identity(sum), nil
}

// NewHeat returns a heat map of the model without counts, or errNoExperts for a dense model.
func (s *Source) NewHeat(cfg *model.Config) (*heat.Map, error) {
	shape := heat.Shape{Experts: cfg.MoE.Experts, TopK: cfg.MoE.Router.TopK}
	for l := range cfg.Layers {
		if cfg.MoELayer(l) {
			shape.Layers = append(shape.Layers, int32(l))
		}
	}
	if len(shape.Layers) == 0 {
		return nil, fmt.Errorf("model %s: %w", s.Name, errNoExperts)
	}
	id, err := s.HeatIdentity(cfg)
	if err != nil {
		return nil, err
	}
	return heat.New(id, shape)
}
