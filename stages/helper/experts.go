// Package helper computes a share of a rank's routed experts on another device, its helper. The
// helper holds some experts of each layer. It gets the rows of a batch over a link, computes the experts
// that it holds, and sends back what they gave: their rows, or on an accelerator the weighted sum of
// each token. The rank computes the other experts at the same time.
package helper

import (
	"fmt"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// Experts are the experts that a helper holds.
type Experts struct {
	dev   device.Device
	accel device.Accelerator // dev as one; nil: it is none
	x     *offload.Experts
	parts *load.Parts   // the rank's, with banks of the helper
	view  *offload.View // of an accelerator
	holds map[int][]bool
}

// New copies experts to dev: those that holds names, [E] for each layer. parts must come from load.Parts.Again of the rank's
// parts, with routed experts on host, called before offload.New took the experts. done, unless nil, is called with the bytes
// copied so far and in all.
func New(dev device.Device, host offload.Host, parts *load.Parts, holds map[int][]bool, done func(bytes, all int64)) (_ *Experts, err error) {
	h := &Experts{dev: dev, accel: dev.Accelerator(), parts: parts, holds: holds}
	h.parts.Arena = nil
	if h.x, err = offload.New(dev, host, h.parts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	slots := 0
	for _, list := range holds {
		slots += count(list)
	}
	if _, err := h.x.Room(slots); err != nil {
		return nil, err
	}
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if h.accel != nil {
		if h.view, err = h.x.NewView(s); err != nil {
			return nil, err
		}
	}
	at := 0
	for _, layer := range h.x.Layers() {
		table := make([]int32, len(holds[layer]))
		for e, held := range holds[layer] {
			if table[e] = -1; !held {
				continue
			}
			if err := h.x.Load(s, at, layer, e, 1); err != nil {
				return nil, err
			}
			table[e] = int32(at)
			at++
		}
		if h.view != nil {
			h.view.Set(s, layer, table)
		}
		if err := s.Synchronize(); err != nil {
			return nil, fmt.Errorf("experts of layer %d: %w", layer, err)
		}
		if done != nil {
			done(int64(at)*int64(h.x.SlotBytes()), int64(slots)*int64(h.x.SlotBytes()))
		}
	}
	return h, nil
}

// count returns the number of true values in list.
func count(list []bool) (n int) {
	for _, set := range list {
		if set {
			n++
		}
	}
	return n
}

// Close frees the experts. Nothing may run on them.
func (h *Experts) Close() {
	if h.view != nil {
		h.view.Close()
	}
	h.x.Close()
}

// Device returns the helper.
func (h *Experts) Device() device.Device { return h.dev }

// Holds are the experts of a layer that the helper holds, [E]; nil for a dense layer.
func (h *Experts) Holds(layer int) []bool { return h.holds[layer] }

// sums reports whether a token's results travel as their weighted sum.
func (h *Experts) sums() bool { return h.x.ReturnsSums() }

// bank are the helper's experts of a layer.
func (h *Experts) bank(layer int) *expert.Bank {
	for _, g := range h.parts.Groups {
		if layer >= g.First && layer < g.Last {
			return g.Bank(layer)
		}
	}
	return nil
}

// stageRows is the most rows of experts that travel at once.
const stageRows = 8192

// Bytes returns the memory that a Worker takes, of the helper and of the rank, for batches within lim; group is
// that of rows as integers, 0 without.
func Bytes(cfg *model.Config, lim stages.Limits, group int, l device.Layout) (helper, rank int64) {
	rows, k, h := int64(lim.LayerRows()), int64(cfg.MoE.Router.TopK), int64(cfg.Hidden)
	helper = rows * ((1+k)*h*int64(device.RowType(l).Size()) + 8*k)
	if group > 0 {
		helper += int64(device.QRowsBytes(lim.LayerRows(), cfg.Hidden, group))
	}
	if l != nil && !l.HostRows() {
		sums := rows * h * int64(l.RowType().Size())
		return helper + sums, sums
	}
	stage := min(stageRows, rows*k) * (4*h + 4)
	return helper + stage, stage
}
