package predict

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/scheduler/files"
	"krater/scheduler/heat"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/routing"
)

// ServedFile records what this machine served of a model with the strategy learned, for later plans.
type ServedFile struct {
	Machine string `json:"machine"` // Identity
	Card    string `json:"card"`
	Model   string `json:"model"`
	Layers  int    `json:"layers"` // with experts
	Experts int    `json:"experts"`
	Bytes   int64  `json:"expert_bytes"` // on the GPU
	forecast.Served
}

// servedMost bounds the file.
const servedMost = 1 << 12

// likeBytes is how much experts may differ in size to be of the same format: slots are rounded up.
const likeBytes = 0.05

// servedPath is where the file of a model lies.
func servedPath(dir, id, model string) (string, error) {
	path, err := RatesPath(dir, id)
	sum := sha256.Sum256([]byte(model))
	return filepath.Join(filepath.Dir(path), fmt.Sprintf("served-%s-%x.json", id, sum[:8])), err
}

// KeepServed keeps what a GPU whose rates were measured on this machine served of a model, for the plans of that model.
// Too little is not kept.
func KeepServed(f *config.Options, m *machine.Machine, on config.RankFacts, x ServedFile) error {
	id := Identity(m, f.ThreadCount())
	if x.Tokens < forecast.ServedLeast || !sameGPU(Kept(f.CacheDir, id), on.Name, on.Capacity) {
		return nil
	}
	x.Machine, x.Card = id, on.Name
	data, err := json.Marshal(x)
	if err != nil {
		return err
	}
	path, err := servedPath(f.CacheDir, id, x.Model)
	if err != nil {
		return err
	}
	return replaceFile(path, ".served-*", data)
}

// keptServed returns what was kept of a model; nil if there is nothing that can be used.
func keptServed(f *config.Options, m *machine.Machine, card, model string, s *forecast.Shape) *forecast.Served {
	id := Identity(m, f.ThreadCount())
	path, err := servedPath(f.CacheDir, id, model)
	if err != nil {
		return nil
	}
	data, err := files.Read(path, servedMost)
	if err != nil {
		return nil
	}
	var x ServedFile
	if json.Unmarshal(data, &x) != nil || x.Machine != id || x.Card != card || x.Model != model || x.Layers != s.MoE || x.Experts != s.Experts ||
		math.Abs(float64(x.Bytes)/float64(s.ExpertCard)-1) > likeBytes {
		return nil
	}
	return &x.Served
}

// curveAt are the sizes of memory, as parts of all experts, for which recorded choices are replayed.
var curveAt = []float64{1. / 16, 1. / 8, 1. / 4, 3. / 8, 1. / 2, 3. / 4}

// route sets how tokens spread over experts by a file: recorded choices, which are replayed for learned, or a heat map.
func (p *Flags) route(c *forecast.Case) error {
	if p.Routing == "" {
		return nil
	}
	curve, err := routing.ReadCurve(p.Routing, curveAt)
	var counts [][]uint32
	var shape heat.Shape
	switch {
	case err == nil:
		counts, shape = curve.Counts, curve.Shape
	case errors.Is(err, routing.ErrFormat):
		m, err := heat.Load(p.Routing)
		if err != nil {
			return fmt.Errorf("--routing %s: neither recorded choices nor a heat map: %w", p.Routing, err)
		}
		counts, shape = m.Scaled(), m.Shape()
	default:
		return fmt.Errorf("--routing: %w", err)
	}
	if len(shape.Layers) != c.Shape.MoE || shape.Experts != c.Shape.Experts || shape.TopK != c.Shape.TopK {
		return fmt.Errorf("--routing %s: of a model of %d layers with %d experts, of which a token takes %d; this one has %d with %d, and takes %d",
			p.Routing, len(shape.Layers), shape.Experts, shape.TopK, c.Shape.MoE, c.Shape.Experts, c.Shape.TopK)
	}
	if c.Skew, err = forecast.Counted(counts, c.Shape.Experts); err != nil || curve == nil {
		return err
	}
	c.Skew.Name = "recorded"
	var hits []forecast.Hit
	for i, part := range curveAt {
		hits = append(hits, forecast.Hit{Places: part, Share: curve.Hits[i].Share()})
	}
	c.Learned.Hits, err = forecast.Replayed(hits, c.Shape.Experts)
	return err
}
