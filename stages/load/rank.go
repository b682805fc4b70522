package load

import (
	"fmt"

	"krater/kernels/device"
	"krater/stages/model"
)

// Rank is a device with the part of a model that it computes: layer groups, on the first rank
// the embedding, on the last the head.
type Rank struct {
	Device device.Device
	*Parts
}

// Cut is the layers of a rank: from First on, in groups of the given sizes.
type Cut struct {
	First  int
	Groups []int
}

// Layers returns the number of layers.
func (c *Cut) Layers() (n int) {
	for _, size := range c.Groups {
		n += size
	}
	return n
}

// Divide cuts a model's layers into ranks, whose numbers of layers are in ranks, and these into
// layer groups: the given number in all, but at least one per rank and at most one per layer. The
// rank with the largest groups gets the next one.
func Divide(layers, groups int, ranks []int) ([]Cut, error) {
	if len(ranks) < 1 || len(ranks) > layers {
		return nil, fmt.Errorf("load: %d ranks of %d layers: want 1 to %d", len(ranks), layers, layers)
	}
	own, at := make([]int, len(ranks)), 0
	for i, n := range ranks {
		if n < 1 || n > layers-at-(len(ranks)-1-i) {
			return nil, fmt.Errorf("load: ranks of %v layers, of which there are %d: rank %d cannot have %d", ranks, layers, i, n)
		}
		own[i] = 1
		at += n
	}
	if at != layers {
		return nil, fmt.Errorf("load: ranks of %v layers hold %d, the model has %d", ranks, at, layers)
	}
	for range min(groups, layers) - len(ranks) {
		largest := 0
		for i, n := range ranks {
			if n*own[largest] > ranks[largest]*own[i] {
				largest = i
			}
		}
		own[largest]++
	}
	cuts := make([]Cut, len(ranks))
	at = 0
	for i, n := range ranks {
		cuts[i] = Cut{First: at, Groups: Even(n, own[i])}
		at += n
	}
	return cuts, nil
}

// On has o load the layers of a rank.
func (o Options) On(c Cut) Options {
	o.First, o.Layers, o.Partition = c.First, c.Layers(), c.Groups
	return o
}

// Range returns the layers that o loads, those from first to before last.
func (o *Options) Range(cfg *model.Config) (first, last int) {
	if o.Layers == 0 {
		return o.First, len(cfg.Layers)
	}
	return o.First, o.First + o.Layers
}

// Own returns the model as if it had no other layers than those that o loads.
func (o *Options) Own(cfg *model.Config) *model.Config {
	if o.Layers == 0 {
		return cfg
	}
	own := *cfg
	own.Layers = cfg.Layers[o.First : o.First+o.Layers]
	return &own
}

// Ends says which ends of a model a load has besides its layers.
type Ends uint8

const (
	// OwnEnds has the embedding with the first layer of the model and the head with the last one.
	OwnEnds Ends = iota
	// NoEnds has neither.
	NoEnds
	// BothEnds has both.
	BothEnds
)

// embeds reports whether o loads the embedding.
func (o *Options) embeds() bool { return o.Ends == BothEnds || o.Ends == OwnEnds && o.First == 0 }

// heads reports whether o loads the head.
func (o *Options) heads(cfg *model.Config) bool {
	return o.Ends == BothEnds || o.Ends == OwnEnds && o.First+o.Layers == len(cfg.Layers)
}
