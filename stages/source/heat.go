package source

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"krater/scheduler/heat"
	"krater/stages/model"
	"krater/stages/weights"
)

// errNoExperts is the error for a dense model.
var errNoExperts = errors.New("the model has no routed experts")

// heatSampleBytes is how many bytes of each router HeatIdentity covers.
const heatSampleBytes = 4096

// HeatIdentity returns a hash of what decides a model's routing: config.json, and each router's
// name, type, shape and 4 KiB from its middle. Another checkpoint of the same shape is therefore
// another model, and the same weights in another precision are the same model. For random weights
// it is the hash of config.json alone, which names their seed and skew.
func (s *Source) HeatIdentity(cfg *model.Config) (heat.Identity, error) {
	config, err := s.Read("config.json", false)
	if err != nil {
		return heat.Identity{}, err
	}
	if s.Synth != nil {
		return heatDigest(config, cfg, nil)
	}
	set, err := s.Open()
	if err != nil {
		return heat.Identity{}, fmt.Errorf("model %s: %w", s.Name, err)
	}
	defer set.Close()
	id, err := heatDigest(config, cfg, set)
	if err != nil {
		return id, fmt.Errorf("model %s: %w", s.Name, err)
	}
	return id, nil
}

func heatDigest(config []byte, cfg *model.Config, set *weights.Set) (heat.Identity, error) {
	h := sha256.New()
	piece := func(b []byte) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	piece([]byte("krater heat"))
	piece(config)
	for layer := 0; layer < len(cfg.Layers) && set != nil; layer++ {
		if !cfg.MoELayer(layer) {
			continue
		}
		name := cfg.Layers[layer].Name("router")
		t, ok := set.Tensor(name)
		if !ok {
			return heat.Identity{}, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
		}
		piece([]byte(fmt.Sprintf("%s %s %v", name, t.Encoding(), t.Shape)))
		for _, stored := range t.Stored() {
			from := max(0, len(stored)-heatSampleBytes) / 2
			piece(stored[from:min(len(stored), from+heatSampleBytes)])
		}
	}
	return heat.Identity(h.Sum(nil)), nil
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
